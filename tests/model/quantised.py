"""A little checkpoint whose matrices have any of ggml's kinds, without a file."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from actorllm.checkpoint import Architecture, Checkpoint, RawTensor, Tokenizer, tensor_shapes
from actorllm.messages import Sampling
from benchmarks.rounded import quantised

KINDS = ("Q4_1", "Q8_0", "Q6_K", "Q4_0", "F16", "BF16", "Q5_1", "F32")
"""Of every form that the native kernels have, in an order in which q, k and v differ."""

SHAPE = Architecture(
    family="llama",
    num_layers=2,
    hidden_size=256,
    intermediate_size=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=96,
    max_position_embeddings=256,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_word_embeddings=False,
    rms_norm_eps=1e-5,
    dtype="quantised",
)


class QuantisedSource:
    """Random weights; the matrices take the kinds in turn."""

    architecture = SHAPE
    sampling_defaults = Sampling()
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = kinds

    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError

    def weights(self) -> dict[str, RawTensor]:
        rng, kinds = np.random.default_rng(8), cycle(self._kinds)
        tensors = {}
        for name, shape in tensor_shapes(SHAPE).items():
            values = rng.standard_normal(shape).astype(np.float32)
            if len(shape) == 1:
                tensors[name] = RawTensor(name, shape, "F32", 1 + 0.3 * values)
            else:
                kind = next(kinds)
                tensors[name] = RawTensor(name, shape, kind, quantised(values * np.float32(0.1), kind))
        return tensors


def quantised_checkpoint(path: Path, *kinds: str) -> Checkpoint:
    """Known by an empty file in the directory `path`."""
    file = path / "quantised"
    file.touch()
    return Checkpoint("quantised", file, QuantisedSource(kinds))
