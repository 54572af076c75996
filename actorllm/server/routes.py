"""The routes: what a path does with the engine."""

import time
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..engine.engine import Engine
from ..engine.outputs import RequestOutput
from ..engine.stream import Stream
from .errors import NoSuchModel, error_response
from .openai import Answer, AnyRequest, ChatAnswer, ChatRequest, CompletionAnswer, CompletionRequest
from .sse import EventStream, dumps, gather, while_connected

CLIENT_GONE = 499
"""The status of a response that nobody reads, as nginx has it."""


def open_router(engine: Engine) -> APIRouter:
    """All routes of an engine, which may open later."""
    routes = Routes(engine)
    router = APIRouter(redirect_slashes=False)
    router.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"], response_model=None)
    router.add_api_route("/v1/completions", routes.completion, methods=["POST"], response_model=None)
    router.add_api_route("/v1/models", routes.models, methods=["GET"], response_model=None)
    router.add_api_route("/health", routes.health, methods=["GET"], response_model=None)
    return router


class Routes:
    """The functions behind the paths."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._created = int(time.time())

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = self._served(body.model)
        stream = self._engine.chat(body.conversation(), body.params())
        return await _respond(request, body, [stream], ChatAnswer(model, body.include_usage))

    async def completion(self, body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        model = self._served(body.model)
        params = body.params()
        streams = [self._engine.generate(prompt, params) for prompt in body.prompt]
        return await _respond(request, body, streams, CompletionAnswer(model, body.include_usage))

    async def models(self) -> Response:
        """The one model."""
        model = {
            "id": self._engine.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "actorllm",
            "root": self._engine.config.model,
            "parent": None,
            "max_model_len": self._engine.max_model_len,
        }
        return _json({"object": "list", "data": [model]})

    async def health(self) -> Response:
        """Whether the engine is open; if it is not, why."""
        closed = self._engine.closed
        if closed is not None:
            return error_response(closed)
        return _json({"status": "ok", "model": self._engine.model_name})

    def _served(self, name: str | None) -> str:
        """The name of the model. Raises NoSuchModel for another one, and EngineClosed."""
        served = self._engine.model_name
        if name is not None and name != served:
            raise NoSuchModel(name, served)
        return served


async def _respond(request: Request, body: AnyRequest, streams: Sequence[Stream], answer: Answer) -> Response:
    if body.stream:
        return EventStream(streams, answer)
    jobs = [partial(_whole, stream) for stream in streams]
    outputs = await while_connected(request.receive, partial(gather, jobs))
    return Response(status_code=CLIENT_GONE) if outputs is None else _json(answer.whole(outputs))


async def _whole(stream: Stream) -> RequestOutput:
    async with stream:
        return await stream


def _json(value: object) -> Response:
    return Response(dumps(value), media_type="application/json")
