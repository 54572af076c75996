"""The laws of blocks: who may write one, who may find one, and what subscribers are told of them."""

from collections import Counter
from dataclasses import dataclass, field

from ..cores.prefix import NONE, Groups
from ..messages import (
    BlocksRemoved,
    BlocksStored,
    CacheEvents,
    CacheKey,
    RunStep,
    Submit,
    unpack,
    unpack_ids,
)

CONTENT = 16
"""Bytes of a block's content in a cache event."""


@dataclass(slots=True)
class Row:
    """The blocks of a row of the batch in each group, and how many of its tokens are scheduled."""

    num_scheduled: int
    blocks: list[list[int]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose tokens were first written into a block, and after how many resets of the prefix cache."""

    request: int
    generation: int


@dataclass(slots=True)
class Tables:
    """The block tables as the workers keep them. Methods raise AssertionError when a law is broken.

    - A step writes no block that two rows hold, and none outside of its row's window.
    - A request finds only blocks that were begun after the last reset of the prefix cache, by a request
      whose key says the same up to the end of the block.
    """

    groups: Groups
    rows: dict[int, Row] = field(default_factory=dict)
    keys: dict[int, CacheKey] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)
    generation: int = 0

    def submitted(self, submit: Submit) -> None:
        """A request has come."""
        self.keys[submit.request] = submit.key or CacheKey()

    def reset(self) -> None:
        """What was computed up to now must not be found again."""
        self.generation += 1

    def step(self, message: RunStep) -> None:
        """The Scheduler sends a step."""
        for request in unpack_ids(message.finished):
            del self.rows[request]
        cached = {row.request: row.num_computed for row in message.new}
        readers = [request for request, count in cached.items() if count and self.keys[request].skip_reading]
        assert not readers, f"requests {readers}, which skip the prefix cache, find something there"
        for request, count in cached.items():
            self.rows[request] = Row(count, [[] for _ in self.groups.windows])
        blocks, at = unpack(message.blocks), 0
        written: dict[int, int] = {}
        counts = zip(
            unpack_ids(message.rows), unpack(message.num_tokens), unpack(message.num_blocks), strict=True
        )
        for request, num_tokens, num_blocks in counts:
            self._extend(request, blocks[at : at + num_blocks], cached.get(request, 0))
            at += num_blocks
            written |= dict.fromkeys(self._write(request, num_tokens), request)
        holders = Counter(block for row in self.rows.values() for group in row.blocks for block in group)
        for block, request in written.items():
            assert holders[block] == 1, f"request {request} writes block {block}, which others hold too"
        for request in unpack_ids(message.rows):
            self._drop(self.rows[request])

    def _extend(self, request: int, blocks: list[int], num_cached: int) -> None:
        row, each = self.rows[request], len(blocks) // len(self.groups)
        for group, table in enumerate(row.blocks):
            new = blocks[group * each : (group + 1) * each]
            table += new
            num_found = num_cached // self.groups.block_size
            for index, block in enumerate(new[:num_found]):
                if block != NONE:
                    self._find(request, block, (index + 1) * self.groups.block_size)
            for block in new[num_found:]:
                self.origins[block] = Origin(request, self.generation)

    def _find(self, request: int, block: int, end: int) -> None:
        origin = self.origins[block]
        assert origin.generation == self.generation, f"block {block} is found after a reset of the cache"
        own, other = (_until(self.keys[each], end) for each in (request, origin.request))
        assert own == other, f"request {request} with {own} finds a block of {origin.request} with {other}"

    def _write(self, request: int, num_tokens: int) -> list[int]:
        """The blocks that its tokens are written to."""
        row, size = self.rows[request], self.groups.block_size
        first, row.num_scheduled = row.num_scheduled, row.num_scheduled + num_tokens
        written = []
        for table in row.blocks:
            written += table[first // size : -(-row.num_scheduled // size)]
        assert NONE not in written, f"request {request} writes to a block that it does not have"
        return written

    def _drop(self, row: Row) -> None:
        """What is out of a window for the next step is no longer its."""
        for table, window in zip(row.blocks, self.groups.windows, strict=True):
            if window:
                out = max(0, row.num_scheduled - window + 1) // self.groups.block_size
                table[:out] = [NONE] * out


@dataclass(slots=True)
class Mirror:
    """A subscriber that keeps a copy of the prefix index from the cache events alone."""

    block_size: int
    contents: set[tuple[int, bytes]] = field(default_factory=set)
    num_news: int = 0

    def hear(self, news: CacheEvents) -> None:
        """Take in what has become of the cache. Raises AssertionError when it makes no sense."""
        assert news.sequence == self.num_news, f"news {news.sequence} after {self.num_news} others"
        self.num_news += 1
        for event in news.events:
            match event:
                case BlocksStored():
                    stored = self._contents(event)
                    assert not stored & self.contents, "a block is stored that was there already"
                    assert len(event.token_ids) == 4 * self.block_size * len(stored), (
                        "stored without its tokens"
                    )
                    self.contents |= stored
                case BlocksRemoved():
                    removed = self._contents(event)
                    assert removed <= self.contents, "a block is removed that was not there"
                    self.contents -= removed
                case _:
                    self.contents.clear()

    def _contents(self, event: BlocksStored | BlocksRemoved) -> set[tuple[int, bytes]]:
        column = event.block_hashes
        return {(event.group, column[at : at + CONTENT]) for at in range(0, len(column), CONTENT)}


def _until(key: CacheKey, num_tokens: int) -> CacheKey:
    """The key as far as it matters for so many tokens."""
    return CacheKey(key.salt, key.adapter, tuple(each for each in key.media if each.offset < num_tokens))
