import pytest

from actorllm.cores import NEVER
from actorllm.cores.frontend import Frontend, FrontendStatistics, mix
from actorllm.messages import (
    Abort,
    Cancel,
    Delta,
    Failed,
    Fault,
    FromFrontend,
    Generate,
    Limits,
    Question,
    Render,
    Rendered,
    Sampling,
    Seen,
    Text,
    TextPrompt,
    TextRules,
    ToFrontend,
)

FAULT = Fault("InvalidRequest", "no")


def question(seed: int | None = 7) -> Question:
    return Question(TextPrompt("hello"), Sampling(seed=seed), Limits(4), TextRules())


def say(core: Frontend, *messages: ToFrontend) -> tuple[FromFrontend, ...]:
    for message in messages:
        core.feed(message)
    out = core.poll(0.0)
    core.check()
    return out


def opened(*requests: int) -> Frontend:
    core = Frontend(seed=1)
    say(core, *(Generate(request, question()) for request in requests))
    return core


def seed_of(core_seed: int, request: int) -> int | None:
    (render,) = say(Frontend(core_seed), Generate(request, question(seed=None)))
    assert isinstance(render, Render)
    return render.question.sampling.seed


def test_a_question_goes_to_the_renderer_as_it_is() -> None:
    core = Frontend(seed=1)
    assert say(core, Generate(3, question())) == (Render(3, question()),)
    assert not core.idle
    assert core.deadline == NEVER


def test_a_question_without_a_seed_gets_one_from_the_engines_seed_and_its_id() -> None:
    seeds = [seed_of(1, 1), seed_of(1, 2), seed_of(2, 1)]
    assert len(set(seeds)) == 3
    assert seed_of(1, 1) == seeds[0] == mix(1 ^ mix(1)) >> 1
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


def test_the_engines_seed_and_a_request_id_may_be_as_large_as_they_can() -> None:
    seed = seed_of(2**64 - 1, 2**63 - 1)
    assert seed is not None
    assert 0 <= seed < 2**63


def test_mix_gives_the_published_first_numbers_of_splitmix64() -> None:
    assert [mix(state) for state in (0, 0x9E3779B97F4A7C15)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_a_cancel_goes_the_way_of_its_request_once() -> None:
    core = opened(1)
    assert say(core, Cancel(1), Cancel(1)) == (Abort(1),)
    assert say(core, Cancel(1)) == ()
    assert core.statistics() == FrontendStatistics(1, 1, ())


def test_a_cancel_of_what_has_ended_or_never_was_says_nothing() -> None:
    core = opened(1)
    say(core, Failed(1, "error", FAULT))
    assert say(core, Cancel(1), Cancel(9)) == ()


def test_what_the_renderer_says_goes_to_the_caller() -> None:
    core = opened(1, 2)
    assert say(core, Rendered(1, b""), Failed(2, "error", FAULT)) == (
        Rendered(1, b""),
        Failed(2, "error", FAULT),
    )
    assert core.statistics() == FrontendStatistics(1, 0, (("error", 1),))


def test_deltas_go_to_the_callers_and_then_the_step_is_seen() -> None:
    core = opened(1, 2)
    first, second = Delta(1, "a", b""), Delta(2, "b", b"", "stop")
    assert say(core, Text(4, (first, second))) == (first, second, Seen(4))
    assert core.statistics() == FrontendStatistics(1, 0, (("stop", 1),))


def test_what_ended_at_a_stop_string_is_aborted_before_the_next_question() -> None:
    core = opened(1)
    delta = Delta(1, "a", b"", "stop", "xy")
    first, abort, render, seen = say(core, Text(4, (delta,)), Generate(2, question()))
    assert (first, abort, seen) == (delta, Abort(1), Seen(4))
    assert isinstance(render, Render)


@pytest.mark.parametrize("stop_reason", [None, 7])
def test_what_the_scheduler_ended_is_not_aborted(stop_reason: int | None) -> None:
    delta = Delta(1, "a", b"", "stop", stop_reason)
    assert say(opened(1), Text(4, (delta,))) == (delta, Seen(4))


def test_one_abort_is_enough_for_what_was_cancelled_before_its_stop_string() -> None:
    delta = Delta(1, "a", b"", "stop", "xy")
    assert say(opened(1), Cancel(1), Text(4, (delta,))) == (Abort(1), delta, Seen(4))


def test_steps_are_confirmed_once_a_turn_and_once_in_all() -> None:
    core = opened(1)
    assert say(core, Text(4, ()), Text(5, ())) == (Seen(5),)
    assert say(core, Text(5, ()), Text(4, ())) == ()
    assert say(core, Text(6, ())) == (Seen(6),)


def test_the_frontend_is_idle_when_every_request_has_ended() -> None:
    core = opened(1)
    core.feed(Text(1, (Delta(1, "", b"", "length"),)))
    assert not core.idle
    core.poll(0.0)
    assert core.idle


@pytest.mark.parametrize(
    "message",
    [Text(2, (Delta(1, "more", b""),)), Failed(1, "error"), Rendered(1, b"")],
)
def test_anything_after_the_ending_is_an_error(message: ToFrontend) -> None:
    core = opened(1)
    say(core, Text(1, (Delta(1, "", b"", "length"),)))
    with pytest.raises(AssertionError, match="1"):
        core.feed(message)


def test_a_request_that_is_open_cannot_be_opened_again() -> None:
    with pytest.raises(AssertionError, match="request 1 is open already"):
        opened(1, 1)
