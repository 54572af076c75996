"""The meter before the real cores, at times that the tests say."""

from typing import Any

import pytest

from actorllm.cores import Core
from actorllm.cores.frontend import Frontend
from actorllm.cores.histogram import Distribution
from actorllm.engine.meter import Meter
from actorllm.messages import (
    Abort,
    Cancel,
    Command,
    Delta,
    Failed,
    Fault,
    Generate,
    Limits,
    Question,
    Rendered,
    Reserve,
    RunStep,
    Sampling,
    StepDone,
    StepFailed,
    Text,
    TextRules,
    TokenPrompt,
    pack,
)

from ..cores.build import BOOM, Grant, reserved, scheduler, submit

ASKED = Question(TokenPrompt(pack([1, 2, 3])), Sampling(seed=1), Limits(8), TextRules())
INVALID = Fault("InvalidRequest", "no")
OVERLOADED = Fault("Overloaded", "too many", retry_after=1.0)


class Hand:
    """A core that is moved by hand, and the meter before it."""

    def __init__(self, actor: str, core: Core[Any, Any]) -> None:
        self.meter = Meter()
        self._core = self.meter.listen(actor, core)

    def turn(self, now: float, *messages: Any) -> tuple[Any, ...]:
        for message in messages:
            self._core.feed(message)
        said = self._core.poll(now)
        self._core.check()
        return said

    def read(self, name: str) -> tuple[int, float]:
        """How many values a histogram has, and their sum."""
        found = self.meter.histograms[name].read()
        return found.count, found.sum


def frontend(*requests: int, since: float = 10.0) -> Hand:
    """A Frontend at the time 11, with these requests, whose callers have waited since before."""
    hand = Hand("frontend", Frontend(seed=0))
    for request in requests:
        hand.meter.enter(request, since)
    hand.turn(11.0, *(Generate(request, ASKED) for request in requests))
    hand.turn(11.0, *(Rendered(request, pack([1, 2, 3])) for request in requests))
    return hand


def text(step: int, request: int, count: int, reason: str | None = None, fault: Fault | None = None) -> Text:
    return Text(step, (Delta(request, "a" * count, pack([5] * count), reason, fault=fault),))


def test_a_request_is_measured_as_its_caller_sees_it() -> None:
    hand = frontend(1)
    hand.turn(12.0, text(1, 1, 1))
    hand.turn(12.5, text(2, 1, 1))
    hand.turn(14.5, text(3, 1, 2))
    hand.turn(15.0, text(4, 1, 1, "length"))
    assert hand.read("time_to_first_token_seconds") == (1, 2.0)
    between = hand.meter.histograms["inter_token_latency_seconds"].read()
    counted = dict(zip(between.bounds, between.counts, strict=False))
    assert {bound: count for bound, count in counted.items() if count} == {0.5: 2, 1.0: 2}
    assert hand.read("inter_token_latency_seconds") == (4, 3.0)
    assert hand.read("request_time_per_output_token_seconds") == (1, 0.75)
    assert hand.read("e2e_request_latency_seconds") == (1, 5.0)
    assert hand.read("request_prompt_tokens") == (1, 3.0)
    assert hand.read("request_generation_tokens") == (1, 5.0)
    assert hand.meter.finished["length"] == sum(hand.meter.finished.values()) == 1
    assert not hand.meter.asked


def test_tokens_that_come_at_once_come_after_no_time() -> None:
    hand = frontend(1)
    hand.turn(12.0, text(1, 1, 3, "stop"))
    assert hand.read("time_to_first_token_seconds") == (1, 2.0)
    assert hand.read("inter_token_latency_seconds") == (2, 0.0)
    assert hand.read("request_time_per_output_token_seconds") == (1, 0.0)


def test_an_answer_without_tokens_has_no_first_token() -> None:
    hand = frontend(1)
    hand.turn(12.0, text(1, 1, 0, "timeout"))
    assert hand.read("time_to_first_token_seconds") == (0, 0.0)
    assert hand.read("request_time_per_output_token_seconds") == (0, 0.0)
    assert hand.read("e2e_request_latency_seconds") == (1, 2.0)
    assert hand.read("request_generation_tokens") == (1, 0.0)
    assert hand.meter.finished["timeout"] == 1


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (Failed(1, "error", INVALID), "invalid"),
        (text(1, 1, 0, "error", INVALID), "invalid"),
        (text(1, 1, 0, "error", OVERLOADED), "overloaded"),
    ],
)
def test_a_refusal_is_no_answer(last: Failed | Text, reason: str) -> None:
    hand = frontend(1)
    hand.turn(12.0, last)
    assert hand.meter.refused == {"invalid": 0, "overloaded": 0} | {reason: 1}
    assert set(hand.meter.finished.values()) == {0}
    assert hand.read("e2e_request_latency_seconds") == (0, 0.0)


def test_what_fails_without_being_refused_has_ended_with_an_error() -> None:
    hand = frontend(1, 2)
    hand.turn(12.0, Failed(1, "error", BOOM), text(1, 2, 0, "error", BOOM))
    assert (hand.meter.finished["error"], hand.read("e2e_request_latency_seconds")) == (2, (2, 4.0))


def test_an_abort_takes_from_its_cancel_to_the_last_word() -> None:
    hand = frontend(1, 2)
    assert Abort(1) in hand.turn(12.0, Cancel(1))
    hand.turn(12.25, Cancel(1))
    hand.turn(12.5, text(1, 1, 0, "abort"))
    hand.turn(13.0, text(2, 2, 0, "length"), Cancel(2))
    hand.turn(13.5, Cancel(2))
    assert hand.read("abort_latency_seconds") == (2, 0.5)
    assert (hand.meter.finished["abort"], hand.meter.finished["length"]) == (1, 1)


def test_who_times_out_at_the_door_has_ended_too() -> None:
    meter = Meter()
    meter.time_out(2.5)
    assert meter.finished["timeout"] == 1
    assert meter.histograms["e2e_request_latency_seconds"].read().sum == 2.5


def one(said: tuple[Any, ...], kind: type[Any]) -> Any:
    """The one message of this kind."""
    (message,) = (each for each in said if isinstance(each, kind))
    return message


def planned(hand: Hand, asked: float, sent: float, *submits: Any, cached: int = 0) -> RunStep:
    """A step with these new requests: asked for at a time, and sent at another."""
    question = one(hand.turn(asked, *submits), Reserve)
    lines = (Grant(each.request, cached, len(each.prompt) // 4 - cached, [each.request]) for each in submits)
    step: RunStep = one(hand.turn(sent, reserved(question, *lines)), RunStep)
    return step


def test_a_run_is_queued_then_prefilled_then_decoded() -> None:
    hand = Hand("scheduler", scheduler())
    first = planned(hand, 1.0, 1.5, submit(1, range(10), max_tokens=2), cached=4)
    question = one(hand.turn(2.5, StepDone(first.step, 0, pack([7]))), Reserve)
    second = one(hand.turn(2.75, reserved(question, Grant(1, 0, 1, []))), RunStep)
    hand.turn(4.5, StepDone(second.step, 0, pack([8])))
    assert hand.read("request_queue_time_seconds") == (1, 0.5)
    assert hand.read("request_prefill_time_seconds") == (1, 1.0)
    assert hand.read("request_decode_time_seconds") == (1, 2.0)
    assert hand.read("request_inference_time_seconds") == (1, 3.0)
    assert hand.read("request_params_max_tokens") == (1, 2.0)
    assert hand.read("iteration_tokens_total") == (2, 7.0)
    assert (hand.meter.num_prompt, hand.meter.num_cached) == (10, 4)


def test_who_never_ran_was_not_queued_for_anything() -> None:
    hand = Hand("scheduler", scheduler())
    hand.turn(1.0, submit(1, range(10)))
    hand.turn(2.0, Abort(1))
    assert hand.read("request_params_max_tokens") == (1, 4.0)
    for name in ("queue", "prefill", "decode", "inference"):
        assert hand.read(f"request_{name}_time_seconds") == (0, 0.0)


def test_who_left_before_the_first_token_was_queued_alone() -> None:
    hand = Hand("scheduler", scheduler())
    planned(hand, 1.0, 1.5, submit(1, range(10)))
    hand.turn(2.0, Abort(1))
    assert hand.read("request_queue_time_seconds") == (1, 0.5)
    assert hand.read("request_inference_time_seconds") == (0, 0.0)


def test_who_is_refused_leaves_no_trace() -> None:
    hand = Hand("scheduler", scheduler(seqs=1, max_num_queued_reqs=1))
    hand.turn(1.0, *(submit(request, range(10)) for request in (1, 2, 3)))
    hand.turn(2.0, Abort(1), Abort(2))
    assert hand.read("request_params_max_tokens") == (2, 8.0)


def test_a_step_has_an_age_while_it_is_on_its_way() -> None:
    hand = Hand("scheduler", scheduler())
    assert hand.meter.step_age(50.0) == 0.0
    step = planned(hand, 1.0, 1.5, submit(1, range(10)))
    assert hand.meter.step_age(4.0) == 2.5
    hand.turn(5.0, StepDone(step.step, step.epoch, pack([7])))
    assert hand.meter.step_age(6.0) == 0.0


def test_a_step_that_failed_computed_nothing_and_a_late_answer_is_not_heard() -> None:
    hand = Hand("scheduler", scheduler())
    step = planned(hand, 1.0, 1.5, submit(1, range(10)))
    hand.turn(2.0, StepFailed(step.step, step.epoch, BOOM))
    assert hand.meter.step_age(3.0) == 0.0
    hand.turn(3.0, StepDone(step.step, step.epoch, pack([7])))
    assert hand.read("iteration_tokens_total") == (0, 0.0)


def test_a_step_that_is_planned_in_the_turn_that_hears_of_the_failure_has_no_age() -> None:
    hand = Hand("scheduler", scheduler(in_flight=2))
    question = one(hand.turn(1.0, submit(1, range(10), max_tokens=9)), Reserve)
    said = hand.turn(1.5, reserved(question, Grant(1, 0, 10, [1])))
    step, question = one(said, RunStep), one(said, Reserve)
    late = one(
        hand.turn(2.0, reserved(question, Grant(1, 0, 1, [])), StepFailed(step.step, step.epoch, BOOM)),
        RunStep,
    )
    assert late.epoch == step.epoch
    assert hand.meter.step_age(9.0) == 0.0


def test_a_command_on_its_way_has_an_age_and_no_tokens() -> None:
    hand = Hand("scheduler", scheduler())
    hand.turn(1.0, Command(1, "start_profile", "path"))
    assert hand.meter.step_age(3.0) == 2.0
    hand.turn(4.0, StepDone(1, 0, b""))
    assert (hand.meter.step_age(5.0), hand.read("iteration_tokens_total")) == (0.0, (0, 0.0))


def test_the_answers_that_are_asked_for_are_counted_at_each_call() -> None:
    meter = Meter()
    for choices in (1, 1, 4):
        meter.ask(choices)
    found = meter.histograms["request_params_n"].read()
    assert found == Distribution((1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0), (2, 0, 1, 0, 0, 0, 0, 0), 6.0)


def test_other_actors_are_served_as_they_are() -> None:
    core = Frontend(seed=0)
    assert Meter().listen("renderer", core) is core
