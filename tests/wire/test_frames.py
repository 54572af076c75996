import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm.errors import DecodeError
from actorllm.wire.codec import MAX_BYTES
from actorllm.wire.frames import FrameReader, frame


def drain(reader: FrameReader) -> list[bytes]:
    bodies = []
    while (body := reader.poll()) is not None:
        bodies.append(body)
    return bodies


def test_a_frame_is_its_length_and_its_body() -> None:
    assert frame(b"abc") == b"\x00\x00\x00\x03abc"
    assert frame(b"") == b"\x00\x00\x00\x00"


def test_a_body_that_no_reader_takes_is_not_framed() -> None:
    with pytest.raises(ValueError, match=f"a frame of {MAX_BYTES + 1} bytes"):
        frame(bytes(MAX_BYTES + 1))


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.integers(0, 300), max_size=12))
def test_bodies_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()
    received = []
    for start, end in pairwise(edges):
        reader.feed(stream[start:end])
        received += drain(reader)
    reader.close()
    assert received == bodies


def test_a_body_is_out_as_soon_as_its_last_byte_is_in() -> None:
    reader = FrameReader()
    stream = frame(b"one") + frame(b"two")
    seen = {}
    for at in range(len(stream)):
        reader.feed(stream[at : at + 1])
        if (body := reader.poll()) is not None:
            seen[at] = body
    assert seen == {6: b"one", 13: b"two"}


def test_a_body_is_bytes_of_its_own() -> None:
    reader = FrameReader()
    reader.feed(frame(b"first"))
    body = reader.poll()
    reader.feed(frame(b"other"))
    assert type(body) is bytes
    assert body == b"first"


def test_a_frame_beyond_the_maximum_is_refused_at_its_header() -> None:
    reader = FrameReader(max_bytes=10)
    reader.feed(frame(bytes(10)) + b"\x00\x00\x00\x0b")
    assert reader.poll() == bytes(10)
    for _ in range(2):
        with pytest.raises(DecodeError, match="a frame of 11 bytes; at most 10 allowed"):
            reader.poll()


def test_a_length_is_not_signed() -> None:
    reader = FrameReader()
    reader.feed(b"\xff\xff\xff\xff")
    with pytest.raises(DecodeError, match="a frame of 4294967295 bytes"):
        reader.poll()


@pytest.mark.parametrize("rest", [b"\x00", b"\x00\x00\x00\x03", b"\x00\x00\x00\x03ab"])
def test_a_stream_that_ends_within_a_frame_is_refused(rest: bytes) -> None:
    reader = FrameReader()
    reader.feed(frame(b"whole") + rest)
    assert drain(reader) == [b"whole"]
    with pytest.raises(DecodeError, match=f"within a frame, {len(rest)} bytes into it"):
        reader.close()


def test_a_stream_may_end_between_frames() -> None:
    reader = FrameReader()
    reader.close()
    reader.feed(frame(b"x"))
    assert drain(reader) == [b"x"]
    reader.close()


@pytest.mark.slow
def test_many_small_frames_take_time_in_proportion() -> None:
    count = 400_000
    reader = FrameReader()
    begun = time.process_time()
    reader.feed(frame(b"x") * count)
    assert len(drain(reader)) == count
    assert time.process_time() - begun < 3  # 0.3 s; 9 s if each body moved the rest


@pytest.mark.slow
def test_a_large_frame_in_small_pieces_takes_time_in_proportion() -> None:
    body = random.Random(1).randbytes(32 << 20)
    stream = frame(body)
    reader = FrameReader()
    begun = time.process_time()
    for at in range(0, len(stream), 4096):
        assert reader.poll() is None
        reader.feed(stream[at : at + 4096])
    assert reader.poll() == body
    assert time.process_time() - begun < 3  # 0.1 s; a minute if each piece copied the rest
