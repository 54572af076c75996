"""Timeouts: which request must have come how far by when."""

import heapq
from enum import Enum, auto

from .requests import Request, Status


class Must(Enum):
    """What is asked of a request at a time."""

    RUN = auto()
    SPEAK = auto()
    END = auto()


class Timeouts:
    """A heap of times; what a request has fulfilled meanwhile is dropped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Must, Request]] = []
        self._counter = 0

    def add(self, request: Request, now: float) -> None:
        """Note the timeouts of a request that has arrived at `now`."""
        terms = request.terms
        for must, seconds in (
            (Must.RUN, terms.queue_timeout),
            (Must.SPEAK, terms.ttft_timeout),
            (Must.END, terms.timeout),
        ):
            if seconds is not None:
                heapq.heappush(self._heap, (now + seconds, self._counter, must, request))
                self._counter += 1

    @property
    def next(self) -> float:
        """When the next one is due; inf without any."""
        while self._heap and _is_met(self._heap[0][2], self._heap[0][3]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> Request | None:
        """Remove and return a request that has missed one by `now`; None when there is none."""
        if self.next > now:
            return None
        return heapq.heappop(self._heap)[3]


def _is_met(must: Must, request: Request) -> bool:
    if request.status is Status.ENDED:
        return True
    if must is Must.RUN:
        return request.has_run
    return must is Must.SPEAK and request.num_output > 0
