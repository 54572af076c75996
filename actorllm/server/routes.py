"""The routes of OpenAI's API: what a path does with the engine."""

import time
from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from ..engine.engine import Engine
from .anthropic.routes import open_messages_router
from .asking import Asking, json_response
from .bodies.fields import LENIENT
from .chat.answer import ChatAnswer
from .chat.request import ChatRequest
from .completions.answer import CompletionAnswer
from .completions.request import CompletionRequest
from .guards.opened import must_be_open
from .responses.routes import open_responses_router
from .settings import ServerSettings
from .token_routes import open_token_router


def open_router(engine: Engine, settings: ServerSettings) -> APIRouter:
    """The routes of an engine, which may open later; until then, and afterwards, they raise Unavailable."""
    asking = Asking(engine, settings)
    routes = Routes(asking)
    first = [Depends(must_be_open(engine)), Depends(_leniency(settings))]
    router = APIRouter(redirect_slashes=False, dependencies=first)
    router.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"], response_model=None)
    router.add_api_route("/v1/completions", routes.completion, methods=["POST"], response_model=None)
    router.add_api_route("/v1/models", routes.models, methods=["GET"], response_model=None)
    router.add_api_route("/v1/models/{model:path}", routes.model, methods=["GET"], response_model=None)
    router.include_router(open_token_router(asking))
    router.include_router(open_responses_router(asking))
    router.include_router(open_messages_router(asking))
    return router


def _leniency(settings: ServerSettings) -> Callable[[], Awaitable[None]]:
    """Tells the bodies of a request, which are read behind it, what to do with unknown fields."""

    async def tell() -> None:
        LENIENT.set(settings.ignore_unknown_fields)

    return tell


class Routes:
    """The functions behind the paths."""

    def __init__(self, asking: Asking) -> None:
        self._engine = asking.engine
        self._asking = asking
        self._created = int(time.time())

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = self._asking.served(body.model)
        with body.named():
            stream, reading = await self._asking.chat(body, request)
            answer = ChatAnswer(body, model, reading, self._engine.tokenizer)
            return await self._asking.respond(request, body.stream, [stream], answer)

    async def completion(self, body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        model = self._asking.served(body.model)
        with body.named():
            params, service = body.params(), self._asking.service(body, request)
            ask = partial(self._engine.generate, add_special_tokens=body.add_special_tokens)
            streams = [ask(prompt, params, **service) for prompt in body.prompt]
            answer = CompletionAnswer(body, model, self._engine.tokenizer)
            return await self._asking.respond(request, body.stream, streams, answer)

    async def models(self) -> Response:
        """The one model, in a list."""
        return json_response({"object": "list", "data": [self._card()]})

    async def model(self, model: str) -> Response:
        """The one model, by its name."""
        self._asking.served(model)
        return json_response(self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self._engine.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "actorllm",
            "root": self._engine.config.model,
            "parent": None,
            "max_model_len": self._engine.max_model_len,
        }
