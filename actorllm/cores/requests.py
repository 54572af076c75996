"""What the Scheduler knows of one request, and the queue of those that wait."""

import heapq
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from ..messages import CacheKey, Limits, Sampling, Terms
from .policy import Policy
from .repetition import Circles


class Status(Enum):
    """Where a request stands. One that has ended is in no table; an offered one is in the Reserve; a
    suspect waits for its turn to run alone.
    """

    ARRIVED = auto()
    GRAMMAR = auto()
    WAITING = auto()
    SUSPECT = auto()
    OFFERED = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Request:
    """The authoritative record: every token that was ever emitted is in `tokens`.

    It ends with a token that is among `stops`, or when it has `max_len` tokens with the prompt.
    `num_scheduled` moves when a step is sent, `num_computed` when it is done; `num_pending` samples and
    `steps_out` steps are on their way. `num_told` tokens are known to the pool. `life` counts how often it
    has lost its KV, `num_preemptions` how often of these to others: the result of a step of an earlier life
    brings its token, but no computed KV. `verdict` is the end that it meets when Grammar has answered.
    `num_crashes` steps have crashed with it since it had `crashed_at` tokens. The log-probabilities of
    `num_prompt_told` tokens of the prompt have been told; `num_cached` were in the cache when it first ran.
    `circles` watches the output, where the caller wants that.
    """

    id: int
    tokens: list[int]
    num_prompt: int
    sampling: Sampling
    limits: Limits
    max_len: int
    arrival: int
    stops: frozenset[int] = frozenset()
    terms: Terms = Terms()
    key: CacheKey | None = None
    status: Status = Status.WAITING
    due: float = float("inf")
    num_computed: int = 0
    num_scheduled: int = 0
    num_pending: int = 0
    steps_out: int = 0
    num_told: int = 0
    life: int = 0
    num_crashes: int = 0
    crashed_at: int = 0
    num_prompt_told: int = 0
    in_batch: bool = False
    has_run: bool = False
    verdict: str | None = None
    num_preemptions: int = 0
    num_cached: int = 0
    circles: Circles | None = None

    @property
    def priority(self) -> int:
        """The caller's; a lower one is served sooner."""
        return self.terms.priority

    @property
    def tenant(self) -> str:
        """On whose behalf it runs."""
        return self.terms.tenant

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def ready(self) -> bool:
        """Whether it may be planned: after a preemption, only when every step that carried it is back."""
        return self.num_scheduled > 0 or self.steps_out == 0

    @property
    def is_past_crash(self) -> bool:
        """Whether it has a token more than when a step last crashed with it."""
        return len(self.tokens) > self.crashed_at

    def crash(self) -> None:
        """A step with it has crashed. What it has got past meanwhile does not count any more."""
        self.num_crashes = 1 if self.is_past_crash else self.num_crashes + 1
        self.crashed_at = len(self.tokens)

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
        assert self.num_prompt_told <= self.num_prompt
        assert self.num_pending <= self.steps_out
        assert len(self.tokens) + self.num_pending <= self.max_len
        if self.status is not Status.RUNNING:
            assert self.num_scheduled == 0
            assert not self.in_batch


@dataclass(slots=True)
class Line:
    """The waiting requests of one group."""

    heap: list[tuple[tuple[float, ...], int, Request]] = field(default_factory=list)
    num_ended: int = 0


class WaitingQueue:
    """Waiting requests in the policy's order. An ended one is dropped when it comes up."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lines: dict[str, Line] = {}
        self._ahead: dict[str, float] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request]:
        for line in self._lines.values():
            for _, _, request in line.heap:
                if request.status is not Status.ENDED:
                    yield request

    def push(self, request: Request) -> None:
        """Add a waiting request."""
        line = self._lines.setdefault(self._policy.group(request), Line())
        heapq.heappush(line.heap, (self._policy.key(request), request.arrival, request))
        self._length += 1

    def start(self) -> None:
        """Begin a turn: what was taken in the last one no longer counts as had."""
        self._ahead.clear()

    def take(self) -> Request | None:
        """Remove and return the first that is ready; those before it keep their places.

        Within a turn, what a group had taken counts for its level: groups take turns.
        """
        for group in sorted(
            self._lines, key=lambda group: self._policy.level(group) + self._ahead.get(group, 0)
        ):
            request = self._take_of(group)
            if request is not None:
                cost = self._policy.cost(request, len(request.tokens))
                self._ahead[group] = self._ahead.get(group, 0) + cost
                return request
        return None

    def remove(self, request: Request) -> None:
        """Take out one that waits, wherever it stands."""
        group = self._policy.group(request)
        line = self._lines[group]
        line.heap = [entry for entry in line.heap if entry[2] is not request]
        heapq.heapify(line.heap)
        self._length -= 1
        self._tidy(group)

    def has_other_than(self, groups: Container[str]) -> bool:
        """Whether one that is ready waits in a group that is not among these."""
        return any(
            request.ready and request.status is Status.WAITING
            for group, line in self._lines.items()
            if group not in groups
            for _, _, request in line.heap
        )

    def ended(self, request: Request) -> None:
        """One of the queue has ended; when most of its line have, the line is built anew without them."""
        self._length -= 1
        line = self._lines[self._policy.group(request)]
        line.num_ended += 1
        if line.num_ended > len(line.heap) // 2:
            line.heap = [entry for entry in line.heap if entry[2].status is not Status.ENDED]
            heapq.heapify(line.heap)
            line.num_ended = 0
            self._tidy(self._policy.group(request))

    def _take_of(self, group: str) -> Request | None:
        line = self._lines[group]
        unready: list[Request] = []
        taken: Request | None = None
        while line.heap and taken is None:
            _, _, request = heapq.heappop(line.heap)
            if request.status is Status.ENDED:
                line.num_ended -= 1
                continue
            self._length -= 1
            if request.ready:
                taken = request
            else:
                unready.append(request)
        for request in unready:
            self.push(request)
        self._tidy(group)
        return taken

    def _tidy(self, group: str) -> None:
        if not self._lines[group].heap:
            del self._lines[group]
