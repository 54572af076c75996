"""From a request to its response, by whatever API it came."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import anyio.to_thread
from fastapi import Request
from fastapi.responses import Response

from ..engine.engine import Engine
from ..engine.outputs import RequestOutput
from ..engine.stream import Stream
from ..params import SamplingParams
from ..service import Service
from .bodies.requests import AnyRequest
from .chat.reading import Formats, Reading
from .chat.request import ChatRequest
from .errors import NoSuchModel
from .guards.access import CLIENT_GONE
from .guards.paths import notes
from .settings import ServerSettings
from .sse import Chunks, EventStream, dumps
from .wire import gather, while_connected


class Wholes(Chunks, Protocol):
    """An answer that can also be told as a whole."""

    def is_heavy(self, outputs: Sequence[RequestOutput]) -> bool:
        """Whether that takes so long that it is made on a thread."""

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The response that does not stream."""


class Asking:
    """What all APIs do with the engine."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.formats = Formats(engine, settings.tool_parser, settings.reasoning_parser)

    def served(self, name: str | None) -> str:
        """The name of the model. Raises NoSuchModel for another one, and EngineClosed."""
        served = self.engine.model_name
        if name is not None and name != served:
            raise NoSuchModel(name, served)
        return served

    def service(self, body: AnyRequest, request: Request) -> Service:
        """For whom and how soon it is served: what the body says, within what the server allows."""
        known = notes(request.scope)
        return body.service(known.get("tenant", ""), known.get("timeout"))

    async def chat(self, body: ChatRequest, request: Request) -> tuple[Stream, Reading]:
        """Answer a conversation, and how its answers are read. Raises InvalidRequest."""
        reading = body.reading(self.formats)
        template = body.template(self.engine.tokenizer.chat)
        messages = body.conversation()
        prompt = ""
        if reading.reasoning is not None and body.may_enforce:
            prompt = await self.engine.render_chat(messages, **template)
        make = partial(_params, body, reading, prompt)
        params = await anyio.to_thread.run_sync(make) if body.may_enforce else make()
        service = self.service(body, request)
        return self.engine.chat(messages, params, **template, **service), reading

    async def respond(
        self, request: Request, stream: bool, streams: Sequence[Stream], answer: Wholes
    ) -> Response:
        """The response: events, or the whole when it is there. Nobody reads it when the client has gone."""
        if stream:
            return EventStream(streams, answer, self.settings)
        jobs = [partial(_whole, stream) for stream in streams]
        outputs = await while_connected(request.receive, partial(gather, jobs))
        if outputs is None:
            return Response(status_code=CLIENT_GONE)
        if answer.is_heavy(outputs):
            return await anyio.to_thread.run_sync(lambda: json_response(answer.whole(outputs)))
        return json_response(answer.whole(outputs))


def _params(body: ChatRequest, reading: Reading, prompt: str) -> SamplingParams:
    """How the answers are sampled. Schemas can be long: where there is one, it takes milliseconds."""
    changes: dict[str, Any] = {"structured_outputs": body.enforced(reading, reading.behind(prompt))}
    if reading.keeps_special:
        changes["skip_special_tokens"] = False
    return body.params(**changes)


async def _whole(stream: Stream) -> RequestOutput:
    async with stream:
        return await stream


def json_response(value: object) -> Response:
    """A response of JSON."""
    return Response(dumps(value), media_type="application/json")
