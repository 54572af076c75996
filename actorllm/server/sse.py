"""Answers as server-sent events."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from ..engine.outputs import RequestOutput
from ..engine.stream import Stream
from ..errors import ActorLLMError
from .settings import ServerSettings
from .wire import Gone, Unread, Wire, gather, while_connected

_encode = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, check_circular=False, allow_nan=False
).encode


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8. Raises ValueError for a number that is not finite: no client could read it."""
    return _encode(value).encode()


def unnamed(chunk: dict[str, Any]) -> bytes:
    """An event that is nothing but its data."""
    return b"data: " + dumps(chunk) + b"\n\n"


def named(chunk: dict[str, Any]) -> bytes:
    """An event that is called as its data's `type`."""
    return f"event: {chunk['type']}\ndata: ".encode() + dumps(chunk) + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""How OpenAI's streams say that nothing more comes."""


class Chunks(Protocol):
    """What the events of an answer say, and how they are written."""

    done: bytes
    """What follows a success, and only that."""

    def frame(self, chunk: dict[str, Any]) -> bytes:
        """One event, as it is sent."""

    def chunks(self, place: int, output: RequestOutput) -> list[dict[str, Any]]:
        """What is new in the choices of a stream."""

    def closing(self, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """After the last news of all; `outputs` are the last ones of the streams."""

    def failure(self, error: Exception) -> list[dict[str, Any]]:
        """Instead of the rest, when there is none."""

    def named(self) -> AbstractContextManager[None]:
        """A block in which errors get the names that the client knows."""


class EventStream(Response):
    """Streams, one a prompt, as events whose choices interleave.

    What fails before every prompt is accepted and the first answer has begun is raised, so that it
    becomes the response, unless the client was kept waiting so long that it got a comment; what fails
    later is an event. From that comment on no answer waits for the prompts of others. A client that
    goes, one that does not read, and a cancellation abort all streams.
    """

    media_type = "text/event-stream"

    def __init__(self, streams: Sequence[Stream], answer: Chunks, settings: ServerSettings) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._streams = streams
        self._answer = answer
        self._settings = settings
        self._num_accepted = 0
        self._last: dict[int, RequestOutput] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application. It returns without an end when the client does not read or has gone."""
        settings = self._settings
        wire = Wire(send, self.raw_headers, settings.keep_alive_interval, settings.unread_timeout)
        try:
            with self._answer.named():
                await while_connected(receive, partial(self._respond, wire), wire.watch)
        except (Unread, Gone):
            return
        finally:
            for stream in self._streams:
                stream.close()

    async def _respond(self, wire: Wire) -> None:
        frame = self._answer.frame
        try:
            places = range(len(self._streams))
            await gather([partial(self._relay, wire, place) for place in places])
            closing = self._answer.closing([self._last[place] for place in places])
            end = b"".join(map(frame, closing)) + self._answer.done
        except Gone:
            raise
        except Exception as error:
            if not wire.begun:
                raise
            await wire.write(b"".join(map(frame, self._answer.failure(error))), more=False)
            if not isinstance(error, ActorLLMError):
                raise
        else:
            await wire.write(end, more=False)

    async def _relay(self, wire: Wire, place: int) -> None:
        """The choices of one stream; all that an output brings is one write."""
        await self._streams[place].accepted()
        self._num_accepted += 1
        if self._num_accepted == len(self._streams):
            wire.opened.set()
        await wire.opened.wait()
        frame = self._answer.frame
        async for output in self._streams[place]:
            self._last[place] = output
            chunks = self._answer.chunks(place, output)
            if chunks:
                await wire.write(b"".join(map(frame, chunks)))
