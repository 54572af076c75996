"""Admission: how much waits for its first step, and whether one more may."""

from collections import deque
from itertools import islice

from ..messages import Fault
from .requests import Request

SAMPLES = 64
"""Steps over which the rate of work is measured."""

LONGEST_HINT = 60.0
"""Seconds that a refused caller is told to wait at most: OpenAI's clients do not obey a longer hint."""


class Admission:
    """Counts the requests and tokens that have never run, and refuses what exceeds the limits.

    Whoever finds a free seat is not queued, even before it has run: the limits are for those behind.
    """

    def __init__(self, seats: int, max_requests: int | None = None, max_tokens: int | None = None) -> None:
        self._seats = seats
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._waiting: dict[int, int] = {}
        self._work: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=SAMPLES)
        self._now = self._busy = 0.0
        self._is_busy = False
        self.num_begun = 0
        self.num_tokens = 0
        self.num_refused = 0

    @property
    def num_requests(self) -> int:
        """Those that have never run."""
        return len(self._waiting)

    def refusal(self, request: Request) -> Fault | None:
        """Why this request may not wait; None when it may. One that would wait alone is never too long."""
        free = max(0, self._seats - self.num_begun)
        queued = len(self._waiting) - free
        if self._max_requests is not None and queued >= self._max_requests:
            return self._refuse(f"{queued} requests wait already (max_num_queued_reqs)")
        if self._max_tokens is not None and queued > 0:
            tokens, brings = self.num_tokens - sum(islice(self._waiting.values(), free)), request.num_prompt
            if tokens + brings > self._max_tokens:
                text = f"{tokens} tokens wait already, and this request brings {brings}"
                return self._refuse(f"{text} (max_num_queued_tokens is {self._max_tokens})")
        return None

    def enter(self, request: Request) -> None:
        """It waits for its first step."""
        self._waiting[request.id] = request.num_prompt
        self.num_tokens += request.num_prompt

    def begin(self, request: Request) -> None:
        """It runs for the first time."""
        self.num_tokens -= self._waiting.pop(request.id)
        self.num_begun += 1

    def leave(self, request: Request) -> None:
        """It has ended; it may not even have begun."""
        if request.id in self._waiting:
            self.num_tokens -= self._waiting.pop(request.id)
        else:
            self.num_begun -= 1

    def worked(self, now: float, num_computed: int, is_busy: bool) -> None:
        """Note how many tokens were computed in all until `now`, and whether a step is on its way since.

        Time without one tells nothing of how fast steps are.
        """
        if self._is_busy:
            self._busy += now - self._now
        self._now, self._is_busy = now, is_busy
        if num_computed > self._work[-1][1]:
            self._work.append((self._busy, num_computed))

    @property
    def retry_after(self) -> float:
        """Seconds in which what waits now would be computed, at the rate of the last steps: from 1 to 60."""
        (begun, before), (ended, after) = self._work[0], self._work[-1]
        seconds_per_token = (ended - begun) / max(1, after - before)
        return min(max(1.0, round(self.num_tokens * seconds_per_token, 1)), LONGEST_HINT)

    def _refuse(self, reason: str) -> Fault:
        self.num_refused += 1
        after = self.retry_after
        return Fault("Overloaded", f"{reason}; try again in {after:g} s", retry_after=after)
