"""What is told where there can be no library."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from actorllm_kernels.cpu import build
from actorllm_kernels.cpu.build import KernelsUnavailable, compile_library, library_path, native_library
from actorllm_kernels.cpu.isa import PORTABLE, InvalidSetting

from .compilers import DIRECTORY, LIGHT, Wrapper, kept, needs_compiler, said_by

pytestmark = pytest.mark.usefixtures("cache")
slow = pytest.mark.slow


@needs_compiler
@slow
def test_a_broken_source_is_told_in_the_compilers_words(sources: Path, cache: Path) -> None:
    (sources / "answer.h").write_text("#define ANSWER not_declared\n")
    with pytest.raises(KernelsUnavailable) as error:
        compile_library(PORTABLE, sources=sources)
    assert "failed with code 1" in said_by(error)
    assert "-std=c++17 -O3 -fPIC -shared -ffp-contract=off -fno-strict-aliasing -pthread" in said_by(error)
    assert str(sources / build.UNIT) in said_by(error)
    assert "not_declared" in said_by(error).partition("\n")[2]
    assert len(said_by(error).splitlines()) <= 21
    assert kept(cache) == []


@needs_compiler
def test_a_killed_compiler_leaves_nothing(
    tmp_path: Path, sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = 'for last; do :; done; echo half > "$last"; kill -9 $$'
    monkeypatch.setenv("CXX", str(Wrapper(tmp_path, half).path))
    with pytest.raises(KernelsUnavailable, match=f"failed with code -{signal.SIGKILL:d}"):
        compile_library(PORTABLE, sources=sources)
    assert kept(cache) == []


@pytest.mark.usefixtures("no_compiler")
def test_no_compiler_is_warned_of_once(sources: Path) -> None:
    with pytest.warns(RuntimeWarning) as warned:
        got = [native_library(PORTABLE, sources=sources) for _ in range(2)]
    assert got == [None, None]
    assert len(warned) == 1
    said = str(warned[0].message)
    assert "none of g++, clang++, c++" in said
    assert "slower" in said
    assert "Install a C++17 compiler" in said
    assert "ACTORLLM_CPU_KERNELS=reference" in said
    assert warned[0].filename == __file__


@pytest.mark.usefixtures("no_compiler")
def test_no_compiler_is_an_error_for_native(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "native")
    with pytest.raises(KernelsUnavailable, match=r"there is no C\+\+ compiler"):
        native_library(PORTABLE, sources=sources)


@needs_compiler
def test_the_reference_compiles_nothing(
    sources: Path, compiler: Wrapper, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.kernels_mode() == "auto"
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "reference")
    assert build.kernels_mode() == "reference"
    assert native_library(sources=sources) is None
    assert compiler.count == 0
    assert kept(cache) == []


@needs_compiler
@slow
@pytest.mark.parametrize("mode", ["", "auto", "native"])
def test_what_compiles_is_used(mode: str, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", mode)
    library = native_library(PORTABLE, sources=sources)
    assert library is not None
    assert library.answer() == 42


def test_settings_that_cannot_be(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_ISA", "sse9")
    with pytest.raises(InvalidSetting, match="sse9"):
        native_library(sources=sources)
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "fast")
    with pytest.raises(InvalidSetting, match="ACTORLLM_CPU_KERNELS=fast is none of auto, native, reference"):
        native_library(sources=sources)
    with pytest.raises(InvalidSetting):
        build.kernels_mode()


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("no-such-compiler -x", "CXX=no-such-compiler -x is no program"),
        ('"', "cannot be read"),
        ("false", "failed with code 1"),
    ],
)
def test_a_chosen_compiler_is_the_only_one(
    chosen: str, told: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", chosen)
    with pytest.raises(KernelsUnavailable, match=told):
        library_path(PORTABLE, sources=sources)


@needs_compiler
def test_sources_that_were_not_installed(tmp_path: Path) -> None:
    with pytest.raises(KernelsUnavailable, match=f"{tmp_path} has no kernels.cpp"):
        compile_library(PORTABLE, sources=tmp_path)


def test_the_module_needs_neither_torch_nor_numpy() -> None:
    program = LIGHT + "sys.exit(str([name for name in ('torch', 'numpy') if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program, str(DIRECTORY)], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
