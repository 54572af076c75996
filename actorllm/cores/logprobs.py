"""Log-probabilities taken apart token by token, and put together again."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..messages import Logprobs, pack, unpack


class Candidates(NamedTuple):
    """Those of one token, as columns: int32 tokens, float32 values, int32 ranks."""

    tokens: bytes
    values: bytes
    ranks: bytes


def split(logprobs: Logprobs) -> list[Candidates | None]:
    """One entry for each token; None where none were wanted. Raises AssertionError for unequal columns."""
    counts = unpack(logprobs.counts)
    tokens, values, ranks = logprobs.tokens, logprobs.values, logprobs.ranks
    assert len(tokens) == len(values) == len(ranks) == 4 * sum(counts), "the columns differ in length"
    found: list[Candidates | None] = []
    begin = 0
    for count in counts:
        end = begin + 4 * count
        here = slice(begin, end)
        found.append(Candidates(tokens[here], values[here], ranks[here]) if count else None)
        begin = end
    return found


def join(parts: Sequence[Candidates | None]) -> Logprobs | None:
    """One entry for each token again; None when no token has any."""
    some = [part for part in parts if part is not None]
    if not some:
        return None
    return Logprobs(
        pack(0 if part is None else len(part.tokens) // 4 for part in parts),
        b"".join(part.tokens for part in some),
        b"".join(part.values for part in some),
        b"".join(part.ranks for part in some),
    )


def concatenate(parts: Iterable[Logprobs]) -> Logprobs:
    """All of them, one after the other."""
    whole = tuple(parts)
    return Logprobs(
        b"".join(part.counts for part in whole),
        b"".join(part.tokens for part in whole),
        b"".join(part.values for part in whole),
        b"".join(part.ranks for part in whole),
    )
