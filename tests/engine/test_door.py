"""The door: the timeouts of those who wait for a seat. Time is virtual."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from actorllm import EngineClosed
from actorllm.engine.cell import Bell
from actorllm.engine.door import Door
from actorllm.engine.outputs import RequestOutput
from actorllm.engine.stream import Stream
from actorllm.messages import (
    Cancel,
    Command,
    Delta,
    Generate,
    Limits,
    Question,
    Rendered,
    Sampling,
    Terms,
    TextRules,
    TokenPrompt,
    pack,
)

PROMPT = pack([1, 2])


class Sent:
    """The Frontend's inbox: what has come, and when."""

    def __init__(self) -> None:
        self.questions: list[tuple[float, int, Question]] = []

    def send_nowait(self, item: Generate | Cancel | Command) -> None:
        assert isinstance(item, Generate)
        self.questions.append((trio.current_time(), item.request, item.question))

    @property
    def terms(self) -> list[Terms]:
        return [question.terms for _, _, question in self.questions]


def question(**timeouts: float) -> Question:
    terms = Terms(3, "a", **timeouts)
    return Question(TokenPrompt(PROMPT), Sampling(seed=5), Limits(8), TextRules(), terms)


def run(test: Callable[[Door, Sent], Awaitable[None]]) -> None:
    """Run it with a door of one seat, at the time 0."""

    async def main() -> None:
        sent = Sent()
        await test(Door(1, sent, lambda post: None), sent)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def end(door: Door, request: int, *, reason: str = "length") -> None:
    door.deliver(Delta(request, "", b"", reason))


async def later(seconds: float, act: Callable[[], object]) -> None:
    await trio.sleep(seconds)
    act()


def test_what_was_waited_for_a_seat_is_taken_off_the_timeouts() -> None:
    async def test(door: Door, sent: Sent) -> None:
        first = await door.enter(question(), Bell(), trio.current_time())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later, 3.0, partial(end, door, first.request))
            asked = question(timeout=10.0, queue_timeout=4.0)
            await door.enter(asked, Bell(), trio.current_time())
        assert sent.terms[1] == Terms(3, "a", queue_timeout=1.0, timeout=7.0)

    run(test)


@pytest.mark.parametrize("name", ["timeout", "queue_timeout", "ttft_timeout"])
def test_a_timeout_that_passes_at_the_door_ends_the_request_there(name: str) -> None:
    async def test(door: Door, sent: Sent) -> None:
        first = await door.enter(question(), Bell(), trio.current_time())
        begun = trio.current_time()
        output = await Stream(door, question(**{name: 2.5}))
        assert trio.current_time() == begun + 2.5
        assert (output.finish_reason, output.finished, output.token_ids) == ("timeout", True, ())
        assert len(sent.questions) == 1
        assert door.statistics() == {"num_open": 1, "num_waiting": 0, "num_timeouts": 1}
        end(door, first.request)
        await door.enter(question(), Bell(), trio.current_time())

    run(test)


def test_who_has_no_time_left_takes_no_seat() -> None:
    async def test(door: Door, sent: Sent) -> None:
        cell = await door.enter(question(timeout=0.0), Bell(), trio.current_time())
        assert (cell.finish_reason, sent.questions, door.num_open) == ("timeout", [], 0)

    run(test)


def test_who_has_no_time_left_hears_that_the_door_is_closed() -> None:
    async def test(door: Door, sent: Sent) -> None:
        door.close(EngineClosed("closed"))
        with pytest.raises(EngineClosed):
            await door.enter(question(timeout=0.0), Bell(), trio.current_time())

    run(test)


def test_timeouts_do_not_start_again_for_each_answer() -> None:
    async def test(door: Door, sent: Sent) -> None:
        outputs: list[RequestOutput] = []

        async def read() -> None:
            outputs.append(await Stream(door, question(timeout=5.0), n=3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for seconds in (2.0, 4.0):
                await trio.testing.wait_all_tasks_blocked()
                request = sent.questions[-1][1]
                door.deliver(Rendered(request, PROMPT))
                await trio.sleep(seconds)
                end(door, request)
        assert [terms.timeout for terms in sent.terms] == [5.0, 3.0]
        assert [answer.finish_reason for answer in outputs[0].outputs] == ["length", "length", "timeout"]

    run(test)


def test_no_answer_takes_a_seat_that_is_given_back_when_the_time_is_over() -> None:
    async def test(door: Door, sent: Sent) -> None:
        first = await door.enter(question(), Bell(), trio.current_time())
        async with trio.open_nursery() as nursery:
            stream = Stream(door, question(timeout=5.0), n=3)
            nursery.start_soon(stream.accepted)
            await trio.sleep(6.0)
            end(door, first.request)
            await trio.testing.wait_all_tasks_blocked()
        output = await stream
        assert [answer.finish_reason for answer in output.outputs] == ["timeout"] * 3
        assert len(sent.questions) == 1

    run(test)


def test_all_answers_time_out_at_the_door_when_the_first_does() -> None:
    async def test(door: Door, sent: Sent) -> None:
        await door.enter(question(), Bell(), trio.current_time())
        begun = trio.current_time()
        output = await Stream(door, question(timeout=5.0), n=3)
        assert [answer.finish_reason for answer in output.outputs] == ["timeout"] * 3
        assert trio.current_time() == begun + 5.0
        assert len(sent.questions) == 1

    run(test)
