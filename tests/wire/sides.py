"""Both ends of a link over a pipe that cuts what it carries."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import anyio.abc

from actorllm.messages import Abort, Hello, Message, Seen, Tokens, pack_ids
from actorllm.testing.pipe import open_pipe
from actorllm.wire.codec import encode
from actorllm.wire.frames import frame
from actorllm.wire.link import Link, hello
from actorllm.wire.mailbox import Mailbox, open_mailbox

HELLO = frame(encode(hello()))

WORDS: tuple[Message, ...] = (
    Seen(1),
    Tokens(2, pack_ids([7, 8]), b"\0" * 3000, ()),
    Abort(3),
    *(Seen(step) for step in range(4, 30)),
)


@dataclass
class Side:
    """One end of a link: its outbox, what has been delivered, and its stream."""

    stream: anyio.abc.ByteStream
    outbox: Mailbox[Any] = field(default_factory=lambda: open_mailbox(100))
    heard: list[Any] = field(default_factory=list)
    greeting: Hello | None = None

    @property
    def link(self) -> Link:
        return Link(self.stream, self.outbox.inbox, self.heard.append, self.greeting)

    def say(self, words: Sequence[Any], *, end: bool = True) -> None:
        for word in words:
            self.outbox.port.send_nowait(word)
        if end:
            self.outbox.port.close()

    def close(self) -> None:
        self.outbox.port.close()
        self.outbox.inbox.close()


@asynccontextmanager
async def pair(seed: int = 0) -> AsyncIterator[tuple[Side, Side]]:
    sides = tuple(map(Side, open_pipe(Random(seed))))
    try:
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.close()


async def outcome(run: Callable[[], Awaitable[None]], errors: list[Exception | None]) -> None:
    try:
        await run()
    except Exception as error:
        errors.append(error)
    else:
        errors.append(None)


async def run_both(first: Side, second: Side) -> list[Exception | None]:
    """What each link ends with, the first to end first."""
    errors: list[Exception | None] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for side in (first, second):
                tasks.start_soon(outcome, side.link.run, errors)
    return errors
