"""What becomes of the prefix cache, for those who subscribe to it."""

from collections.abc import Sequence

from ..messages import BlocksRemoved, BlocksStored, CacheCleared, CacheEvents, CacheKey, pack
from .prefix import root

CONTENT = 16
"""Bytes of a content; what follows in an index key names the group."""


class CacheLog:
    """Events since the last poll, in order; contents that were removed one after the other are one event."""

    def __init__(self) -> None:
        self._events: list[BlocksStored | BlocksRemoved | CacheCleared] = []
        self._removed: list[bytes] = []
        self._group = 0
        self._sequence = 0

    def stored(
        self,
        contents: Sequence[bytes],
        tokens: Sequence[int],
        indices: Sequence[int],
        block_size: int,
        group: int,
        key: CacheKey | None,
    ) -> None:
        """The blocks of a request at these places (ascending) can be found now."""
        self._flush()
        begin = 0
        for end in range(1, len(indices) + 1):
            if end < len(indices) and indices[end] == indices[end - 1] + 1:
                continue
            first, last = indices[begin], indices[end - 1] + 1
            parent = contents[first - 1] if first else root(key)
            column = pack(tokens[first * block_size : last * block_size])
            self._events.append(
                BlocksStored(parent, b"".join(contents[first:last]), column, block_size, group)
            )
            begin = end

    def removed(self, key: bytes) -> None:
        """What was indexed under this key can no longer be found."""
        group = int.from_bytes(key[CONTENT:], "little")
        if group != self._group:
            self._flush()
            self._group = group
        self._removed.append(key[:CONTENT])

    def cleared(self) -> None:
        """Nothing can be found any more."""
        self._flush()
        self._events.append(CacheCleared())

    def poll(self) -> CacheEvents | None:
        """What happened since the last time; None when nothing did."""
        self._flush()
        if not self._events:
            return None
        events, self._events = tuple(self._events), []
        self._sequence += 1
        return CacheEvents(self._sequence - 1, events)

    def _flush(self) -> None:
        if self._removed:
            self._events.append(BlocksRemoved(b"".join(self._removed), self._group))
            self._removed = []
