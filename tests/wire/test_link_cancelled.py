"""A link that is cancelled, an actor that is cancelled beside one, and a peer that does not read."""

from functools import partial
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from actorllm.errors import LinkLost
from actorllm.messages import Seen, Tokens
from actorllm.testing.pipe import PipeEnd, open_pipe
from actorllm.wire.link import Link
from actorllm.wire.mailbox import Mailbox, open_mailbox

from .sides import HELLO, WORDS, outcome, pair

pytestmark = pytest.mark.anyio


class Fuse(PipeEnd):
    """Cancels a scope at the call number `left`, counted over both directions."""

    left: int
    scope: anyio.CancelScope

    def burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()

    async def send(self, item: bytes) -> None:
        self.burn()
        await super().send(item)
        self.burn()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        self.burn()
        try:
            return await super().receive(max_bytes)
        finally:
            self.burn()


async def cancelled_at(left: int, seed: int) -> bool:
    """Cancel one of two links; whether it was still at work. Both must have heard a beginning."""
    async with pair(seed) as (near, far):
        assert isinstance(near.stream, Fuse | PipeEnd)
        near.stream.__class__ = Fuse
        fuse: Any = near.stream
        fuse.left = left
        near.say(WORDS)
        far.say(WORDS)
        errors: list[Exception | None] = []
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcome, far.link.run, errors)
                with anyio.CancelScope() as fuse.scope:
                    await near.link.run()
                await near.stream.aclose()
        for side in (near, far):
            assert side.heard == list(WORDS[: len(side.heard)])
        if fuse.scope.cancelled_caught:
            assert errors[0] is None or isinstance(errors[0], LinkLost)
            if errors[0] is None:
                assert far.heard == list(WORDS)
        else:
            assert errors == [None]
        return bool(fuse.scope.cancelled_caught)


@pytest.mark.parametrize("seed", range(3))
async def test_cancelled_anywhere_the_peer_has_a_beginning_and_an_error(seed: int) -> None:
    left = 1
    while await cancelled_at(left, seed):
        left += 1
    assert left > 12


async def test_a_cancelled_sender_of_mail_tears_nothing() -> None:
    """An actor that is cancelled in the middle of its turns has either said a message or not."""
    async with pair() as (near, far), anyio.create_task_group() as tasks:
        far.say(())
        tasks.start_soon(near.link.run)
        tasks.start_soon(far.link.run)

        async def talk() -> None:
            for step in range(100):
                near.outbox.port.send_nowait(Seen(step))
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as talking:
            talking.start_soon(talk)
            for _ in range(7):
                await anyio.lowlevel.checkpoint()
            talking.cancel_scope.cancel()
        near.outbox.port.close()
    assert far.heard == [Seen(step) for step in range(len(far.heard))]
    assert 0 < len(far.heard) < 100


async def test_a_peer_that_does_not_read_costs_one_outbox() -> None:
    """The pump waits in its write; what comes meanwhile stays in the outbox, which is bounded."""
    near_end, far_end = open_pipe(Random(3))
    outbox: Mailbox[Any] = open_mailbox(4)
    big = Tokens(1, b"", b"\0" * 5000, ())
    with outbox.port, outbox.inbox:
        async with anyio.create_task_group() as tasks:
            link = Link(near_end, outbox.inbox, partial(pytest.fail, "nobody speaks"))
            tasks.start_soon(link.run)
            await far_end.send(HELLO)
            for _ in range(2):
                for _ in range(4):
                    outbox.port.send_nowait(big)
                await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.WouldBlock):
                outbox.port.send_nowait(big)
            assert link.statistics().num_sent == 0
            tasks.cancel_scope.cancel()
