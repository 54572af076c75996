"""What the tests of the build share."""

import shutil
from pathlib import Path

import pytest
from actorllm_kernels.cpu import build

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler on this machine"
)
DIRECTORY = Path(build.__file__).parent

LIGHT = "import sys, types; package = types.ModuleType('cpu'); package.__path__ = [sys.argv[1]]; " + (
    "sys.modules['cpu'] = package; from pathlib import Path; from cpu import build; "
)
"""Imports the module without its parent package, which imports torch."""

LOAD = LIGHT + "print(build.load(sources=Path(sys.argv[2])).answer())"


class Wrapper:
    """A compiler that counts its compilations, and does `first` before each of them."""

    def __init__(self, directory: Path, first: str = "") -> None:
        self.log = directory / "compiled.log"
        self.path = directory / "wrapper"
        self.log.touch()
        real = next(filter(None, map(shutil.which, build.COMPILERS)))
        lines = (
            "#!/bin/sh",
            'case "$*" in *--version) ;; *)',
            f"echo x >> {self.log}",
            first,
            ";; esac",
            f'exec {real} "$@"',
        )
        self.path.write_text("\n".join(lines))
        self.path.chmod(0o755)

    @property
    def count(self) -> int:
        return len(self.log.read_text().split())


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def said_by(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)
