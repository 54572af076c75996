import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from actorllm.cores.arrays import Float32, Int32
from actorllm.cores.inputs import StepInputs
from actorllm.model.filters import keep
from actorllm.model.sampler import Likeliest, draw, philox, uniform
from actorllm.model.sampler import sample as sample_step

from .sampling import inputs, random

IDS = torch.LongTensor([[0]])
"""Token ids that the warpers of transformers want and ignore."""


def sample(logits: Any, columns: StepInputs, likeliest: Likeliest | None = None) -> Int32:
    drawn = sample_step(logits, columns, likeliest)
    assert drawn.logprobs is None
    return drawn.tokens


def kept(logits: Float32, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> list[list[int]]:
    return [keep(row - row.max(), min_p, top_k, top_p).tolist() for row in logits]


def finite(logits: torch.Tensor) -> list[list[int]]:
    """The tokens that are left after the warpers of transformers."""
    return [row.isfinite().nonzero()[:, 0].tolist() for row in logits]


def slowly_kept(row: Float32, min_p: float, top_k: int, top_p: float) -> list[int]:
    """What `keep` does, token by token and in float64."""
    logits = {token: logit for token, logit in enumerate(row.tolist()) if logit > -math.inf}
    left = {token: logit for token, logit in logits.items() if math.exp(logit) >= min_p}
    if 0 < top_k < len(left):
        least = sorted(left.values(), reverse=True)[top_k - 1]
        left = {token: logit for token, logit in left.items() if logit >= least}
    wanted = top_p * math.fsum(map(math.exp, left.values()))
    mass, least = 0.0, -math.inf
    for logit in sorted(left.values(), reverse=True):
        if top_p < 1 and mass < wanted:
            mass, least = mass + math.exp(logit), logit
    return [token for token, logit in left.items() if logit >= least]


@pytest.mark.slow
def test_sampling_needs_no_torch() -> None:
    program = "import sys, actorllm.model.sampler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        (0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (0xFFFFFFFF, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ],
)
def test_philox_gives_the_published_words(word: int, wanted: list[int]) -> None:
    words = np.array([word], np.uint64)
    assert [int(made[0]) for made in philox((words,) * 4, (words,) * 2)] == wanted


def test_uniform_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    many, fixed = np.arange(100_000), np.full(100_000, 7)
    for numbers in (uniform(fixed, many), uniform(many - 50_000, fixed)):
        assert (numbers > 0).all()
        assert (numbers < 1).all()
        counts = np.histogram(numbers, 100, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 149  # chi-square, 99 degrees: p = 0.001
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.012


def test_uniform_differs_by_seed_and_position_over_the_whole_range() -> None:
    seeds = np.array([0, 1, -1, 2**32, -(2**63), 2**63 - 1] * 2)
    positions = np.array([0] * 6 + [2**32] * 6)
    assert len(set(uniform(seeds, positions).tolist())) == 12


def test_temperature_0_is_the_likeliest_token() -> None:
    logits = random(3, 50)
    tokens = sample(logits, inputs([0.0, 0.0, 0.0], seed=[1, 2, 3]))
    assert tokens.tolist() == [row.index(max(row)) for row in logits.tolist()]
    assert tokens.dtype == np.int32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_sampled_as_their_float32(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(random(6, 700)).to(dtype)
    columns = inputs([0.0, 0.5, 1.0] * 2, top_k=[0] * 3 + [9] * 3)
    assert sample(logits, columns).tolist() == sample(logits.float().numpy(), columns).tolist()


def test_the_first_of_equals_is_the_likeliest() -> None:
    logits = np.zeros((2, 3000), np.float32)
    logits[0, [70, 2900]] = 1.0
    logits[1, [2048, 2049]] = 2.0
    assert sample(logits, inputs([0.0, 0.0])).tolist() == [70, 2048]


def test_likeliest_tokens_that_are_given_are_taken_and_stay_as_they_are() -> None:
    logits = random(4, 50)
    given = np.array([7, 8, 9, 10], np.int32), logits.max(axis=1)
    tokens = sample(logits, inputs([0.0, 2.0, 0.0, 2.0]), given)
    assert tokens[[0, 2]].tolist() == [7, 9]
    assert tokens[[1, 3]].tolist() == sample(logits, inputs([0.0, 2.0, 0.0, 2.0]))[[1, 3]].tolist() != [8, 10]
    assert given[0].tolist() == [7, 8, 9, 10]


def test_nothing_is_sampled_of_no_rows() -> None:
    assert sample(np.zeros((0, 9), np.float32), inputs([])).tolist() == []


def test_logits_may_be_read_only_and_are_not_changed() -> None:
    logits = random(3, 5000)
    before = logits.copy()
    logits.flags.writeable = False
    sample(logits, inputs([0.0, 0.7, 1.0], top_k=[0, 0, 5], top_p=[1.0, 0.9, 1.0]))
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_distribution_is_an_error_that_names_the_row(temperature: float) -> None:
    for size in (1, 7, 33, 5000):
        for place in {0, size // 2, size - 1}:
            for broken in (math.nan, math.inf):
                logits = random(3, size)
                logits[1, place] = broken
                with pytest.raises(FloatingPointError, match=f"sampling row 1 is {broken}"):
                    sample(logits, inputs([temperature] * 3))
    with pytest.raises(FloatingPointError, match="sampling row 0 is -inf"):
        sample(np.full((1, 9), -np.inf, np.float32), inputs([temperature]))


@pytest.mark.parametrize("size", [5, 5000, 20_000])
def test_masked_tokens_are_never_drawn(size: int) -> None:
    rows = 40
    filters = [(0.0, 0, 1.0), (0.01, 0, 1.0), (0.0, 3, 1.0), (0.0, 0, 0.99), (0.01, 3, 0.99)] * (rows // 5)
    columns = inputs(
        [1.0] * rows, [k for _, k, _ in filters], [p for *_, p in filters], [m for m, *_ in filters]
    )
    logits = np.full((rows, size), -np.inf, np.float32)
    logits[:, size - 2] = -1000.0
    assert set(sample(logits, columns).tolist()) == {size - 2}
    logits[:, 1] = -1000.0
    assert set(sample(logits, columns).tolist()) == {1, size - 2}


@pytest.mark.parametrize("size", [12, 9000])
def test_extreme_temperatures(size: int) -> None:
    rows = 300
    logits = np.broadcast_to(random(1, size) * 30, (rows, size))
    likeliest = int(logits[0].argmax())
    lowest = np.full((1, size), np.finfo(np.float32).min)
    lowest[0, 3] = np.finfo(np.float32).max
    for temperature in (1e-45, 1e-6, 1e-3):
        assert set(sample(logits, inputs([temperature] * rows)).tolist()) == {likeliest}
        assert set(sample(logits, inputs([temperature] * rows, top_p=[0.9] * rows)).tolist()) == {likeliest}
        assert sample(lowest, inputs([temperature])).tolist() == [3]
    tokens = sample(logits, inputs([1e6] * rows))
    assert len(set(tokens.tolist())) >= min(size, rows * 0.95)


def test_draw_inverts_the_cumulated_distribution() -> None:
    weights = np.array([0.1, 0.0, 0.2, 0.7], np.float32)
    numbers = [2**-33, 0.0999, 0.1001, 0.2999, 0.3001, 1 - 2**-33]
    assert [draw(weights, number) for number in numbers] == [0, 0, 2, 2, 3, 3]
    assert draw(np.array([1.0, 1.0, 0.0, 2.0], np.float32), 0.5) == 3  # on the mark is not past it


def test_draw_inverts_a_long_distribution() -> None:
    weights = np.exp(random(5001) * 3)
    weights[[0, 255, 256, 5000]] = 0.0
    cumulated = weights.cumsum(dtype=np.float64)
    for number in np.linspace(2**-33, 1 - 2**-33, 500).tolist():
        token = draw(weights, number)
        assert weights[token] > 0
        assert cumulated[token] - weights[token] - 1e-6 * cumulated[-1] <= number * cumulated[-1]
        assert number * cumulated[-1] <= cumulated[token] + 1e-6 * cumulated[-1]
    assert draw(weights, 2**-33) == 1
    assert draw(weights, 1 - 2**-53) == 4999


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    rows = 5000
    logits = random(1, 12) * 1.5
    tokens = sample(np.broadcast_to(logits, (rows, 12)), inputs([temperature] * rows, seed=[5] * rows))
    wanted = np.exp(logits[0].astype(np.float64) / temperature)
    wanted *= rows / wanted.sum()
    counts = np.bincount(tokens, minlength=12)
    assert ((counts - wanted) ** 2 / wanted).sum() < 31.3  # chi-square, 11 degrees: p = 0.001


@pytest.mark.slow
def test_draws_follow_the_softmax_over_a_whole_vocabulary_and_within_the_filters() -> None:
    rows, size = 4000, 9001
    logits = np.broadcast_to(random(1, size), (rows, size))
    weights = np.exp(logits[0].astype(np.float64))
    for top_k in (0, 4500):
        tokens = sample(logits, inputs([1.0] * rows, [top_k] * rows))
        left = np.where(logits[0] >= np.sort(logits[0])[-top_k], weights, 0.0)
        wanted = left.cumsum()[899::900] / left.sum() * rows
        counts = (tokens[:, None] <= np.arange(899, size, 900)).sum(axis=0)
        each = np.diff(wanted, prepend=0.0)
        assert ((np.diff(counts, prepend=0) - each) ** 2 / each).sum() < 29.6  # 10 degrees: p = 0.001
        assert (left[tokens] > 0).all()


def test_filters_drop_what_transformers_drops() -> None:
    logits = random(8, 2000) * 3
    tensor = torch.from_numpy(logits)
    for top_k in (1, 7, 1999, 2000, 5000):
        assert kept(logits, top_k=top_k) == finite(TopKLogitsWarper(top_k)(IDS, tensor))
    for top_p in (0.01, 0.5, 0.9, 0.999):
        assert kept(logits, top_p=top_p) == finite(TopPLogitsWarper(top_p)(IDS, tensor))
    for min_p in (0.01, 0.3, 1.0):
        assert kept(logits, min_p=min_p) == finite(MinPLogitsWarper(min_p)(IDS, tensor))


def test_filters_apply_one_after_the_other() -> None:
    logits = random(4, 300) * 2
    wanted = MinPLogitsWarper(0.02)(IDS, torch.from_numpy(logits))
    wanted = TopPLogitsWarper(0.7)(IDS, TopKLogitsWarper(20)(IDS, wanted))
    assert kept(logits, min_p=0.02, top_k=20, top_p=0.7) == finite(wanted)


@pytest.mark.parametrize("width", [0.0, 0.01, 0.3, 2.0, 8.0, 200.0])
def test_filters_keep_what_the_slow_reference_keeps(width: float) -> None:
    choose = np.random.default_rng(int(width * 100))
    for _ in range(60):
        row = (
            random(int(choose.choice([1, 2, 30, 600, 8191, 8192, 20_001])), seed=int(choose.integers(99)))
            * width
        )
        if (step := float(choose.choice([0.0, 1 / 32, 0.5]))) > 0:
            row = np.round(row / step).astype(np.float32) * np.float32(step)  # many equals
        row[choose.random(row.size) < choose.choice([0.0, 0.5, 0.999])] = -np.inf
        row[choose.integers(row.size)] = 0.0
        row -= row.max()
        min_p = float(choose.choice([0.0, 0.0, 1e-9, 0.02, 0.3, 1.0]))
        top_k = int(choose.choice([0, 0, 1, 50, 512, 513, 5000, row.size]))
        top_p = float(choose.choice([1e-6, 0.3, 0.9, 0.99, 1.0]))
        assert keep(row, min_p, top_k, top_p).tolist() == slowly_kept(row, min_p, top_k, top_p)


def test_top_p_of_a_flat_distribution_looks_beyond_the_likeliest() -> None:
    logits = random(2, 9000) * 0.01
    wanted = finite(TopPLogitsWarper(0.8)(IDS, torch.from_numpy(logits)))
    assert kept(logits, top_p=0.8) == wanted
    assert len(wanted[0]) > 5000


@pytest.mark.parametrize("size", [10, 20_000])
def test_equals_are_kept_or_dropped_together(size: int) -> None:
    row = np.full((1, size), -9.0, np.float32)
    row[0, [1, 4, size - 1]] = 0.0
    row[0, [0, 7]] = -1.0
    best, good = [1, 4, size - 1], [0, 1, 4, 7, size - 1]
    assert kept(row, top_k=1) == kept(row, top_k=3) == kept(row, top_p=0.01) == kept(row, min_p=1.0) == [best]
    assert kept(row, top_k=4) == kept(row, top_k=5) == kept(row, min_p=0.3, top_p=0.99) == [good]
    assert kept(row, top_k=6) == kept(row, top_k=size) == kept(row, top_p=0.9999999) == [list(range(size))]
    assert kept(np.zeros((1, size), np.float32), top_k=2, top_p=0.1, min_p=1.0) == [list(range(size))]


@pytest.mark.parametrize("top_k", [1, 50, 512, 513])
def test_top_k_keeps_neighbours(top_k: int) -> None:
    row = np.full((1, 20_000), -9.0, np.float32)
    row[0, 700 : 700 + top_k] = -np.arange(top_k) / 100
    assert kept(row, top_k=top_k) == [list(range(700, 700 + top_k))]


def test_filters_without_effect_change_no_draw() -> None:
    logits = random(30, 3000)
    wanted = sample(logits, inputs([1.0] * 30)).tolist()
    for top_k in (3000, 3001, 2**31 - 1):
        assert sample(logits, inputs([1.0] * 30, [top_k] * 30)).tolist() == wanted
    assert sample(logits, inputs([1.0] * 30, min_p=[1e-30] * 30)).tolist() == wanted
    assert kept(logits) == [list(range(3000))] * 30


def test_min_p_of_1_leaves_the_likeliest() -> None:
    logits = random(9, 5000)
    assert sample(logits, inputs([1.7] * 9, min_p=[1.0] * 9)).tolist() == logits.argmax(axis=1).tolist()


def columns(rows: int, choose: np.random.Generator) -> dict[str, list[Any]]:
    return {
        "temperature": choose.choice([0.0, 0.01, 0.7, 1.0, 1.9, 100.0], rows).tolist(),
        "top_k": choose.choice([0, 0, 1, 20, 3000], rows).tolist(),
        "top_p": choose.choice([0.3, 0.95, 1.0, 1.0], rows).tolist(),
        "min_p": choose.choice([0.0, 0.0, 0.05], rows).tolist(),
        "seed": choose.integers(-(2**63), 2**63 - 1, rows).tolist(),
        "position": choose.integers(0, 9000, rows).tolist(),
    }


def test_a_row_draws_alone_what_it_draws_in_any_batch_and_anywhere_in_memory() -> None:
    choose = np.random.default_rng(3)
    for size in [1, 2, 3, 15, 17, 255, 257, 4001, 8191, 8193, *choose.integers(1, 30_000, 20).tolist()]:
        rows = int(choose.integers(1, 20))
        logits = random(rows, size, seed=size) * np.float32(choose.choice([0.1, 2, 9]))
        parameters = columns(rows, choose)
        together = sample(logits, inputs(**parameters)).tolist()
        order = choose.permutation(rows)
        shuffled = {name: [column[i] for i in order] for name, column in parameters.items()}
        wider = np.zeros((rows, size + 5), np.float32)
        wider[:, 2:-3] = logits[order]
        tokens = sample(wider[:, 2:-3], inputs(**shuffled)).tolist()
        assert tokens == [together[i] for i in order]
        for i in range(rows):
            offset = int(choose.integers(16))
            memory = np.zeros(size + 16, np.float32)[offset : offset + size]
            memory[:] = logits[i]
            alone = inputs(**{name: [column[i]] for name, column in parameters.items()})
            assert sample(memory[None], alone).tolist() == [together[i]]
