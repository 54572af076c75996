"""What the HashModel owes to a question, from the question alone: no cores, no cache, no schedule."""

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..messages import Question, Sampling, TextRules
from ..model.hash import naive_tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer to a question that nobody cancels."""

    tokens: list[int]
    text: str
    finish_reason: str
    stop_reason: str | int | None


def answer(
    prompt: Sequence[int],
    question: Question,
    seed: int | None,
    max_model_len: int,
    eos: Collection[int],
    windows: Sequence[int] = (0,),
) -> Answer:
    """The answer to a question whose prompt has these tokens; `seed` stands in for one that it lacks."""
    limits, sampling = question.limits, question.sampling
    most = max_model_len - len(prompt)
    if limits.max_tokens is not None:
        most = min(most, limits.max_tokens)
    ends = () if limits.ignore_eos else eos
    sampling = Sampling(
        temperature=sampling.temperature, seed=seed if sampling.seed is None else sampling.seed
    )
    tokens = naive_tokens(prompt, most, sampling, {*ends, *limits.stop_token_ids}, windows=windows)
    last = tokens[-1]
    reason, stop = "length", None
    if last in ends or last in limits.stop_token_ids:
        reason, stop = "stop", None if last in ends else last
    return _cut(prompt, tokens, question.text, reason, stop)


def _cut(prompt: Sequence[int], tokens: list[int], rules: TextRules, reason: str, stop: int | None) -> Answer:
    """The answer up to its first stop string."""
    if not rules.detokenize:
        return Answer(tokens, "", reason, stop)
    hides_last = reason == "stop" and not rules.include_stop_str_in_output
    visible = tokens[:-1] if hides_last else tokens
    text = text_of(prompt, visible)
    found = first_stop(text, rules.stop)
    if found is None:
        return Answer(tokens, text, reason, stop)
    begin, end = found
    certain = (len(text_of(prompt, visible[:count], final=False)) for count in range(1, len(visible) + 1))
    taken = next((count for count, length in enumerate(certain, 1) if length >= end), len(tokens))
    shown = text[: end if rules.include_stop_str_in_output else begin]
    return Answer(tokens[:taken], shown, "stop", text[begin:end])


def first_stop(text: str, stop: Collection[str]) -> tuple[int, int] | None:
    """Where the first stop string stands: the one that ends first, and of those the longest."""
    places = [(text.find(string) + len(string), -len(string)) for string in stop if string in text]
    if not places:
        return None
    end, negative = min(places)
    return end + negative, end


def text_of(prompt: Sequence[int], tokens: Sequence[int], *, final: bool = True) -> str:
    """The text of these tokens: the bytes among them, decoded; without `final`, only what is certain.

    A character whose first bytes end the prompt belongs to the text, if the tokens finish it.
    """
    data = bytes(token for token in tokens if token < 256)
    begun = _begun(bytes(token for token in prompt[-8:] if token < 256))
    if begun:
        needed = {0b110: 2, 0b111: 3}.get(begun[0] >> 5, 0) + (begun[0] >= 0xF0) - len(begun)
        head = _decode(begun + data[:needed], final=False)
        if head == "":
            return _decode(data, final=True) if final else ""
        if len(head) == 1 and head != "\ufffd":
            return head + _decode(data[needed:], final)
    return _decode(data, final)


def _begun(data: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _decode(data: bytes, final: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)
