"""What the HashModel owes to a question, from the question alone: no cores, no cache, no schedule."""

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..messages import Logprobs, Question, Repetition, Sampling, TextRules, unpack
from ..model.hash import logits, naive_draws, naive_prompt_draws
from ..model.logprobs import join, tell
from .grammars import Rules


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer to a question that nobody cancels, and the draw of each of its tokens."""

    tokens: list[int]
    text: str
    finish_reason: str
    stop_reason: str | int | None
    draws: list[int] = field(default_factory=list, compare=False, repr=False)


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
    guide = None if limits.grammar is None else Rules.of(limits.grammar)
    last_ones = {*ends, *limits.stop_token_ids}
    drawn = naive_draws(prompt, most, sampling, last_ones, windows=windows, guide=guide)
    tokens, draws = [token for token, _ in drawn], [draw for _, draw in drawn]
    reason, stop = "length", None
    if tokens[-1] in last_ones:
        reason, stop = "stop", None if tokens[-1] in ends else tokens[-1]
    count = first_repetition(tokens, limits.repetition)
    if count < len(tokens):
        tokens, reason, stop = tokens[:count], "repetition", None
    return _cut(prompt, tokens, draws, question.text, reason, stop)


def first_repetition(tokens: Sequence[int], rule: Repetition | None) -> int:
    """After how many tokens the answer first ends with a repeated pattern; all when it never does."""
    if rule is not None:
        for end in range(len(tokens)):
            for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
                begin = end - size * rule.min_count
                if begin >= 0 and list(tokens[begin:end]) == list(tokens[end - size : end]) * rule.min_count:
                    return end
    return len(tokens)


def owed_logprobs(sampling: Sampling, tokens: Sequence[int], draws: Sequence[int]) -> Logprobs | None:
    """What must be told of these tokens of an answer; None when nothing may be."""
    if sampling.logprobs is None and not sampling.logprob_tokens:
        return None
    count, others = sampling.logprobs or 0, unpack(sampling.logprob_tokens)
    told = [tell(logits(draw), token, count, others) for token, draw in zip(tokens, draws, strict=True)]
    return join(told) or Logprobs()


def owed_prompt_logprobs(
    sampling: Sampling, prompt: Sequence[int], windows: Sequence[int] = (0,)
) -> Logprobs | None:
    """What must be told of the tokens of a prompt behind the first; None when nothing may be."""
    if sampling.prompt_logprobs is None:
        return None
    draws, count = naive_prompt_draws(prompt, windows), sampling.prompt_logprobs
    told = [tell(logits(draw), token, count) for token, draw in zip(prompt[1:], draws, strict=True)]
    return join(told) or Logprobs()


def _cut(
    prompt: Sequence[int],
    tokens: list[int],
    draws: list[int],
    rules: TextRules,
    reason: str,
    stop: int | None,
) -> Answer:
    """The answer up to its first stop string, which stands behind its first `min_tokens` tokens."""
    if not rules.detokenize:
        return Answer(tokens, "", reason, stop, draws)
    hides_last = reason == "stop" and not rules.include_stop_str_in_output
    visible = tokens[:-1] if hides_last else tokens
    text = text_of(prompt, visible)
    unsearched = len(text_of(prompt, visible[: rules.min_tokens], final=False))
    found = first_stop(text[unsearched:], rules.stop)
    if found is None:
        return Answer(tokens, text, reason, stop, draws)
    begin, end = (unsearched + place for place in found)
    certain = (len(text_of(prompt, visible[:count], final=False)) for count in range(1, len(visible) + 1))
    taken = next((count for count, length in enumerate(certain, 1) if length >= end), len(tokens))
    shown = text[: end if rules.include_stop_str_in_output else begin]
    return Answer(tokens[:taken], shown, "stop", text[begin:end], draws)


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
