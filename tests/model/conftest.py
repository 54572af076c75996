"""The native kernels, compiled where all find them, and packed weights where only the test does."""

from pathlib import Path

import pytest
from actorllm_kernels.cpu.build import KernelsUnavailable, cache_directory, load
from actorllm_kernels.cpu.library import Kernels


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    try:
        return Kernels(load())
    except KernelsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def native_cache(kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The native kernels run, and weights are packed into this directory, which is not there yet."""
    path = tmp_path / "cache"
    path.mkdir()
    (path / "kernels").symlink_to(cache_directory())
    monkeypatch.setenv("ACTORLLM_CACHE", str(path))
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "native")
    return path / "packed"
