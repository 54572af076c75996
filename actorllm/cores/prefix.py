"""What the pool can find again: the contents of blocks, and the longest prefix that all groups hold.

Groups of layers share one pool. A group has a window: how many tokens each token sees, itself included,
or 0 for all that came before. What fell out of a group's window is not kept for it, and need not be
there for a hit.
"""

import hashlib
from collections.abc import Sequence

from ..messages import CacheKey, pack
from .blocks import Blocks

NONE = -1
"""Stands in a table for a block that fell out of the window."""


class Groups:
    """The geometry: `windows` has one entry a group, `block_size` is in tokens."""

    def __init__(self, windows: Sequence[int], block_size: int) -> None:
        assert windows, "a model has at least one group of layers"
        self.block_size = block_size
        self.windows = tuple(windows)
        self.has_windows = any(windows)
        self._behind = tuple(-(-(window - 1) // block_size) if window else None for window in windows)
        self._marks = tuple(
            b"" if group == 0 else group.to_bytes(2, "little") for group in range(len(windows))
        )

    def __len__(self) -> int:
        return len(self.windows)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks of one group that so many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def num_held(self, num_tokens: int) -> int:
        """Blocks of all groups that a request of so many tokens holds, when all but the last are computed."""
        every = self.num_blocks(num_tokens)
        return sum(every if behind is None else min(every, behind + 1) for behind in self._behind)

    def first_seen(self, group: int, num_blocks: int) -> int:
        """The first block that a token sees which comes after `num_blocks` full ones."""
        behind = self._behind[group]
        return 0 if behind is None else max(0, num_blocks - behind)

    def longest(self, num_blocks: int) -> int:
        """Tokens of the longest request that can run to its end in so many blocks."""
        behind = [each for each in self._behind if each is not None]
        num_full = len(self) - len(behind)
        low, high = 0, num_blocks * self.block_size
        if not num_full and self.num_held(2**40) <= num_blocks:
            return 2**31
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.num_held(middle) <= num_blocks else (low, middle - 1)
        return low

    def key(self, content: bytes, group: int) -> bytes:
        """Under which a group's block with this content is indexed."""
        return content + self._marks[group]

    def hits(self, blocks: Blocks, contents: Sequence[bytes]) -> list[list[int]]:
        """For each group the blocks of the longest prefix that all can share, NONE before its window."""
        length = len(contents)
        for group, window in enumerate(self.windows):
            if not window:
                length = self._in_all(blocks, contents[:length], group)
        before = None
        while self.has_windows and length != before:
            before = length
            for group, window in enumerate(self.windows):
                if window:
                    length = self._in_window(blocks, contents[:length], group)
        return [self._found(blocks, contents[:length], group) for group in range(len(self))]

    def _in_all(self, blocks: Blocks, contents: Sequence[bytes], group: int) -> int:
        """How many blocks the group holds from the first on."""
        for index, content in enumerate(contents):
            if blocks.lookup(self.key(content, group)) is None:
                return index
        return len(contents)

    def _in_window(self, blocks: Blocks, contents: Sequence[bytes], group: int) -> int:
        """The longest prefix of which the group holds what the next token sees."""
        behind = self._behind[group]
        run, end = 0, len(contents)
        for index in range(len(contents) - 1, -1, -1):
            if run == behind:
                break
            if blocks.lookup(self.key(contents[index], group)) is None:
                run, end = 0, index
            else:
                run += 1
        return end

    def _found(self, blocks: Blocks, contents: Sequence[bytes], group: int) -> list[int]:
        first = self.first_seen(group, len(contents))
        found = [blocks.lookup(self.key(content, group)) for content in contents[first:]]
        return [NONE] * first + [block for block in found if block is not None]


def root(key: CacheKey | None) -> bytes:
    """The content before the first block: prefixes of requests with other salts or adapters never meet."""
    if key is None or not (key.salt or key.adapter):
        return b""
    text = f"{key.adapter} {key.salt}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def extend(
    contents: list[bytes], tokens: Sequence[int], block_size: int, key: CacheKey | None = None
) -> None:
    """Append the contents of the full blocks of `tokens` that are not there yet.

    A content is a hash of the one before it, the block's tokens, and what of the key's media stands in it.
    """
    parent = contents[-1] if contents else root(key)
    for index in range(len(contents), len(tokens) // block_size):
        begin = index * block_size
        text = parent + pack(tokens[begin : begin + block_size])
        for media in key.media if key is not None else ():
            if media.offset < begin + block_size and begin < media.offset + media.length:
                text += media.digest + pack([begin - media.offset, media.length])
        parent = hashlib.blake2b(text, digest_size=16).digest()
        contents.append(parent)
