"""The files of a recording: where they lie, whose they are, and how the writing of them ends."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from actorllm import ConfigError
from actorllm.engine import segments
from actorllm.engine.segments import OLDER, SegmentWriter
from actorllm.wire.recording import MARK


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentWriter]:
    """A writer at a relative path, started."""
    monkeypatch.chdir(tmp_path)
    writer = SegmentWriter("turns")
    writer.open()
    yield writer
    end(writer)


def end(writer: SegmentWriter) -> None:
    writer.close()
    anyio.run(writer.join)


@pytest.mark.slow
def test_the_segments_lie_together_wherever_the_process_goes(
    writer: SegmentWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    writer.put(MARK + b"one")
    monkeypatch.chdir("elsewhere")
    writer.put(MARK + b"two", begins=True)
    end(writer)
    assert writer.error is None
    assert writer.path == str(tmp_path / "turns")
    assert (tmp_path / "turns").read_bytes() == MARK + b"two"
    assert (tmp_path / ("turns" + OLDER)).read_bytes() == MARK + b"one"
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["turns", "turns" + OLDER])
@pytest.mark.parametrize("content", [MARK, None])
def test_a_link_is_not_followed(name: str, content: bytes | None, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / name
    if content is not None:
        target.write_bytes(content)
        target.chmod(0o644)
    link.symlink_to(target)
    with pytest.raises(ConfigError, match=f"record: {link} is a symbolic link"):
        SegmentWriter(str(tmp_path / "turns")).open()
    assert link.readlink() == target
    if content is not None:
        assert target.stat().st_mode & 0o777 == 0o644
    else:
        assert not target.exists()


@pytest.mark.slow
def test_a_link_that_takes_the_place_of_a_segment_ends_the_recording(
    writer: SegmentWriter, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.touch(0o644)
    (tmp_path / "turns").unlink()
    (tmp_path / "turns").symlink_to(target)
    writer.put(MARK, begins=True)
    end(writer)
    assert writer.error is not None
    assert "cannot be written: " in writer.error
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"", 0o644)


@pytest.mark.slow
def test_whatever_goes_wrong_with_the_writing_is_told_once(
    writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: str) -> int:
        raise MemoryError("no room")

    monkeypatch.setattr(segments, "_begin", fail)
    with caplog.at_level(logging.WARNING, "actorllm"):
        writer.put(b"data", begins=True)
        end(writer)
        writer.put(b"more")
    assert writer.error == f"{os.path.abspath('turns')} cannot be written: MemoryError: no room"
    assert writer.num_pending == 0
    assert [entry.getMessage() for entry in caplog.records] == [f"the recording has ended: {writer.error}"]
