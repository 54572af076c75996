"""The CPU kernels as a library: compiled on first use, kept in the user's cache, loaded with ctypes.

Two environment variables decide. ACTORLLM_CPU_KERNELS is `native` (the library or an error), `reference`
(never the library) or `auto` (the default: the library, or the reference with one warning).
ACTORLLM_CPU_ISA names an instruction set instead of the CPU's best. CXX names the compiler and
ACTORLLM_CACHE the cache, as elsewhere.

Nothing here imports torch.
"""

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .isa import InvalidSetting, Isa, choose_isa, cpu_flags

SOURCES = Path(__file__).parent / "src"
UNIT = "kernels.cpp"
"""The one translation unit of a source directory; it includes the files beside it."""

COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-pthread",
    "-Wall",
    "-Wextra",  # without -Werror: a foreign compiler's new warning must not break a user
)
MODES = ("auto", "native", "reference")

_DIGEST = hashlib.sha256
_DIGEST_BYTES = 32
_STALE_SECONDS = 3600
_LINES_TOLD = 20


class KernelsUnavailable(Exception):
    """There is no native library: no compiler, one that fails, or a CPU that lacks something."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: how it is called, and what it says that it is."""

    command: tuple[str, ...]
    version: str


def kernels_mode() -> str:
    """What ACTORLLM_CPU_KERNELS says: native, reference, or auto. Raises InvalidSetting."""
    mode = os.environ.get("ACTORLLM_CPU_KERNELS") or "auto"
    if mode not in MODES:
        raise InvalidSetting(f"ACTORLLM_CPU_KERNELS={mode} is none of {', '.join(MODES)}")
    return mode


def native_library(
    isa: Isa | None = None, *, sources: Path = SOURCES, cache: Path | None = None
) -> ctypes.CDLL | None:
    """The library if ACTORLLM_CPU_KERNELS wants it, or None where the reference has to run.

    With `auto`, what is missing is warned of once and not tried again in this process. Blocks for as long as
    `load`. Raises InvalidSetting, and with `native` KernelsUnavailable.
    """
    mode = kernels_mode()
    if mode == "reference":
        return None
    isa = isa or choose_isa()
    if mode == "native":
        return load(isa, sources=sources, cache=cache)
    key = (isa, sources, cache)
    if key in _given_up:
        return None
    try:
        return load(isa, sources=sources, cache=cache)
    except KernelsUnavailable as error:
        with _lock:
            first = key not in _given_up
            _given_up.add(key)
        if first:
            warnings.warn(_warning(error), RuntimeWarning, stacklevel=2)
        return None


def load(isa: Isa | None = None, *, sources: Path = SOURCES, cache: Path | None = None) -> ctypes.CDLL:
    """The library, loaded once per process: any thread may ask. Blocks for seconds if it has to compile.

    Raises InvalidSetting (see `choose_isa`) and KernelsUnavailable.
    """
    isa = isa or choose_isa()
    if missing := isa.missing(cpu_flags()):
        raise KernelsUnavailable(f"this CPU lacks {', '.join(missing)}, which {isa.name} needs")
    key = (isa, sources, cache)
    with _lock:
        if key not in _loaded:
            path = compile_library(isa, sources=sources, cache=cache)
            try:
                _loaded[key] = ctypes.CDLL(str(path))
            except OSError as error:  # it is whole, so the place (noexec?) or a library that it needs
                raise KernelsUnavailable(f"the compiled kernels do not load: {error}") from error
        return _loaded[key]


_Key = tuple[Isa, Path, Path | None]
_lock = threading.Lock()
_loaded: dict[_Key, ctypes.CDLL] = {}
_given_up: set[_Key] = set()


def cache_directory() -> Path:
    """Where libraries are kept: in $ACTORLLM_CACHE, or in the user's cache directory."""
    chosen = os.environ.get("ACTORLLM_CACHE")
    if chosen:
        return Path(chosen) / "kernels"
    import platformdirs

    return platformdirs.user_cache_path("actorllm") / "kernels"


def find_compiler() -> Compiler:
    """$CXX, which may have arguments, or else the first of COMPILERS. Raises KernelsUnavailable."""
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        try:
            words = [chosen] if shutil.which(chosen) else shlex.split(chosen)
        except ValueError as error:
            raise KernelsUnavailable(f"CXX={chosen} cannot be read: {error}") from error
        candidates = [words]
    else:
        candidates = [[name] for name in COMPILERS]
    for name, *arguments in candidates:
        if path := shutil.which(name):
            # called by the name that was found: a link of ccache is a compiler only by its name
            command = (path, *arguments)
            return Compiler(command, f"{os.path.realpath(path)}\n{_run([*command, '--version'])}")
    if chosen:
        raise KernelsUnavailable(f"CXX={chosen} is no program here")
    raise KernelsUnavailable(f"there is no C++ compiler: none of {', '.join(COMPILERS)}, and CXX is not set")


def library_path(isa: Isa, *, sources: Path = SOURCES, cache: Path | None = None) -> Path:
    """Where the library of these sources, this compiler and this kind of machine is, or will be, kept.

    Raises KernelsUnavailable if there is no compiler, or nothing to compile.
    """
    return _directory(cache) / _library_name(isa, find_compiler(), sources)


def compile_library(isa: Isa, *, sources: Path = SOURCES, cache: Path | None = None) -> Path:
    """The library's file, whole, compiled if the cache does not have it so. Blocks for seconds.

    Several processes may compile at once: each works in a directory of its own, and the file appears whole.
    Where the cache cannot be written, the file is in a directory that this process removes at its end.
    Raises KernelsUnavailable, with the compiler's words if it failed.
    """
    compiler = find_compiler()
    path = _directory(cache) / _library_name(isa, compiler, sources)
    if is_whole(path):
        return path
    command = [*compiler.command, *FLAGS, *isa.flags, str(sources / UNIT)]
    try:
        _compile(command, path)
    except OSError:
        try:
            path = _private_directory() / path.name
            _compile(command, path)
        except OSError as error:
            raise KernelsUnavailable(f"there is no place to compile in: {error}") from error
    return path


def is_whole(path: Path) -> bool:
    """Whether the file ends in the digest of all that is before it, as a compiled library does.

    A loader takes a truncated library, and the process dies where it reads what is not there.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return content[-_DIGEST_BYTES:] == _DIGEST(content[:-_DIGEST_BYTES]).digest()


def _warning(error: KernelsUnavailable) -> str:
    return (
        f"the native CPU kernels cannot be used; the reference runs, several times slower: {error}\n"
        "Install a C++17 compiler (g++ or clang++) or name one in CXX. ACTORLLM_CPU_KERNELS=reference "
        "accepts the reference without this warning, ACTORLLM_CPU_KERNELS=native makes it an error."
    )


def _directory(cache: Path | None) -> Path:
    return cache_directory() if cache is None else cache


def _library_name(isa: Isa, compiler: Compiler, sources: Path) -> str:
    """`<isa>-<hash>.so`, the hash over everything that makes one library differ from another."""
    if not (sources / UNIT).is_file():
        raise KernelsUnavailable(f"{sources} has no {UNIT}: the installation is not complete")
    machine = (sys.platform, platform.machine(), isa.name)
    digest = _DIGEST(repr((machine, compiler.command, compiler.version, FLAGS, isa.flags)).encode())
    for path in sorted(path for path in sources.rglob("[!.]*") if path.is_file()):
        content = path.read_bytes()
        digest.update(repr((path.relative_to(sources).as_posix(), len(content))).encode() + content)
    return f"{isa.name}-{digest.hexdigest()[:32]}.so"


def _compile(command: Sequence[str], path: Path) -> None:
    """Run the compiler in a directory beside `path`, and rename what it made. Raises OSError as well."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(path.parent)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent, ignore_cleanup_errors=True) as work:
        made = Path(work) / path.name
        _run([*command, "-o", str(made)], TMPDIR=work)
        with made.open("r+b") as file:
            file.write(_DIGEST(file.read()).digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)


def _remove_stale(directory: Path) -> None:
    """Remove what processes that were killed while they compiled have left."""
    for left in directory.glob(".build-*"):
        try:
            age = time.time() - left.stat().st_mtime
        except OSError:  # its owner has just removed it
            continue
        if age > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


@functools.cache
def _private_directory() -> Path:
    """A directory of this process, which nobody else may enter; removed at its end."""
    directory = tempfile.mkdtemp(prefix="actorllm-kernels-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _run(command: Sequence[str], **environment: str) -> str:
    """What a command prints, in English. Raises KernelsUnavailable with its last lines if it fails."""
    told = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", **environment},
        )
    except OSError as error:
        raise KernelsUnavailable(f"the compiler does not run: {error} ({told})") from error
    said = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        last = "\n".join(said.splitlines()[-_LINES_TOLD:])
        raise KernelsUnavailable(f"the compiler failed with code {done.returncode}: {told}\n{last}")
    return said
