"""Responses that last: server-sent events, and work that ends when its client goes."""

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from ..engine.outputs import RequestOutput
from ..engine.stream import Stream
from ..errors import ActorLLMError

T = TypeVar("T")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return _encode(value).encode()


class Chunks(Protocol):
    """What the events of an answer say."""

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Before the first text of a choice."""

    def chunks(self, index: int, output: RequestOutput) -> list[dict[str, Any]]:
        """What is new in a choice."""

    def closing(self, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """After the last text of all; `outputs` are the last ones of the choices."""

    def failure(self, error: Exception) -> dict[str, Any]:
        """Instead of the rest, when there is none."""


class EventStream(Response):
    """Streams, one a choice, as events whose choices interleave; `[DONE]` follows a success only.

    What fails before every prompt is accepted and the first choice has begun is raised, so that it
    becomes the response; what fails later is an event. A client that goes, or a cancellation, aborts
    all of the streams.
    """

    media_type = "text/event-stream"

    def __init__(self, streams: Sequence[Stream], answer: Chunks) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._streams = streams
        self._answer = answer
        self._last: dict[int, RequestOutput] = {}
        self._lock = anyio.Lock(fast_acquire=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        try:
            await while_connected(receive, partial(self._respond, send))
        finally:
            for stream in self._streams:
                stream.close()

    async def _respond(self, send: Send) -> None:
        await gather([stream.accepted for stream in self._streams])
        first = await anext(self._streams[0])
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await gather(
                [
                    partial(self._relay, send, index, None if index else first)
                    for index in range(len(self._streams))
                ]
            )
        except OSError:
            return  # the client has gone, and its server tells by failing to send
        except Exception as error:
            await self._event(send, dumps(self._answer.failure(error)))
            await send({"type": "http.response.body", "body": b""})
            if not isinstance(error, ActorLLMError):
                raise
        else:
            for chunk in self._answer.closing([self._last[index] for index in range(len(self._streams))]):
                await self._event(send, dumps(chunk))
            await self._event(send, b"[DONE]")
            await send({"type": "http.response.body", "body": b""})

    async def _relay(self, send: Send, index: int, first: RequestOutput | None) -> None:
        """One choice, from its first output (which may be here already) to its last."""
        for chunk in self._answer.opening(index):
            await self._event(send, dumps(chunk))
        output = first or await anext(self._streams[index], None)
        while output is not None:
            self._last[index] = output
            for chunk in self._answer.chunks(index, output):
                await self._event(send, dumps(chunk))
            output = await anext(self._streams[index], None)

    async def _event(self, send: Send, data: bytes) -> None:
        event = {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True}
        if len(self._streams) == 1:  # nobody else sends
            await send(event)
            return
        async with self._lock:
            await send(event)


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """What `work` returns or raises; it is cancelled when the client goes, and None is returned then.

    `receive` must have delivered the body of the request.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        nursery.cancel_scope.cancel()

    async with anyio.create_task_group() as nursery:
        nursery.start_soon(watch)
        try:
            results.append(await work())
        except Exception as error:
            failures.append(error)
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return results[0] if results else None


async def gather(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """What all jobs return, in their order. The first that raises cancels the others."""
    results: dict[int, T] = {}
    failures: list[Exception] = []

    async def run(index: int, job: Callable[[], Awaitable[T]]) -> None:
        try:
            results[index] = await job()
        except Exception as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with anyio.create_task_group() as nursery:
        for index, job in enumerate(jobs):
            nursery.start_soon(run, index, job)
    if failures:
        raise failures[0]
    return [results[index] for index in range(len(jobs))]
