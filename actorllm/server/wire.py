"""The way of a stream to its client: begun with the first event, kept alive, given up when nobody reads."""

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import TypeVar

import anyio
from starlette.types import Message, Receive, Send

T = TypeVar("T")

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients skip."""


class Unread(Exception):  # named by what happened; it never reaches anybody outside
    """The client has not read for too long."""


class Gone(Exception):  # the same; an OSError could be anybody's
    """The server has failed to send: the client has gone."""


class Wire:
    """Where the events of one response are written.

    keep_alive  seconds without an event after which a comment is sent
    unread      seconds that the client may take until it reads what waits for it
    begun       whether something was sent, if only in vain: what fails from now on is an event
    opened      set when events may be sent; whoever sends a comment sets it, too
    """

    def __init__(
        self, send: Send, headers: Sequence[tuple[bytes, bytes]], keep_alive: float, unread: float
    ) -> None:
        self.begun = False
        self.opened = anyio.Event()
        self._send = send
        self._headers = headers
        self._keep_alive = keep_alive
        self._unread = unread
        self._lock = anyio.Lock(fast_acquire=True)
        self._started = False
        self._written = anyio.current_time()
        self._writing_since = inf

    async def write(self, data: bytes, more: bool = True) -> None:
        """Send events, behind what is being sent. Waits until the client has read enough. Raises Gone."""
        async with self._lock:
            self.begun = True
            self._writing_since = anyio.current_time()
            if not self._started:
                await self._say({"type": "http.response.start", "status": 200, "headers": self._headers})
                self._started = True  # not sooner: a start that was cancelled is sent again
                self._writing_since = anyio.current_time()
            await self._say({"type": "http.response.body", "body": data, "more_body": more})
            self._written, self._writing_since = anyio.current_time(), inf

    async def _say(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:
            raise Gone from error

    async def watch(self) -> None:
        """Send a comment whenever nothing has been sent for long. Raises Unread and Gone."""
        while True:
            now = anyio.current_time()
            is_writing = self._writing_since < inf
            if is_writing and now >= self._writing_since + self._unread:
                raise Unread
            if not is_writing and now >= self._written + self._keep_alive:
                with anyio.move_on_after(self._unread) as scope:
                    await self.write(KEEP_ALIVE)
                self.opened.set()
                if scope.cancelled_caught:
                    raise Unread
                continue
            late = min(self._writing_since, now) + self._unread
            await anyio.sleep_until(late if is_writing else min(late, self._written + self._keep_alive))


async def while_connected(
    receive: Receive, work: Callable[[], Awaitable[T]], watch: Callable[[], Awaitable[None]] | None = None
) -> T | None:
    """What `work` returns or raises; it is cancelled when the client goes, and None is returned then.

    `watch` runs beside it; what it raises cancels the work, too. `receive` must have delivered the body of
    the request.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        nursery.cancel_scope.cancel()

    async def run(job: Callable[[], Awaitable[object]]) -> None:
        try:
            await job()
        except Exception as error:
            failures.append(error)
        nursery.cancel_scope.cancel()

    async def finish() -> None:
        results.append(await work())

    async with anyio.create_task_group() as nursery:
        nursery.start_soon(listen)
        if watch is not None:
            nursery.start_soon(run, watch)
        await run(finish)
    if failures:
        raise failures[0]
    return results[0] if results else None


async def gather(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """What all jobs return, in their order. The first that raises cancels the others."""
    if len(jobs) == 1:
        return [await jobs[0]()]
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
