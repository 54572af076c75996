"""`actorllm replay`: what it writes, and its exit codes."""

import pickle
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorllm import DownloadFailed, Engine, SamplingParams
from actorllm.checkpoint import Checkpoint, open_checkpoint, resolve
from actorllm.cli import main
from actorllm.cores.kvpool import KVPool
from actorllm.messages import Abort
from actorllm.testing import replay
from actorllm.wire.codec import encode
from actorllm.wire.recording import MARK, RecordingReader, Turn, pack_start, pack_turn

from .engine.build import config

HEADER: dict[str, Any] = {"model": "hash", "version": "0"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of one answer."""
    path = tmp_path_factory.mktemp("recording") / "turns"

    async def answer() -> None:
        async with Engine(config(record=str(path))) as engine:
            await engine.generate("hello", SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))

    anyio.run(answer)
    return path


def run(*arguments: str | Path) -> int:
    """The exit code of `actorllm replay`."""
    with pytest.raises(SystemExit) as caught:
        main(["replay", *map(str, arguments)])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_cores_that_say_the_same(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recording) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert " turns of 8 actors, " in told.out
    assert told.out.endswith(" s: they say the same\n")


def test_a_core_that_says_something_else(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KVPool, "_admit", lambda *_: True)
    assert run(recording) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "the kvpool says something else" in told.err
    assert "  fed:\n    Reserve(" in told.err
    assert "  said then:\n    Reserved(" in told.err
    assert "  says now:\n    Reserved(" in told.err
    assert "first at [0].requests: [" in told.err
    assert "then, [] now" in told.err


def test_a_file_whose_end_is_missing(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(written(tmp_path / "cut", recording.read_bytes()[:-3])) == 0
    assert "the recording ends within a turn, as when its process is killed" in capsys.readouterr().out


def test_a_gap_before_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(written(tmp_path / "late", pack_start(HEADER | {"num_lost": 7}, {}))) == 0
    assert "there is a gap before them: 7 turns were not recorded" in capsys.readouterr().out
    assert run(written(tmp_path / "odd", pack_start(HEADER | {"num_lost": "many"}, {}))) == 0
    assert "gap" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the recording ends before its first turn"),
        (MARK, "the recording ends before its first turn"),
        (b"GGUF of course", "no recording of actorllm"),
        (pack_start(HEADER, {"kvpool": b"junk"}), "the snapshot of the kvpool: "),
        (
            pack_start(HEADER, {"kvpool": pickle.dumps(print)}),
            "it names builtins.print, which no recording may",
        ),
        (
            pack_start(HEADER, {}) + pack_turn(Turn("who", 0.0, (), ())),
            "turn 1 is of the who, of which there is",
        ),
    ],
)
def test_a_file_that_is_no_recording(
    data: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "foreign", data)
    assert run(path) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"actorllm: {path}: ")
    assert reason in told
    assert told.count("\n") == 1


def test_a_message_that_is_none(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns: list[Any] = [Turn("kvpool", 0.0, (b"junk",), ()), Turn("kvpool", 0.0, (encode(Abort(5)),), (b"",))]
    for turn in turns:
        path = written(tmp_path / "foreign", recording.read_bytes() + pack_turn(turn))
        assert run(path) == 1
        assert f"actorllm: {path}: turn " in capsys.readouterr().err


def test_a_model_that_is_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "moved", pack_start({"model": "./nowhere"}, {}))
    assert run(path) == 1
    assert "nowhere" in capsys.readouterr().err
    assert run(path, "--model", "hash") == 0


@pytest.mark.parametrize(
    "model", ["stranger/model", "~nobody-of-this-name/model", "\0", "a" * 5000, "\ud800"]
)
def test_a_recording_does_not_choose_what_is_downloaded(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_snapshot", lambda model: pytest.fail(f"{model} was asked for"))
    path = written(tmp_path / "foreign", pack_start({"model": model}, {}))
    assert run(path) == 1
    told = capsys.readouterr().err
    assert (
        f"the recording is of the model {model!r}, which is not on this machine: name it with --model" in told
    )
    assert told.count("\n") == 1


def test_a_model_that_is_named_or_a_path_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def opening(model: str) -> Checkpoint:
        opened.append(model)
        return open_checkpoint("hash")

    monkeypatch.setattr(replay, "open_checkpoint", opening)
    models = ["hash", "hash:0,8", "smollm2-135m", str(tmp_path)]
    for model in models:
        assert run(written(tmp_path / "recording", pack_start({"model": model}, {}))) == 0
    assert run(tmp_path / "recording", "--model", "stranger/model") == 0
    assert opened == [*models, "stranger/model"]


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "nothing") == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_model_that_cannot_be_fetched_is_not_the_files_fault(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(model: str) -> Path:
        raise DownloadFailed(f"{model} could not be fetched")

    monkeypatch.setattr(resolve, "_snapshot", offline)
    assert run(recording, "--model", "not/there") == 1
    assert capsys.readouterr().err == "actorllm: not/there could not be fetched\n"


def test_a_directory_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 2
    assert capsys.readouterr().err == f"actorllm: {tmp_path} cannot be read: Is a directory\n"


ESCAPE = "\x1b[2J\x9b\u202e\ud800\r"


def foreign(recording: Path, turn: Turn) -> bytes:
    """A recording with this turn, of a version and an actor with names that would harm a terminal."""
    reader = RecordingReader()
    reader.feed(recording.read_bytes())
    header, snapshots = reader.poll_header(), reader.poll_snapshots()
    assert header is not None
    assert snapshots is not None
    start = pack_start(header | {"version": ESCAPE}, snapshots | {ESCAPE: snapshots["kvpool"]})
    return start + pack_turn(turn)


def raising(*_: Any) -> Any:
    raise ValueError(ESCAPE)


@pytest.mark.parametrize(
    ("turn", "code"),
    [
        (Turn("kvpool", 0.0, (), (), f"RuntimeError: {ESCAPE}\n  says now:"), 1),
        (Turn(ESCAPE, 0.0, (), (), "RuntimeError"), 1),
        (Turn(f"no {ESCAPE}", 0.0, (), ()), 1),
        (Turn("kvpool", 0.0, (), (), f"ValueError: {ESCAPE}"), 0),
    ],
    ids=["error", "actor", "nobody", "crash"],
)
def test_nothing_of_a_foreign_file_reaches_the_terminal_as_it_is(
    turn: Turn,
    code: int,
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KVPool, "poll", raising)
    assert run(written(tmp_path / "foreign", foreign(recording, turn))) == code
    told = capsys.readouterr()
    assert "\\x1b[2J\\x9b\\u202e\\ud800\\r" in told.out + told.err
    assert all(line.isprintable() for line in (told.out + told.err).split("\n"))
    assert told.err.count("\n  says now:") <= 1
