"""A little checkpoint whose matrices have any of ggml's kinds, without a file."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from actorllm_kernels.cpu.packing import GROUP
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from actorllm.checkpoint import Architecture, Checkpoint, RawTensor, Tokenizer, tensor_shapes
from actorllm.messages import Sampling
from actorllm.model.packed import bfloat16

Floats = NDArray[np.float32]

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


def quantised(values: Floats, kind: str) -> NDArray[Any]:
    """The values as RawTensor stores them."""
    match kind:
        case "F32":
            return values
        case "F16":
            return values.astype(np.float16)
        case "BF16":
            return bfloat16(values)
        case "Q6_K":
            return q6_k(values)
    rounded: NDArray[np.uint8] = quantize(values, GGMLQuantizationType[kind])
    return rounded


def q6_k(values: Floats) -> NDArray[np.uint8]:
    """Blocks of 256: codes of 6 bits in groups of 16, with factors of 8 bits of a scale in float16."""
    rows = len(values)
    groups = values.reshape(rows, -1, 16, 16)
    step = np.abs(groups).max(-1, keepdims=True) / 31
    scale = (step.max(2, keepdims=True) / 127).astype(np.float16)
    factors = np.clip(np.rint(step / scale), 1, 127)
    codes = (np.clip(np.rint(groups / (factors * scale)), -32, 31) + 32).astype(np.uint8)
    halves = codes.reshape(rows, -1, 2, 4, GROUP)
    low, high = halves & 15, halves >> 4
    blocks = [
        low[:, :, :, :2] | low[:, :, :, 2:] << 4,
        high[:, :, :, 0] | high[:, :, :, 1] << 2 | high[:, :, :, 2] << 4 | high[:, :, :, 3] << 6,
        factors.astype(np.int8).view(np.uint8),
        scale.reshape(rows, -1, 1).view(np.uint8),
    ]
    count = values.shape[1] // 256
    return np.concatenate([part.reshape(rows, count, -1) for part in blocks], 2).reshape(rows, -1)
