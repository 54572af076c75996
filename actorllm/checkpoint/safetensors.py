"""Weights in safetensors files: one, or several with an index.

A file is 8 bytes of length (little-endian), that much JSON with type, shape and offsets of each tensor, and
the data. It is read here because bfloat16 has no place in numpy: its bits come as uint16.
"""

import json
import mmap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelCorrupt, UnsupportedModel
from .tensor import RawTensor, view

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelCorrupt if it is missing or no JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelCorrupt(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelCorrupt(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelCorrupt(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


class SafetensorsFile:
    """One file, memory-mapped. Raises ModelCorrupt if it is no safetensors file or ends too early.

    tensors  (dtype, shape, start, size) of each tensor; `start` counts from the beginning of the file
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelCorrupt(f"{path}: cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise ModelCorrupt(f"{path}: is empty") from None
        header, data = self._header()
        self.tensors = {
            name: self._place(name, entry, data) for name, entry in header.items() if name != "__metadata__"
        }

    def read(self, name: str) -> RawTensor:
        """A tensor of this file. Raises UnsupportedModel for a type other than F32, F16 and BF16."""
        dtype, shape, start, size = self.tensors[name]
        if dtype not in _ITEM_SIZES:
            known = ", ".join(_ITEM_SIZES)
            raise UnsupportedModel(f"{self.path}: {name} is of type {dtype}; supported are {known}")
        return RawTensor(
            name, shape, dtype, view(np.frombuffer(self._map, np.uint8, size, start), dtype, shape)
        )

    def _header(self) -> tuple[dict[str, Any], int]:
        length = int.from_bytes(self._map[:8], "little")
        if len(self._map) < 8 or length > len(self._map) - 8:
            raise ModelCorrupt(
                f"{self.path}: a header of {length} bytes in a file of {len(self._map)}: "
                "it is truncated, or no safetensors file"
            )
        try:
            header = json.loads(self._map[8 : 8 + length])
        except ValueError as error:
            raise ModelCorrupt(
                f"{self.path}: not a safetensors file: its header is no JSON ({error})"
            ) from None
        if not isinstance(header, dict):
            raise ModelCorrupt(f"{self.path}: not a safetensors file: its header is no JSON object")
        return header, 8 + length

    def _place(self, name: str, entry: Any, data: int) -> tuple[str, tuple[int, ...], int, int]:
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(dim) for dim in entry["shape"])
            begin, end = (int(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise ModelCorrupt(f"{self.path}: the header's entry for {name} is damaged") from None
        if data + end > len(self._map):
            raise ModelCorrupt(
                f"{self.path}: tensor {name} ends at byte {data + end}, but the file at {len(self._map)}: "
                "it is truncated"
            )
        wanted = prod(shape) * _ITEM_SIZES[dtype] if dtype in _ITEM_SIZES else end - begin
        if begin < 0 or end - begin != wanted or min(shape, default=1) < 0:
            raise ModelCorrupt(
                f"{self.path}: tensor {name} of shape {shape} and type {dtype} has {end - begin} bytes"
            )
        return dtype, shape, data + begin, end - begin


class Weights:
    """The weights of a directory. Opening reads the headers of all files, and raises ModelCorrupt for
    one that is damaged, missing, or lacks a tensor that the index promises.
    """

    def __init__(self, directory: Path) -> None:
        if (directory / SINGLE).is_file() or not (directory / INDEX).is_file():
            self.source = directory / SINGLE
            if not self.source.is_file():
                raise _no_weights(directory)
            file = SafetensorsFile(self.source)
            self._files = dict.fromkeys(file.tensors, file)
        else:
            self.source = directory / INDEX
            self._files = dict(_indexed(self.source))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def dtype(self) -> str:
        """The type of the first tensor, in the order of names."""
        first = min(self._files, default=None)
        return "F32" if first is None else self._files[first].tensors[first][0]

    def read(self) -> dict[str, RawTensor]:
        """All tensors but the inverse frequencies that old versions of transformers stored."""
        return {name: file.read(name) for name, file in self._files.items() if not name.endswith(".inv_freq")}


def _indexed(index: Path) -> Iterator[tuple[str, SafetensorsFile]]:
    """Each tensor of an index and its file."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelCorrupt(f"{index}: has no weight_map")
    opened: dict[str, SafetensorsFile] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelCorrupt(f"{index}: {shard!r} is no name of a file beside it")
        if shard not in opened:
            if not (index.parent / shard).is_file():
                raise ModelCorrupt(f"{index}: the file {shard} that it names is missing")
            opened[shard] = SafetensorsFile(index.parent / shard)
        if name not in opened[shard].tensors:
            raise ModelCorrupt(f"{index}: {shard} does not hold {name}")
        yield name, opened[shard]


def _no_weights(directory: Path) -> ModelCorrupt | UnsupportedModel:
    if any(directory.glob("pytorch_model*.bin")):
        return UnsupportedModel(
            f"{directory}: weights in pytorch_model.bin; supported are safetensors and GGUF"
        )
    return ModelCorrupt(f"{directory}: neither {SINGLE} nor {INDEX} is there")
