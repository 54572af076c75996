from pathlib import Path

import pytest

from actorllm.checkpoint import Checkpoint, open_checkpoint


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    """The real default model, fetched if it is not in the cache yet."""
    return open_checkpoint("smollm2-135m")


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("ACTORLLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
