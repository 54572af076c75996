"""KVPool: who holds which blocks of the KV cache. The order is the Scheduler's; the walk is here."""

import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

from ..messages import (
    FromKVPool,
    Release,
    Reserve,
    Reserved,
    ResetPool,
    ToKVPool,
    pack,
    pack_ids,
    unpack,
    unpack_ids,
)
from . import NEVER
from .blocks import Blocks


@dataclass(frozen=True, slots=True)
class KVPoolStatistics:
    """Blocks now; tokens and events since the start."""

    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_holders: int
    queried_tokens: int
    hit_tokens: int
    evictions: int
    preemptions: int


@dataclass(slots=True)
class Table:
    """What the pool knows of a request: its confirmed tokens, their block hashes, its blocks."""

    tokens: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_published: int = 0
    computing: dict[bytes, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Want:
    """One line of a Reserve."""

    request: int
    num_computed: int
    num_scheduled: int
    debt: int


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

    @property
    def must_decide(self) -> bool:
        """Nothing runs and nothing is granted or refused yet: waiting would be for ever."""
        return not (self.may_wait or self.requests or self.refused)

    def grant(self, request: int, num_cached: int, num_tokens: int, blocks: list[int]) -> None:
        """Add a line."""
        self.requests.append(request)
        self.num_cached.append(num_cached)
        self.num_tokens.append(num_tokens)
        self.num_blocks.append(len(blocks))
        self.blocks.extend(blocks)
        self.budget -= num_tokens


class KVPool:
    """Grants blocks and tokens to the requests that want to run, in the order that they stand in."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        watermark: float = 0.0,
        max_chunk: int = 0,
    ) -> None:
        """`max_chunk` bounds the tokens of one request in a step (0: no bound)."""
        self._blocks = Blocks(num_blocks)
        self._block_size = block_size
        self._caching = enable_prefix_caching
        self._watermark = int(watermark * num_blocks)
        self._max_chunk = max_chunk or 2**31
        self._tables: dict[int, Table] = {}
        self._computing: dict[bytes, int] = {}
        self._epoch = 0
        self._replies: list[Reserved] = []
        self._queried = self._hit = self._num_preempted = 0

    def feed(self, message: ToKVPool) -> None:
        """Absorb a message; a Reserve is decided at once."""
        match message:
            case Reserve():
                self._replies.append(self._reserve(message))
            case Release():
                self._release(message)
            case ResetPool(epoch):
                self._epoch = epoch
                self._blocks.clear()
                self._tables.clear()
                self._computing.clear()
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromKVPool, ...]:
        """The answers, in order."""
        replies, self._replies = tuple(self._replies), []
        return replies

    @property
    def deadline(self) -> float:
        """Mail alone wakes the pool."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether no request is known and every block is free."""
        return not self._tables and not self._replies and self._blocks.num_free == self._blocks.num_blocks

    def check(self) -> None:
        """Raise AssertionError when blocks were lost, doubled or shared by mistake."""
        self._blocks.check(table.blocks for table in self._tables.values())
        for content, request in self._computing.items():
            assert content in self._tables[request].computing, "a computing block without its request"
        for table in self._tables.values():
            assert table.num_published <= len(table.blocks)

    def statistics(self) -> KVPoolStatistics:
        """Gauges and counters of this moment."""
        return KVPoolStatistics(
            num_blocks=self._blocks.num_blocks,
            num_free_blocks=self._blocks.num_free,
            num_cached_blocks=self._blocks.num_indexed,
            num_holders=sum(bool(table.blocks) for table in self._tables.values()),
            queried_tokens=self._queried,
            hit_tokens=self._hit,
            evictions=self._blocks.num_evicted,
            preemptions=self._num_preempted,
        )

    def _reserve(self, message: Reserve) -> Reserved:
        assert message.epoch == self._epoch, "a Reserve of another epoch"
        wants = self._absorb(message)
        walk = Walk(message.token_budget, may_wait=not message.nothing_in_flight)
        running = deque(wants[: message.num_running])
        while running and walk.budget > 0:
            self._continue(running.popleft(), running, walk)
        if not walk.preempted:
            for want in wants[message.num_running :]:
                if walk.budget <= 0 or not self._admit(want, walk):
                    break
        return Reserved(
            message.step,
            message.epoch,
            pack_ids(walk.requests),
            pack(walk.num_cached),
            pack(walk.num_tokens),
            pack(walk.num_blocks),
            pack(walk.blocks),
            pack_ids(walk.preempted),
            pack_ids(walk.refused),
        )

    def _absorb(self, message: Reserve) -> list[Want]:
        wants, tokens, at = [], unpack(message.tokens), 0
        columns = (message.num_computed, message.num_scheduled, message.debts, message.num_tokens)
        for request, computed, scheduled, debt, count in zip(
            unpack_ids(message.requests), *map(unpack, columns), strict=True
        ):
            table = self._tables.setdefault(request, Table())
            self._confirm(table, tokens[at : at + count], computed)
            at += count
            wants.append(Want(request, computed, scheduled, debt))
        return wants

    def _confirm(self, table: Table, tokens: list[int], num_computed: int) -> None:
        """Take in confirmed tokens; publish the blocks whose tokens are all computed."""
        table.tokens.extend(tokens)
        if not self._caching:
            return
        self._extend_hashes(table)
        for index in range(table.num_published, min(num_computed // self._block_size, len(table.blocks))):
            content = table.hashes[index]
            self._blocks.publish(table.blocks[index], content)
            self._not_computing(table, content)
            table.num_published = index + 1

    def _extend_hashes(self, table: Table) -> None:
        size = self._block_size
        for index in range(len(table.hashes), len(table.tokens) // size):
            parent = table.hashes[-1] if table.hashes else b""
            chain = hashlib.blake2b(parent, digest_size=16)
            chain.update(pack(table.tokens[index * size : (index + 1) * size]))
            table.hashes.append(chain.digest())

    def _continue(self, want: Want, behind: deque[Want], walk: Walk) -> None:
        """Grant to a running request as much as there is room for; for its first token, those `behind`
        it give their blocks up.
        """
        table = self._tables[want.request]
        while self._room(want, table) == 0 and behind:
            self._preempt(behind.pop(), walk)
        count = min(want.debt, walk.budget, self._max_chunk, self._room(want, table))
        if count > 0:
            need = max(0, self._num_blocks(want.num_scheduled + count) - len(table.blocks))
            self._grant(want.request, table, want.num_scheduled, count, self._blocks.allocate(need), walk)
        elif walk.must_decide:
            walk.refused.append(want.request)

    def _room(self, want: Want, table: Table) -> int:
        """Tokens that fit into its blocks and all free ones."""
        return (len(table.blocks) + self._blocks.num_free) * self._block_size - want.num_scheduled

    def _preempt(self, want: Want, walk: Walk) -> None:
        self._give_up(self._tables[want.request])
        walk.preempted.append(want.request)
        self._num_preempted += 1

    def _admit(self, want: Want, walk: Walk) -> bool:
        """Let a waiting request in, if its whole prompt fits; False stops those behind it."""
        table = self._tables[want.request]
        if self._num_blocks(want.debt) > self._blocks.num_blocks:
            walk.refused.append(want.request)
            return True
        hits = self._blocks.find(table.hashes[: (want.debt - 1) // self._block_size])
        if self._is_computing(table, len(hits), want) and not walk.must_decide:
            return True
        free = self._blocks.num_free - self._blocks.num_free_among(hits)
        missing = self._num_blocks(want.debt) - len(hits)
        if missing + (0 if walk.must_decide else self._watermark) > free:
            return False
        self._blocks.share(hits)
        cached = len(hits) * self._block_size
        count = min(want.debt - cached, walk.budget, self._max_chunk)
        table.num_published = len(hits)
        fresh = self._blocks.allocate(self._num_blocks(cached + count) - len(hits))
        self._queried += want.debt
        self._hit += cached
        self._grant(want.request, table, cached, count, fresh, walk, hits)
        return True

    def _is_computing(self, table: Table, num_hits: int, want: Want) -> bool:
        """Whether another request computes the very block that would be the next hit."""
        if num_hits >= (want.debt - 1) // self._block_size or num_hits >= len(table.hashes):
            return False
        return self._computing.get(table.hashes[num_hits], want.request) != want.request

    def _grant(
        self,
        request: int,
        table: Table,
        start: int,
        count: int,
        fresh: list[int],
        walk: Walk,
        hits: list[int] | None = None,
    ) -> None:
        new = [*(hits or ()), *fresh]
        table.blocks.extend(new)
        walk.grant(request, 0 if hits is None else start, count, new)
        last = min((start + count) // self._block_size, len(table.hashes))
        for content in table.hashes[start // self._block_size : last]:
            if content not in self._computing:
                self._computing[content] = request
                table.computing[content] = None

    def _not_computing(self, table: Table, content: bytes) -> None:
        if content in table.computing:
            del table.computing[content]
            del self._computing[content]

    def _give_up(self, table: Table) -> None:
        self._blocks.free(table.blocks)
        table.blocks = []
        table.num_published = 0
        for content in table.computing:
            del self._computing[content]
        table.computing = {}

    def _release(self, message: Release) -> None:
        tokens, at = unpack(message.tokens), 0
        columns = map(unpack, (message.num_computed, message.num_tokens))
        for request, computed, count in zip(unpack_ids(message.requests), *columns, strict=True):
            table = self._tables.pop(request)
            self._confirm(table, tokens[at : at + count], computed)
            at += count
            self._give_up(table)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
