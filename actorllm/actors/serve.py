"""The one loop of every actor."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import anyio

from ..cores import Core
from ..wire.mailbox import Inbox

In = TypeVar("In")
Out = TypeVar("Out")


async def serve(
    core: Core[In, Out],
    inbox: Inbox[In],
    send: Callable[[Out], None],
    *,
    clock: Callable[[], float] = anyio.current_time,
    after_turn: Callable[[], None] | None = None,
) -> None:
    """Wait once, feed all that has come, then send all that the core says; until the inbox is closed.

    From the first `feed` to the last `send` there is no checkpoint: neither a cancellation nor another
    actor can fall in the middle of a state change. `after_turn` is called after each turn.
    """
    while True:
        try:
            message = await _receive(inbox, core.deadline)
        except anyio.EndOfStream:
            return
        if message is not None:
            core.feed(message)
        drain(core, inbox)
        for out in core.poll(clock()):
            send(out)
        if after_turn is not None:
            after_turn()


async def _receive(inbox: Inbox[In], deadline: float) -> In | None:
    """The next message, or None when the deadline passes first."""
    if math.isinf(deadline):
        return await inbox.receive()
    with anyio.CancelScope(deadline=deadline):
        return await inbox.receive()
    return None


def drain(core: Core[In, Any], inbox: Inbox[In]) -> None:
    """Feed what else has come: one wake-up costs as much as some fifty of these."""
    while True:
        try:
            core.feed(inbox.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            return
