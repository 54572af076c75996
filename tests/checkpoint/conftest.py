from pathlib import Path

import pytest

from actorllm.checkpoint import Checkpoint, open_checkpoint


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    """The real default model, fetched if it is not in the cache yet."""
    checkpoint = open_checkpoint("smollm2-135m")
    checkpoint.tokenizer()
    return checkpoint


@pytest.fixture(autouse=True)
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    if "smollm2" in request.fixturenames:
        request.getfixturevalue("smollm2")
    monkeypatch.setenv("ACTORLLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
