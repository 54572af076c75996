"""The library is compiled once and loads whole, with real compilers on little sources."""

import ctypes
import os
import select
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from actorllm_kernels.cpu import build
from actorllm_kernels.cpu.build import compile_library, library_path, load
from actorllm_kernels.cpu.isa import ISAS, PORTABLE, Isa, cpu_flags

from .compilers import DIRECTORY, LOAD, Wrapper, kept, needs_compiler

pytestmark = pytest.mark.usefixtures("cache")
slow = pytest.mark.slow


@needs_compiler
@slow
@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_the_library_is_of_the_instruction_set_that_was_forced(
    isa: Isa, sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isa.missing(cpu_flags()):
        pytest.skip(f"this CPU has no {isa.name}")
    monkeypatch.setenv("ACTORLLM_CPU_ISA", isa.name)
    library = load(sources=sources)
    assert library.answer() == 42
    assert library.isa() == {"avx512": 512, "avx2": 2, "portable": 0}[isa.name]
    assert kept(cache) == [library_path(isa, sources=sources).name]
    assert kept(cache)[0].startswith(f"{isa.name}-")


@needs_compiler
@slow
def test_it_is_compiled_once(sources: Path, cache: Path, compiler: Wrapper) -> None:
    path = compile_library(PORTABLE, sources=sources)
    assert path.parent == cache
    assert path == library_path(PORTABLE, sources=sources)
    assert compile_library(PORTABLE, sources=sources) == path
    assert load(PORTABLE, sources=sources).answer() == 42
    assert load(PORTABLE, sources=sources) is load(PORTABLE, sources=sources)
    assert compiler.count == 1


@needs_compiler
@slow
def test_threads_get_one_library(sources: Path, compiler: Wrapper) -> None:
    got: list[ctypes.CDLL] = []
    threads = [threading.Thread(target=lambda: got.append(load(PORTABLE, sources=sources))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    assert len(set(map(id, got))) == 1
    assert compiler.count == 1


@needs_compiler
@slow
def test_a_changed_header_compiles_again(sources: Path, cache: Path, compiler: Wrapper) -> None:
    first = compile_library(PORTABLE, sources=sources)
    (sources / "answer.h").write_text("#define ANSWER 43\n")
    second = compile_library(PORTABLE, sources=sources)
    assert ctypes.CDLL(str(first)).answer() == 42
    assert ctypes.CDLL(str(second)).answer() == 43
    assert compiler.count == 2
    assert len(kept(cache)) == 2


@needs_compiler
def test_the_name_tells_what_makes_a_difference(
    sources: Path, compiler: Wrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [library_path(isa, sources=sources).name for isa in ISAS]
    (sources / "answer.h").rename(sources / "other.h")
    names.append(library_path(PORTABLE, sources=sources).name)
    monkeypatch.setenv("CXX", f"{compiler.path} -g0")
    names.append(library_path(PORTABLE, sources=sources).name)
    monkeypatch.delenv("CXX")
    names.append(library_path(PORTABLE, sources=sources).name)
    (sources / ".answer.h.swp").write_text("of an editor")
    assert library_path(PORTABLE, sources=sources).name == names[-1]
    assert len(set(names)) == 6
    assert compiler.count == 0


@needs_compiler
@slow
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_library_is_compiled_again(share: float, sources: Path, compiler: Wrapper) -> None:
    path = compile_library(PORTABLE, sources=sources)
    os.truncate(path, int(path.stat().st_size * share))
    assert load(PORTABLE, sources=sources).answer() == 42
    assert compiler.count == 2


@needs_compiler
@slow
def test_a_library_with_a_hole_is_compiled_again(sources: Path, compiler: Wrapper) -> None:
    path = compile_library(PORTABLE, sources=sources)
    content = bytearray(path.read_bytes())
    content[4096:4352] = bytes(range(256))
    path.write_bytes(content)
    assert load(PORTABLE, sources=sources).answer() == 42
    assert compiler.count == 2


def test_the_cache_is_where_models_are(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.cache_directory() == cache
    monkeypatch.delenv("ACTORLLM_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
        assert build.cache_directory() == Path("/somewhere/actorllm/kernels")


@needs_compiler
@slow
def test_a_cache_that_cannot_be_written(tmp_path: Path, sources: Path) -> None:
    (tmp_path / "cache").write_text("a file where a directory should be")
    program = LOAD + "; print(build.compile_library(build.choose_isa(), sources=Path(sys.argv[2])))"
    program += "; import os; print(os.stat(build._private_directory()).st_mode)"
    command = [sys.executable, "-c", program, str(DIRECTORY), str(sources)]
    answer, path, mode = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert answer == "42"
    assert tmp_path not in Path(path).parents
    assert stat.S_IMODE(int(mode)) == 0o700
    assert not Path(path).parent.exists()


@needs_compiler
@slow
def test_only_old_leftovers_are_removed(sources: Path, cache: Path) -> None:
    for name in (".build-old", ".build-new"):
        (cache / name).mkdir(parents=True)
        (cache / name / "half.so").touch()
    yesterday = time.time() - 86400
    os.utime(cache / ".build-old", (yesterday, yesterday))
    path = compile_library(PORTABLE, sources=sources)
    assert kept(cache) == [".build-new", path.name]


# Two processes


@contextmanager
def fifo(path: Path) -> Iterator[int]:
    """A pipe with a name, held open at both ends so that nobody waits to open it."""
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    try:
        yield held
    finally:
        os.close(held)


@needs_compiler
@slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_two_processes_compile_at_once(
    tmp_path: Path, sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in the compiler before either may go on."""
    wrapper = Wrapper(tmp_path, f"echo > {tmp_path}/arrived; read _ < {tmp_path}/go")
    monkeypatch.setenv("CXX", str(wrapper.path))
    command = [sys.executable, "-c", LOAD, str(DIRECTORY), str(sources)]
    with fifo(tmp_path / "arrived") as arrived, fifo(tmp_path / "go") as go:
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        try:
            for _ in both:
                assert select.select([arrived], [], [], 30)[0]
                assert os.read(arrived, 1) == b"\n"
            assert [name[:7] for name in kept(cache)] == [".build-"] * 2
            os.write(go, b"\n\n")
            assert [process.communicate(timeout=30)[0] for process in both] == ["42\n"] * 2
        finally:
            for process in both:
                process.kill()
                process.communicate()
    assert wrapper.count == 2
    assert [name.startswith(".") for name in kept(cache)] == [False]
