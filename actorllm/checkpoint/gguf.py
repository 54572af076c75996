"""The container of a GGUF file: metadata, and where each tensor lies.

The layout is the one of ggml's docs/gguf.md (versions 2 and 3, little-endian). The reader walks the header
once and decodes an array of strings only when it is asked for, so that a vocabulary of 150,000 costs
milliseconds to open.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelCorrupt, UnsupportedModel

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6
_LENGTH = struct.Struct("<Q")
MAGIC = b"GGUF"

# The numbers of ggml's types, and what gguf.quants can turn into numbers again.
TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor lies: `dtype` is ggml's name, `shape` has rows first, `start` counts from the file's."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Array:
    """An array in the header that nobody has looked at yet."""

    kind: int
    count: int
    start: int


class GGUFFile:
    """One GGUF file, memory-mapped. Raises ModelCorrupt if it is no GGUF file or ends too early.

    path     the file
    tensors  by ggml's names, such as `blk.0.attn_q.weight`
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, Extent] = {}
        self._values: dict[str, Any] = {}
        self._map = _open(path)
        try:
            self._read_header()
        except (struct.error, OverflowError):
            raise ModelCorrupt(f"{path}: the file ends within its header: it is truncated") from None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key: a scalar, str, list[str] or numpy array. Raises ModelCorrupt for bad text."""
        value = self._values.get(key, default)
        if isinstance(value, _Array):
            value = self._values[key] = self._decode(key, value)
        return value

    def keys(self) -> tuple[str, ...]:
        """The metadata's keys, as the file orders them."""
        return tuple(self._values)

    def bytes_of(self, extent: Extent) -> NDArray[np.uint8]:
        """The tensor's bytes, 1-D and memory-mapped."""
        return np.frombuffer(self._map, np.uint8, extent.size, extent.start)

    def _read_header(self) -> None:
        version, n_tensors, n_values = struct.unpack_from("<IQQ", self._map, 4)
        if version not in (2, 3):
            raise UnsupportedModel(
                f"{self.path}: GGUF version {version}; supported are 2 and 3, little-endian"
            )
        at = 24
        for _ in range(n_values):
            key, at = self._string(at)
            (kind,) = struct.unpack_from("<I", self._map, at)
            self._values[key], at = self._value(kind, at + 4)
        alignment = self._values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ModelCorrupt(f"{self.path}: general.alignment is {alignment!r}")
        found = []
        for _ in range(n_tensors):
            info, at = self._tensor(at)
            found.append(info)
        data = -(-at // alignment) * alignment
        for name, kind, shape, offset in found:
            self.tensors[name] = self._place(name, kind, shape, data + offset)

    def _string(self, at: int) -> tuple[str, int]:
        (length,) = _LENGTH.unpack_from(self._map, at)
        end = at + 8 + length
        if end > len(self._map):
            raise struct.error
        try:
            return str(self._map[at + 8 : end], "utf-8"), end
        except UnicodeDecodeError:
            raise ModelCorrupt(f"{self.path}: text at byte {at} is not UTF-8") from None

    def _value(self, kind: int, at: int) -> tuple[Any, int]:
        if kind == _STRING:
            return self._string(at)
        if kind == _ARRAY:
            inner, count = struct.unpack_from("<IQ", self._map, at)
            array = _Array(inner, count, at + 12)
            return array, self._end(array)
        layout = self._layout(kind)
        (value,) = struct.unpack_from(layout, self._map, at)
        if kind == _FLOAT32:
            value = float(str(np.float32(value)))  # 1e-05 as it was written, not 9.999999747378752e-06
        return value, at + struct.calcsize(layout)

    def _layout(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ModelCorrupt(f"{self.path}: unknown type {kind} in the metadata")
        return _SCALARS[kind]

    def _end(self, array: _Array) -> int:
        if array.kind != _STRING:
            end = array.start + array.count * struct.calcsize(self._layout(array.kind))
        else:
            end, length_at, buffer = array.start, _LENGTH.unpack_from, self._map
            for _ in range(array.count):
                end += 8 + length_at(buffer, end)[0]
        if end > len(self._map):
            raise struct.error
        return end

    def _decode(self, key: str, array: _Array) -> Any:
        if array.kind != _STRING:
            layout = np.dtype(self._layout(array.kind))
            return np.frombuffer(self._map, layout, array.count, array.start)
        strings, at, length_at, buffer = [], array.start, _LENGTH.unpack_from, self._map
        try:
            for _ in range(array.count):
                begin = at + 8
                at = begin + length_at(buffer, at)[0]
                strings.append(str(buffer[begin:at], "utf-8"))
        except UnicodeDecodeError:
            raise ModelCorrupt(f"{self.path}: {key} has text that is not UTF-8") from None
        return strings

    def _tensor(self, at: int) -> tuple[tuple[str, int, tuple[int, ...], int], int]:
        name, at = self._string(at)
        (n_dims,) = struct.unpack_from("<I", self._map, at)
        if not 1 <= n_dims <= 4:
            raise ModelCorrupt(f"{self.path}: tensor {name} has {n_dims} dimensions")
        *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", self._map, at + 4)
        return (name, kind, tuple(reversed(dims)), offset), at + 4 + 8 * n_dims + 12

    def _place(self, name: str, kind: int, shape: tuple[int, ...], start: int) -> Extent:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        dtype = TENSOR_TYPES.get(kind)
        if dtype is None:
            known = ", ".join(TENSOR_TYPES.values())
            raise UnsupportedModel(
                f"{self.path}: tensor {name} has the quantisation {_name_of(kind)}; supported are {known}"
            )
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        count = 1
        for dim in shape:
            count *= dim
        if not count or shape[-1] % block:
            raise ModelCorrupt(f"{self.path}: tensor {name} of type {dtype} has the shape {shape}")
        size = count // block * block_bytes
        if start + size > len(self._map):
            raise ModelCorrupt(
                f"{self.path}: tensor {name} ends at byte {start + size}, but the file at {len(self._map)}: "
                "it is truncated"
            )
        return Extent(dtype, shape, start, size)


def _open(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise ModelCorrupt(f"{path}: not a GGUF file (it does not begin with {MAGIC.decode()})")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelCorrupt(f"{path}: cannot be read: {error.strerror or error}") from None


def _name_of(kind: int) -> str:
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType(kind).name
    except ValueError:
        return f"number {kind}"
