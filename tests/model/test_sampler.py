import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from actorllm.cores.batch import StepInputs
from actorllm.model.sampler import draw, filter_logits, philox, sample, uniform

IDS = torch.LongTensor([[0]])
"""Token ids that the warpers of transformers want and ignore."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(
    temperature: list[float],
    top_k: list[int] | None = None,
    top_p: list[float] | None = None,
    min_p: list[float] | None = None,
    seed: list[int] | None = None,
    position: list[int] | None = None,
) -> StepInputs:
    rows = len(temperature)
    nothing = np.zeros(0, np.int32)
    return StepInputs(
        input_ids=nothing,
        positions=nothing.astype(np.int64),
        slot_mapping=nothing.astype(np.int64),
        query_start_loc=nothing,
        seq_lens=nothing,
        block_table=nothing,
        sample_rows=np.arange(rows),
        logits_indices=np.arange(rows),
        temperature=np.array(temperature, np.float32),
        top_k=np.array(top_k or [0] * rows, np.int32),
        top_p=np.array(top_p or [1.0] * rows, np.float32),
        min_p=np.array(min_p or [0.0] * rows, np.float32),
        seed=np.array(seed or [0] * rows, np.int64),
        position=np.array(position or range(rows), np.int64),
    )


def filtered(logits: Tensor, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    rows = logits.shape[0]
    return filter_logits(
        logits.clone(),
        np.full(rows, min_p, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, top_p, np.float32),
    )


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temperature_0_is_the_likeliest_token(dtype: torch.dtype) -> None:
    logits = random(3, 50).to(dtype)
    tokens = sample(logits, inputs([0.0, 0.0, 0.0], seed=[1, 2, 3]))
    assert tokens.tolist() == [row.tolist().index(max(row.tolist())) for row in logits]
    assert tokens.dtype == np.int32


def test_the_first_of_equals_is_the_likeliest() -> None:
    logits = torch.zeros(2, 3000, dtype=torch.bfloat16)
    logits[0, [70, 2900]] = 1.0
    logits[1, [2048, 2049]] = 2.0
    assert sample(logits, inputs([0.0, 0.0])).tolist() == [70, 2048]


def test_draw_inverts_the_cumulated_distribution() -> None:
    logits = torch.tensor([[0.1, 0.0, 0.2, 0.7]]).log().expand(6, -1)
    numbers = np.array([2**-33, 0.0999, 0.1001, 0.2999, 0.3001, 1 - 2**-33])
    assert draw(logits, numbers).tolist() == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    rows = 20_000
    logits = random(1, 12).mul(1.5)
    tokens = sample(logits.expand(rows, -1), inputs([temperature] * rows, seed=[5] * rows))
    wanted = (logits[0].double() / temperature).softmax(-1).numpy() * rows
    counts = np.bincount(tokens, minlength=12)
    assert ((counts - wanted) ** 2 / wanted).sum() < 31.3  # chi-square, 11 degrees: p = 0.001


@pytest.mark.slow
def test_filters_drop_what_transformers_drops() -> None:
    logits = random(8, 2000).mul(3)
    for top_k in (1, 7, 1999, 2000, 5000):
        assert torch.equal(filtered(logits, top_k=top_k), TopKLogitsWarper(top_k)(IDS, logits))
    for top_p in (0.01, 0.5, 0.9, 0.999):
        assert torch.equal(filtered(logits, top_p=top_p), TopPLogitsWarper(top_p)(IDS, logits))
    for min_p in (0.01, 0.3, 1.0):
        assert torch.equal(filtered(logits, min_p=min_p), MinPLogitsWarper(min_p)(IDS, logits))


def test_top_p_of_a_flat_distribution_looks_beyond_the_likeliest() -> None:
    logits = random(2, 3000).mul(0.01)
    wanted = TopPLogitsWarper(0.8)(IDS, logits)
    assert torch.equal(filtered(logits, top_p=0.8), wanted)
    assert (wanted[0] > float("-inf")).sum() > 512


def test_filters_apply_one_after_the_other() -> None:
    logits = random(4, 300).mul(2)
    wanted = MinPLogitsWarper(0.02)(IDS, logits)
    wanted = TopPLogitsWarper(0.7)(IDS, TopKLogitsWarper(20)(IDS, wanted))
    assert torch.equal(filtered(logits, min_p=0.02, top_k=20, top_p=0.7), wanted)


def test_filters_without_effect_leave_the_logits() -> None:
    logits = random(2, 30)
    assert torch.equal(filtered(logits), logits)


@pytest.mark.slow
def test_a_row_draws_alone_what_it_draws_in_any_batch() -> None:
    rows = 24
    logits = random(rows, 4001).mul(2)
    choose = np.random.default_rng(3)
    columns = {
        "temperature": choose.choice([0.0, 0.7, 1.0, 1.9], rows).tolist(),
        "top_k": choose.choice([0, 1, 20, 3000], rows).tolist(),
        "top_p": choose.choice([0.3, 0.95, 1.0], rows).tolist(),
        "min_p": choose.choice([0.0, 0.05], rows).tolist(),
        "seed": choose.integers(-(2**63), 2**63 - 1, rows).tolist(),
        "position": choose.integers(0, 9000, rows).tolist(),
    }
    together = sample(logits, inputs(**columns)).tolist()
    alone = [
        int(sample(logits[i : i + 1], inputs(**{name: [column[i]] for name, column in columns.items()}))[0])
        for i in range(rows)
    ]
    order = choose.permutation(rows)
    shuffled = {name: [column[i] for i in order] for name, column in columns.items()}
    assert alone == together
    assert sample(logits[order], inputs(**shuffled)).tolist() == [together[i] for i in order]
    assert len(set(together)) > rows // 2
