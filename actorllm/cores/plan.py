"""What the Scheduler writes down: a step on its way, what a turn has to say, what requests want."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, compress

from ..messages import (
    Advance,
    Ending,
    FromScheduler,
    Keyed,
    PromptLogprobs,
    Release,
    Reserve,
    Reserved,
    Tokens,
    pack,
    pack_ids,
    unpack,
    unpack_ids,
)
from .logprobs import Candidates, join
from .requests import Request


@dataclass(frozen=True, slots=True)
class Step:
    """A step on its way. Parallel columns, one entry a row; `lives` are the requests' when it was sent.

    `masked` are the requests whose tokens Grammar has a say in; when there are any, the step waits for it.
    """

    number: int
    requests: Sequence[Request] = ()
    num_tokens: Sequence[int] = ()
    samples: Sequence[bool] = ()
    lives: Sequence[int] = ()
    masked: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        number: int,
        requests: Sequence[Request],
        num_tokens: Sequence[int],
        samples: Sequence[bool],
    ) -> "Step":
        """A step of these rows, as their requests are now."""
        drawing = compress(requests, samples)
        masked = [request.id for request in drawing if request.limits.grammar is not None]
        return cls(number, requests, num_tokens, samples, [request.life for request in requests], masked)


@dataclass(slots=True)
class Said:
    """What a turn has to say besides the next Reserve.

    `logprobs` has an entry for each of `tokens`; `hits` are requests and how much of their prompts was in the
    cache; `advanced` are requests and tokens that Grammar hears of.
    """

    requests: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Candidates | None] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    hits: list[tuple[int, int]] = field(default_factory=list)
    advanced: list[tuple[int, int]] = field(default_factory=list)
    released: list[Request] = field(default_factory=list)
    others: list[FromScheduler] = field(default_factory=list)

    def __bool__(self) -> bool:
        news = self.requests or self.prompt_logprobs or self.endings
        return bool(news or self.released or self.others)

    @property
    def has_text(self) -> bool:
        """Whether a step has brought something for the text side."""
        return bool(self.requests or self.prompt_logprobs)

    def tell(self, request: int, token: int, logprobs: Candidates | None) -> None:
        """A token is final."""
        self.requests.append(request)
        self.tokens.append(token)
        self.logprobs.append(logprobs)

    def advance(self) -> None:
        """Let Grammar hear of the tokens that it has to."""
        if self.advanced:
            requests, tokens = zip(*self.advanced, strict=True)
            self.others.append(Advance(pack_ids(requests), pack(tokens)))
            self.advanced.clear()

    def messages(self, step: int) -> list[FromScheduler]:
        """All of it, in order: what the pool hears of requests comes before the next Reserve."""
        out = list(self.others)
        if self.requests or self.endings or self.prompt_logprobs:
            out.append(self._tokens(step))
        if self.released:
            out.append(self._release())
        return out

    def _tokens(self, step: int) -> Tokens:
        return Tokens(
            step,
            pack_ids(self.requests),
            pack(self.tokens),
            tuple(self.endings),
            join(self.logprobs),
            tuple(self.prompt_logprobs),
            pack_ids(request for request, _ in self.hits),
            pack(num_cached for _, num_cached in self.hits),
        )

    def _release(self) -> Release:
        news = [request.tokens[request.num_told :] for request in self.released]
        for request in self.released:
            request.num_told = 0
        return Release(
            pack_ids(request.id for request in self.released),
            pack(request.num_computed for request in self.released),
            pack(map(len, news)),
            pack(token for new in news for token in new),
        )


@dataclass(slots=True)
class Wants:
    """What requests want to compute, as the columns of a Reserve."""

    requests: list[int] = field(default_factory=list)
    num_computed: list[int] = field(default_factory=list)
    num_scheduled: list[int] = field(default_factory=list)
    debts: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    keys: list[Keyed] = field(default_factory=list)

    def add(self, requests: Iterable[Request], max_chunk: int) -> int:
        """Add those that have a debt, and what the pool has not heard of them. One pass over all that run:
        it is most of what a turn costs.

        A debt is the tokens that could be computed now: known ones and placeholders, none beyond `max_len`.
        Returns how many tokens that is, if each gets `max_chunk` at most.
        """
        ids, computed, scheduled = self.requests, self.num_computed, self.num_scheduled
        debts, counts, tokens, total = self.debts, self.num_tokens, self.tokens, 0
        for request in requests:
            known, told, begin = request.tokens, request.num_told, request.num_scheduled
            length = len(known)
            end = length + request.num_pending
            debt = end - begin
            if debt <= 0 or end >= request.max_len:
                continue
            ids.append(request.id)
            computed.append(request.num_computed)
            scheduled.append(begin)
            debts.append(debt)
            counts.append(length - told)
            total += debt if debt < max_chunk else max_chunk
            if told < length:
                if not told and request.key is not None:
                    self.keys.append(Keyed(request.id, request.key))
                tokens += known[told:]
                request.num_told = length
        return total

    def message(self, step: int, epoch: int, budget: int, num_running: int, in_flight: bool) -> Reserve:
        """The question to the pool."""
        return Reserve(
            step,
            epoch,
            budget,
            num_running,
            not in_flight,
            pack_ids(self.requests),
            pack(self.num_computed),
            pack(self.num_scheduled),
            pack(self.debts),
            pack(self.num_tokens),
            pack(self.tokens),
            tuple(self.keys),
        )


def without(message: Reserved, gone: Container[int]) -> Reserved:
    """The answer of the pool without what it grants to these requests."""
    ids, counts, blocks = unpack_ids(message.requests), unpack(message.num_blocks), unpack(message.blocks)
    stays = [id_ not in gone for id_ in ids]
    ends = list(accumulate(counts))
    kept = [blocks[end - count : end] for end, count in compress(zip(ends, counts, strict=True), stays)]
    return replace(
        message,
        requests=pack_ids(compress(ids, stays)),
        num_cached=pack(compress(unpack(message.num_cached), stays)),
        num_tokens=pack(compress(unpack(message.num_tokens), stays)),
        num_blocks=pack(compress(counts, stays)),
        blocks=pack(chain.from_iterable(kept)),
    )
