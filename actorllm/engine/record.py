"""Recording: the turns of an engine's cores, as they happen, to be run again by `actorllm replay`.

The prompts and the answers are in it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import anyio

from ..checkpoint import Tokenizer
from ..config import EngineConfig
from ..cores import Core
from ..cores.grammar import Grammars
from ..errors import ConfigError
from ..messages import Message
from ..wire.codec import encode
from ..wire.recording import Turn, pack_start, pack_turn
from .segments import SegmentWriter
from .snapshot import save
from .wrapped import Wrapped

QUEUE = 16 << 20
"""Bytes that wait for the disk; what finds them there is lost."""

ON_WAY = 1024
"""Messages whose encoding is kept until they are heard; what nobody hears stays among them."""

SEGMENTS = 2
"""Files that a recording has at most."""


def shared_objects(tokenizer: Tokenizer, grammars: Grammars) -> tuple[object, ...]:
    """What cores hold that comes from the checkpoint, and is in no snapshot."""
    return tokenizer, tokenizer.pieces, tokenizer.special_ids, grammars


class Recorder:
    """Writes turns into segments, each of which begins with a snapshot of every core.

    It is told of a turn when it is over, and nothing else happens meanwhile; so all cores are between two
    turns, and a snapshot can be taken. Mail on its way is in later turns. A turn is lost when the disk is too
    far behind, or when it does not fit into its segment; then a new segment begins behind it, or later, when
    all cores are idle, if its snapshot is too large now. `record` never raises: what goes wrong ends the
    recording, and `statistics` tells.
    """

    def __init__(
        self,
        cores: Mapping[str, Core[Any, Any]],
        shared: Sequence[object],
        header: Mapping[str, Any],
        writer: SegmentWriter,
        max_bytes: int,
    ) -> None:
        """Begin the first segment. Raises ConfigError when a core cannot be recorded."""
        self._cores = cores
        self._shared = shared
        self._header = header
        self._writer = writer
        self._share = max_bytes // SEGMENTS
        self._size = 0
        self._gap = self._is_crowded = False
        self._turns = self._lost = self._told = 0
        self._on_way: dict[int, tuple[Any, bytes]] = {}
        self._segments = 1
        self._put(self._start())

    def listen(self, actor: str) -> "Listened":
        """The actor's core, to be served in its place: its turns are recorded."""
        return Listened(actor, self._cores[actor], self)

    def record(
        self,
        actor: str,
        now: float | None,
        fed: list[Any],
        said: tuple[Any, ...],
        error: Exception | None = None,
    ) -> None:
        """Note a turn that is over."""
        if self._writer.error is not None:
            return
        try:
            self._record(actor, now, fed, said, error)
        except Exception as failure:  # whatever it is, the engine is not to die of it
            self._writer.fail(f"{type(failure).__name__}: {failure}")

    def statistics(self) -> dict[str, Any]:
        """Counts since the start, and why it has ended if it has."""
        return {
            "path": self._writer.path,
            "num_turns": self._turns,
            "num_lost": self._lost,
            "num_segments": self._segments,
            "pending_bytes": self._writer.num_pending,
            "died": self._writer.error,
        }

    def _record(
        self, actor: str, now: float | None, fed: list[Any], said: tuple[Any, ...], error: Exception | None
    ) -> None:
        if not self._gap:
            heard = tuple(map(self._heard, fed))
            uttered = tuple(map(self._uttered, said))
            data = pack_turn(Turn(actor, now, heard, uttered, None if error is None else describe(error)))
            room = min(self._share - self._size, QUEUE - self._writer.num_pending)
            if len(data) <= room:
                self._turns += 1
                self._put(data)
                self._gap = self._share - self._size < self._share // 8
            else:
                self._lost += 1
                self._gap = True
        else:
            self._lost += 1
        if self._gap and self._writer.num_pending <= QUEUE // 2:
            self._end_gap()

    def _end_gap(self) -> None:
        """Begin a new segment, unless what the cores hold now is too large for it."""
        idle = all(core.idle for core in self._cores.values())
        if self._is_crowded and not idle:
            return
        try:
            start = self._start()
        except _TooLargeError:
            if idle:
                raise
            self._is_crowded = True
            return
        self._gap = self._is_crowded = False
        self._told = self._lost
        self._segments += 1
        self._size = 0
        self._put(start, begins=True)

    def _uttered(self, message: Any) -> bytes:
        """A message encoded, and kept for when it is heard: mostly within a few turns."""
        data = encode(message)
        if len(self._on_way) >= ON_WAY:
            self._on_way.clear()
        self._on_way[id(message)] = message, data
        return data

    def _heard(self, message: Any) -> bytes:
        said = self._on_way.pop(id(message), None)
        return encode(message) if said is None else said[1]

    def _put(self, data: bytes, *, begins: bool = False) -> None:
        self._size += len(data)
        self._writer.put(data, begins=begins)

    def _start(self) -> bytes:
        """What a segment begins with, now."""
        header = {**self._header, "num_lost": self._lost - self._told}
        start = beginning(self._cores, self._shared, header)
        if len(start) > self._share // 2:
            least = 2 * SEGMENTS * len(start)
            text = f"record_max_bytes must be at least {least}: a snapshot takes {len(start)} bytes"
            raise _TooLargeError(text)
        return start


class _TooLargeError(ConfigError):
    """A snapshot takes too much of its segment."""


def beginning(
    cores: Mapping[str, Core[Any, Any]], shared: Sequence[object], header: Mapping[str, Any]
) -> bytes:
    """What a segment begins with: all that the cores are. Raises ConfigError for one that cannot be saved."""
    snapshots = {}
    for actor, core in cores.items():
        try:
            snapshots[actor] = save(core, shared)
        except TypeError as error:
            raise ConfigError(f"record: the {actor} cannot be recorded: {error}") from error
    return pack_start(header, snapshots)


class Listened(Wrapped):
    """A core whose turns are recorded, those that raise too."""

    def __init__(self, actor: str, core: Core[Any, Any], recorder: Recorder) -> None:
        super().__init__(actor, core)
        self._recorder = recorder
        self._fed: list[Message] = []

    def feed(self, message: Any) -> None:
        """Feed the core."""
        self._fed.append(message)
        try:
            self.core.feed(message)
        except Exception as error:
            self._recorder.record(self.actor, None, self._fed, (), error)
            raise

    def poll(self, now: float) -> tuple[Any, ...]:
        """Poll the core, and record the turn."""
        fed, self._fed = self._fed, []
        try:
            said: tuple[Any, ...] = self.core.poll(now)
        except Exception as error:
            self._recorder.record(self.actor, now, fed, (), error)
            raise
        self._recorder.record(self.actor, now, fed, said)
        return said


def describe(error: Exception) -> str:
    """An exception as it stands in a recording."""
    return f"{type(error).__name__}: {error}"


@asynccontextmanager
async def open_recorder(
    config: EngineConfig, cores: Mapping[str, Core[Any, Any]], shared: Sequence[object]
) -> AsyncIterator[Recorder | None]:
    """A recorder of these cores at `config.record`, or None; on leaving, everything is written.

    `shared` are the objects that are in no snapshot.

    Raises ConfigError when the file cannot be made, or a core cannot be recorded.
    """
    if config.record is None:
        yield None
        return
    header = await anyio.to_thread.run_sync(_header, config)
    writer = SegmentWriter(config.record)
    recorder = Recorder(cores, shared, header, writer, config.record_max_bytes)
    await anyio.to_thread.run_sync(writer.open)
    try:
        yield recorder
    finally:
        writer.close()
        await writer.join()


def _header(config: EngineConfig) -> dict[str, Any]:
    return {"version": version("actorllm"), "model": config.model, "config": asdict(config)}
