"""A weight as it lies in its file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_VIEWS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One weight, not yet copied into memory.

    name        the Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`
    shape       as Hugging Face has it: (rows, columns) of a matrix, rows being outputs
    dtype       F32, F16, BF16, or a quantisation of ggml such as Q4_1 or Q6_K
    stored      the rows in the order of the file, memory-mapped and read-only; see `data`
    rope_heads  heads whose rows the file interleaves for ggml's rope; 0: rows stand as Hugging Face has them
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: NDArray[Any]
    rope_heads: int = 0

    @property
    def data(self) -> NDArray[Any]:
        """The rows in Hugging Face order: float32, float16, uint16 (the bits of BF16) of the tensor's shape,
        or uint8 of shape (*shape[:-1], bytes a row) for a quantisation.

        Memory-mapped and read-only; a copy where rows had to move.
        """
        if not self.rope_heads:
            return self.stored
        rows = self.stored.shape[0]
        halves = self.stored.reshape(self.rope_heads, rows // self.rope_heads // 2, 2, -1)
        return halves.swapaxes(1, 2).reshape(self.stored.shape)

    def to_float32(self) -> NDArray[np.float32]:
        """The values, as a new contiguous array of the tensor's shape."""
        data = self.data
        if self.dtype == "BF16":
            return (data.astype(np.uint32) << 16).view(np.float32)
        if self.dtype in _VIEWS:
            return np.array(data, dtype=np.float32, order="C")
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        values: NDArray[np.float32] = dequantize(data, GGMLQuantizationType[self.dtype])
        return np.ascontiguousarray(values, dtype=np.float32)


def view(raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The bytes `raw` (1-D) of a tensor as the array that RawTensor.stored holds."""
    if dtype in _VIEWS:
        return raw.view(_VIEWS[dtype]).reshape(shape)
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    return raw.reshape(*shape[:-1], raw.size // rows if rows else 0)
