from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm.cores.arrays import Int32
from actorllm.cores.extras import Extras, wants_extras
from actorllm.messages import Sampling, Thinking, pack

REPETITION = Sampling(repetition_penalty=1.2)
FREQUENCY = Sampling(frequency_penalty=0.5)
TOKEN = st.integers(0, 3)
"""So few tokens that markers and bad words come about by chance."""


def extras_of(sampling: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> Extras:
    return Extras(sampling, np.array([*prompt, *output], np.int32), len(prompt))


def seen(extras: Extras) -> dict[int, int]:
    tokens, counts = extras.seen
    assert len(set(tokens.tolist())) == tokens.size
    return dict(zip(tokens.tolist(), counts.tolist(), strict=True))


class Sums:
    """A custom processor whose state is the sum of what it saw, for requests that say where to begin."""

    def check(self, arguments: Mapping[str, Any], /) -> None: ...

    def open(self, arguments: Mapping[str, Any], prompt: Int32, /) -> list[int] | None:
        return [arguments["begin"], *prompt.tolist()] if "begin" in arguments else None

    def advance(self, state: list[int], token: int, /) -> None:
        state.append(token)

    def apply(self, logits: np.ndarray[Any, Any], states: Sequence[list[int]], /) -> None: ...


@pytest.mark.parametrize(
    "sampling",
    [
        REPETITION,
        FREQUENCY,
        Sampling(presence_penalty=-0.1),
        Sampling(min_tokens=3, end_tokens=pack([1])),
        Sampling(bias_tokens=pack([1]), bias=b"\0\0\0\0"),
        Sampling(allowed=pack([1])),
        Sampling(bad_words=(pack([1]),)),
        Sampling(thinking=Thinking(3, pack([1]), pack([2]))),
        Sampling(logprobs=0),
        Sampling(logprob_tokens=pack([5])),
        Sampling(prompt_logprobs=-1),
    ],
)
def test_what_needs_extras(sampling: Sampling) -> None:
    assert wants_extras(sampling)


def test_what_needs_none_unless_there_are_custom_processors() -> None:
    plain = Sampling(0.7, 9, 0.9, 0.1, 5, min_tokens=3, arguments='{"begin": 1}')
    assert not wants_extras(plain)
    assert wants_extras(plain, (Sums(),))
    assert not extras_of(plain).alters
    assert not Extras(Sampling(), np.zeros(0, np.int32), 0, (Sums(),)).alters
    assert Extras(plain, np.zeros(0, np.int32), 0, (Sums(),)).alters


def test_what_is_told_alters_nothing() -> None:
    extras = extras_of(Sampling(logprobs=3, logprob_tokens=pack([5, 6]), prompt_logprobs=2))
    assert extras.tells
    assert not extras.alters
    assert (extras.num_logprobs, extras.logprob_tokens.tolist(), extras.prompt_logprobs) == (3, [5, 6], 2)
    assert not extras_of(REPETITION).tells
    assert extras_of(Sampling(logprob_tokens=pack([5]))).tells


def test_penalties_count_the_output_and_repetition_knows_the_prompt() -> None:
    assert seen(extras_of(FREQUENCY, [1, 1, 2], [2, 3, 3])) == {2: 1, 3: 2}
    assert seen(extras_of(REPETITION, [1, 1, 2], [2, 3, 3])) == {1: 0, 2: 1, 3: 2}
    assert seen(extras_of(Sampling(logprobs=1), [1, 1, 2], [2, 3, 3])) == {}


def test_counts_outgrow_their_columns() -> None:
    extras = extras_of(FREQUENCY)
    tokens = list(range(1000)) * 2
    for token in tokens:
        extras.append(token)
    assert seen(extras) == dict.fromkeys(range(1000), 2)


def test_end_tokens_are_forbidden_until_there_are_min_tokens() -> None:
    extras = extras_of(Sampling(min_tokens=2, end_tokens=pack([7, 8])), [1, 2, 3])
    for _ in range(2):
        assert extras.alters
        assert extras.forbidden == [7, 8]
        extras.append(5)
    assert not extras.alters
    assert extras.forbidden == []


def test_bad_words_are_banned_at_their_last_token() -> None:
    extras = extras_of(Sampling(bad_words=(pack([4]), pack([1, 2]), pack([3, 1, 5]), pack([]))))
    assert extras.forbidden == [4]
    extras.append(1)
    assert extras.forbidden == [4, 2]
    for token in (3, 1):
        extras.append(token)
    assert extras.forbidden == [4, 2, 5]


def test_bad_words_that_begin_in_the_prompt_may_end_in_the_output() -> None:
    sampling = Sampling(bad_words=(pack([1, 2]), pack([1, 2, 3])))
    assert extras_of(sampling, [9, 1]).forbidden == []
    assert extras_of(sampling, [9, 1], [2]).forbidden == []
    assert extras_of(sampling, [9], [1]).forbidden == [2]


BEGIN, END = [1, 2], [3, 4, 5]


def forced(
    budget: int, prompt: Sequence[int], output: Sequence[int], begin: list[int] = BEGIN, end: list[int] = END
) -> int | None:
    sampling = Sampling(thinking=Thinking(budget, pack(begin), pack(end)))
    extras = extras_of(sampling, prompt, output)
    assert extras.alters == (extras.forced is not None)
    return extras.forced


def test_a_spent_budget_forces_the_end_token_by_token_and_then_no_more() -> None:
    output = [*BEGIN, 9, 9]
    assert forced(3, [8], output) is None
    for wanted in END:
        assert forced(2, [8], output) == wanted
        output.append(wanted)
    assert forced(2, [8], output) is None
    assert forced(2, [8], [*output, 9, 9, 9]) is None


def test_a_prompt_that_opened_reasoning_is_not_counted() -> None:
    assert forced(2, [*BEGIN, 9, 9, 9], []) is None
    assert forced(2, [*BEGIN, 9, 9, 9], [9]) is None
    assert forced(2, [*BEGIN, 9, 9, 9], [9, 9]) == 3
    assert forced(1, [9, 1], [2]) is None  # the marker lies across the border
    assert forced(1, [9, 1], [2, 9]) == 3


def test_a_budget_of_0_forces_the_end_at_once() -> None:
    assert forced(0, BEGIN, []) == 3
    assert forced(0, [8], BEGIN) == 3
    assert forced(0, [8], []) is None


def test_an_end_that_the_model_began_is_continued() -> None:
    assert forced(2, BEGIN, [9, 3]) == 4
    assert forced(2, BEGIN, [9, 3, 4]) == 5
    assert forced(9, BEGIN, [9, 3, 4]) is None
    assert forced(2, BEGIN, [9, 3, 9]) == 3
    assert forced(0, [*BEGIN, 3], []) == 4
    assert forced(2, [1], [7, 7], [1], [7, 7, 8]) == 8
    assert forced(3, [1], [7, 7, 7], [1], [7, 7, 8]) == 8


def test_reasoning_that_is_closed_or_never_opened_is_left_alone() -> None:
    assert forced(0, [9, 9], [9, 9, 9]) is None
    assert forced(0, [*BEGIN, 9, *END], [9, 9]) is None
    assert forced(1, BEGIN, [9, *END[:2], 5, 9]) is None


def test_a_later_begin_has_a_budget_of_its_own() -> None:
    assert forced(2, [*BEGIN, *END], [*BEGIN, 9]) is None
    assert forced(2, [*BEGIN, *END], [*BEGIN, 9, 9]) == 3
    assert forced(2, BEGIN, [9, 9, *END, *BEGIN, 9]) is None


def test_a_begin_within_reasoning_does_not_renew_the_budget() -> None:
    assert forced(4, BEGIN, [9, *BEGIN, 9]) == 3


def test_an_end_that_overlaps_the_begin_is_none() -> None:
    assert forced(1, [5, 6], [9], [5, 6], [6, 9]) == 6
    assert forced(1, [5, 6], [9, 6], [5, 6], [6, 9]) == 9
    assert forced(0, [5, 6, 9], [], [5, 6], [6, 9]) == 6


@pytest.mark.parametrize(("budget", "begin", "end"), [(-1, BEGIN, END), (0, [], END), (0, BEGIN, [])])
def test_without_markers_or_budget_nothing_is_forced(budget: int, begin: list[int], end: list[int]) -> None:
    assert forced(budget, BEGIN, [9, 9], begin, end) is None


def test_processors_see_all_output_again_when_a_request_resumes() -> None:
    sampling = Sampling(arguments='{"begin": 40}')
    tokens = np.array([1, 2, 3, 4], np.int32)
    extras = Extras(sampling, tokens, 2, (Sums(), Sums()))
    tokens[:] = 0
    extras.append(5)
    assert extras.states == ([40, 1, 2, 3, 4, 5],) * 2
    assert Extras(Sampling(), tokens, 2, (Sums(),)).states == (None,)


WORDS = st.lists(TOKEN, min_size=1, max_size=3)
SAMPLING = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    min_tokens=st.integers(0, 6),
    end_tokens=st.just(pack([2, 3])),
    bad_words=st.lists(WORDS.map(pack), max_size=3).map(tuple),
    thinking=st.builds(Thinking, st.integers(0, 4), WORDS.map(pack), WORDS.map(pack)),
    arguments=st.sampled_from(["", '{"begin": 7}']),
)


def everything(extras: Extras) -> tuple[Any, ...]:
    return extras.alters, extras.forbidden, extras.forced, seen(extras), extras.states


@pytest.mark.slow
@given(SAMPLING, st.lists(TOKEN, max_size=8), st.lists(TOKEN, max_size=12), st.integers(0, 12))
def test_extras_that_are_rebuilt_are_those_that_went_on(
    sampling: Sampling, prompt: list[int], output: list[int], known: int
) -> None:
    def build(tokens: list[int]) -> Extras:
        return Extras(sampling, np.array(prompt + tokens, np.int32), len(prompt), (Sums(),))

    extras = build(output[:known])
    for token in output[known:]:
        extras.append(token)
    assert everything(extras) == everything(build(output))


def slowly_forced(tokens: list[int], num_prompt: int, thinking: Thinking) -> int | None:
    """What `Extras.forced` is, from all tokens at once."""
    begin, end = (np.frombuffer(marker, "<i4").tolist() for marker in (thinking.begin, thinking.end))
    opened: int | None = None
    for stop in range(1, len(tokens) + 1):
        if opened is None and tokens[:stop][-len(begin) :] == begin:
            opened = stop
        elif opened is not None and tokens[opened:stop][-len(end) :] == end:
            opened = None
    if opened is None or len(tokens) - max(opened, num_prompt) < thinking.budget:
        return None
    behind = tokens[opened:]
    sizes = [size for size in range(len(end)) if behind[len(behind) - size :] == end[:size]]
    return int(end[max(sizes)])


@pytest.mark.slow
@given(SAMPLING, st.lists(TOKEN, max_size=10), st.lists(TOKEN, max_size=10))
def test_extras_are_what_the_slow_reference_says(
    sampling: Sampling, prompt: list[int], output: list[int]
) -> None:
    extras, tokens = extras_of(sampling, prompt, output), prompt + output
    assert sampling.thinking is not None
    assert extras.forced == slowly_forced(tokens, len(prompt), sampling.thinking)
    words = [np.frombuffer(word, "<i4").tolist() for word in sampling.bad_words]
    banned = {word[-1] for word in words if word[:-1] == output[len(output) - len(word) + 1 :]}
    early = {2, 3} if len(output) < sampling.min_tokens else set()
    assert set(extras.forbidden) == banned | early
    if sampling.repetition_penalty != 1.0:
        assert seen(extras) == {token: output.count(token) for token in tokens}
