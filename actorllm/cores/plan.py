"""What the Scheduler writes down of a step on its way, and of a turn's words."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..messages import Ending, FromScheduler, Keyed, NewRow, Release, Reserve, RunStep, Tokens, pack, pack_ids
from .requests import Request


@dataclass(frozen=True, slots=True)
class Row:
    """One request in a step that is on its way; `life` is the request's when the step was sent."""

    request: Request
    num_tokens: int
    samples: bool
    life: int


@dataclass(slots=True)
class Step:
    """A step to be sent: its rows, the rows that are new to the workers, and the blocks of each."""

    rows: list[Row] = field(default_factory=list)
    new: list[NewRow] = field(default_factory=list)
    num_blocks: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def message(self, step: int, epoch: int, leaving: Iterable[int]) -> RunStep:
        """The step as it is said."""
        return RunStep(
            step,
            epoch,
            tuple(self.new),
            pack_ids(row.request.id for row in self.rows),
            pack(row.num_tokens for row in self.rows),
            bytes(row.samples for row in self.rows),
            pack(self.num_blocks),
            pack(self.blocks),
            pack_ids(leaving),
        )


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


def reserve(
    step: int, epoch: int, budget: int, running: list[Request], offered: list[Request], in_flight: bool
) -> Reserve:
    """The question to the pool; it also tells it the tokens that it has not heard of."""
    wants = running + offered
    news = [request.tokens[request.num_told :] for request in wants]
    keys = tuple(Keyed(each.id, each.key) for each in offered if each.key is not None and not each.num_told)
    for request in wants:
        request.num_told = len(request.tokens)
    return Reserve(
        step,
        epoch,
        budget,
        len(running),
        not in_flight,
        pack_ids(request.id for request in wants),
        pack(request.num_computed for request in wants),
        pack(request.num_scheduled for request in wants),
        pack(request.debt for request in wants),
        pack(map(len, news)),
        pack(token for new in news for token in new),
        keys,
    )
