"""What is drawn from, beside transformers' own logits processors in float32, in the engine's order.

Where the two mean different things:
- transformers would apply its warpers as temperature, top_k, top_p, min_p; the engine, as vLLM, takes min_p
  before top_k and top_p.
- Of tokens with equal logits transformers' top_p keeps as many as it needs, in the order of a sort; the
  engine keeps or drops them together (test_sampler.py shows it). The logits here are all different.
- transformers compares bad words with prompt and output, the engine and vLLM with the output alone.
- transformers has neither frequency nor presence penalties: here is vLLM's formula, in torch.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from actorllm.cores.arrays import Float32
from actorllm.messages import Sampling, pack, unpack
from actorllm.model.sampler import Float64, sample

from .sampling import distribution, extras_of, inputs, random, rows_of

SIZE = 400
PROMPT, OUTPUT = [3, 5, 5, 8, 300, 41], [8, 9, 9, 9, 120, 41, 7]


def reference(logits: Float32, sampling: Sampling) -> Float64:
    """The distribution [V] of the token after prompt and output."""
    scores = torch.from_numpy(logits)[None]
    everything = torch.LongTensor([PROMPT + OUTPUT])
    if sampling.allowed:
        others = sorted(set(range(logits.size)) - set(unpack(sampling.allowed)))
        scores = SuppressTokensLogitsProcessor(others)(everything, scores)
    if sampling.bad_words:
        words = [unpack(word) for word in sampling.bad_words]
        scores = NoBadWordsLogitsProcessor(words)(torch.LongTensor([OUTPUT]), scores)
    for processor in processors(sampling):
        scores = processor(everything, scores)
    counts = torch.bincount(torch.LongTensor(OUTPUT), minlength=logits.size)
    scores = scores - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)
    for warper in warpers(sampling):
        scores = warper(everything, scores)
    made: Float64 = scores.softmax(dim=-1)[0].double().numpy()
    return made


def processors(sampling: Sampling) -> list[LogitsProcessor]:
    """From early end tokens to the repetition penalty, as transformers has them."""
    made: list[LogitsProcessor] = []
    if sampling.min_tokens:
        end = unpack(sampling.end_tokens)
        made.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), sampling.min_tokens, end))
    if sampling.bias_tokens:
        biases = np.frombuffer(sampling.bias, "<f4").tolist()
        tokens = unpack(sampling.bias_tokens)
        pairs = [[[token], bias] for token, bias in zip(tokens, biases, strict=True)]
        made.append(SequenceBiasLogitsProcessor(pairs))
    made.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    return made


def warpers(sampling: Sampling) -> list[LogitsProcessor]:
    made: list[LogitsProcessor] = [
        TemperatureLogitsWarper(float(sampling.temperature)),
        MinPLogitsWarper(sampling.min_p),
    ]
    if sampling.top_k:
        made.append(TopKLogitsWarper(sampling.top_k))
    return [*made, TopPLogitsWarper(sampling.top_p)]


def biases(tokens: Sequence[int], values: Sequence[float]) -> dict[str, Any]:
    return {"bias_tokens": pack(tokens), "bias": np.array(values, "<f4").tobytes()}


WISHES: list[Sampling] = [
    Sampling(temperature=0.3),
    Sampling(temperature=1.9),
    Sampling(top_k=20),
    Sampling(top_p=0.8),
    Sampling(min_p=0.05),
    Sampling(repetition_penalty=1.5),
    Sampling(repetition_penalty=0.6),
    Sampling(frequency_penalty=1.1),
    Sampling(frequency_penalty=-0.7),
    Sampling(presence_penalty=1.7),
    Sampling(min_tokens=8, end_tokens=pack([2, 9])),
    Sampling(min_tokens=7, end_tokens=pack([2, 9])),
    Sampling(**biases([9, 17, 300], [4.0, -3.5, 100.0])),
    Sampling(allowed=pack([4, 9, 77, 300])),
    Sampling(bad_words=(pack([17]), pack([41, 7, 9]), pack([7, 12]), pack([6, 13]))),
]


def combination(choose: np.random.Generator) -> Sampling:
    """Each wish with even odds."""

    def maybe(value: Any, otherwise: Any) -> Any:
        return value if choose.random() < 0.5 else otherwise

    tokens = choose.permutation(SIZE).tolist()
    words = tuple(pack([*maybe([7], maybe([41, 7], maybe([6], []))), token]) for token in tokens[:5])
    values = maybe(biases(tokens[40:60], choose.normal(0, 3, 20).tolist()), biases([], []))
    return Sampling(
        temperature=float(choose.uniform(0.2, 2)),
        top_k=maybe(int(choose.integers(1, SIZE)), 0),
        top_p=maybe(float(choose.uniform(0.1, 0.99)), 1.0),
        min_p=maybe(float(choose.uniform(0, 0.2)), 0.0),
        presence_penalty=maybe(float(choose.uniform(-2, 2)), 0.0),
        frequency_penalty=maybe(float(choose.uniform(-2, 2)), 0.0),
        repetition_penalty=maybe(float(choose.uniform(0.5, 2)), 1.0),
        min_tokens=maybe(int(choose.integers(6, 10)), 0),
        end_tokens=pack(tokens[60:63]),
        allowed=maybe(pack([*tokens[30:200], *OUTPUT]), b""),
        bad_words=maybe(words, ()),
        **values,
    )


def assert_equal_distributions(samplings: Sequence[Sampling]) -> None:
    logits = random(len(samplings), SIZE, seed=7) * 3
    extras = {i: extras_of(each, PROMPT, OUTPUT) for i, each in enumerate(samplings)}
    made = distribution(logits, rows_of(samplings), extras)
    for i, each in enumerate(samplings):
        wanted = reference(logits[i], each)
        assert np.abs(made[i] - wanted).max() < 1e-5, each
        assert abs(made[i].sum() - 1) < 1e-9


def test_each_wish_alone_gives_the_distribution_of_transformers() -> None:
    assert_equal_distributions(WISHES)


def test_each_wish_alone_changes_the_distribution() -> None:
    logits = np.tile(random(1, SIZE, seed=7) * 3, (len(WISHES) + 1, 1))
    extras = {i: extras_of(each, PROMPT, OUTPUT) for i, each in enumerate(WISHES)}
    made = distribution(logits, rows_of([*WISHES, Sampling()]), extras)
    changed = np.abs(made[:-1] - made[-1]).max(axis=1) > 1e-4
    assert [each for each, is_changed in zip(WISHES, changed, strict=True) if not is_changed] == [WISHES[11]]


@pytest.mark.slow
def test_100_random_combinations_give_the_distribution_of_transformers() -> None:
    choose = np.random.default_rng(11)
    assert_equal_distributions([combination(choose) for _ in range(100)])


def chi_square(counts: Float64, wanted: Float64) -> tuple[float, float]:
    """Pearson's statistic of counts [V] and what it stays below, but for one time in 30,000 (4 sigma).

    Tokens that are expected fewer than 5 times are taken together. The quantile is Wilson's and Hilferty's
    ("The distribution of chi-square", 1931).
    """
    expected = wanted * counts.sum()
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(counts[~rare], counts[rare].sum())
    if observed[expected == 0].any():
        return math.inf, 0.0
    observed, expected = observed[expected > 0], expected[expected > 0]
    degrees = max(expected.size - 1, 1)
    spread = 2 / (9 * degrees)
    limit = degrees * (1 - spread + 4 * math.sqrt(spread)) ** 3
    return float(((observed - expected) ** 2 / expected).sum()), limit


ALL = Sampling(
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    min_p=0.01,
    presence_penalty=0.6,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
    min_tokens=9,
    end_tokens=pack([2, 9]),
    bad_words=(pack([17]), pack([7, 12])),
    allowed=pack([*range(50), 120, 300]),
    **biases([3, 7, 41], [3.0, 3.5, 2.5]),
)
DRAWS = 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.8),
        Sampling(top_k=30, top_p=0.9, min_p=0.02),
        Sampling(repetition_penalty=1.4, frequency_penalty=0.8, presence_penalty=-0.5),
        ALL,
    ],
    ids=["temperature", "filters", "penalties", "all"],
)
def test_10_000_draws_follow_the_distribution_of_transformers(sampling: Sampling) -> None:
    logits = random(SIZE, seed=5) * 2
    choose = np.random.default_rng(2)
    columns = inputs(
        [sampling.temperature] * DRAWS,
        [sampling.top_k] * DRAWS,
        [sampling.top_p] * DRAWS,
        [sampling.min_p] * DRAWS,
        seed=choose.integers(-(2**63), 2**63 - 1, DRAWS).tolist(),
        position=choose.integers(1, 100_000, DRAWS).tolist(),
    )
    extras = dict.fromkeys(range(DRAWS), extras_of(sampling, PROMPT, OUTPUT))
    tokens = sample(np.broadcast_to(logits, (DRAWS, SIZE)), columns, extras=extras).tokens
    counts = np.bincount(tokens, minlength=SIZE).astype(np.float64)
    statistic, limit = chi_square(counts, reference(logits, sampling))
    assert statistic < limit
    warmer = dataclasses.replace(sampling, temperature=sampling.temperature * 1.1)
    plain = Sampling(temperature=sampling.temperature)
    for wrong in {warmer, plain} - {sampling}:
        statistic, limit = chi_square(counts, reference(logits, wrong))
        assert statistic > limit
