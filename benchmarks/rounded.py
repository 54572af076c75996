"""A model with the same matrices in other numbers: what each form of weights costs, on a real model."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from actorllm_kernels.cpu.build import load
from actorllm_kernels.cpu.codes import quantise, values
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from actorllm.checkpoint import Checkpoint, RawTensor, Tokenizer
from actorllm.model.packed import bfloat16

Floats = NDArray[np.float32]
Stored = tuple[str, NDArray[Any]]
"""A kind, and values in it as RawTensor has them."""

KINDS = ("BF16", "F16", "Q8_0", "Q6_K", "Q5_1", "Q4_0")
"""Of a checkpoint's matrices."""

QUANTIZATIONS = {"int8": 8, "int4": 4}
"""What the engine rounds a checkpoint in BF16 to while it loads it, and bits of a code."""

ENDS = ("model.embed_tokens.weight", "lm_head.weight")
"""These keep 8 bits in any case."""


class RoundedSource:
    """The weights of a checkpoint; the matrices are stored as `store` says, by name and values."""

    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, inner: Checkpoint, store: Callable[[str, Floats], Stored]) -> None:
        self.architecture = inner.architecture
        self.sampling_defaults = inner.sampling_defaults
        self._inner = inner
        self._store = store
        self._weights: dict[str, RawTensor] = {}

    def tokenizer(self) -> Tokenizer:
        """The checkpoint's own."""
        return self._inner.tokenizer()

    def weights(self) -> dict[str, RawTensor]:
        """Rounded at the first call."""

        def rounded(tensor: RawTensor) -> RawTensor:
            if len(tensor.shape) == 1:
                return tensor
            kind, stored = self._store(tensor.name, tensor.to_float32())
            return RawTensor(tensor.name, tensor.shape, kind, stored)

        if not self._weights:
            with ThreadPoolExecutor() as threads:
                tensors = threads.map(rounded, self._inner.weights().values())
                self._weights = {tensor.name: tensor for tensor in tensors}
        return self._weights


@contextmanager
def rounded(checkpoint: Checkpoint, weights: str) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """The checkpoint with matrices of one of KINDS, or in BF16 for one of QUANTIZATIONS, and the checkpoint
    whose values the native kernels then have exactly.

    Q6_K has blocks of 256: where these do not fit the matrix is Q8_0, as in llama.cpp's files. What is packed
    goes to a directory that is removed at the end.
    """
    load()
    with TemporaryDirectory() as directory, patch.dict(os.environ, ACTORLLM_CACHE=directory):
        file = Path(directory) / "rounded"
        file.touch()

        def made(store: Callable[[str, Floats], Stored]) -> Checkpoint:
            return Checkpoint(f"{checkpoint.name} in {weights}", file, RoundedSource(checkpoint, store))

        if weights in QUANTIZATIONS:
            yield made(_as_kind("BF16")), made(_as_codes(QUANTIZATIONS[weights]))
        else:
            same = made(_as_kind(weights))
            yield same, same


def _as_kind(kind: str) -> Callable[[str, Floats], Stored]:
    def store(name: str, floats: Floats) -> Stored:
        fitting = "Q8_0" if kind == "Q6_K" and floats.shape[1] % 256 else kind
        return fitting, quantised(floats, fitting)

    return store


def _as_codes(bits: int) -> Callable[[str, Floats], Stored]:
    """What the codes mean that the engine makes of values in BF16."""

    def store(name: str, floats: Floats) -> Stored:
        exact = (bfloat16(floats).astype(np.uint32) << 16).view(np.float32)
        return "F32", values(quantise(exact, 8 if name in ENDS else bits))[:, : floats.shape[1]]

    return store


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
    halves = codes.reshape(rows, -1, 2, 4, 32)
    low, high = halves & 15, halves >> 4
    blocks = [
        low[:, :, :, :2] | low[:, :, :, 2:] << 4,
        high[:, :, :, 0] | high[:, :, :, 1] << 2 | high[:, :, :, 2] << 4 | high[:, :, :, 3] << 6,
        factors.astype(np.int8).view(np.uint8),
        scale.reshape(rows, -1, 1).view(np.uint8),
    ]
    count = values.shape[1] // 256
    return np.concatenate([part.reshape(rows, count, -1) for part in blocks], 2).reshape(rows, -1)
