from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from actorllm.cores.arrays import Float32, Int32
from actorllm.cores.extras import Extras
from actorllm.messages import Sampling, Thinking, pack
from actorllm.model.processors import process
from actorllm.model.sampler import Drawn, sample

from .sampling import distribution, extras_of, random, rows_of

SIZE = 40
INF = np.inf


def mask_of(tokens: Sequence[int], size: int = SIZE) -> NDArray[np.uint32]:
    words = np.zeros(-(-size // 32), np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


def processed(logits: Float32, extras: Extras | None, mask: NDArray[Any] | None = None) -> Float32:
    """A row [V] as it is to be drawn from."""
    wishes = {} if extras is None else {0: extras}
    (row,) = process(logits[None], [0], wishes, {} if mask is None else {0: mask})
    return row


def left(row: Float32) -> list[int]:
    return np.flatnonzero(row > -INF).tolist()


def bias(tokens: Sequence[int], values: Sequence[float]) -> dict[str, Any]:
    return {"bias_tokens": pack(tokens), "bias": np.array(values, "<f4").tobytes()}


def thinking(budget: int, begin: Sequence[int], end: Sequence[int]) -> Thinking:
    return Thinking(budget, pack(begin), pack(end))


def test_only_allowed_tokens_are_left_as_they_are() -> None:
    logits = random(SIZE)
    row = processed(logits, extras_of(Sampling(allowed=pack([5, 9, 5, -1, 400]))))
    assert left(row) == [5, 9]
    assert row[[5, 9]].tolist() == logits[[5, 9]].tolist()


def test_bad_words_and_early_end_tokens_are_not_left() -> None:
    sampling = Sampling(
        bad_words=(pack([1]), pack([7, 2]), pack([8, 3]), pack([400])),
        min_tokens=2,
        end_tokens=pack([4, 400]),
    )
    everything = set(range(SIZE))
    assert set(left(processed(random(SIZE), extras_of(sampling, [7], [])))) == everything - {1, 4}
    assert set(left(processed(random(SIZE), extras_of(sampling, [], [7])))) == everything - {1, 2, 4}
    assert set(left(processed(random(SIZE), extras_of(sampling, [], [7, 8])))) == everything - {1, 3}


def test_biases_are_added_where_there_is_a_logit() -> None:
    logits = random(SIZE)
    row = processed(logits, extras_of(Sampling(**bias([3, 3, 4, -1, 40], [1, 2, -5, 9, 9]))))
    wanted = logits.copy()
    wanted[[3, 4]] += [3, -5]
    assert np.allclose(row, wanted)


def test_a_bias_brings_nothing_back() -> None:
    sampling = Sampling(
        allowed=pack([1, 2, 3]), bad_words=(pack([2]),), **bias([2, 3, 9], [100.0, 1.0, 100.0])
    )
    assert left(processed(random(SIZE), extras_of(sampling))) == [1, 3]


def test_penalties_are_those_of_the_formula_after_the_bias() -> None:
    logits = np.array([2.0, -2.0, 3.0, 0.0, 1.0], np.float32)
    sampling = Sampling(
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, **bias([0], [1.0])
    )
    row = processed(logits, extras_of(sampling, [0, 1, 77], [1, 2, 2, 3, -5]))
    assert row.tolist() == [1.5, -4.75, 0.25, -0.75, 1.0]


def test_the_end_of_reasoning_is_forced_against_every_other_wish() -> None:
    sampling = Sampling(
        thinking=thinking(1, [5], [6, 7]),
        allowed=pack([1, 2]),
        bad_words=(pack([6]),),
        min_tokens=99,
        end_tokens=pack([6, 7]),
        presence_penalty=2.0,
    )
    extras = extras_of(sampling, [5], [1])
    for wanted in (6, 7):
        assert left(processed(random(SIZE), extras)) == [wanted]
        extras.append(wanted)
    assert left(processed(random(SIZE), extras)) == [1, 2]


def test_what_is_forced_is_drawn_at_any_temperature() -> None:
    samplings = [Sampling(temperature=t, top_p=0.5, thinking=thinking(0, [5], [6])) for t in (0.0, 0.1, 2.0)]
    extras = {i: extras_of(each, [5]) for i, each in enumerate(samplings)}
    assert sample(random(3, SIZE), rows_of(samplings), extras=extras).tokens.tolist() == [6, 6, 6]


def test_tokens_beyond_a_mask_are_forbidden_and_bits_beyond_the_tokens_mean_nothing() -> None:
    assert left(processed(random(70), None, mask_of([3, 31]))) == [3, 31]
    assert left(processed(random(35), None, mask_of([3, 34, 36, 63], 64))) == [3, 34]


def test_min_tokens_give_way_to_a_grammar_that_must_end() -> None:
    logits, mask = random(SIZE), mask_of([4, 6])
    extras = extras_of(Sampling(min_tokens=5, end_tokens=pack([4, 6])))
    row = processed(logits, extras, mask)
    assert left(row) == [4, 6]
    assert row[[4, 6]].tolist() == logits[[4, 6]].tolist()


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling(allowed=pack([1, 2]), bad_words=(pack([1]), pack([2]))), [1, 2]),
        (Sampling(allowed=pack([400])), list(range(SIZE))),
        (Sampling(min_tokens=1, end_tokens=pack(range(SIZE))), list(range(SIZE))),
        (Sampling(thinking=thinking(0, [], [])), list(range(SIZE))),
    ],
)
def test_wishes_that_leave_nothing_are_given_up(sampling: Sampling, wanted: list[int]) -> None:
    logits = random(SIZE)
    row = processed(logits, extras_of(sampling))
    assert left(row) == wanted
    assert row[wanted].tolist() == logits[wanted].tolist()


def test_an_end_of_reasoning_without_logits_is_given_up() -> None:
    extras = extras_of(Sampling(thinking=thinking(0, [5], [400])), [5])
    assert processed(logits := random(SIZE), extras).tolist() == logits.tolist()


@pytest.mark.parametrize(
    ("sampling", "prompt"),
    [
        (Sampling(allowed=pack([1, 2])), []),
        (Sampling(bad_words=(pack([7]), pack([9]))), []),
        (Sampling(thinking=thinking(0, [5], [6])), [5]),
    ],
)
def test_a_mask_decides_alone_where_wishes_leave_nothing_of_it(sampling: Sampling, prompt: list[int]) -> None:
    logits = random(SIZE)
    row = processed(logits, extras_of(sampling, prompt), mask_of([7, 9]))
    assert left(row) == [7, 9]
    assert row[[7, 9]].tolist() == logits[[7, 9]].tolist()


def test_a_mask_and_the_allowed_tokens_outlast_the_other_wishes() -> None:
    sampling = Sampling(allowed=pack([1, 7]), bad_words=(pack([7]),), **bias([9], [50.0]))
    assert left(processed(random(SIZE), extras_of(sampling), mask_of([7, 9]))) == [7]


def test_what_a_mask_allows_is_equally_likely_where_the_model_excludes_it() -> None:
    logits = random(SIZE)
    logits[[7, 9]] = -INF
    for extras in (None, extras_of(Sampling(presence_penalty=1.0), [], [7])):
        row = processed(logits, extras, mask_of([7, 9]))
        assert left(row) == [7, 9]
        assert row[7] == row[9]


def test_a_mask_that_allows_nothing_is_given_up() -> None:
    logits = random(SIZE)
    assert processed(logits, None, mask_of([])).tolist() == logits.tolist()


@pytest.mark.parametrize("penalty", [1e-44, 3e38])
def test_penalties_beyond_float32_still_leave_a_distribution(penalty: float) -> None:
    sampling = Sampling(repetition_penalty=penalty, frequency_penalty=2.0)
    for sign in (1, -1):
        logits = np.abs(random(1, SIZE)) * np.float32(sign)
        extras = extras_of(sampling, range(SIZE), [1, 2])
        assert np.isfinite(processed(logits[0], extras).max())
        made = distribution(logits, rows_of([sampling]), {0: extras})
        assert abs(made.sum() - 1) < 1e-6


class Custom:
    """Adds what a request says times how many tokens it has, to the token that it says; notes its rows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[int] = []

    def check(self, arguments: Mapping[str, Any], /) -> None: ...

    def open(self, arguments: Mapping[str, Any], prompt: Int32, /) -> list[float] | None:
        wish = arguments.get(self.name)
        return None if wish is None else [*wish, prompt.size]

    def advance(self, state: list[float], token: int, /) -> None:
        state[2] += 1

    def apply(self, logits: Float32, states: Sequence[list[float]], /) -> None:
        assert logits.shape == (len(states), SIZE)
        self.rows.append(len(states))
        for row, (token, value, count) in zip(logits, states, strict=True):
            row[int(token)] += value * count


def customised(processors: Sequence[Custom], *arguments: str, **wishes: Any) -> dict[int, Extras]:
    tokens = np.array([1, 2, 3], np.int32)
    samplings = (Sampling(arguments=each, **wishes) for each in arguments)
    return {i: Extras(each, tokens, 2, processors) for i, each in enumerate(samplings)}


def test_custom_processors_work_on_the_rows_that_take_part_at_once() -> None:
    first, second = Custom("first"), Custom("second")
    extras = customised(
        (first, second), '{"first": [5, 1]}', "", '{"second": [6, 2], "first": [6, -1]}', '{"first": [7, 3]}'
    )
    logits = random(4, SIZE)
    rows = [row.copy() for row in process(logits, range(4), extras, {}, (first, second))]
    wanted = logits.copy()
    wanted[0, 5] += 3
    wanted[2, 6] += -3
    wanted[2, 6] += 6
    wanted[3, 7] += 9
    assert np.array(rows).tolist() == wanted.tolist()
    assert (first.rows, second.rows) == ([3], [1])


def test_custom_processors_come_after_the_bias_and_before_the_penalties() -> None:
    custom = Custom("custom")
    extras = customised((custom,), '{"custom": [3, 1]}', repetition_penalty=2.0, **bias([3], [4.0]))
    logits = np.zeros((1, SIZE), np.float32)
    (row,) = process(logits, [0], extras, {}, (custom,))
    assert row[3] == (4 + 3) / 2


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_after_a_custom_processor_ends_no_step(value: str) -> None:
    custom = Custom("custom")
    extras = customised((custom,), f'{{"custom": [3, {value}]}}', "", allowed=pack([3, 4]))
    logits = random(2, SIZE)
    made = distribution(logits, rows_of([Sampling()] * 2), extras, {}, (custom,))
    assert made[0, 3] == (1.0 if value == "Infinity" else 0.0)
    assert np.abs(made.sum(axis=1) - 1).max() < 1e-6
    assert np.flatnonzero(made[1]).tolist() == [3, 4]


def test_a_custom_processor_brings_nothing_back_that_the_mask_forbids() -> None:
    class Flat(Custom):
        def apply(self, logits: Float32, states: Sequence[list[float]], /) -> None:
            logits[:] = 1.0

    flat = Flat("flat")
    extras = customised((flat,), '{"flat": [0, 0]}')
    (row,) = process(random(1, SIZE), [0], extras, {0: mask_of([7, 9])}, (flat,))
    assert left(row) == [7, 9]


TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=4)
SAMPLING = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 50.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([0.1, 1.0]),
    min_p=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1e-44, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -2.0]),
    min_tokens=st.integers(0, 3),
    end_tokens=TOKENS.map(pack),
    allowed=TOKENS.map(pack),
    bad_words=st.lists(TOKENS.map(pack), max_size=2).map(tuple),
    thinking=st.none() | st.builds(thinking, st.integers(0, 1), st.just([1]), st.just([2, 3])),
    arguments=st.sampled_from(["", '{"custom": [3, 1000]}', '{"custom": [3, NaN]}']),
    seed=st.integers(0, 99),
)


@pytest.mark.slow
@given(SAMPLING, TOKENS, TOKENS, TOKENS.filter(bool))
def test_nothing_outside_a_mask_is_ever_drawn(
    sampling: Sampling, prompt: list[int], output: list[int], allowed: list[int]
) -> None:
    custom = Custom("custom")
    tokens = np.array(prompt + output, np.int32)
    extras = {0: Extras(sampling, tokens, len(prompt), (custom,))}
    masks = {0: mask_of(allowed)}
    logits = random(1, SIZE, seed=sampling.seed or 0)
    made = distribution(logits, rows_of([sampling]), extras, masks, (custom,))
    assert set(np.flatnonzero(made).tolist()) <= set(allowed)
    assert int(sample(logits, rows_of([sampling]), None, extras, masks, (custom,)).tokens[0]) in allowed


@pytest.mark.slow
@given(st.lists(st.tuples(SAMPLING, TOKENS, TOKENS), min_size=2, max_size=5), st.randoms())
def test_a_row_is_what_it_is_alone_whatever_its_neighbours_ask(
    requests: list[tuple[Sampling, list[int], list[int]]], choose: Any
) -> None:
    custom = Custom("custom")
    logits = random(len(requests), SIZE)
    extras = [
        Extras(sampling, np.array(prompt + output, np.int32), len(prompt), (custom,))
        for sampling, prompt, output in requests
    ]

    def draw(rows: Sequence[int]) -> Drawn:
        columns = rows_of([requests[i][0] for i in rows], [i + 70 for i in rows])
        return sample(logits[rows], columns, None, {n: extras[i] for n, i in enumerate(rows)}, {}, (custom,))

    order = choose.sample(range(len(requests)), len(requests))
    alone = [int(draw([i]).tokens[0]) for i in order]
    assert draw(order).tokens.tolist() == alone


def test_rows_without_extras_draw_what_they_draw_without_such_neighbours() -> None:
    logits = random(60, 3000)
    logits.flags.writeable = False
    samplings = [Sampling(temperature=t, top_k=k) for t in (0.0, 0.7, 1.5) for k in (0, 20)] * 10
    wanted = sample(logits, rows_of(samplings)).tokens
    odd = Sampling(temperature=1.3, presence_penalty=2.0, allowed=pack(range(9)))
    extras = dict.fromkeys(range(0, 60, 3), extras_of(odd, [], [1, 2, 3]))
    masks = dict.fromkeys(range(1, 60, 3), mask_of([5, 6], 3000))
    tokens = sample(logits, rows_of(samplings), extras=extras, masks=masks).tokens
    assert tokens[2::3].tolist() == wanted[2::3].tolist()
    assert set(tokens[::3].tolist()) <= set(range(9))
    assert set(tokens[1::3].tolist()) == {5, 6}


def test_extras_that_alter_nothing_any_more_change_no_draw() -> None:
    logits = random(20, 3000)
    samplings = [Sampling(temperature=1.1, top_p=0.9)] * 20
    ended = Sampling(min_tokens=2, end_tokens=pack(range(2990)), thinking=thinking(1, [1], [2]))
    extras = dict.fromkeys(range(20), extras_of(ended, [1], [2, 3]))
    full = dict.fromkeys(range(20), np.full(94, -1, np.int32))
    wanted = sample(logits, rows_of(samplings)).tokens.tolist()
    assert sample(logits, rows_of(samplings), extras=extras).tokens.tolist() == wanted
    assert sample(logits, rows_of(samplings), masks=full).tokens.tolist() == wanted


def test_penalties_after_a_resumption_are_those_without() -> None:
    sampling = Sampling(repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.2, top_p=0.9)
    extras = extras_of(sampling, [1, 2, 3])
    tokens = [1, 2, 3]
    for position in range(3, 60):
        logits = random(1, SIZE, seed=position)
        resumed = Extras(sampling, np.array(tokens, np.int32), 3)
        columns = rows_of([sampling], [position])
        drawn, again = (sample(logits, columns, extras={0: each}).tokens[0] for each in (extras, resumed))
        assert drawn == again
        tokens.append(int(drawn))
        extras.append(int(drawn))
