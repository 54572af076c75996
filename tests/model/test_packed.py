"""Packed weights are mapped from the cache, as long as they are those of the model, and whole."""

import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from actorllm_kernels.cpu.library import Form
from actorllm_kernels.cpu.packing import Packed

from actorllm.checkpoint import Checkpoint, RawTensor
from actorllm.errors import ConfigError
from actorllm.model import packed
from actorllm.model.compiler import NativeWeights
from actorllm.model.families import program_of
from actorllm.model.packed import load_packed
from actorllm.model.program import Embed, Head
from actorllm.model.reference import ReferenceBackEnd
from actorllm.model.runner import open_runner

from .quantised import KINDS, quantised_checkpoint
from .recording import config_of, distance, native, saved, some_logits


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tensors that were packed."""
    names: list[str] = []
    plain = packed.pack

    def pack(tensor: RawTensor, dtype: str) -> Packed:
        names.append(tensor.name)
        return plain(tensor, dtype)

    monkeypatch.setattr(packed, "pack", pack)
    return names


def load(checkpoint: Checkpoint, dtype: str = "auto", quantization: str | None = None) -> NativeWeights:
    return load_packed(program_of(checkpoint.architecture), checkpoint, dtype, quantization)


def is_mapped(weights: NativeWeights) -> bool:
    """Whether all matrices lie in a file, at the beginnings of pages."""
    for matrix in weights.matrices.values():
        base: object = matrix.data
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        if not isinstance(base, np.memmap) or matrix.data.ctypes.data % 4096:
            return False
    return True


def same(one: NativeWeights, other: NativeWeights) -> bool:
    assert one.matrices.keys() == other.matrices.keys()
    pairs = [(one.matrices[name], other.matrices[name]) for name in one.matrices]
    return all(
        (a.form, a.outputs, a.columns) == (b.form, b.outputs, b.columns) and np.array_equal(a.data, b.data)
        for a, b in pairs
    )


def test_the_second_time_nothing_is_packed(native_cache: Path, tmp_path: Path, count: list[str]) -> None:
    checkpoint = quantised_checkpoint(tmp_path, *KINDS)
    first = load(checkpoint)
    assert len(count) == 16
    second = load(checkpoint)
    assert len(count) == 16
    assert is_mapped(first)
    assert is_mapped(second)
    assert same(first, second)
    (file,) = native_cache.iterdir()
    assert not stat.S_IMODE(file.stat().st_mode) & 0o022, "others may write to it"


def test_what_is_mapped_is_what_was_packed(
    native_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = quantised_checkpoint(tmp_path, *KINDS)
    mapped = load(checkpoint)
    monkeypatch.setenv("ACTORLLM_CACHE", str(checkpoint.path))  # a file: nothing can be put there
    plain = load(checkpoint)
    assert not is_mapped(plain)
    assert same(mapped, plain)


def test_each_dtype_has_its_own(native_cache: Path, tmp_path: Path, count: list[str]) -> None:
    checkpoint = quantised_checkpoint(tmp_path, "Q4_0")
    codes, floats = load(checkpoint), load(checkpoint, "float32")
    assert len(list(native_cache.iterdir())) == 2
    assert not same(codes, floats)
    assert same(load(checkpoint, "bfloat16"), codes)
    assert len(count) == 32


@pytest.mark.parametrize("name", ["llama", "llama untied"])
def test_floats_are_rounded_to_integers_when_that_is_asked_for(
    native_cache: Path, tmp_path: Path, name: str
) -> None:
    """The embedding and the head keep 8 bits; what is rounded is cached for itself."""
    checkpoint = saved(name, tmp_path, torch.bfloat16)
    program = program_of(checkpoint.architecture)
    ends = {operation.weight for operation in program.operations if isinstance(operation, Embed | Head)}
    for quantization, form in (("int8", Form.CENTRED_8_32_HALF), ("int4", Form.CODES_4_32_HALF)):
        for _ in range(2):
            matrices = load(checkpoint, quantization=quantization).matrices
            assert {matrices[end].form for end in ends} == {Form.CENTRED_8_32_HALF}
            assert {matrix.form for end, matrix in matrices.items() if end not in ends} == {form}
    assert {matrix.form for matrix in load(checkpoint).matrices.values()} == {Form.BF16}
    assert len(list(native_cache.iterdir())) == 3


def test_rounded_weights_say_nearly_the_same(native_cache: Path, tmp_path: Path) -> None:
    checkpoint = saved("llama", tmp_path, torch.bfloat16)
    exact = some_logits(ReferenceBackEnd, checkpoint, dtype="float32")
    fine, coarse = (
        distance(some_logits(native, checkpoint, quantization=quantization), exact)
        for quantization in ("int8", "int4")
    )
    assert fine < 0.07
    assert 3 * fine < coarse < 0.5


def test_what_cannot_be_rounded_is_refused(
    native_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACTORLLM_CPU_KERNELS")
    quantised = quantised_checkpoint(tmp_path, "F16", "Q4_0")
    with pytest.raises(ConfigError, match=r"quantization is for checkpoints .* is Q4_0"):
        load(quantised, quantization="int8")
    exact = saved("llama", tmp_path, torch.float32)
    with pytest.raises(ConfigError, match=r"quantization is int4, which only the native kernels have"):
        open_runner(exact, config_of(exact, quantization="int4", dtype="float32"))


def test_weights_without_codes_are_named() -> None:
    spoilt = RawTensor("model.weight", (2, 32), "F32", np.full((2, 32), np.inf, np.float32))
    with pytest.raises(ConfigError, match=r"quantization of model\.weight: .* row 0, column 0 is inf"):
        packed.pack_rounded(spoilt, 8)


def test_a_program_with_more_matrices_than_were_packed_packs_them(
    native_cache: Path, tmp_path: Path, count: list[str]
) -> None:
    """Which there are is said beside the weights, whose file stays as it is."""
    checkpoint = quantised_checkpoint(tmp_path, "Q4_0")
    program = program_of(checkpoint.architecture)
    without_head = replace(program, operations=program.operations[:-1])
    assert len(load_packed(without_head, checkpoint, "auto").matrices) == 15
    assert len(load_packed(program, checkpoint, "auto").matrices) == 16
    assert len(load_packed(without_head, checkpoint, "auto").matrices) == 16
    assert len(count) == 15 + 16


def with_header(header: bytes, whole: bytes) -> bytes:
    start = len(header).to_bytes(8, "little") + sha256(header).digest() + header
    return start + whole[len(start) :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[:5],
        lambda whole: b"",
        lambda whole: whole + b"\0",
        lambda whole: bytes(len(whole)),
        lambda whole: b"\xff" * len(whole),
        lambda whole: (2).to_bytes(8, "little") + b"{}" + whole[10:],
        lambda whole: with_header(b"[]", whole),
        lambda whole: with_header(b"7", whole),
        lambda whole: whole.replace(b", 256, 256, ", b", 256, 288, ", 1),
    ],
    ids=[
        "a byte short",
        "five bytes",
        "empty",
        "a byte long",
        "zeros",
        "ones",
        "no size",
        "a list",
        "a number",
        "other columns",
    ],
)
def test_what_is_not_whole_is_packed_anew(
    native_cache: Path, tmp_path: Path, count: list[str], spoil: Callable[[bytes], bytes]
) -> None:
    checkpoint = quantised_checkpoint(tmp_path, *KINDS)
    first = load(checkpoint)
    (file,) = native_cache.iterdir()
    whole = file.read_bytes()
    copies = {name: Packed(m.form, m.outputs, m.columns, m.data.copy()) for name, m in first.matrices.items()}
    file.unlink()
    file.write_bytes(spoil(whole))
    assert same(load(checkpoint), NativeWeights(copies, {}))
    assert len(count) == 32
    assert file.read_bytes() == whole
    assert list(native_cache.iterdir()) == [file]


def test_a_model_that_was_replaced_is_packed_anew(native_cache: Path, tmp_path: Path) -> None:
    one, other = (
        some_logits(native, saved(name, tmp_path, torch.bfloat16)) for name in ("llama", "llama3 rope")
    )
    assert len(list(native_cache.iterdir())) == 2
    assert not np.array_equal(one, other)


def test_a_file_that_was_changed_since_is_packed_anew(
    native_cache: Path, tmp_path: Path, count: list[str]
) -> None:
    checkpoint = quantised_checkpoint(tmp_path, "Q4_0")
    load(checkpoint)
    changed = checkpoint.path.stat().st_mtime_ns + 1000
    os.utime(checkpoint.path, ns=(changed, changed))
    load(checkpoint)
    assert len(count) == 32
    checkpoint.path.write_bytes(b"longer")
    os.utime(checkpoint.path, ns=(changed, changed))
    load(checkpoint)
    assert len(count) == 48
    load(checkpoint)
    assert len(count) == 48


def test_what_nobody_uses_any_more_goes(native_cache: Path, tmp_path: Path) -> None:
    checkpoint = quantised_checkpoint(tmp_path, "Q4_0")
    load(checkpoint)
    (used,) = native_cache.iterdir()
    unused, recent = native_cache / "unused.bin", native_cache / "recent.bin"
    long_ago = time.time() - 40 * 24 * 3600
    for file in (unused, recent):
        file.write_bytes(b"another layout")
    for file in (used, unused):
        os.utime(file, (long_ago, long_ago))
    load(checkpoint)  # maps it, so it is used
    load(checkpoint, "float32")
    assert not unused.exists()
    assert recent.exists()
    assert used.exists()


@pytest.mark.parametrize("obstacle", ["a file is there", "no space", "cannot be renamed"])
def test_without_a_cache_it_runs_as_well(
    native_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: list[str], obstacle: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if obstacle == "a file is there":
        native_cache.touch()
    elif obstacle == "no space":
        monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    else:
        monkeypatch.setattr("os.replace", refuse)
    checkpoint = quantised_checkpoint(tmp_path, *KINDS)
    weights = load(checkpoint)
    assert not is_mapped(weights)
    assert same(load(checkpoint), weights)
    assert len(count) == 32
    assert native_cache.is_file() or list(native_cache.iterdir()) == []
