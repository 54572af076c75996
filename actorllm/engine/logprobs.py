"""Log-probabilities as a caller sees them: vLLM's shapes, built when they are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..messages import Logprobs, unpack, unpack_floats


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one candidate: its log-probability, its place in the vocabulary's order (1 is the likeliest), and
    the bytes that it adds to a text, which may be a part of a character.
    """

    logprob: float
    rank: int
    piece: bytes

    @property
    def decoded_token(self) -> str:
        """Its text by itself, in which broken characters are replaced."""
        return self.piece.decode(errors="replace")


Position = dict[int, Logprob]
"""The candidates of one place by their token ids: first the token that stands there."""


def positions(parts: Sequence[Logprobs], pieces: Sequence[bytes]) -> list[Position]:
    """One for each token; `pieces` are the bytes of each token id."""
    return [position for part in parts for position in _positions(part, pieces)]


def _positions(part: Logprobs, pieces: Sequence[bytes]) -> list[Position]:
    tokens, ranks = unpack(part.tokens), unpack(part.ranks)
    values = unpack_floats(part.values)
    found: list[Position] = []
    begin = 0
    for count in unpack(part.counts):
        end = begin + count
        found.append(
            {tokens[at]: Logprob(values[at], ranks[at], pieces[tokens[at]]) for at in range(begin, end)}
        )
        begin = end
    return found
