"""What the Scheduler writes down: a step on its way, what a turn has to say, what requests want."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, compress

from ..messages import (
    Ending,
    FromScheduler,
    Keyed,
    Release,
    Reserve,
    Reserved,
    Tokens,
    pack,
    pack_ids,
    unpack,
    unpack_ids,
)
from .requests import Request


@dataclass(frozen=True, slots=True)
class Step:
    """A step on its way. Parallel columns, one entry a row; `lives` are the requests' when it was sent."""

    number: int
    requests: Sequence[Request] = ()
    num_tokens: Sequence[int] = ()
    samples: Sequence[bool] = ()
    lives: Sequence[int] = ()


@dataclass(slots=True)
class Said:
    """What a turn has to say besides the next Reserve."""

    requests: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    released: list[Request] = field(default_factory=list)
    others: list[FromScheduler] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.requests or self.endings or self.released or self.others)

    def messages(self, step: int) -> list[FromScheduler]:
        """All of it, in order: what the pool hears of requests comes before the next Reserve."""
        out = list(self.others)
        if self.requests or self.endings:
            out.append(Tokens(step, pack_ids(self.requests), pack(self.tokens), tuple(self.endings)))
        if self.released:
            out.append(self._release())
        return out

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
