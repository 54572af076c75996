"""HTTP/1.1 in pieces: the body does not depend on where they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm import DecodeError
from actorllm.bench.reply import Reply

from .peers import chunked, sized


def fed(data: bytes, cuts: list[int]) -> tuple[Reply, bytes]:
    """A reply and its body, from the bytes cut at these places."""
    reply = Reply()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    body = b"".join(reply.feed(data[begin:end]) for begin, end in pairwise(places))
    return reply, body


@given(cuts=st.lists(st.integers(0, 1 << 16), max_size=12), parts=st.lists(st.binary(min_size=1), max_size=5))
def test_chunks_are_put_together(cuts: list[int], parts: list[bytes]) -> None:
    reply, body = fed(chunked(*parts), cuts)
    assert (reply.status, reply.done, reply.keeps_open, body) == (200, True, True, b"".join(parts))


@given(cuts=st.lists(st.integers(0, 1 << 16), max_size=12), content=st.binary())
def test_a_body_of_known_length(cuts: list[int], content: bytes) -> None:
    reply, body = fed(sized("404 Not Found", content), cuts)
    assert (reply.status, reply.done, reply.keeps_open, body) == (404, True, True, content)


@given(cuts=st.lists(st.integers(0, 1 << 16), max_size=12))
def test_trailers_extensions_and_interim_answers_are_passed_over(cuts: list[int]) -> None:
    data = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
        b"2;ext=1\r\nab\r\n00;x\r\nsum: 1\r\n\r\n"
    )
    reply, body = fed(data, cuts)
    assert (reply.status, reply.done, body) == (200, True, b"ab")


def test_a_body_that_ends_with_the_connection() -> None:
    reply, body = fed(b"HTTP/1.0 200 OK\r\n\r\nabc", [])
    assert (reply.done, reply.keeps_open, body) == (False, False, b"abc")
    reply.end()
    assert reply.done


def test_a_connection_that_will_close_is_not_used_again() -> None:
    assert not fed(sized("200 OK", b"a", "Connection: close"), [])[0].keeps_open
    assert not fed(sized("200 OK", b"a").replace(b"1.1", b"1.0"), [])[0].keeps_open


@pytest.mark.parametrize("whole", [chunked(b"abc"), sized("200 OK", b"abc")])
def test_an_end_in_the_middle_is_told(whole: bytes) -> None:
    for length in range(1, len(whole)):
        reply, _ = fed(whole[:length], [])
        assert reply.begun
        with pytest.raises(DecodeError, match="in the middle of its answer"):
            reply.end()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SSH-2.0-OpenSSH_9", "no HTTP/1.1: b'SSH-2"),
        (b"HTTP/1.1 what\r\n\r\n", "no HTTP/1.1: 'HTTP/1.1 what'"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "content-length is '-1'"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", "no size of a chunk: b'-1'"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, "no HTTP/1.1"),
    ],
)
def test_what_is_no_http_is_named(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        Reply().feed(data)
