"""What the Scheduler knows of one request, and the queue of those that wait."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from ..messages import Limits, Sampling
from .policy import Policy


class Status(Enum):
    """Where a request stands. One that has ended is in no table; an offered one is in the Reserve."""

    GRAMMAR = auto()
    WAITING = auto()
    OFFERED = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Request:
    """The authoritative record: every token that was ever emitted is in `tokens`.

    `num_scheduled` moves when a step is sent, `num_computed` when it is done; `num_pending` samples and
    `steps_out` steps are on their way. `num_told` tokens are known to the pool. `life` counts
    preemptions: the result of a step of an earlier life brings its token, but no computed KV.
    """

    id: int
    tokens: list[int]
    num_prompt: int
    sampling: Sampling
    limits: Limits
    max_tokens: int
    arrival: int
    status: Status = Status.WAITING
    num_computed: int = 0
    num_scheduled: int = 0
    num_pending: int = 0
    steps_out: int = 0
    num_told: int = 0
    life: int = 0
    in_batch: bool = False
    aborted: bool = False

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def debt(self) -> int:
        """Tokens that could be computed now: known ones and placeholders, none beyond `max_tokens`."""
        if self.num_output + self.num_pending >= self.max_tokens:
            return 0
        return len(self.tokens) + self.num_pending - self.num_scheduled

    @property
    def ready(self) -> bool:
        """Whether it may be planned: after a preemption, only when every step that carried it is back."""
        return self.num_scheduled > 0 or self.steps_out == 0

    def restart(self) -> None:
        """Forget all computed KV; the tokens stay."""
        self.num_computed = self.num_scheduled = 0
        self.life += 1
        self.in_batch = False
        self.status = Status.WAITING

    def check(self) -> None:
        """Raise AssertionError when the counters contradict each other."""
        assert 0 <= self.num_computed <= len(self.tokens)
        assert self.num_computed <= self.num_scheduled <= len(self.tokens) + self.num_pending
        assert self.num_told <= len(self.tokens)
        assert self.num_pending <= self.steps_out
        assert self.num_output + self.num_pending <= self.max_tokens
        if self.status in (Status.WAITING, Status.OFFERED):
            assert self.num_scheduled == 0
            assert not self.in_batch


class WaitingQueue:
    """Waiting requests by the policy's key. An ended one is dropped when it comes up."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[tuple[float, ...], Request]] = []
        self._num_ended = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_ended

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._heap if request.status is not Status.ENDED)

    def push(self, request: Request) -> None:
        """Add a waiting request."""
        heapq.heappush(self._heap, (self._policy.key(request), request))

    def take(self) -> Request | None:
        """Remove and return the first that is ready; those before it keep their places."""
        unready: list[Request] = []
        taken: Request | None = None
        while self._heap and taken is None:
            _, request = heapq.heappop(self._heap)
            if request.status is Status.ENDED:
                self._num_ended -= 1
            elif request.ready:
                taken = request
            else:
                unready.append(request)
        for request in unready:
            self.push(request)
        return taken

    def ended(self) -> None:
        """One of the queue has ended; when most have, the heap is built anew without them."""
        self._num_ended += 1
        if self._num_ended > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1].status is not Status.ENDED]
            heapq.heapify(self._heap)
            self._num_ended = 0
