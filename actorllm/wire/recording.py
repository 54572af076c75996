"""A recording as bytes: a mark, then frames: a header, a snapshot of every core, and turns. Sans-IO.

Each frame is a checksum (CRC-32, big-endian) and a payload: the header is JSON, the others are MessagePack.
Messages stand in a turn as the codec encodes them.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgpack

from ..errors import DecodeError
from .frames import FrameReader, frame

T = TypeVar("T")

_FAMILY = b"actorllm recording "
MARK = _FAMILY + b"1\n"
"""What a file begins with; the number is that of the format."""

_CRC = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of an actor: what it was fed together, and what it said when it was polled at `now`.

    A core that raised said nothing: `error` is the exception, and `now` is None unless it raised in `poll`.
    """

    actor: str
    now: float | None
    fed: tuple[bytes, ...]
    said: tuple[bytes, ...]
    error: str | None = None


def pack_start(header: Mapping[str, Any], snapshots: Mapping[str, bytes]) -> bytes:
    """The beginning of a segment: the mark, the header, and the state of each core as bytes."""
    return MARK + _sealed(json.dumps(header).encode()) + _sealed(_pack(dict(snapshots)))


def pack_turn(turn: Turn) -> bytes:
    """A turn as a frame. Raises ValueError when it is too long for one."""
    return _sealed(_pack((turn.actor, turn.now, turn.fed, turn.said, turn.error)))


def _pack(value: Any) -> bytes:
    return cast(bytes, msgpack.packb(value, unicode_errors="surrogatepass"))


def _sealed(payload: bytes) -> bytes:
    return frame(zlib.crc32(payload).to_bytes(_CRC, "big") + payload)


class RecordingReader:
    """Feed it the bytes of a segment; take the header, the snapshots, and then the turns.

    Each `poll_*` gives None until more is fed, and raises DecodeError for bytes that are no recording.
    """

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._mark = b""

    def feed(self, data: bytes) -> None:
        """Absorb bytes, cut anywhere. Raises DecodeError when they do not begin as a recording does."""
        missing = len(MARK) - len(self._mark)
        if missing:
            self._mark += data[:missing]
            _check_mark(self._mark)
        self._frames.feed(data[missing:])

    def poll_header(self) -> dict[str, Any] | None:
        """The header; to be taken first."""
        return self._poll(json.loads, _is_header, "header")

    def poll_snapshots(self) -> dict[str, bytes] | None:
        """The state of each core by its actor's name; to be taken second."""
        return self._poll(_unpack, _is_snapshots, "snapshot")

    def poll_turn(self) -> Turn | None:
        """The next turn."""
        fields: Any = self._poll(_unpack, _is_turn, "turn")
        return None if fields is None else Turn(*fields)

    @property
    def is_cut(self) -> bool:
        """Whether what was fed ends within a frame."""
        try:
            self._frames.close()
        except DecodeError:
            return True
        return len(self._mark) < len(MARK)

    def _poll(self, parse: Callable[[bytes], T], fits: Callable[[Any], bool], name: str) -> T | None:
        body = self._frames.poll()
        if body is None:
            return None
        if zlib.crc32(body[_CRC:]).to_bytes(_CRC, "big") != body[:_CRC]:
            raise DecodeError(f"damaged: a {name} does not match its checksum")
        try:
            value = parse(body[_CRC:])
        except (ValueError, RecursionError, msgpack.UnpackException) as error:
            raise DecodeError(f"damaged: a {name} cannot be read: {error or type(error).__name__}") from None
        if not fits(value):
            raise DecodeError(f"damaged: a {name} has other parts than a {name} has")
        return value


def _check_mark(data: bytes) -> None:
    if not MARK.startswith(data):
        if data.startswith(_FAMILY):
            raise DecodeError("a recording in another format, of another version of actorllm")
        raise DecodeError("no recording of actorllm")


def _unpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, use_list=False, unicode_errors="surrogatepass")


def _is_header(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("model"), str)


def _is_snapshots(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(actor, str) and isinstance(state, bytes) for actor, state in value.items()
    )


def _is_turn(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 5:
        return False
    actor, now, fed, said, error = value
    mail = isinstance(fed, tuple) and isinstance(said, tuple)
    return (
        isinstance(actor, str)
        and isinstance(now, float | None)
        and isinstance(error, str | None)
        and mail
        and all(isinstance(message, bytes) for message in (*fed, *said))
    )
