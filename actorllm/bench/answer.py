"""A streamed answer as it comes: OpenAI's events, read into a Sample."""

import json
from typing import Any

from ..errors import DecodeError, RequestFailed
from .load import Sample

DONE = b"[DONE]"


class Answer:
    """Reads the body of a stream. What is no event of OpenAI's raises.

    A chunk counts as news when it brings text, and also without text when it is in the middle of the
    answer: a token of half a character, as vLLM tells it. The chunk that only tells the role, or only the
    end, brings no token.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._rest = b""
        self._finish_reason: str | None = None

    def feed(self, body: bytes, now: float) -> None:
        """What has come at `now`. Raises DecodeError, and RequestFailed for an error among the events."""
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data != DONE:
                    self._take(data, now)
            elif line.startswith(b"error:"):  # as llama-server has told it
                raise RequestFailed(f"an error in the stream: {message_of(line[6:])}")

    def close(self, asked: int) -> None:
        """There is no more. Raises RequestFailed unless it is an answer of as many tokens as asked.

        Without a usage from the server the chunks are counted, and may be fewer.
        """
        sample = self._sample
        if self._finish_reason is None:
            chunks = len(sample.arrivals)
            raise RequestFailed(f"the stream ended early: {chunks} chunks of news, and no finish_reason")
        if sample.output_tokens is not None and sample.output_tokens != asked:
            is_length = self._finish_reason == "length"
            hint = "is the server's context long enough" if is_length else "does the server know ignore_eos"
            raise RequestFailed(
                f"the answer has {sample.output_tokens} tokens of {asked} "
                f"(finish_reason {self._finish_reason!r}); {hint}?"
            )

    def _take(self, data: bytes, now: float) -> None:
        chunk = _object(data)
        if chunk.get("error"):
            raise RequestFailed(f"an error in the stream: {message_of(data)}")
        for choice in chunk.get("choices") or ():
            reason = choice.get("finish_reason")
            if _has_news(choice, reason) or (reason and not self._sample.arrivals):
                self._sample.arrivals.append(now)
            self._finish_reason = reason or self._finish_reason
        if usage := chunk.get("usage"):
            self._sample.prompt_tokens = usage.get("prompt_tokens")
            self._sample.output_tokens = usage.get("completion_tokens")


def message_of(body: bytes) -> str:
    """What the body of an error says, in the words of whoever wrote it."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else body.decode(errors="replace")[:300] or "(no body)"


def _has_news(choice: dict[str, Any], reason: str | None) -> bool:
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text")) or reason is None
    said = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return bool(said) or (reason is None and "role" not in delta)


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise DecodeError(f"an event is no JSON: {data[:60]!r}") from error
    if not isinstance(found, dict):
        raise DecodeError(f"an event is no JSON object: {data[:60]!r}")
    return found
