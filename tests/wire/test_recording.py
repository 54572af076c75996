"""How a recording is laid out: what is packed is read, in pieces of any size, and nothing else is."""

import json
import zlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorllm import DecodeError
from actorllm.wire.frames import frame
from actorllm.wire.recording import MARK, RecordingReader, Turn, pack_start, pack_turn

HEADER = {"model": "hash", "version": "0"}
SNAPSHOTS = {"kvpool": b"state"}
START = pack_start(HEADER, SNAPSHOTS)

turns = st.builds(
    Turn,
    st.text(max_size=9),
    st.none() | st.floats(allow_nan=False),
    st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    st.none() | st.text(max_size=9),
)


def read(data: bytes, size: int = 1 << 20) -> tuple[list[Turn], RecordingReader]:
    """The turns in these bytes, fed `size` at a time."""
    reader = RecordingReader()
    found: list[Turn] = []
    header = snapshots = None
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        header = header or reader.poll_header()
        snapshots = snapshots or (reader.poll_snapshots() if header else None)
        while snapshots and (turn := reader.poll_turn()) is not None:
            found.append(turn)
    assert header in (HEADER, None)
    assert snapshots in (SNAPSHOTS, None)
    return found, reader


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(turns, max_size=3), st.integers(1, 40))
def test_what_is_packed_is_read(packed: list[Turn], size: int) -> None:
    found, reader = read(START + b"".join(map(pack_turn, packed)), size)
    assert found == packed
    assert not reader.is_cut


def test_a_cut_at_any_byte_loses_only_what_is_behind_it() -> None:
    turn = Turn("kvpool", 1.0, (b"a",), (b"b",))
    ends = [len(START), len(START) + len(pack_turn(turn))]
    data = START + 2 * pack_turn(turn)
    for end in range(len(data)):
        found, reader = read(data[:end])
        assert found == [turn] * max(0, (end - len(START)) // len(pack_turn(turn)))
        assert end < len(START) or reader.is_cut == (end not in ends)


def test_a_flipped_bit_in_what_is_packed_is_seen() -> None:
    data = START + pack_turn(Turn("kvpool", 1.0, (b"aaaa",), (b"bbbb",)))
    for at in range(len(START) + 4, len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(DecodeError, match="damaged: a turn does not match its checksum"):
            read(flipped)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04", "no recording of actorllm"),
        (MARK.replace(b"1", b"2"), "in another format"),
    ],
)
def test_a_foreign_file_is_refused_at_its_first_bytes(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        RecordingReader().feed(data)


def sealed(payload: bytes) -> bytes:
    return frame(zlib.crc32(payload).to_bytes(4, "big") + payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        msgpack.packb(5),
        msgpack.packb(("kvpool", 1.0, (), ())),
        msgpack.packb((5, 1.0, (), (), None)),
        msgpack.packb(("kvpool", 1.0, ("text",), (), None)),
        msgpack.packb(("kvpool", 1, (), (), None)),
        msgpack.packb(("kvpool", 1.0, (), 5, None)),
    ],
)
def test_a_turn_of_another_shape_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError, match="damaged: a turn "):
        read(START + sealed(payload))


@pytest.mark.parametrize("header", [b"{", b"[]", b"{}", b"\xff", b"[" * 5000])
def test_a_header_of_another_shape_is_refused(header: bytes) -> None:
    with pytest.raises(DecodeError, match="damaged: a header "):
        read(MARK + sealed(header))


def test_snapshots_of_another_shape_are_refused() -> None:
    with pytest.raises(DecodeError, match="damaged: a snapshot "):
        read(MARK + sealed(json.dumps(HEADER).encode()) + sealed(msgpack.packb({"kvpool": "text"})))
