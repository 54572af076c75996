"""What a request asks of its logits besides temperature and filters, with the state its tokens make.

All of it is a pure function of (sampling, tokens, number of prompt tokens): a request that is preempted,
moved or replayed is built anew from them and goes on as it would have. Nothing here touches logits.
"""

import json
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..messages import Sampling, Thinking, unpack
from ..processors import LogitsProcessor, State
from .arrays import Float32, Int32


def wants_extras(sampling: Sampling, processors: Sequence[LogitsProcessor] = ()) -> bool:
    """Whether a request needs more than temperature, filters and a seed.

    With custom processors all of them do, for only those know which requests take part.
    """
    return bool(processors) or _alters(sampling) or _tells(sampling) or sampling.prompt_logprobs is not None


def _tells(sampling: Sampling) -> bool:
    return sampling.logprobs is not None or bool(sampling.logprob_tokens)


def _alters(sampling: Sampling) -> bool:
    return bool(
        _penalises(sampling)
        or (sampling.min_tokens and sampling.end_tokens)
        or sampling.bias_tokens
        or sampling.allowed
        or sampling.bad_words
        or sampling.thinking
    )


def _penalises(sampling: Sampling) -> bool:
    penalties = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
    return penalties != (1.0, 0.0, 0.0)


class Extras:
    """All that one request asks besides temperature and filters; `append` each token that it got.

    `tokens` (int32) is prompt and output so far, the first `num_prompt` are the prompt. `processors` are
    those that `sample` is given, in the same order.

    sampling         what it was made of
    tells            whether the log-probabilities of its tokens are wanted: of `num_logprobs` of the
                     likeliest (-1: all) and of `logprob_tokens` (int32)
    prompt_logprobs  how many of the likeliest are wanted at each token of the prompt (-1: all), or None
    allowed          int32, the only tokens that may be drawn; empty: all
    bias_tokens      int32, tokens to whose logits `bias` (float32) is added
    states           of each processor the request's state, None where it does not take part
    """

    def __init__(
        self,
        sampling: Sampling,
        tokens: Int32,
        num_prompt: int,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.sampling = sampling
        self.tells = _tells(sampling)
        self.num_logprobs = sampling.logprobs or 0
        self.logprob_tokens: Int32 = np.frombuffer(sampling.logprob_tokens, "<i4")
        self.prompt_logprobs = sampling.prompt_logprobs
        self.allowed: Int32 = np.frombuffer(sampling.allowed, "<i4")
        self.bias_tokens: Int32 = np.frombuffer(sampling.bias_tokens, "<i4")
        self.bias: Float32 = np.frombuffer(sampling.bias, "<f4")
        self._end_tokens = unpack(sampling.end_tokens)
        output = tokens[num_prompt:]
        self._num_output = output.size
        repeats = sampling.repetition_penalty != 1.0
        self._seen = Seen(tokens if repeats else output, output) if _penalises(sampling) else None
        self._bad_words = BadWords(sampling.bad_words, output) if sampling.bad_words else None
        self._reasoning = Reasoning(sampling.thinking, tokens, num_prompt) if sampling.thinking else None
        self._always = bool(
            _penalises(sampling) or self.bias_tokens.size or self.allowed.size or sampling.bad_words
        )
        self._processors = tuple(processors)
        self.states = self._open(np.array(tokens[:num_prompt], np.int32), output) if processors else ()

    def append(self, token: int) -> None:
        """Take the next token of the output."""
        self._num_output += 1
        for part in (self._seen, self._bad_words, self._reasoning):
            if part is not None:
                part.append(token)
        self._advance(self.states, token)

    @property
    def alters(self) -> bool:
        """Whether the next token's logits are changed at all."""
        return self._always or self._is_too_early or self.takes_part or self.forced is not None

    @property
    def takes_part(self) -> bool:
        """Whether it has to do with any custom processor."""
        return any(state is not None for state in self.states)

    @property
    def forbidden(self) -> list[int]:
        """The tokens that may not come next: last ones of bad words, and end tokens when it is too early."""
        banned = self._bad_words.banned() if self._bad_words is not None else []
        return [*banned, *self._end_tokens] if self._is_too_early else banned

    @property
    def forced(self) -> int | None:
        """The token that must come next, for the budget of reasoning is spent."""
        return self._reasoning.forced() if self._reasoning is not None else None

    @property
    def seen(self) -> tuple[Int32, Int32]:
        """The tokens that are penalised, each once, and how often each is in the output.

        Those of the prompt are among them only when there is a repetition penalty. Valid until `append`.
        """
        return self._seen.columns() if self._seen is not None else (np.zeros(0, np.int32),) * 2

    @property
    def _is_too_early(self) -> bool:
        return self._num_output < self.sampling.min_tokens and bool(self._end_tokens)

    def _open(self, prompt: Int32, output: Int32) -> tuple[State | None, ...]:
        arguments = json.loads(self.sampling.arguments or "{}")
        states = tuple(each.open(arguments, prompt) for each in self._processors)
        for token in output.tolist():
            self._advance(states, token)
        return states

    def _advance(self, states: tuple[State | None, ...], token: int) -> None:
        for processor, state in zip(self._processors, states, strict=True):
            if state is not None:
                processor.advance(state, token)


class Seen:
    """Which tokens are penalised (each that is among `tokens` or comes later), how often in the output."""

    def __init__(self, tokens: Int32, output: Int32) -> None:
        found = np.unique(tokens)
        self._places = dict(zip(found.tolist(), range(found.size), strict=True))
        self._tokens: Int32 = np.zeros(2 * found.size + 64, np.int32)
        self._tokens[: found.size] = found
        self._counts: Int32 = np.zeros_like(self._tokens)
        np.add.at(self._counts, np.searchsorted(found, output), 1)

    def append(self, token: int) -> None:
        """Count a token of the output."""
        place = self._places.setdefault(token, len(self._places))
        if place == self._tokens.size:
            self._tokens, self._counts = _doubled(self._tokens), _doubled(self._counts)
        self._tokens[place] = token
        self._counts[place] += 1

    def columns(self) -> tuple[Int32, Int32]:
        """Tokens and counts, as views."""
        return self._tokens[: len(self._places)], self._counts[: len(self._places)]


def _doubled(column: Int32) -> Int32:
    return np.concatenate((column, np.zeros_like(column)))


class BadWords:
    """Sequences that may not come: the last token is banned where the others are the end of the output.

    Only the output is compared, as in vLLM, so a sequence that begins in the prompt may end in the output.
    """

    def __init__(self, words: Sequence[bytes], output: Int32) -> None:
        sequences = [sequence for word in words if (sequence := unpack(word))]
        self._single = [sequence[0] for sequence in sequences if len(sequence) == 1]
        self._longer: dict[int, list[list[int]]] = {}
        for sequence in sequences:
            if len(sequence) > 1:
                self._longer.setdefault(sequence[-2], []).append(sequence)
        self._tail = _last(output, max(map(len, sequences), default=1) - 1)

    def append(self, token: int) -> None:
        """Take the next token of the output."""
        self._tail.append(token)

    def banned(self) -> list[int]:
        """The tokens that would complete a sequence."""
        likely = self._longer.get(self._tail[-1], []) if self._tail else []
        return self._single + [word[-1] for word in likely if _ends_with(self._tail, word[:-1])]


class Reasoning:
    """How long a model has been reasoning, and what must come to end it.

    Reasoning is open from a `begin` on until an `end` that is wholly behind it; a `begin` within it is
    reasoning like anything else. Its tokens are counted from behind the `begin`, but those of the prompt
    do not count; with `budget` of them the tokens of `end` are forced, one a step, from where the model has
    begun with it already. A later `begin` opens another, with a budget of its own. Without markers, or with
    a budget below 0, nothing is ever forced.
    """

    def __init__(self, thinking: Thinking, tokens: Int32, num_prompt: int) -> None:
        self._begin, self._end = unpack(thinking.begin), unpack(thinking.end)
        self._budget = thinking.budget if self._begin and self._end else -1
        self._tail = _last(tokens, max(len(self._begin), len(self._end)))
        self._num_output = tokens.size - num_prompt
        opened = self._opened(tokens) if self._budget >= 0 else None
        self._since = None if opened is None else tokens.size - 1 - opened

    def append(self, token: int) -> None:
        """Take the next token of the output."""
        if self._budget < 0:
            return
        self._num_output += 1
        self._tail.append(token)
        if self._since is None:
            if _ends_with(self._tail, self._begin):
                self._since = 0
            return
        self._since += 1
        if self._since >= len(self._end) and _ends_with(self._tail, self._end):
            self._since = None

    def forced(self) -> int | None:
        """The token that must come next, or None."""
        if self._since is None or self._budget < 0 or min(self._since, self._num_output) < self._budget:
            return None
        sizes = range(min(len(self._end) - 1, self._since), 0, -1)
        begun = next((size for size in sizes if _ends_with(self._tail, self._end[:size])), 0)
        return self._end[begun]

    def _opened(self, tokens: Int32) -> int | None:
        """Where the `begin` ends that is open at the end: what `append` finds, but all at once."""
        begins, ends = set(_places(tokens, self._begin)), set(_places(tokens, self._end))
        opened: int | None = None
        for place in sorted(begins | ends):
            if opened is None:
                opened = place if place in begins else None
            elif place in ends and place - opened >= len(self._end):
                opened = None
        return opened


def _last(tokens: Int32, count: int) -> deque[int]:
    """The last `count` tokens, and never more."""
    return deque(tokens[max(tokens.size - count, 0) :].tolist(), maxlen=count)


def _ends_with(tail: deque[int], tokens: list[int]) -> bool:
    if len(tail) < len(tokens):
        return False
    return all(tail[-i] == tokens[-i] for i in range(1, len(tokens) + 1))


def _places(tokens: Int32, marker: list[int]) -> list[int]:
    """Where the marker ends in the tokens."""
    if tokens.size < len(marker):
        return []
    windows = sliding_window_view(tokens, len(marker))
    found = np.flatnonzero((windows == np.array(marker, np.int32)).all(axis=1)) + len(marker) - 1
    return [int(place) for place in found]
