"""Recordings, run again: the cores as they are now, on the turns that an engine has recorded.

Whatever a core says depends on its state and its mail alone. So a core that has not changed says the very
same, and the first turn in which one says something else shows what a change does, or where a bug begins.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass
from os import PathLike, fspath
from typing import Any, TypeVar

from ..checkpoint import open_checkpoint
from ..checkpoint.resolve import is_here
from ..cores import Core
from ..engine.record import describe, shared_objects
from ..engine.snapshot import load
from ..errors import DecodeError, ModelNotFound, UsageError
from ..messages import Message
from ..wire.codec import decode, encode
from ..wire.recording import RecordingReader, Turn
from .trace import printable, readable

T = TypeVar("T")

CHUNK = 1 << 20
"""Bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a core said in a turn, or the exception that it raised instead."""

    said: tuple[bytes, ...]
    error: str | None = None

    def lines(self) -> list[str]:
        """A line for each message."""
        if self.error is not None:
            return [f"raised {self.error}"]
        return [readable(decode(message)) for message in self.said] or ["nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first turn in which a core says something else. `turn` counts those of the file from 1."""

    turn: int
    actor: str
    seconds: float
    fed: tuple[Message, ...]
    then: Words
    now: Words

    def __str__(self) -> str:
        blocks = {
            "fed": [readable(message) for message in self.fed] or ["nothing: it was time"],
            "said then": self.then.lines(),
            "says now": self.now.lines(),
        }
        lines = [
            f"turn {self.turn}, {self.seconds:.3f} s after the first: the {self.actor} says something else"
        ]
        for title, words in blocks.items():
            lines += [f"  {title}:", *(f"    {word}" for word in words)]
        if self.then.error is None and self.now.error is None:
            then, now = (tuple(map(decode, words.said)) for words in (self.then, self.now))
            lines.append(f"  first at {_first_difference(then, now)}")
        return "\n".join(map(printable, lines))


@dataclass(slots=True, kw_only=True)
class Report:
    """What came of a replay.

    version     of the actorllm that recorded
    num_lost    turns between the segment before this one and its first turn, which are in none
    num_actors  whose cores were run
    num_turns   that were run, and num_messages that were fed
    seconds     from the first turn to the last
    cut         whether the file ends within a turn, as it does when the process was killed
    crash       what a core raised, then and now
    difference  the first one; None when the cores say the same
    """

    version: str
    num_lost: int
    num_actors: int
    num_turns: int = 0
    num_messages: int = 0
    seconds: float = 0.0
    cut: bool = False
    crash: str | None = None
    difference: Difference | None = None


def replay(path: str | PathLike[str], *, model: str | None = None) -> Report:
    """Run the cores over the segment in this file, up to the first difference. Blocks.

    `model` is where the tokenizer is, if no longer where the engine had it; a hub id is to be given, since
    no file may choose what is downloaded. Raises DecodeError for a file that is no recording or is damaged,
    UsageError for one that cannot be read, and what `open_checkpoint` raises.
    """
    with closing(_read(path)) as chunks:
        try:
            return _Replay(chunks, model).run()
        except DecodeError as error:
            raise DecodeError(f"{fspath(path)}: {printable(str(error))}") from error


def _read(path: str | PathLike[str]) -> Generator[bytes, None, None]:
    try:
        with open(path, "rb") as file:
            while data := file.read(CHUNK):
                yield data
    except OSError as error:
        raise UsageError(f"{fspath(path)} cannot be read: {error.strerror or error}") from error


class NoGrammars:
    """In the place of grammars: what their jobs said is in the recording."""

    def compile(self, grammar: str) -> None:
        """No job runs."""

    def size(self, grammar: str) -> int:
        """No job runs."""
        return 0

    def forget(self, grammar: str) -> None:
        """Nothing is kept."""

    def open(self, request: int, grammar: str) -> None:
        """Nothing is opened."""

    def accept(self, request: int, tokens: Sequence[int]) -> None:
        """No job runs."""

    def fill(self, requests: Sequence[int]) -> tuple[bytes, dict[int, str]]:
        """No job runs."""
        return b"", {}

    def close(self, request: int) -> None:
        """Nothing is open."""


class _Replay:
    """One run over one file."""

    def __init__(self, chunks: Iterator[bytes], model: str | None) -> None:
        self._chunks = chunks
        self._reader = RecordingReader()
        header = self._next(self._reader.poll_header)
        snapshots = self._next(self._reader.poll_snapshots)
        if header is None or snapshots is None:
            raise DecodeError("the recording ends before its first turn")
        self._cores = _load_all(snapshots, model or _checked(header["model"]))
        version, lost = printable(str(header.get("version"))), header.get("num_lost")
        num_lost = lost if isinstance(lost, int) else 0
        self._report = Report(version=version, num_lost=num_lost, num_actors=len(self._cores))
        self._begun: float | None = None

    def run(self) -> Report:
        """Every turn, in order, until one differs."""
        report = self._report
        while report.difference is None and (turn := self._next(self._reader.poll_turn)) is not None:
            report.num_turns += 1
            self._run(turn)
        report.cut = report.difference is None and self._reader.is_cut
        return report

    def _run(self, turn: Turn) -> None:
        report = self._report
        if turn.actor not in self._cores:
            raise DecodeError(
                f"turn {report.num_turns} is of the {turn.actor}, of which there is no snapshot"
            )
        fed = tuple(self._decoded(turn.fed))
        then, now = Words(turn.said, turn.error), _take_turn(self._cores[turn.actor], fed, turn.now)
        report.num_messages += len(fed)
        if turn.now is not None:
            self._begun = turn.now if self._begun is None else self._begun
            report.seconds = turn.now - self._begun
        if then == now:
            if now.error is not None and report.crash is None:
                report.crash = printable(f"the {turn.actor} raised {now.error}")
            return
        self._decoded(turn.said)
        report.difference = Difference(
            turn=report.num_turns, actor=turn.actor, seconds=report.seconds, fed=fed, then=then, now=now
        )

    def _decoded(self, messages: Sequence[bytes]) -> list[Message]:
        try:
            return [decode(message) for message in messages]
        except DecodeError as error:
            raise DecodeError(f"turn {self._report.num_turns}: {error}") from error

    def _next(self, poll: Callable[[], T | None]) -> T | None:
        """The next part of the file; None at its end."""
        while (part := poll()) is None:
            data = next(self._chunks, None)
            if data is None:
                return None
            self._reader.feed(data)
        return part


def _checked(model: str) -> str:
    """The model that the recording names, if it is one of our own or on this machine."""
    if not is_here(model):
        text = f"the recording is of the model {model!r}, which is not on this machine: name it with --model"
        raise ModelNotFound(text)
    return model


def _load_all(snapshots: Mapping[str, bytes], model: str) -> dict[str, Core[Any, Any]]:
    shared = shared_objects(open_checkpoint(model).tokenizer(), NoGrammars())
    cores: dict[str, Core[Any, Any]] = {}
    for actor, state in snapshots.items():
        try:
            cores[actor] = load(state, shared)
        except DecodeError as error:
            raise DecodeError(f"the snapshot of the {actor}: {error}") from error
    return cores


def _take_turn(core: Core[Any, Any], fed: Sequence[Message], now: float | None) -> Words:
    """What the shell does, without the waiting; without a time, the turn got no further than its mail."""
    try:
        for message in fed:
            core.feed(message)
        if now is None:
            return Words(())
        said = tuple(map(encode, core.poll(now)))
        _ = core.deadline  # the shell looks at it after each turn
    except Exception as error:  # a core that raises is a finding
        return Words((), describe(error))
    return Words(said)


def _first_difference(then: Any, now: Any, name: str = "") -> str:
    """The path of the first part that differs, with both."""
    if type(then) is type(now) and is_dataclass(then):
        for field in fields(then):
            parts = getattr(then, field.name), getattr(now, field.name)
            if parts[0] != parts[1]:
                return f".{field.name}{_first_difference(*parts, field.name)}"
    if isinstance(then, tuple) and isinstance(now, tuple):
        for index, parts in enumerate(zip(then, now, strict=False)):
            if parts[0] != parts[1]:
                return f"[{index}]{_first_difference(*parts)}"
        return f": {len(then)} then, {len(now)} now"
    shown = [repr(value) if isinstance(value, str) else readable(value, name) for value in (then, now)]
    return f": {shown[0]} then, {shown[1]} now"
