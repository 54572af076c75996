"""The one loop of every actor: turns, deadlines, and no checkpoint within a turn."""

import math
from dataclasses import dataclass, field

import anyio
import pytest

from actorllm.actors.serve import serve
from actorllm.wire.mailbox import Mailbox, open_mailbox

pytestmark = pytest.mark.anyio


@dataclass
class Echo:
    """Says at each poll what it was fed since the last one, as one word."""

    deadline: float = math.inf
    fed: list[str] = field(default_factory=list)
    polled_at: list[float] = field(default_factory=list)

    def feed(self, message: str) -> None:
        if message == "break":
            raise ZeroDivisionError("broken")
        self.fed.append(message)

    def poll(self, now: float) -> tuple[str, ...]:
        self.polled_at.append(now)
        self.deadline = math.inf
        word, self.fed = "".join(self.fed), []
        return (word,)

    @property
    def idle(self) -> bool:
        return not self.fed

    def check(self) -> None:
        assert len(self.fed) == 0

    def statistics(self) -> int:
        return len(self.polled_at)


async def run(core: Echo, mail: list[str], *, turns: int) -> list[str]:
    """What it says to this mail, and then no more."""
    said: list[str] = []
    ends: Mailbox[str] = open_mailbox(10)
    with ends.port, ends.inbox:
        for message in mail:
            ends.port.send_nowait(message)
        async with anyio.create_task_group() as nursery:

            def after_turn() -> None:
                core.check()
                if len(said) == turns:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(lambda: serve(core, ends.inbox, said.append, after_turn=after_turn))
    return said


async def test_all_mail_that_has_come_is_one_turn() -> None:
    assert await run(Echo(), ["a", "b", "c"], turns=1) == ["abc"]


async def test_a_deadline_polls_without_mail() -> None:
    core = Echo(deadline=anyio.current_time() + 0.01)
    due = core.deadline
    assert await run(core, [], turns=1) == [""]
    assert core.polled_at[0] >= due


async def test_mail_comes_before_a_later_deadline() -> None:
    core = Echo(deadline=anyio.current_time() + 60)
    assert await run(core, ["a"], turns=1) == ["a"]


async def test_a_deadline_that_is_always_due_does_not_keep_mail_out() -> None:
    core = Echo(deadline=0.0)
    said = await run(core, ["a"], turns=1)
    assert "".join(said) == "a"


async def test_it_ends_when_its_inbox_is_closed() -> None:
    said: list[str] = []
    ends: Mailbox[str] = open_mailbox(10)
    with ends.inbox:
        ends.port.send_nowait("last words")
        ends.port.close()
        await serve(Echo(), ends.inbox, said.append)
    assert said == ["last words"]


async def test_the_clock_is_what_it_is_given() -> None:
    core = Echo()
    ends: Mailbox[str] = open_mailbox(10)
    with ends.inbox:
        ends.port.send_nowait("a")
        ends.port.close()
        await serve(core, ends.inbox, lambda message: None, clock=lambda: 7.0)
    assert core.polled_at == [7.0]


async def test_a_core_that_raises_ends_its_actor() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run(Echo(), ["break"], turns=1)
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


async def test_a_turn_is_whole_even_in_a_cancelled_scope() -> None:
    core = Echo()
    said: list[str] = []
    ends: Mailbox[str] = open_mailbox(10)
    with ends.port, ends.inbox:
        async with anyio.create_task_group() as nursery:

            def send(word: str) -> None:
                nursery.cancel_scope.cancel()
                said.append(word)

            nursery.start_soon(serve, core, ends.inbox, send)
            ends.port.send_nowait("a")
            ends.port.send_nowait("b")
    assert "".join(said + core.fed) in ("", "ab")
    assert core.fed == []
