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
    """A heap of times; what a request has fulfilled meanwhile is dropped when it comes up.

    Of the requests in it at most half have ended: when there are more, it is built anew without them.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Must, Request]] = []
        self._counter = 0
        self._num_open = 0
        self._num_ended = 0

    def add(self, request: Request, now: float) -> None:
        """Note the timeouts of a request that has arrived at `now`."""
        terms = request.terms
        self._num_open += _has_any(request)
        for must, seconds in (
            (Must.RUN, terms.queue_timeout),
            (Must.SPEAK, terms.ttft_timeout),
            (Must.END, terms.timeout),
        ):
            if seconds is not None:
                heapq.heappush(self._heap, (now + seconds, self._counter, must, request))
                self._counter += 1

    def ended(self, request: Request) -> None:
        """One that was added has ended."""
        if not _has_any(request):
            return
        self._num_open -= 1
        self._num_ended += 1
        if self._num_ended > self._num_open:
            self._heap = [entry for entry in self._heap if entry[3].status is not Status.ENDED]
            heapq.heapify(self._heap)
            self._num_ended = 0

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

    def check(self) -> None:
        """Raise AssertionError when those that have ended are in the majority."""
        ended = {entry[3].id for entry in self._heap if entry[3].status is Status.ENDED}
        assert len(ended) <= self._num_open, "requests that have ended are kept for their timeouts"


def _has_any(request: Request) -> bool:
    terms = request.terms
    return not (terms.queue_timeout is terms.ttft_timeout is terms.timeout is None)


def _is_met(must: Must, request: Request) -> bool:
    if request.status is Status.ENDED:
        return True
    if must is Must.RUN:
        return request.has_run
    return must is Must.SPEAK and request.num_output > 0
