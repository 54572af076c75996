"""Whether an answer goes round in circles."""

from collections import deque

from ..messages import Repetition

NOTHING = -1
"""No token."""


class Circles:
    """Watches one answer for a pattern that stands at its end as often in a row as the rule says.

    A token costs time in proportion to `max_pattern_size`, whatever the tokens are: for each size it is
    known how many of the last tokens equal the one that is so many places before them.
    """

    __slots__ = ("_last", "_rule", "_runs")

    def __init__(self, rule: Repetition) -> None:
        most = rule.max_pattern_size
        self._rule = rule
        self._runs = [0] * most
        self._last = deque([NOTHING] * most, maxlen=most)

    def feed(self, token: int) -> bool:
        """Take the next token of the answer; whether it completes such a pattern."""
        runs = [run + 1 if before == token else 0 for run, before in zip(self._runs, self._last, strict=True)]
        self._runs = runs
        self._last.appendleft(token)
        least, more = self._rule.min_pattern_size, self._rule.min_count - 1
        if max(runs) < least * more:
            return False
        return any(run >= size * more for size, run in enumerate(runs, 1) if size >= least)
