"""Admission: how much waits for its first step, and whether one more may."""

from collections import deque

from ..messages import Fault
from .requests import Request

SAMPLES = 64
"""Steps over which the rate of work is measured."""


class Admission:
    """Counts the requests and tokens that have never run, and refuses what exceeds the limits."""

    def __init__(self, max_requests: int | None, max_tokens: int | None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._work: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self.num_requests = 0
        self.num_tokens = 0
        self.num_refused = 0

    def refusal(self, request: Request) -> Fault | None:
        """Why this request may not wait; None when it may."""
        if self._max_requests is not None and self.num_requests >= self._max_requests:
            return self._refuse(f"{self.num_requests} requests wait already (max_num_queued_reqs)")
        total = self.num_tokens + request.num_prompt
        if self._max_tokens is not None and total > self._max_tokens and self.num_requests:
            text = f"{self.num_tokens} tokens wait already, and this request brings {request.num_prompt}"
            return self._refuse(f"{text} (max_num_queued_tokens is {self._max_tokens})")
        return None

    def enter(self, request: Request) -> None:
        """It waits for its first step."""
        self.num_requests += 1
        self.num_tokens += request.num_prompt

    def leave(self, request: Request) -> None:
        """It runs, or has ended without."""
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt

    def worked(self, now: float, num_computed: int) -> None:
        """Note how many tokens were computed in all until `now`."""
        self._work.append((now, num_computed))

    @property
    def retry_after(self) -> float:
        """Seconds in which what waits now would be computed, at the rate of the last steps; at least 1."""
        if len(self._work) < 2:
            return 1.0
        (begun, before), (ended, after) = self._work[0], self._work[-1]
        seconds_per_token = (ended - begun) / max(1, after - before)
        return max(1.0, round(self.num_tokens * seconds_per_token, 1))

    def _refuse(self, reason: str) -> Fault:
        self.num_refused += 1
        after = self.retry_after
        return Fault("Overloaded", f"{reason}; try again in {after:g} s", retry_after=after)
