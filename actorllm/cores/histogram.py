"""Histograms: how many values fell into which of some fixed ranges."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has counted so far.

    `counts[i]` values are at most `bounds[i]` and above the bound before it; the last of `counts` are above
    all bounds. `sum` is that of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    @property
    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, infinity last, with how many values are at most that."""
        return zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)


class Histogram:
    """Counts values. It takes as much memory for a million of them as for one."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise. Raises ValueError for others."""
        if not all(low < high for low, high in pairwise(bounds)):
            raise ValueError(f"the bounds of a histogram must rise, not be {tuple(bounds)}")
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def read(self) -> Distribution:
        """What was counted so far."""
        return Distribution(self._bounds, tuple(self._counts), self._sum)


def rising(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times the powers of ten, from `low` to `high`."""
    # made of text, each is the nearest number, and prints as short as it is
    bounds = (float(f"{digit}e{exponent}") for exponent in range(-9, 19) for digit in (1, 2, 5))
    return tuple(bound for bound in bounds if low <= bound <= high)


COUNTS = (0.0, *rising(1, 100))
"""Bounds for what is mostly none, or a few."""
