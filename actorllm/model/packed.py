"""The weights of a program as the CPU kernels read them: packed once, then mapped from the cache on disk.

The file has a header of JSON (names, forms, shapes, where each matrix lies) with its length and its digest
before it, and then the matrices, each at the beginning of a page. It is found by the model's files (path,
size, time of change), so that a model that was replaced is packed anew. Files that were not used for 30
days go when another one is written.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from actorllm_kernels.cpu.codes import from_ggml, quantise
from actorllm_kernels.cpu.library import Form
from actorllm_kernels.cpu.packing import Packed, pack_codes, pack_floats
from numpy.typing import NDArray

from ..checkpoint import Checkpoint
from ..checkpoint.fetch import cache_directory
from ..checkpoint.tensor import RawTensor
from ..cores.arrays import Float32
from ..errors import ConfigError
from .compiler import NativeWeights
from .program import Attend, Embed, Head, Linear, Norm, Program

VERSION = 3
"""Of the layout; another one is packed anew."""

_PAGE = 4096
_DIGEST_BYTES = 32
_HALF = ".packing-"
_STALE_SECONDS = 3600
_UNUSED_SECONDS = 30 * 24 * 3600


def load_packed(
    program: Program, checkpoint: Checkpoint, dtype: str, quantization: str | None = None
) -> NativeWeights:
    """The weights of a program. Matrices come from the cache, or are packed by all cores and put there.

    Linear quantisations of ggml keep their codes; what else is not floating point, and float32 unless
    `dtype` is float32, becomes bfloat16. With `quantization` int8 or int4 all become codes; the embedding and
    the head have 8 bits in either. A cache that cannot be written costs the next start its packing. Raises
    ConfigError for a quantization of what is quantised, or of weights that have no codes.
    """
    tensors = checkpoint.weights()
    path = cache_directory() / "packed" / f"{_key(checkpoint, dtype, quantization)}.bin"
    names, ends = sorted(_matrices(program)), _ends(program)
    matrices = _read(path)
    if matrices is None or not matrices.keys() >= set(names):  # files beside the weights decide on names too

        def pack_one(name: str) -> Packed:
            if quantization is None:
                return pack(tensors[name], dtype)
            return pack_rounded(tensors[name], 4 if quantization == "int4" and name not in ends else 8)

        with ThreadPoolExecutor() as threads:
            matrices = dict(zip(names, threads.map(pack_one, names), strict=True))
        matrices = _write(path, matrices) or matrices
    return NativeWeights(matrices, _vectors(program, tensors))


def pack(tensor: RawTensor, dtype: str) -> Packed:
    """One matrix in the form that suits how it is stored."""
    if dtype == "float32":
        return pack_floats(tensor.to_float32())
    if tensor.dtype in ("BF16", "F16"):
        return pack_floats(tensor.data)
    codes = None if tensor.dtype == "F32" else from_ggml(tensor.dtype, tensor.data)
    return pack_floats(bfloat16(tensor.to_float32())) if codes is None else pack_codes(codes)


def pack_rounded(tensor: RawTensor, bits: int) -> Packed:
    """A matrix in floating point, rounded to codes of so many bits in groups of 32."""
    if tensor.dtype not in ("BF16", "F16", "F32"):
        raise ConfigError(
            f"quantization is for checkpoints in floating point, but {tensor.name} is {tensor.dtype}: "
            "leave it out"
        )
    try:
        return pack_codes(quantise(tensor.to_float32(), bits))
    except ValueError as error:
        raise ConfigError(f"quantization of {tensor.name}: {error}; leave it out") from None


def bfloat16(values: Float32) -> NDArray[np.uint16]:
    """Rounded to the nearest bfloat16, halves to even: its bits."""
    bits = values.view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def _matrices(program: Program) -> Iterable[str]:
    names: set[str] = set()
    for operation in program.operations:
        match operation:
            case Embed() | Head():
                names.add(operation.weight)
            case Linear():
                names.update(operation.weights)
            case _:
                pass
    return names


def _ends(program: Program) -> set[str]:
    """The matrices of the embedding and of the head."""
    return {operation.weight for operation in program.operations if isinstance(operation, Embed | Head)}


def _vectors(program: Program, tensors: Mapping[str, RawTensor]) -> dict[str, Float32]:
    vectors: dict[str, Float32] = {}

    def add(name: str | None, offset: float = 0.0) -> None:
        if name is not None:
            vectors[name] = tensors[name].to_float32() + np.float32(offset)

    for operation in program.operations:
        match operation:
            case Norm():
                add(operation.weight, operation.offset)
            case Head():
                add(operation.norm, operation.offset)
            case Attend():
                add(operation.q_norm, operation.offset)
                add(operation.k_norm, operation.offset)
            case Linear():
                for bias in operation.biases:
                    add(bias)
            case _:
                pass
    return vectors


# -- the cache ----------------------------------------------------------------------------------------


def _key(checkpoint: Checkpoint, dtype: str, quantization: str | None) -> str:
    path = checkpoint.path
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((VERSION, dtype == "float32", quantization, stats)).encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, Packed] | None:
    """The matrices, mapped; None if there is no whole file of this layout."""
    try:
        with path.open("rb") as file:
            size, digest = int.from_bytes(file.read(8), "little"), file.read(_DIGEST_BYTES)
            content = file.read(size) if size < 1 << 24 else b""
            if hashlib.sha256(content).digest() != digest:
                return None
            header = json.loads(content)
            if header.get("size") != os.fstat(file.fileno()).st_size:
                return None
            whole = np.memmap(file, np.uint8, "r")
        with suppress(OSError):  # another's file
            os.utime(path)  # it was used
        return {
            name: Packed(Form(form), outputs, columns, _view(whole, start, shape))
            for name, form, outputs, columns, start, shape in header["matrices"]
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _view(whole: NDArray[np.uint8], start: int, shape: list[int]) -> NDArray[np.uint8]:
    return whole[start : start + int(np.prod(shape))].reshape(shape)


def _remove_stale(directory: Path) -> None:
    """Files that a killed process left half written, and those that nobody has used for long."""
    for pattern, most in ((f"{_HALF}*", _STALE_SECONDS), ("*.bin", _UNUSED_SECONDS)):
        for file in directory.glob(pattern):
            if file.stat().st_mtime < time.time() - most:
                file.unlink(missing_ok=True)


def _write(path: Path, matrices: Mapping[str, Packed]) -> dict[str, Packed] | None:
    """Put them into the cache and map them from there; None if it cannot be written."""
    places: list[list[Any]] = []
    at = _PAGE * (1 + sum(len(name) + 100 for name in matrices) // _PAGE)
    for name, packed in matrices.items():
        places.append([name, int(packed.form), packed.outputs, packed.columns, at, list(packed.data.shape)])
        at += -(-packed.data.nbytes // _PAGE) * _PAGE
    header = json.dumps({"size": at, "matrices": places}).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_HALF, delete=False) as file:
            try:
                file.write(len(header).to_bytes(8, "little") + hashlib.sha256(header).digest() + header)
                for place, packed in zip(places, matrices.values(), strict=True):
                    file.seek(place[4])
                    file.write(packed.data.data)
                file.truncate(at)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError:
        return None
    return _read(path)
