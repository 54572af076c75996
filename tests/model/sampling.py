"""Rows to sample from, without a model."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorllm.cores.arrays import Float32
from actorllm.cores.extras import Extras
from actorllm.cores.inputs import StepInputs
from actorllm.messages import Logprobs, Sampling
from actorllm.model.logprobs import as_float32
from actorllm.model.masks import Mask
from actorllm.model.sampler import Work, find_likeliest
from actorllm.processors import LogitsProcessor

NOTHING: Mapping[int, Any] = MappingProxyType({})


def distribution(
    logits: Float32 | Any,
    inputs: StepInputs,
    extras: Mapping[int, Extras] = NOTHING,
    masks: Mapping[int, Mask] = NOTHING,
    processors: Sequence[LogitsProcessor] = (),
) -> NDArray[np.float64]:
    """The probabilities [S, V] with which `sample` draws each token, from the very weights it draws from."""
    rows = as_float32(logits)
    work = Work(rows, inputs, find_likeliest(rows), extras, masks, processors)
    made = np.zeros(rows.shape)
    for i, choice in work.choices(range(len(rows))):
        weights = choice.weights.astype(np.float64)
        made[i, slice(None) if choice.kept is None else choice.kept] = weights / weights.sum()
    return made


def random(*shape: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def inputs(
    temperature: Sequence[float],
    top_k: Sequence[int] | None = None,
    top_p: Sequence[float] | None = None,
    min_p: Sequence[float] | None = None,
    seed: Sequence[int] | None = None,
    position: Sequence[int] | None = None,
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


def rows_of(samplings: Sequence[Sampling], position: Sequence[int] | None = None) -> StepInputs:
    """A row for each of them, with its own temperature and filters."""
    return inputs(
        [each.temperature for each in samplings],
        [each.top_k for each in samplings],
        [each.top_p for each in samplings],
        [each.min_p for each in samplings],
        [each.seed or 0 for each in samplings],
        position,
    )


def extras_of(sampling: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> Extras:
    return Extras(sampling, np.array([*prompt, *output], np.int32), len(prompt))


def entries(logprobs: Logprobs | None) -> list[list[tuple[int, float, int]]]:
    """Of each token its candidates: id, log-probability, rank."""
    assert logprobs is not None
    columns = (
        np.frombuffer(logprobs.tokens, "<i4").tolist(),
        np.frombuffer(logprobs.values, "<f4").tolist(),
        np.frombuffer(logprobs.ranks, "<i4").tolist(),
    )
    candidates = iter(zip(*columns, strict=True))
    counts = np.frombuffer(logprobs.counts, "<i4").tolist()
    made = [[next(candidates) for _ in range(count)] for count in counts]
    assert next(candidates, None) is None
    return made
