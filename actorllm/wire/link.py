"""A link: an outbox here and an inbox there, over a stream of bytes between two processes.

Actors never touch a socket. They put mail into a mailbox, which never waits; a task of the link takes it
from there, and another one hands on what the peer has sent. So a sender that is cancelled cannot tear a
frame, and near and far look the same.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import anyio
import anyio.abc

from ..errors import DecodeError, LinkLost, LinkRefused
from ..messages import MESSAGES, Hello, Message
from .codec import decode, encode
from .frames import FrameReader, frame
from .mailbox import Inbox

PROTOCOL = 1
"""Counts what the vocabulary does not show: the framing, the greeting, and the meaning of messages."""

GOODBYE = frame(b"")
"""The last frame each way. A stream that ends without one has lost its peer."""


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """Messages since the start: given to the stream, and delivered."""

    num_sent: int
    num_received: int


class Link:
    """Bridges mailboxes over a stream; the peer runs one too.

    - The peer's `deliver` is called with a prefix of what was put into the outbox: whole messages, in
      their order, each once.
    - A link that ends without an error has delivered all of it, both ways.
    - After an error or a cancellation the prefix may be any. What was taken from the outbox and is not
      in it is lost, and the stream is of no more use. What came in whole frames has been delivered.
    - The sender holds no more than one encoded outbox, the receiver one read and one unfinished frame.

    The stream belongs to the caller, who closes it when `run` has ended.
    """

    def __init__(
        self,
        stream: anyio.abc.ByteStream,
        outbox: Inbox[Any],
        deliver: Callable[[Any], None],
        greeting: Hello | None = None,
    ) -> None:
        """`deliver` gets each message of the peer; it must not wait. `greeting` stands in for our own."""
        self._stream = stream
        self._outbox = outbox
        self._deliver = deliver
        self._greeting = greeting or hello()
        self._introduced = anyio.Event()
        self._greeted = anyio.Event()
        self._error: Exception | None = None
        self._sent = self._received = 0

    def statistics(self) -> LinkStatistics:
        """Counters of this moment."""
        return LinkStatistics(self._sent, self._received)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Greet, then carry mail until both sides have said goodbye: ours when the outbox has ended.

        It has started when the peer has greeted too. Raises LinkRefused for a peer of another version,
        LinkLost for one that vanishes, and DecodeError for one that sends what is no message; what
        `deliver` raises passes through. Nothing is taken from the outbox before the peer is accepted.
        """
        async with anyio.create_task_group() as pumps:
            scope = pumps.cancel_scope
            pumps.start_soon(self._guard, self._send, scope)
            pumps.start_soon(self._guard, self._receive, scope)
            await self._greeted.wait()
            task_status.started()
        if self._error is not None:
            raise self._error

    async def _guard(self, pump: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        """The first error ends both pumps and is kept, so that it leaves alone and in no group."""
        try:
            await pump()
        except Exception as error:
            if self._error is None:
                self._error = error
            scope.cancel()

    async def _send(self) -> None:
        await self._write(frame(encode(self._greeting)))
        self._introduced.set()
        await self._greeted.wait()
        while batch := await self._take():
            await self._write(b"".join([frame(encode(message)) for message in batch]))
            self._sent += len(batch)
        await self._write(GOODBYE)

    async def _take(self) -> list[Message]:
        """All that is in the outbox, once there is something; empty when it has ended."""
        batch: list[Message] = []
        try:
            batch.append(await self._outbox.receive())
            while True:
                batch.append(self._outbox.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            return batch

    async def _write(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except anyio.BrokenResourceError as error:
            raise LinkLost("the peer is gone: the stream to it is broken") from error

    async def _receive(self) -> None:
        """No checkpoint falls between a read and the delivery of every whole frame in it.

        After the goodbye nothing more is read.
        """
        reader = FrameReader()
        while True:
            reader.feed(await self._read(reader))
            while (body := reader.poll()) is not None:
                if not self._greeted.is_set():
                    await self._greet(body)
                elif body:
                    self._received += 1
                    self._deliver(decode(body))
                else:
                    return

    async def _read(self, reader: FrameReader) -> bytes:
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            try:
                reader.close()
            except DecodeError as error:
                raise LinkLost(f"the peer is gone: {error}") from None
            raise LinkLost("the peer is gone: the stream ended without a goodbye") from None
        except anyio.BrokenResourceError as error:
            raise LinkLost("the peer is gone: the stream from it is broken") from error

    async def _greet(self, body: bytes) -> None:
        """Accept the peer or not; it has our greeting before we part, so that it can say the same."""
        message = decode(body)
        if not isinstance(message, Hello):
            raise DecodeError(f"the first message must be Hello, not {type(message).__name__}")
        await self._introduced.wait()
        accept(message, self._greeting)
        self._greeted.set()


def accept(theirs: Hello, ours: Hello) -> None:
    """Raise LinkRefused unless both sides speak the same, and say which of them is older."""
    if theirs == ours:
        return
    if theirs.protocol != ours.protocol:
        what = f"protocol {theirs.protocol}, and we speak {ours.protocol}"
    else:
        what = f"a vocabulary of {theirs.num_fields} fields, and ours is another one, of {ours.num_fields}"
    ages = (theirs.protocol, theirs.num_fields), (ours.protocol, ours.num_fields)
    if ages[0] == ages[1]:
        advice = "neither side is older: install the same version of actorllm on both"
    else:
        advice = f"{'the peer' if ages[0] < ages[1] else 'this side'} is older: update actorllm there"
    raise LinkRefused(f"the peer speaks {what}; {advice}")


@cache
def hello() -> Hello:
    """Our greeting."""
    return greeting_of(MESSAGES)


def greeting_of(classes: dict[int, type[Any]]) -> Hello:
    """The greeting of those who speak these messages (by tag).

    The fingerprint covers all that the codec relies on: tags, names of classes and fields, types, and
    defaults, since a field that has its default does not travel.
    """
    lines: list[str] = []
    for tag, cls in sorted(classes.items()):
        lines.append(f"{tag} {cls.__name__}")
        hints = get_type_hints(cls)
        for field in fields(cls):
            default = "" if field.default is MISSING else f" = {field.default!r}"
            lines.append(f"  {field.name}: {_spelled(hints[field.name])}{default}")
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()
    return Hello(PROTOCOL, digest, len(lines))


def _spelled(kind: Any) -> str:
    """A type as text, the same under every version of Python."""
    if get_origin(kind) is tuple:
        return f"tuple[{_spelled(get_args(kind)[0])}, ...]"
    if get_args(kind):
        return " | ".join(_spelled(part) for part in get_args(kind))
    return str(kind.__name__)
