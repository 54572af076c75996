import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actorllm.cores.plan import Wants
from actorllm.cores.policy import Fair, Fcfs
from actorllm.cores.requests import Request, Status, WaitingQueue
from actorllm.messages import Limits, Sampling, Terms


def request(arrival: int = 0, prompt: int = 3, max_tokens: int = 4) -> Request:
    return Request(100 + arrival, [7] * prompt, prompt, Sampling(), Limits(), prompt + max_tokens, arrival)


def debt(owing: Request) -> int:
    """What it would ask for; 0 when it would not."""
    wants = Wants()
    wants.add([owing], max_chunk=100)
    return sum(wants.debts)


def queue(*requests: Request) -> WaitingQueue:
    waiting = WaitingQueue(Fcfs())
    for each in requests:
        waiting.push(each)
    return waiting


def end(waiting: WaitingQueue, ended: Request) -> None:
    ended.status = Status.ENDED
    waiting.ended(ended)


def arrivals(requests: list[Request]) -> list[int]:
    return [each.arrival for each in requests]


def test_another_group_is_seen_behind_those_that_have_ended_or_are_not_ready() -> None:
    waiting = WaitingQueue(Fair())
    first, second, third = (request(arrival) for arrival in range(3))
    for each in (first, second, third):
        each.terms = Terms(tenant="b")
        waiting.push(each)
    end(waiting, first)
    assert waiting.has_other_than({"a"})
    assert not waiting.has_other_than({"a", "b"})
    second.steps_out = 1
    assert waiting.has_other_than({"a"})
    third.steps_out = 1
    assert not waiting.has_other_than({"a"})


def test_a_new_request_owes_its_prompt() -> None:
    assert debt(request(prompt=5)) == 5


def test_a_sample_on_its_way_is_one_more_token_to_compute() -> None:
    running = request(prompt=5)
    running.num_scheduled, running.num_pending, running.steps_out = 5, 1, 1
    assert debt(running) == 1


def test_no_placeholder_goes_beyond_max_tokens() -> None:
    running = request(prompt=5, max_tokens=2)
    running.tokens.append(1)
    running.num_scheduled, running.num_pending, running.steps_out = 6, 1, 1
    assert (running.num_output, debt(running)) == (1, 0)


def test_a_restart_keeps_the_tokens_and_owes_them_all() -> None:
    running = request(prompt=5)
    running.status, running.in_batch = Status.RUNNING, True
    running.tokens.append(1)
    running.num_computed, running.num_scheduled = 5, 6
    running.restart()
    running.check()
    assert (running.status, running.life, debt(running)) == (Status.WAITING, 1, 6)


def test_a_preempted_request_is_ready_when_its_steps_are_back() -> None:
    preempted = request()
    preempted.restart()
    preempted.steps_out = 1
    assert not preempted.ready
    preempted.steps_out = 0
    assert preempted.ready


def test_check_finds_more_computed_than_scheduled() -> None:
    broken = request()
    broken.num_computed = 2
    with pytest.raises(AssertionError):
        broken.check()


def test_check_finds_a_waiting_request_in_the_batch() -> None:
    broken = request()
    broken.in_batch = True
    with pytest.raises(AssertionError):
        broken.check()


def take(waiting: WaitingQueue, count: int) -> list[Request]:
    taken = [waiting.take() for _ in range(count)]
    return [each for each in taken if each is not None]


def test_requests_are_taken_in_order() -> None:
    waiting = queue(request(2), request(0), request(1))
    assert arrivals(take(waiting, 2)) == [0, 1]
    assert arrivals(list(waiting)) == [2]
    assert arrivals(take(waiting, 2)) == [2]


def test_one_that_is_not_ready_keeps_its_place() -> None:
    first, second = request(0), request(1)
    first.steps_out = 1
    waiting = queue(first, second)
    assert arrivals(take(waiting, 2)) == [1]
    assert len(waiting) == 1
    first.steps_out = 0
    waiting.push(second)
    assert arrivals(take(waiting, 2)) == [0, 1]


def test_an_ended_request_is_neither_counted_nor_taken() -> None:
    requests = [request(arrival) for arrival in range(4)]
    waiting = queue(*requests)
    end(waiting, requests[0])
    assert (len(waiting), arrivals(list(waiting))) == (3, [1, 2, 3])
    assert arrivals(take(waiting, 1)) == [1]
    end(waiting, requests[3])
    assert (len(waiting), arrivals(take(waiting, 5))) == (1, [2])
    assert len(waiting) == 0


class QueueMachine(RuleBasedStateMachine):
    """The queue beside a plain list of those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue(Fcfs())
        self.waiting: list[Request] = []
        self.away: list[Request] = []
        self.arrivals = 0

    @rule()
    def arrive(self) -> None:
        self.waiting.append(request(self.arrivals))
        self.queue.push(self.waiting[-1])
        self.arrivals += 1

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        ready = sorted((each for each in self.waiting if each.ready), key=lambda each: each.arrival)[:count]
        assert take(self.queue, count) == ready
        self.waiting = [each for each in self.waiting if each not in ready]
        self.away += ready

    @precondition(lambda self: self.away)
    @rule(steps=st.integers(0, 1))
    def come_back(self, steps: int) -> None:
        back = self.away.pop(0)
        back.steps_out = steps
        self.waiting.append(back)
        self.queue.push(back)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def become_ready(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.waiting)).steps_out = 0

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        end(self.queue, ended)

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert sorted(arrivals(list(self.queue))) == sorted(arrivals(self.waiting))


TestQueueMachine = pytest.mark.slow(QueueMachine.TestCase)
TestQueueMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
