"""The events of several servers, and what each says at the end."""

import pytest

from actorllm import DecodeError, RequestFailed
from actorllm.bench.answer import Answer, message_of
from actorllm.bench.load import Sample

from .peers import event, text, usage


def read(*events: bytes, asked: int = 3) -> Sample:
    """The sample of a whole answer, whose events come at 1.0, 2.0, ..."""
    sample = Sample(0.0)
    answer = Answer(sample)
    for number, each in enumerate(events, 1):
        answer.feed(each, float(number))
    answer.close(asked)
    return sample


def delta(finish_reason: str | None = None, **said: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": said, "finish_reason": finish_reason}]})


def test_every_chunk_with_text_is_news() -> None:
    sample = read(text("a"), text("b"), text("c", "length"), usage(7, 3), event("[DONE]"))
    assert sample.arrivals == [1.0, 2.0, 3.0]
    assert (sample.prompt_tokens, sample.output_tokens) == (7, 3)


def test_half_a_character_is_news_and_the_end_alone_is_none() -> None:
    assert read(text("a"), text(""), text("c"), text("", "length")).arrivals == [1.0, 2.0, 3.0]


def test_an_answer_without_any_text_came_with_its_end() -> None:
    assert read(text("", "length"), usage(7, 1), asked=1).arrivals == [1.0]


def test_the_role_of_a_chat_is_no_token() -> None:
    opening = delta(role="assistant", content="")
    sample = read(opening, delta(content="a"), delta(reasoning_content="b"), delta(), delta("length"))
    assert sample.arrivals == [2.0, 3.0, 4.0]


def test_without_usage_there_are_only_chunks() -> None:
    assert read(text("a", "stop"), event({"choices": [], "usage": None})).output_tokens is None


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_may_be_cut_anywhere_and_end_with_crlf(size: int) -> None:
    whole = b": ping\r\n\r\n" + (text("a") + text("b", "length") + usage(1, 3)).replace(b"\n", b"\r\n")
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    sample = read(*parts)
    assert (len(sample.arrivals), sample.output_tokens) == (2, 3)


def test_a_stream_that_ends_early_is_told() -> None:
    with pytest.raises(RequestFailed, match="ended early: 2 chunks of news, and no finish_reason"):
        read(text("a"), text("b"), event("[DONE]"))


def test_an_answer_of_another_length_is_told() -> None:
    with pytest.raises(RequestFailed, match=r"has 2 tokens of 3 \(finish_reason 'stop'\); .* ignore_eos"):
        read(text("a"), text("b", "stop"), usage(7, 2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (event({"error": {"message": "out of memory", "code": 500}}), "in the stream: out of memory"),
        (b'error: {"code":500,"message":"no slot"}\n\n', "in the stream: no slot"),
    ],
)
def test_an_error_among_the_events_is_told(wrong: bytes, message: str) -> None:
    with pytest.raises(RequestFailed, match=message):
        read(text("a"), wrong)


@pytest.mark.parametrize("wrong", ["{", "[1]"])
def test_what_is_no_event_is_told(wrong: str) -> None:
    with pytest.raises(DecodeError, match="no JSON"):
        read(event(wrong))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "type": "BadRequest"}}', "too long"),
        (b'{"object": "error", "message": "no such model"}', "no such model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "down"}', "down"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b'{"code": 3}', '{"code": 3}'),
        (b"", "(no body)"),
    ],
)
def test_the_message_of_an_error_is_found(body: bytes, message: str) -> None:
    assert message_of(body) == message
