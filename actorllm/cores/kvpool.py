"""KVPool: who holds which blocks of the KV cache. The order is the Scheduler's; the walk is here."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from ..messages import (
    CacheKey,
    FromKVPool,
    PoolReset,
    Release,
    Reserve,
    Reserved,
    ResetPool,
    ResetPrefixCache,
    ToKVPool,
    unpack,
    unpack_ids,
)
from . import NEVER
from .blocks import Blocks
from .cachelog import CacheLog
from .prefix import NONE, Groups, extend
from .walk import Table, Walk, Wants


@dataclass(frozen=True, slots=True)
class KVPoolStatistics:
    """Blocks now; tokens and events since the start.

    `usage` is the share of the blocks that are held; `holders` are (request, blocks), most blocks first.
    """

    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    usage: float
    holders: tuple[tuple[int, int], ...]
    queried_tokens: int
    hit_tokens: int
    evictions: int
    preemptions: int


class KVPool:
    """Grants blocks and tokens to the requests that want to run, in the order that they stand in."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        windows: Sequence[int] = (0,),
        enable_prefix_caching: bool = True,
        watermark: float = 0.0,
        max_chunk: int = 0,
        tells: bool = False,
    ) -> None:
        """`windows`: for each group of layers how many tokens a token sees (0: all before it).

        `max_chunk` bounds the tokens of one request in a step (0: no bound). `tells` says that there are
        CacheEvents.
        """
        self._groups = Groups(windows, block_size)
        self._log = CacheLog() if tells else None
        self._blocks = Blocks(num_blocks, self._log)
        self._block_size = block_size
        self._caching = enable_prefix_caching
        self._watermark = int(watermark * num_blocks)
        self._max_chunk = max_chunk or 2**31
        self._tables: dict[int, Table] = {}
        self._computing: dict[bytes, int] = {}
        self._epoch = 0
        self._replies: list[Reserved | PoolReset] = []
        self._queried = self._hit = self._num_preempted = 0

    def feed(self, message: ToKVPool) -> None:
        """Absorb a message; a Reserve is decided at once."""
        match message:
            case Reserve():
                self._replies.append(self._reserve(message))
            case Release():
                self._release(message)
            case ResetPrefixCache():
                self._reset_prefix_cache()
            case ResetPool(epoch):
                self._epoch = epoch
                self._blocks.clear()
                self._tables.clear()
                self._computing.clear()
                self._is_reset()
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromKVPool, ...]:
        """The answers, in order; then what has become of the prefix cache."""
        replies, self._replies = tuple(self._replies), []
        events = self._log.poll() if self._log is not None else None
        return replies if events is None else (*replies, events)

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
        self._blocks.check(table.held for table in self._tables.values())
        for content, request in self._computing.items():
            assert content in self._tables[request].computing, "a computing block without its request"
        for table in self._tables.values():
            for group in table.blocks:
                assert len(group) * self._block_size == table.room, "the groups of a table differ in length"
            assert table.num_full * self._block_size <= table.room

    def statistics(self) -> KVPoolStatistics:
        """Gauges and counters of this moment."""
        held = {request: len(table.held) for request, table in self._tables.items() if table.room}
        return KVPoolStatistics(
            num_blocks=self._blocks.num_blocks,
            num_free_blocks=self._blocks.num_free,
            num_cached_blocks=self._blocks.num_indexed,
            usage=1 - self._blocks.num_free / self._blocks.num_blocks,
            holders=tuple(sorted(held.items(), key=lambda each: -each[1])),
            queried_tokens=self._queried,
            hit_tokens=self._hit,
            evictions=self._blocks.num_evicted,
            preemptions=self._num_preempted,
        )

    # -- what is said of requests -----------------------------------------------------------------

    def _reserve(self, message: Reserve) -> Reserved:
        assert message.epoch == self._epoch, "a Reserve of another epoch"
        wants = self._absorb(message)
        walk = Walk(message.token_budget, may_wait=not message.nothing_in_flight)
        if not self._serve_all(wants, walk):
            self._serve_in_order(wants, walk)
        walk.is_full = bool(walk.preempted) or not self._serve_waiting(wants, walk)
        return walk.message(message.step, message.epoch)

    def _absorb(self, message: Reserve) -> Wants:
        requests, known = unpack_ids(message.requests), self._tables
        for keyed in message.keys:
            known[keyed.request] = self._open_table(keyed.key)
        for request in requests[message.num_running :]:
            if request not in known:
                known[request] = self._open_table()
        tables = [known[request] for request in requests]
        self._hear(tables, message)
        scheduled, debts = unpack(message.num_scheduled), unpack(message.debts)
        return Wants(requests, tables, scheduled, debts, message.num_running)

    def _hear(self, tables: list[Table], message: Reserve | Release) -> None:
        """Take in the newly confirmed tokens of these requests, and what is computed of them."""
        news = iter(unpack(message.tokens))
        counts, computed = unpack(message.num_tokens), unpack(message.num_computed)
        for table, count, done in zip(tables, counts, computed, strict=True):
            if count == 1:
                table.tokens.append(next(news))
            elif count:
                table.tokens += islice(news, count)
            if done >= table.next_full:
                self._advance(table, done)

    def _open_table(self, key: CacheKey | None = None) -> Table:
        return Table([[] for _ in self._groups.windows], key, next_full=self._block_size)

    def _advance(self, table: Table, num_computed: int) -> None:
        """Some more blocks are computed: publish them, and free what fell out of its window."""
        full = min(num_computed // self._block_size, table.room // self._block_size)
        if self._caching and not table.private:
            self._publish(table, full)
        table.num_full = max(full, table.num_full)
        table.next_full = (table.num_full + 1) * self._block_size
        if self._groups.has_windows:
            self._drop(table)

    def _publish(self, table: Table, full: int) -> None:
        extend(table.contents, table.tokens, self._block_size, table.key)
        stored: dict[int, list[int]] = {}
        for index in range(table.num_full, full):
            content = table.contents[index]
            for group, blocks in enumerate(table.blocks):
                key = self._groups.key(content, group)
                if blocks[index] != NONE and self._blocks.publish(blocks[index], key):
                    stored.setdefault(group, []).append(index)
            self._not_computing(table, content)
        if self._log is not None:
            for group, indices in stored.items():
                self._log.stored(table.contents, table.tokens, indices, self._block_size, group, table.key)

    def _drop(self, table: Table) -> None:
        for group, blocks in enumerate(table.blocks):
            first = self._groups.first_seen(group, table.num_full)
            index = first - 1
            while index >= 0 and blocks[index] != NONE:
                index -= 1
            fallen = blocks[index + 1 : first]
            blocks[index + 1 : first] = [NONE] * len(fallen)
            self._blocks.free(fallen)

    def _release(self, message: Release) -> None:
        tables = [self._tables.pop(request) for request in unpack_ids(message.requests)]
        self._hear(tables, message)
        for table in tables:
            self._give_up(table)

    def _reset_prefix_cache(self) -> None:
        self._blocks.forget()
        self._computing.clear()
        for table in self._tables.values():
            table.private = table.room > 0
            table.computing.clear()
        self._is_reset()

    def _is_reset(self) -> None:
        self._replies.append(PoolReset(self._epoch))
        if self._log is not None:
            self._log.cleared()

    # -- the walk ---------------------------------------------------------------------------------

    def _serve_all(self, wants: Wants, walk: Walk) -> bool:
        """Grant the running all that they want, if there is enough of everything; whether there is."""
        end = wants.num_running
        requests, debts = wants.requests[:end], wants.debts[:end]
        if sum(debts) > walk.budget or max(debts, default=0) > self._max_chunk:
            return False
        columns = zip(wants.tables, wants.num_scheduled, debts, strict=False)
        lacking = [index for index, (table, begin, debt) in enumerate(columns) if begin + debt > table.room]
        if not self._suffice(wants, lacking):
            return False
        walk.grant_all(requests, debts)
        for index in lacking:
            begin, table = wants.num_scheduled[index], wants.tables[index]
            walk.num_blocks[index] = self._extend(requests[index], table, begin, debts[index], walk)
        return True

    def _suffice(self, wants: Wants, lacking: list[int]) -> bool:
        """Whether there are free blocks for all that these, who lack some, want."""
        num_blocks = 0
        for index in lacking:
            end = wants.num_scheduled[index] + wants.debts[index]
            num_blocks += self._groups.num_blocks(end - wants.tables[index].room)
        return num_blocks * len(self._groups) <= self._blocks.num_free

    def _serve_in_order(self, wants: Wants, walk: Walk) -> None:
        """Grant to the running in their order; for the first token of one, the last ones give blocks up."""
        index, end = 0, wants.num_running
        requests, tables, scheduled, debts = wants.requests, wants.tables, wants.num_scheduled, wants.debts
        while index < end and walk.budget > 0:
            table, begin = tables[index], scheduled[index]
            count = min(debts[index], walk.budget, self._max_chunk)
            if begin + count > table.room:
                while end > index + 1 and self._room(table) <= begin:
                    end -= 1
                    self._preempt(requests[end], walk)
                count = min(count, self._room(table) - begin)
            if count > 0:
                walk.grant(
                    requests[index], 0, count, self._extend(requests[index], table, begin, count, walk)
                )
            elif walk.must_decide:
                walk.refused.append(requests[index])
            index += 1

    def _room(self, table: Table) -> int:
        """Tokens that fit into its blocks and all free ones."""
        return table.room + self._blocks.num_free // len(self._groups) * self._block_size

    def _extend(self, request: int, table: Table, begin: int, count: int, walk: Walk) -> int:
        """Give it the blocks that so many tokens more need; how many."""
        end = begin + count
        if end <= table.room:
            return 0
        fresh = self._groups.num_blocks(end - table.room)
        for blocks in table.blocks:
            new = self._blocks.allocate(fresh)
            blocks += new
            walk.blocks += new
        table.room += fresh * self._block_size
        if self._caching:
            self._note_computing(request, table, begin, end)
        return fresh * len(table.blocks)

    def _preempt(self, request: int, walk: Walk) -> None:
        self._give_up(self._tables[request])
        walk.preempted.append(request)
        self._num_preempted += 1

    def _serve_waiting(self, wants: Wants, walk: Walk) -> bool:
        """Let the waiting in, in their order, until the budget ends or one does not fit: then False."""
        for index in range(wants.num_running, len(wants.requests)):
            if walk.budget <= 0:
                break
            if not self._admit(index, wants, walk):
                return False
        return True

    def _admit(self, index: int, wants: Wants, walk: Walk) -> bool:
        """Let a waiting request in, if its whole prompt fits; False stops those behind it."""
        request, table, debt = wants.requests[index], wants.tables[index], wants.debts[index]
        needed = self._groups.num_held(debt)
        if needed > self._blocks.num_blocks:
            walk.refused.append(request)
            return True
        hits = self._find(table, debt)
        num_hits = len(hits[0])
        if self._is_computing(request, table, num_hits, debt) and not walk.must_decide:
            return True
        found = [block for group in hits for block in group if block != NONE]
        free = self._blocks.num_free - self._blocks.num_free_among(found)
        if needed - len(found) + (0 if walk.must_decide else self._watermark) > free:
            return False
        cached = num_hits * self._block_size
        room = cached + free // len(self._groups) * self._block_size
        count = min(debt - cached, walk.budget, self._max_chunk, room - cached)
        if count <= 0:
            return False
        self._blocks.share(found)
        self._let_in(request, table, hits, count, walk)
        self._queried += debt
        self._hit += cached
        return True

    def _find(self, table: Table, debt: int) -> list[list[int]]:
        """The blocks that it can share; its last token is computed in any case."""
        if not self._caching or table.skips_reading:
            return [[] for _ in self._groups.windows]
        extend(table.contents, table.tokens, self._block_size, table.key)
        return self._groups.hits(self._blocks, table.contents[: (debt - 1) // self._block_size])

    def _let_in(self, request: int, table: Table, hits: list[list[int]], count: int, walk: Walk) -> None:
        num_hits = len(hits[0])
        cached = num_hits * self._block_size
        table.num_full = num_hits
        table.next_full = cached + self._block_size
        fresh = self._groups.num_blocks(cached + count) - num_hits
        for group, found in enumerate(hits):
            table.blocks[group] = found + self._blocks.allocate(fresh)
            walk.blocks += table.blocks[group]
        table.room = (num_hits + fresh) * self._block_size
        if self._caching:
            self._note_computing(request, table, cached, cached + count)
        walk.grant(request, cached, count, (num_hits + fresh) * len(hits))

    # -- who computes what ------------------------------------------------------------------------

    def _is_computing(self, request: int, table: Table, num_hits: int, debt: int) -> bool:
        """Whether another request computes the very block that would be the next hit."""
        if (
            table.skips_reading
            or num_hits >= (debt - 1) // self._block_size
            or num_hits >= len(table.contents)
        ):
            return False
        return self._computing.get(table.contents[num_hits], request) != request

    def _note_computing(self, request: int, table: Table, begin: int, end: int) -> None:
        """The full blocks from token `begin` to token `end` are being computed; others may wait for them."""
        if table.private:
            return
        last = min(end // self._block_size, len(table.contents))
        for content in table.contents[begin // self._block_size : last]:
            if content not in self._computing:
                self._computing[content] = request
                table.computing[content] = None

    def _not_computing(self, table: Table, content: bytes) -> None:
        if content in table.computing:
            del table.computing[content]
            del self._computing[content]

    def _give_up(self, table: Table) -> None:
        for blocks in table.blocks:
            self._blocks.free([block for block in blocks if block != NONE])
        table.blocks = [[] for _ in table.blocks]
        table.room = table.num_full = 0
        table.next_full = self._block_size
        table.private = False
        for content in table.computing:
            del self._computing[content]
        table.computing = {}
