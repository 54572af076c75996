import math

import numpy as np
import pytest
import torch

from actorllm.cores.arrays import Float32
from actorllm.messages import Logprobs, Sampling, pack
from actorllm.model.logprobs import find_likeliest_of, log_sum_exp, prompt_logprobs, tell
from actorllm.model.sampler import sample

from .sampling import entries, extras_of, random, rows_of

Entry = tuple[int, float, int]


def told(row: list[float] | Float32, token: int, count: int, others: list[int] | None = None) -> list[Entry]:
    made = tell(np.array(row, np.float32), token, count, others or [])
    assert made.tokens.dtype == made.ranks.dtype == np.int32
    assert made.values.dtype == np.float32
    return list(zip(*(column.tolist() for column in made), strict=True))


def ids_and_ranks(made: list[Entry]) -> list[tuple[int, int]]:
    return [(token, rank) for token, _, rank in made]


def log_softmax(row: Float32) -> list[float]:
    return [float(value) for value in torch.from_numpy(row).double().log_softmax(dim=-1)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [0.0, 0.1, 5.0, 300.0])
def test_log_probabilities_of_a_large_vocabulary_are_correct_to_1e_5(width: float) -> None:
    row = random(150_000, seed=1) * np.float32(width) + np.float32(20)
    wanted = log_softmax(row)
    for token, value, _ in told(row, 77, 20, [3, 149_999]):
        assert abs(value - max(wanted[token], -9999.0)) < 1e-5 * max(1.0, abs(wanted[token]) / 10)


def test_the_drawn_token_is_first_then_the_likeliest_in_order_then_the_others() -> None:
    row = [0.0, 4.0, 1.0, 3.0, 2.0]
    assert ids_and_ranks(told(row, 2, 2, [4, 0])) == [(2, 4), (1, 1), (3, 2), (4, 3), (0, 5)]
    assert ids_and_ranks(told(row, 2, 0)) == [(2, 4)]


def test_no_token_stands_twice() -> None:
    row = [0.0, 4.0, 1.0, 3.0, 2.0]
    assert ids_and_ranks(told(row, 3, 2, [1, 0, 3, 0])) == [(3, 2), (1, 1), (0, 5)]


def test_tokens_that_have_no_logits_are_left_out() -> None:
    assert ids_and_ranks(told([0.0, 4.0], 0, 9, [-1, 2, 99])) == [(0, 2), (1, 1)]


def test_of_equals_the_lower_id_is_first_and_all_have_one_rank() -> None:
    row = [1.0, 2.0, 1.0, 2.0, 1.0, 0.0]
    assert ids_and_ranks(told(row, 5, 3)) == [(5, 6), (1, 1), (3, 1), (0, 3)]
    assert ids_and_ranks(told(row, 4, 2, [2])) == [(4, 3), (1, 1), (3, 1), (2, 3)]


def test_minus_1_is_the_whole_vocabulary() -> None:
    row = random(5000)
    made = told(row, 70, -1, [3])
    order = sorted(range(5000), key=lambda token: -row[token])
    order.remove(70)
    assert [token for token, *_ in made] == [70, *order]
    assert sorted(rank for *_, rank in made) == list(range(1, 5001))
    assert math.isclose(math.fsum(math.exp(value) for _, value, _ in made), 1, rel_tol=1e-5)


def test_what_cannot_come_has_the_least_finite_value() -> None:
    made = told([0.0, -math.inf, -20_000.0], 0, 3)
    assert made == [(0, 0.0, 1), (2, -9999.0, 2), (1, -9999.0, 3)]


@pytest.mark.parametrize("size", [1, 40, 9000, 20_001])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_the_likeliest_are_found_as_a_sort_finds_them(size: int, step: float) -> None:
    row = random(size, seed=size)
    if step:
        row = np.round(row / np.float32(step)) * np.float32(step)  # many equals
    row[::3] = -np.inf
    order = np.argsort(-row, kind="stable").tolist()
    for count in (0, 1, 5, 20, 600, size):
        assert find_likeliest_of(row, count).tolist() == order[:count]


def test_the_sum_is_the_same_anywhere_in_memory() -> None:
    row = random(5003)
    sums = set()
    for offset in range(16):
        memory = np.zeros(row.size + 16, np.float32)[offset : offset + row.size]
        memory[:] = row
        sums.add(log_sum_exp(memory))
    assert len(sums) == 1


ODD = Sampling(
    temperature=0.5,
    top_k=3,
    repetition_penalty=1.5,
    bias_tokens=pack([1]),
    bias=np.array([9.0], "<f4").tobytes(),
    logprobs=5,
)


def test_raw_log_probabilities_are_those_of_the_model() -> None:
    logits = random(2, 64)
    extras = {0: extras_of(ODD, [3], [4]), 1: extras_of(Sampling(logprobs=5))}
    mask = np.full(2, 0xFFFF0000, np.uint32)
    drawn = sample(logits, rows_of([ODD, Sampling()]), extras=extras, masks={0: mask, 1: mask})
    for row, token, made in zip(logits, drawn.tokens.tolist(), entries(drawn.logprobs), strict=True):
        assert made[0][0] == token
        wanted = log_softmax(row)
        assert all(abs(value - wanted[i]) < 1e-6 for i, value, _ in made)
        assert [i for i, *_ in made if i != token] == [i for i in np.argsort(-row)[:5] if i != token]


def test_processed_log_probabilities_are_those_of_what_is_drawn_from() -> None:
    logits = random(1, 64)
    drawn = sample(logits, rows_of([ODD]), extras={0: extras_of(ODD, [3], [4])}, processed_logprobs=True)
    row = logits[0].astype(np.float64)
    row[1] += 9
    row[[3, 4]] *= np.where(row[[3, 4]] > 0, 1 / 1.5, 1.5)
    likeliest = np.argsort(-row)[:3]
    weights = np.exp(row[likeliest] / 0.5)
    wanted = dict(zip(likeliest.tolist(), np.log(weights / weights.sum()), strict=True))
    made = entries(drawn.logprobs)[0]
    assert len(made) == 5
    for i, value, rank in made:
        assert abs(value - wanted.get(i, -9999.0)) < 1e-5
        assert (rank <= 3) == (i in wanted)


def test_processed_log_probabilities_of_a_single_token_that_is_left_are_0() -> None:
    sampling = Sampling(top_k=1, logprobs=2)
    drawn = sample(
        random(1, 30), rows_of([sampling]), extras={0: extras_of(sampling)}, processed_logprobs=True
    )
    assert [value for _, value, _ in entries(drawn.logprobs)[0]] == [0.0, -9999.0]


def test_processed_log_probabilities_at_temperature_0_are_of_what_is_penalised() -> None:
    plain = Sampling(temperature=0.0, logprobs=2)
    biased = Sampling(temperature=0.0, logprobs=2, presence_penalty=2.0)
    logits = np.tile(random(1, 30), (2, 1))
    likeliest = int(logits[0].argmax())
    extras = {0: extras_of(plain), 1: extras_of(biased, [], [likeliest])}
    made = entries(sample(logits, rows_of([plain, biased]), None, extras, processed_logprobs=True).logprobs)
    assert abs(made[0][0][1] - log_softmax(logits[0])[likeliest]) < 1e-6
    logits[1, likeliest] -= 2
    assert made[1][0][0] == logits[1].argmax() != likeliest
    assert abs(made[1][0][1] - log_softmax(logits[1])[made[1][0][0]]) < 1e-6


def test_rows_that_want_nothing_are_counted_as_0() -> None:
    logits = random(4, 50)
    extras = {1: extras_of(Sampling(logprobs=0)), 2: extras_of(Sampling(frequency_penalty=1.0))}
    extras[3] = extras_of(Sampling(logprob_tokens=pack([5, 6])))
    for processed in (False, True):
        columns = rows_of([Sampling(temperature=0.0)] * 4)
        made = entries(sample(logits, columns, extras=extras, processed_logprobs=processed).logprobs)
        assert [len(each) for each in made] == [0, 1, 0, len({int(logits[3].argmax()), 5, 6})]
    only = {0: extras_of(Sampling(frequency_penalty=1.0))}
    assert sample(logits, rows_of([Sampling()] * 4), extras=only).logprobs is None


def test_telling_changes_no_token() -> None:
    logits = random(30, 3000)
    samplings = [Sampling(temperature=t, top_p=p) for t in (0.0, 0.8, 1.5) for p in (0.7, 1.0)] * 5
    wanted = sample(logits, rows_of(samplings)).tokens.tolist()
    extras = dict.fromkeys(range(30), extras_of(Sampling(logprobs=4)))
    for processed in (False, True):
        drawn = sample(logits, rows_of(samplings), extras=extras, processed_logprobs=processed)
        assert drawn.tokens.tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 3, -1])
def test_a_prompt_is_told_row_by_row(dtype: torch.dtype, count: int) -> None:
    logits = torch.from_numpy(random(7, 300)).to(dtype)
    targets = np.array([4, 9, 299, 0, 4, 4, 8], np.int32)
    made = entries(prompt_logprobs(logits, targets, count))
    rows = logits.float().numpy()
    assert made == [told(row, target, count) for row, target in zip(rows, targets.tolist(), strict=True)]
    assert [each[0][0] for each in made] == targets.tolist()


def test_a_prompt_of_no_tokens_tells_nothing() -> None:
    assert prompt_logprobs(random(0, 9), np.zeros(0, np.int32), 3) == Logprobs()


def test_a_prompt_whose_logits_are_broken_is_an_error_that_names_the_row() -> None:
    logits = random(3, 9)
    logits[1, 4] = np.nan
    with pytest.raises(FloatingPointError, match="prompt row 1 is nan"):
        prompt_logprobs(logits, np.zeros(3, np.int32), 1)
