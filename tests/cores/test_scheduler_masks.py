"""The Scheduler and Grammar: which steps wait, and when their masks are asked for."""

from actorllm.cores.scheduler import Scheduler
from actorllm.messages import (
    Abort,
    Advance,
    Compile,
    Drop,
    Ending,
    Fault,
    FromScheduler,
    GrammarReady,
    Limits,
    Logprobs,
    MaskStep,
    PromptLogprobs,
    Repetition,
    Reserve,
    RunStep,
    Sampling,
    StepDone,
    StepFailed,
    Submit,
    Tokens,
    pack,
    pack_ids,
    unpack_ids,
)

from .build import BOOM, GREEDY, Grant, reserved, say, scheduler
from .test_scheduler import done, only


def constrained(
    core: Scheduler, request: int, prompt: list[int], max_tokens: int = 9
) -> tuple[FromScheduler, ...]:
    """Submit a request with a grammar, and let that be ready; what is said then."""
    said = say(core, Submit(request, pack(prompt), GREEDY, Limits(max_tokens, grammar="g")))
    assert only(said, Compile) == Compile(request, "g")
    return say(core, GrammarReady(request))


def plain(request: int, prompt: list[int]) -> Submit:
    return Submit(request, pack(prompt), GREEDY, Limits(9))


def masked(said: tuple[FromScheduler, ...]) -> list[tuple[int, int, list[int]]]:
    return [
        (message.step, message.epoch, unpack_ids(message.requests))
        for message in said
        if isinstance(message, MaskStep)
    ]


def test_a_step_that_samples_a_constrained_row_waits_and_its_masks_are_asked_for_at_once() -> None:
    core = scheduler()
    asked = only(constrained(core, 1, [5, 6]), Reserve)
    said = say(core, plain(2, [7]), reserved(asked, Grant(1, 0, 2, [0])))
    step = only(said, RunStep)
    assert step.waits
    assert masked(said) == [(step.step, 0, [1])]
    assert said.index(step) < next(i for i, each in enumerate(said) if isinstance(each, MaskStep))


def test_a_step_that_only_computes_part_of_its_prompt_does_not_wait() -> None:
    core = scheduler()
    asked = only(constrained(core, 1, [5, 6]), Reserve)
    said = say(core, reserved(asked, Grant(1, 0, 1, [0])))
    assert not only(said, RunStep).waits
    assert masked(said) == []


def test_of_two_steps_on_their_way_the_second_ones_masks_follow_the_first_ones_tokens() -> None:
    core = scheduler(in_flight=2)
    asked = only(constrained(core, 1, [5]), Reserve)
    said = say(core, reserved(asked, Grant(1, 0, 1, [0])))
    first, asked = only(said, RunStep), only(said, Reserve)
    said = say(core, reserved(asked, Grant(1, 0, 1)))
    second = only(said, RunStep)
    assert second.waits
    assert masked(said) == [], "the token of the first is not known yet"
    said = say(core, done(first, 40))
    assert masked(said) == [(second.step, 0, [1])]
    kinds = [type(message) for message in said]
    assert kinds.index(Advance) < kinds.index(MaskStep)
    assert only(said, Advance) == Advance(pack_ids([1]), pack([40]))


def test_masks_are_asked_for_even_when_no_constrained_row_is_left() -> None:
    core = scheduler(in_flight=2)
    asked = only(constrained(core, 1, [5]), Reserve)
    said = say(core, reserved(asked, Grant(1, 0, 1, [0])))
    first, asked = only(said, RunStep), only(said, Reserve)
    second = only(say(core, reserved(asked, Grant(1, 0, 1))), RunStep)
    said = say(core, Abort(1), done(first, 40))
    assert only(said, Drop) == Drop(1)
    assert masked(said) == [(second.step, 0, [1])]
    assert not any(isinstance(message, Advance) for message in said)


def test_the_token_that_ends_an_answer_is_not_said_to_grammar() -> None:
    core = scheduler()
    asked = only(constrained(core, 1, [5], max_tokens=1), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 1, [0]))), RunStep)
    said = say(core, done(step, 40))
    assert only(said, Drop) == Drop(1)
    assert not any(isinstance(message, Advance) for message in said)


def test_only_constrained_tokens_are_said_to_grammar() -> None:
    core = scheduler()
    say(core, plain(2, [7]))
    core = scheduler()
    asked = only(constrained(core, 1, [5]), Reserve)
    say(core, plain(2, [7]))
    said = say(core, reserved(asked, Grant(1, 0, 1, [0])))
    step = only(said, RunStep)
    said = say(core, done(step, 40))
    asked = only(said, Reserve)
    said = say(core, reserved(asked, Grant(1, 0, 1), Grant(2, 0, 1, [1])))
    step = only(said, RunStep)
    assert masked(said) == [(step.step, 0, [1])]
    assert only(say(core, done(step, 41, 50)), Advance) == Advance(pack_ids([1]), pack([41]))


def test_a_request_that_a_token_did_not_fit_ends_with_the_fault() -> None:
    core = scheduler()
    asked = only(constrained(core, 1, [5]), Reserve)
    say(core, reserved(asked, Grant(1, 0, 1, [0])))
    fault = Fault("RequestFailed", "it does not fit")
    said = say(core, GrammarReady(1, fault))
    assert only(said, Tokens).endings == (Ending(1, "error", None, fault),)
    assert say(core, GrammarReady(1, fault)) == (), "of one that has ended nothing is heard"


def test_after_a_crash_the_masks_are_those_of_the_new_epoch() -> None:
    core = scheduler()
    asked = only(constrained(core, 1, [5]), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 1, [0]))), RunStep)
    said = say(core, StepFailed(step.step, 0, BOOM))
    said = say(core, reserved(only(said, Reserve), Grant(1, 0, 1, [0])))
    again = only(said, RunStep)
    assert again.epoch == 1
    assert masked(said) == [(again.step, 1, [1])]


# -- log-probabilities --------------------------------------------------------------------------------

ONE = Logprobs(pack([1]), pack([40]), b"\0" * 4, pack([1]))


def told(
    step: RunStep, *values: int, logprobs: Logprobs, prompts: tuple[PromptLogprobs, ...] = ()
) -> StepDone:
    return StepDone(step.step, step.epoch, pack(values), None, logprobs, prompts)


def test_log_probabilities_go_with_their_tokens_and_those_of_late_ones_are_dropped() -> None:
    core = scheduler()
    asked = only(say(core, plain(1, [5]), plain(2, [6])), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 1, [0]), Grant(2, 0, 1, [1]))), RunStep)
    both = Logprobs(pack([1, 1]), pack([39, 40]), b"\1" * 4 + b"\0" * 4, pack([3, 1]))
    said = say(core, Abort(1), told(step, 39, 40, logprobs=both))
    message = only(said, Tokens)
    assert (message.requests, message.tokens, message.logprobs) == (pack_ids([2]), pack([40]), ONE)


def test_the_log_probabilities_of_a_prompt_are_told_once_whatever_happens() -> None:
    core = scheduler()
    sampling = Sampling(temperature=0.0, seed=0, prompt_logprobs=0)
    asked = only(say(core, Submit(1, pack([5, 6, 7]), sampling, Limits(9))), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 2, [0]))), RunStep)
    parts = (PromptLogprobs(1, 1, Logprobs(pack([1, 1]), pack([6, 7]), b"\0" * 8, pack([1, 1]))),)
    said = say(core, StepDone(step.step, 0, b"", None, None, parts))
    assert only(said, Tokens).prompt_logprobs == parts
    asked = only(said, Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 1))), RunStep)
    said = say(core, StepFailed(step.step, 0, BOOM))
    again = only(say(core, reserved(only(said, Reserve), Grant(1, 0, 3, [0]))), RunStep)
    assert (again.new[0].num_prompt, again.new[0].num_told) == (3, 3)


def test_those_of_a_prompt_whose_request_has_ended_are_not_heard() -> None:
    core = scheduler()
    sampling = Sampling(temperature=0.0, seed=0, prompt_logprobs=0)
    asked = only(say(core, Submit(1, pack([5, 6, 7]), sampling, Limits(9))), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 2, [0]))), RunStep)
    parts = (PromptLogprobs(1, 1, Logprobs(pack([1]), pack([6]), b"\0" * 4, pack([1]))),)
    said = say(core, Abort(1), StepDone(step.step, 0, b"", None, None, parts))
    assert only(said, Tokens).prompt_logprobs == ()


# -- repetition ---------------------------------------------------------------------------------------


def test_an_answer_that_goes_round_in_circles_ends() -> None:
    core = scheduler()
    limits = Limits(9, repetition=Repetition(2, 1, 2))
    asked = only(say(core, Submit(1, pack([8, 8]), GREEDY, limits)), Reserve)
    said = say(core, reserved(asked, Grant(1, 0, 2, [0])))
    for token in (8, 3, 8):
        said = say(core, done(only(said, RunStep), token))
        assert only(said, Tokens).endings == ()
        said = say(core, reserved(only(said, Reserve), Grant(1, 0, 1)))
    said = say(core, done(only(said, RunStep), 3))
    assert only(said, Tokens).endings == (Ending(1, "repetition"),)
