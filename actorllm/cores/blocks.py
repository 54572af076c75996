"""Blocks: which are free, who shares them, and which hold a prefix worth keeping."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol


class Log(Protocol):
    """What hears of contents that are forgotten."""

    def removed(self, content: bytes, /) -> None:
        """This one can no longer be found."""


class Blocks:
    """`num_blocks` blocks, each free, held (by one or more), or free with a content still worth a hit.

    A block is allocated from those without content first, then from the cached ones, the least recently
    used first; only then its content is forgotten, and the log is told.
    """

    def __init__(self, num_blocks: int, log: Log | None = None) -> None:
        self.num_blocks = num_blocks
        self.num_evicted = 0
        self._log = log
        self.clear()

    def clear(self) -> None:
        """Free every block and forget every content."""
        self._references = [0] * self.num_blocks
        self._content: list[bytes | None] = [None] * self.num_blocks
        self._empty = list(range(self.num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._index: dict[bytes, int] = {}

    def forget(self) -> None:
        """Forget every content; who holds a block keeps it."""
        self._empty.extend(reversed(self._cached))
        self._cached.clear()
        self._index.clear()
        self._content = [None] * self.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now; cached ones count."""
        return len(self._empty) + len(self._cached)

    @property
    def num_indexed(self) -> int:
        """Blocks whose content can be found."""
        return len(self._index)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each. The caller has looked at `num_free`."""
        return [self._allocate_one() for _ in range(count)]

    def _allocate_one(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            content = self._content[block]
            assert content is not None
            del self._index[content]
            self._content[block] = None
            self.num_evicted += 1
            if self._log is not None:
                self._log.removed(content)
        self._references[block] = 1
        return block

    def lookup(self, content: bytes) -> int | None:
        """The block with this content. References stay as they are."""
        return self._index.get(content)

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of these (found) blocks nobody holds: sharing them makes `num_free` smaller."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each of these found blocks."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def publish(self, block: int, content: bytes) -> bool:
        """Let others find this held block by its content; False when another holds the same already."""
        if content in self._index:
            return False
        self._index[content] = block
        self._content[block] = content
        return True

    def free(self, blocks: list[int]) -> None:
        """One reference less to each, the tail first, so that a prefix outlives what follows it."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is freed but nobody holds it"
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._content[block] is None:
                    self._empty.append(block)
                else:
                    self._cached[block] = None

    def check(self, held: Iterable[list[int]]) -> None:
        """Raise AssertionError unless free + held = total and every reference has a holder."""
        references = [0] * self.num_blocks
        for table in held:
            for block in table:
                references[block] += 1
        assert references == self._references, "references and holders differ"
        free = {*self._empty, *self._cached}
        assert len(free) == len(self._empty) + len(self._cached), "a block is free twice"
        assert all((references[block] == 0) == (block in free) for block in range(self.num_blocks))
        for content, block in self._index.items():
            assert self._content[block] == content, f"block {block} is indexed under another content"
        assert len(self._index) == sum(content is not None for content in self._content)
        assert all(self._content[block] is not None for block in self._cached)
