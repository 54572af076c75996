"""The Detokenizer: makes text of tokens and ends a request at its stop strings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ..messages import (
    Delta,
    Ending,
    Fault,
    FromDetokenizer,
    Logprobs,
    Text,
    TextRules,
    ToDetokenizer,
    Tokens,
    Track,
    pack,
    unpack,
    unpack_ids,
)
from . import NEVER
from .logprobs import Candidates, join, split
from .text import Decoder, StopMatcher, Vocabulary


@dataclass(frozen=True, slots=True)
class DetokenizerStatistics:
    """Gauges: `tracked`, `tombstones`. Counters: the rest; `dropped` tokens came after a stop string."""

    tracked: int
    tombstones: int
    tokens: int
    dropped: int
    stop_strings: int


class Detokenizer:
    """Every Track gets exactly one delta with a finish reason, and it is its last.

    A turn that absorbed Tokens says one Text, with the highest step and at most one delta a request. A
    request that ends at a stop string leaves a tombstone until the Scheduler's ending of it arrives (the
    Frontend aborts it). `feed` raises AssertionError when the Scheduler speaks of a request that it was
    never told of, or that it has ended.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tracked: dict[int, _Writer] = {}
        self._tombstones: set[int] = set()
        self._step: int | None = None
        self._news: dict[int, _News] = {}
        self._tokens = self._dropped = self._stop_strings = 0

    def feed(self, message: ToDetokenizer, /) -> None:
        """Absorb a Track or Tokens."""
        match message:
            case Track():
                self._track(message)
            case Tokens():
                self._absorb(message)
            case _:
                assert_never(message)

    def poll(self, now: float, /) -> tuple[FromDetokenizer, ...]:
        """One Text for the Tokens since the last poll."""
        if self._step is None:
            return ()
        text = Text(self._step, tuple(news.delta(request) for request, news in self._news.items()))
        self._step = None
        self._news.clear()
        return (text,)

    @property
    def deadline(self) -> float:
        """Never: it only waits for mail."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether no request is open, no ending is due and nothing is left to say."""
        return not self._tracked and not self._tombstones and self._step is None

    def check(self) -> None:
        """Raise AssertionError when a request is both open and ended, or something would never be said."""
        _require(self._tombstones.isdisjoint(self._tracked), "a request is open beside its tombstone")
        _require(self._step is not None or not self._news, "deltas without a step")
        for request, news in self._news.items():
            _require((request in self._tracked) == (news.finish_reason is None), f"{request} ended halfway")

    def statistics(self) -> DetokenizerStatistics:
        """What is open now and what was counted so far."""
        return DetokenizerStatistics(
            len(self._tracked), len(self._tombstones), self._tokens, self._dropped, self._stop_strings
        )

    def _track(self, track: Track) -> None:
        request = track.request
        _require(request not in self._tracked and request not in self._tombstones, f"{request} tracked twice")
        self._tracked[request] = _Writer(self._vocabulary, unpack(track.prompt_tail), track.rules)

    def _absorb(self, message: Tokens) -> None:
        batches = _by_request(message)
        logprobs = _logprobs_by_request(message)
        endings = {ending.request: ending for ending in message.endings}
        _require(len(endings) == len(message.endings), "a request ended twice")
        for request in batches:
            known = request in self._tracked or request in self._tombstones
            _require(known, f"tokens or an ending for {request}, which is not open")
        self._step = message.step if self._step is None else max(self._step, message.step)
        for each in message.prompt_logprobs:
            if each.request in self._tracked:
                self._news.setdefault(each.request, _News()).prompt_logprobs.append(each.logprobs)
        for request, tokens in batches.items():
            if request in self._tombstones:
                self._dropped += len(tokens)
                self._bury(request, endings.get(request))
            else:
                self._write(request, tokens, endings.get(request), logprobs.get(request, ()))
        for request, num_cached in zip(unpack_ids(message.hits), unpack(message.num_cached), strict=True):
            if request in self._news:
                self._news[request].num_cached = num_cached

    def _bury(self, request: int, ending: Ending | None) -> None:
        if ending is not None:
            self._tombstones.remove(request)

    def _write(
        self,
        request: int,
        tokens: list[int],
        ending: Ending | None,
        logprobs: Sequence[Candidates | None],
    ) -> None:
        text, num_tokens, stop = self._tracked[request].write(tokens, ending)
        self._tokens += num_tokens
        self._dropped += len(tokens) - num_tokens
        news = self._news.setdefault(request, _News())
        news.text.append(text)
        news.tokens += tokens[:num_tokens]
        news.logprobs += logprobs[:num_tokens]
        if stop is not None:
            self._stop_strings += 1
            news.finish_reason, news.stop_reason = "stop", stop
        elif ending is not None:
            news.finish_reason, news.stop_reason = ending.finish_reason, ending.stop_token
            news.fault = ending.fault
        if news.finish_reason is not None:
            del self._tracked[request]
        if stop is not None and ending is None:
            self._tombstones.add(request)


class _Writer:
    """Writes the text of one request."""

    def __init__(self, vocabulary: Vocabulary, prompt_tail: Sequence[int], rules: TextRules) -> None:
        self._decoder = Decoder(
            vocabulary,
            prompt_tail,
            rules.skip_special_tokens,
            spaces_between_special_tokens=rules.spaces_between_special_tokens,
        )
        self._matcher = StopMatcher(rules.stop, rules.include_stop_str_in_output)
        self._rules = rules
        self._num_unsearched = rules.min_tokens

    def write(self, tokens: list[int], ending: Ending | None) -> tuple[str, int, str | None]:
        """New text, how many of `tokens` it took, and the stop string that ended it or None."""
        if not self._rules.detokenize:
            return "", len(tokens), None
        text = ""
        num_visible = len(tokens) - self._hides_last(ending)
        for count, token in enumerate(tokens[:num_visible], 1):
            shown, stop = self._look_at(self._decoder.feed((token,)))
            text += shown
            if stop is not None:
                return text, count, stop
        if ending is None:
            return text, len(tokens), None
        shown, stop = self._matcher.feed(self._decoder.finish())
        return text + shown + self._matcher.finish(), len(tokens), stop

    def _look_at(self, text: str) -> tuple[str, str | None]:
        """What of a token's text can be shown; the first tokens are not searched for stop strings."""
        if self._num_unsearched:
            self._num_unsearched -= 1
            return text, None
        return self._matcher.feed(text)

    def _hides_last(self, ending: Ending | None) -> bool:
        """Whether the last token is the one that stopped the request, and is to leave no text."""
        stopped = ending is not None and ending.finish_reason == "stop"
        return stopped and not self._rules.include_stop_str_in_output


@dataclass(slots=True)
class _News:
    """What is new for one request in this turn."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    fault: Fault | None = None
    logprobs: list[Candidates | None] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    num_cached: int = 0

    def delta(self, request: int) -> Delta:
        return Delta(
            request,
            "".join(self.text),
            pack(self.tokens),
            self.finish_reason,
            self.stop_reason,
            self.fault,
            join(self.logprobs),
            tuple(self.prompt_logprobs),
            self.num_cached,
        )


def _by_request(message: Tokens) -> dict[int, list[int]]:
    """The new tokens of each request that has tokens or an ending here, in order of appearance."""
    requests, tokens = unpack_ids(message.requests), unpack(message.tokens)
    _require(len(requests) == len(tokens), f"{len(requests)} requests for {len(tokens)} tokens")
    batches: dict[int, list[int]] = {}
    for request, token in zip(requests, tokens, strict=True):
        batches.setdefault(request, []).append(token)
    for ending in message.endings:
        batches.setdefault(ending.request, [])
    return batches


def _logprobs_by_request(message: Tokens) -> dict[int, list[Candidates | None]]:
    """One entry for each new token of those requests; nothing when nobody wants any."""
    found: dict[int, list[Candidates | None]] = {}
    if message.logprobs is not None:
        each = zip(unpack_ids(message.requests), split(message.logprobs), strict=True)
        for request, candidates in each:
            found.setdefault(request, []).append(candidates)
    return found


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
