"""A stream of bytes in memory, between two tasks, that cuts and delays what it carries as a seed says."""

from collections import deque
from random import Random

import anyio
import anyio.abc
import anyio.lowlevel

from .scenarios import SECOND

ROOM = 2048
"""Bytes that may be on their way; who sends more waits."""


class _Way:
    """One direction. A piece that was sent at some time arrives whole ticks later, behind the one before."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.last_due = 0.0
        self.ended = self.abandoned = False
        self._changed = anyio.Event()

    async def wait(self) -> None:
        """Until something has changed."""
        await self._changed.wait()

    def change(self) -> None:
        """Wake who waits."""
        self._changed.set()
        self._changed = anyio.Event()


class PipeEnd(anyio.abc.ByteStream):
    """One end of a pipe; it behaves as a socket's does. `num_cuts` counts pieces that were cut in two."""

    def __init__(self, random: Random, longest_delay: int, outgoing: _Way, incoming: _Way) -> None:
        self._random = random
        self._longest_delay = longest_delay
        self._out = outgoing
        self._in = incoming
        self._closed = False
        self.num_cuts = 0

    async def send(self, item: bytes) -> None:
        """Send the bytes in pieces, with a checkpoint before each: a cancelled send may have sent some.

        Raises BrokenResourceError when the other end is closed.
        """
        rest = item
        while rest:
            await anyio.lowlevel.checkpoint()
            while self._out.size >= ROOM and not self._out.abandoned:
                await self._out.wait()
            if self._closed:
                raise anyio.ClosedResourceError
            if self._out.abandoned:
                raise anyio.BrokenResourceError
            piece = self._cut(rest, ROOM - self._out.size)
            rest = rest[len(piece) :]
            due = anyio.current_time() + self._random.randint(0, self._longest_delay) / SECOND
            self._out.last_due = due = max(due, self._out.last_due)
            self._out.pieces.append((due, piece))
            self._out.size += len(piece)
            self._out.change()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """The beginning of what has arrived; waits for it. Raises EndOfStream when the other end closed."""
        await anyio.lowlevel.checkpoint()
        while not self._in.pieces:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._in.ended:
                raise anyio.EndOfStream
            await self._in.wait()
        if self._in.pieces[0][0] > anyio.current_time():
            await anyio.sleep_until(self._in.pieces[0][0])
        due, arrived = self._in.pieces.popleft()
        piece = self._cut(arrived, max_bytes)
        if len(piece) < len(arrived):
            self._in.pieces.appendleft((due, arrived[len(piece) :]))
        self._in.size -= len(piece)
        self._in.change()
        return piece

    async def send_eof(self) -> None:
        """Nothing more comes from here."""
        await anyio.lowlevel.checkpoint()
        self._out.ended = True
        self._out.change()

    async def aclose(self) -> None:
        """Close this end: the other one reads what is on its way and then hears of the end."""
        self._closed = True
        self._out.ended = self._in.abandoned = True
        self._out.change()
        self._in.change()
        await anyio.lowlevel.checkpoint()

    def _cut(self, data: bytes, most: int) -> bytes:
        """The first part of the data: all that may be, or less."""
        size = min(len(data), most)
        if size > 1 and self._random.random() < 0.3:
            size = self._random.randint(1, size - 1)
            self.num_cuts += 1
        return data[:size]


def open_pipe(random: Random, longest_delay: int = 0) -> tuple[PipeEnd, PipeEnd]:
    """Both ends of a pipe; each piece takes up to so many ticks."""
    there, back = _Way(), _Way()
    return PipeEnd(random, longest_delay, there, back), PipeEnd(random, longest_delay, back, there)
