"""A library's sources, an empty cache and compilers."""

from pathlib import Path

import pytest
from actorllm_kernels.cpu import build
from actorllm_kernels.cpu.isa import ISAS, Isa, cpu_flags
from actorllm_kernels.cpu.library import Kernels

from .compilers import Wrapper


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and none of the variables that decide."""
    for name in ("ACTORLLM_CPU_ISA", "ACTORLLM_CPU_KERNELS", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACTORLLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A library that knows one number and its instruction set."""
    directory = tmp_path / "src"
    directory.mkdir()
    (directory / "answer.h").write_text("#define ANSWER 42\n")
    (directory / build.UNIT).write_text(
        '#include "answer.h"\n'
        "#if defined(__AVX512BF16__)\n#define ISA 512\n#elif defined(__AVX2__)\n#define ISA 2\n"
        "#else\n#define ISA 0\n#endif\n"
        'extern "C" int answer() { return ANSWER; }\nextern "C" int isa() { return ISA; }\n'
    )
    return directory


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wrapper:
    wrapper = Wrapper(tmp_path)
    monkeypatch.setenv("CXX", str(wrapper.path))
    return wrapper


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture(params=ISAS, ids=lambda isa: isa.name, scope="session")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The kernels, compiled for an instruction set of this CPU."""
    isa: Isa = request.param
    if missing := isa.missing(cpu_flags()):
        pytest.skip(f"this CPU lacks {', '.join(missing)}")
    return Kernels(build.load(isa))
