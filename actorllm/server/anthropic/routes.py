"""The routes of Anthropic's API, and its shape for whatever error is raised on them."""

import json

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..asking import Asking, json_response
from ..guards.paths import notes, route_path
from .answer import MessageAnswer, shaped
from .request import CountRequest, MessagesRequest

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


def open_messages_router(asking: Asking) -> APIRouter:
    """/v1/messages and /v1/messages/count_tokens."""
    routes = MessagesRoutes(asking)
    router = APIRouter(redirect_slashes=False)
    router.add_api_route(MESSAGES, routes.message, methods=["POST"], response_model=None)
    router.add_api_route(COUNT_TOKENS, routes.count_tokens, methods=["POST"], response_model=None)
    return router


class MessagesRoutes:
    """The functions behind the paths."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def message(self, body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = self._asking.served(body.model)
        chat = body.to_chat(self._asking.engine, self._asking.formats)
        with body.named(chat):
            stream, reading = await self._asking.chat(chat, request)
            answer = MessageAnswer(body, chat, model, reading, self._asking.engine.tokenizer)
            return await self._asking.respond(request, body.stream, [stream], answer)

    async def count_tokens(self, body: CountRequest) -> Response:
        """The tokens that a conversation has as a prompt."""
        self._asking.served(body.model)
        engine = self._asking.engine
        chat = body.to_chat(engine, self._asking.formats)
        with body.named(chat):
            template = chat.template(engine.tokenizer.chat)
            tokens = await engine.tokenize_chat(chat.conversation(), **template)
        return json_response({"input_tokens": len(tokens)})


class MessagesErrors:
    """Errors on these paths have Anthropic's shape, whoever raises them, and responses a `request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http" or route_path(scope) not in (MESSAGES, COUNT_TOKENS):
            await self.app(scope, receive, send)
            return
        name: str = notes(scope).get("request_id", "")
        held: Message | None = None
        body = b""

        async def send_shaped(message: Message) -> None:
            nonlocal held, body
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["request-id"] = name
                if message["status"] >= 400:
                    held = message
                    return
            if held is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                body = _reshaped(body, name)
                MutableHeaders(scope=held)["content-length"] = str(len(body))
                await send(held)
                await send({"type": "http.response.body", "body": body})

        await self.app(scope, receive, send_shaped)


def _reshaped(body: bytes, request_id: str) -> bytes:
    """The body of an error, in Anthropic's shape; what is no error of this server's stays as it is."""
    try:
        error = json.loads(body)["error"]
        found = shaped(error)
    except (ValueError, TypeError, LookupError):
        return body
    return json.dumps(found | {"request_id": request_id}).encode()
