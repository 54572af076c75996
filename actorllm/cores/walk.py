"""What the KVPool writes down: a table for each request, the wants of a Reserve, and one walk over them."""

from dataclasses import dataclass, field

from ..messages import CacheKey, Reserved, pack, pack_ids
from .prefix import NONE


@dataclass(slots=True)
class Table:
    """What the pool knows of a request: its confirmed tokens, their contents, its blocks in each group.

    `num_full` blocks are known to be computed; when `num_computed` reaches `next_full`, one more is. `room`
    is how many tokens the blocks hold. A `private` one was computed before the prefix cache was reset.
    """

    blocks: list[list[int]]
    key: CacheKey | None = None
    tokens: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    computing: dict[bytes, None] = field(default_factory=dict)
    num_full: int = 0
    next_full: int = 0
    room: int = 0
    private: bool = False

    @property
    def skips_reading(self) -> bool:
        """Whether nothing is to be taken from the prefix cache for it."""
        return self.key is not None and self.key.skip_reading

    @property
    def held(self) -> list[int]:
        """Its blocks in all groups."""
        return [block for group in self.blocks for block in group if block != NONE]


@dataclass(slots=True)
class Wants:
    """The lines of a Reserve, as columns."""

    requests: list[int]
    tables: list[Table]
    num_scheduled: list[int]
    debts: list[int]
    num_running: int


@dataclass(slots=True)
class Walk:
    """The state of one walk over the wants; its columns become the Reserved."""

    budget: int
    may_wait: bool
    requests: list[int] = field(default_factory=list)
    num_cached: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    num_blocks: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    is_full: bool = False

    @property
    def must_decide(self) -> bool:
        """Nothing runs and nothing is granted or refused yet: waiting would be for ever."""
        return not (self.may_wait or self.requests or self.refused)

    def grant(self, request: int, num_cached: int, num_tokens: int, num_blocks: int) -> None:
        """Add a line; its blocks are in `blocks` already."""
        self.requests.append(request)
        self.num_cached.append(num_cached)
        self.num_tokens.append(num_tokens)
        self.num_blocks.append(num_blocks)
        self.budget -= num_tokens

    def grant_all(self, requests: list[int], num_tokens: list[int]) -> None:
        """Grant the first of the wants all these tokens; which of them take new blocks is not yet said."""
        self.requests, self.num_tokens = requests, num_tokens
        self.num_cached, self.num_blocks = [0] * len(requests), [0] * len(requests)
        self.budget -= sum(num_tokens)

    def message(self, step: int, epoch: int) -> Reserved:
        """The answer as it is said."""
        return Reserved(
            step,
            epoch,
            pack_ids(self.requests),
            pack(self.num_cached),
            pack(self.num_tokens),
            pack(self.num_blocks),
            pack(self.blocks),
            pack_ids(self.preempted),
            pack_ids(self.refused),
            self.is_full,
        )
