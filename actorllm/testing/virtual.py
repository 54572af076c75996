"""The parts of a simulated ring that are not cores: virtual time, lanes for mail, and the worker's device."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from ..actors.jobs import Deliver, Work, do
from ..cores import NEVER, Core
from ..engine.topology import Bounds, Edge
from ..errors import RequestFailed
from ..messages import (
    Job,
    RankDone,
    RankFailed,
    RunStep,
    Sampled,
    SampleStep,
    StepDone,
    StepFailed,
    unpack_ids,
)
from ..model.hash import HashRunner
from .scenarios import Scenario

T = TypeVar("T")
Step = TypeVar("Step", RunStep, SampleStep)


class Clock:
    """Virtual time, in ticks, and what will happen when."""

    def __init__(self) -> None:
        self.now = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def next(self) -> int | None:
        """When the next thing happens; None when nothing will."""
        return self._due[0][0] if self._due else None

    def at(self, due: int, run: Callable[[], None]) -> None:
        """Let something happen; what is due at the same tick happens in the order of these calls."""
        self._count += 1
        heapq.heappush(self._due, (due, self._count, run))

    def advance(self, to: int) -> None:
        """Go on to a later tick. What is due happens, in order."""
        while self._due and self._due[0][0] <= to:
            due, _, run = heapq.heappop(self._due)
            self.now = due
            run()
        self.now = to


@dataclass(slots=True, eq=False)
class Lane:
    """An edge of the ring. `queue` is on its way; `num_waiting` counts this and what is in the inbox.

    A lane that is not slow has no queue: what is said is in the inbox at once.
    """

    edge: Edge
    window: int
    slow: bool
    weight: float
    queue: deque[Any] = field(default_factory=deque)
    num_waiting: int = 0

    def enter(self) -> None:
        """One more message. Raises AssertionError when the window is full."""
        self.num_waiting += 1
        assert self.num_waiting <= self.window, (
            f"{self.num_waiting} messages from {self.edge.source} to {self.edge.target}; "
            f"the window is {self.window}"
        )


@dataclass(slots=True, eq=False)
class Actor:
    """A core, its inbox, the lanes that what it says goes by, and its deadline after its last turn."""

    name: str
    core: Core[Any, Any]
    weight: float
    ports: dict[type[Any], list[Lane]]
    inbox: deque[tuple[Lane, Any]] = field(default_factory=deque)
    deadline: float = NEVER


LOCAL = frozenset({"caller", "frontend", "renderer", "detokenizer"})
"""These share a process: Track must be with the Detokenizer before Submit leaves it."""


def draw_weight(random: Random) -> float:
    """How often one moves, compared with the others that could; the smallest only when nobody else can."""
    return random.choice((0.02, 0.3, 1.0, 1.0, 3.0))


def open_lanes(edges: Sequence[Edge], limits: Bounds, links: float, random: Random) -> list[Lane]:
    """A lane for each edge; each that may cross processes is slow with the probability `links`."""
    lanes = []
    for edge in edges:
        local = edge.source == edge.target or {edge.source, edge.target} <= LOCAL
        slow = not local and random.random() < links
        lanes.append(Lane(edge, edge.window(limits), slow, draw_weight(random)))
    return lanes


def echo_lane(actor: str) -> Lane:
    """Where late replies come from; no window counts them."""
    most = 2**31
    return Lane(Edge("echo", actor, (), lambda limits: most), most, slow=False, weight=1.0)


class VirtualThread:
    """The device's thread: jobs take a drawn number of ticks, one after the other."""

    def __init__(self, clock: Clock, random: Random, longest: int) -> None:
        self._clock = clock
        self._random = random
        self._longest = longest
        self._free_at = 0

    def start(self, work: Work, job: Job, deliver: Deliver, /) -> None:
        """Queue the job; it is done all at once, when its time is over."""
        begin = max(self._free_at, self._clock.now)
        self._free_at = begin + self._random.randint(1, self._longest)
        self._clock.at(self._free_at, lambda: deliver(do(work, job)))


def late_replies(failed: RankFailed | StepFailed) -> tuple[RankFailed | StepFailed, RankDone | StepDone]:
    """What may still come of an epoch that has failed: the failure once more, and a step that was done."""
    if isinstance(failed, RankFailed):
        return failed, RankDone(failed.rank, failed.step + 1, failed.epoch, b"")
    return failed, StepDone(failed.step + 1, failed.epoch, b"")


RESET_RAISED = "a reset was made to raise"
"""Any request may fail with it: a reset knows of none."""


class SimulatedRunner(HashRunner):
    """The HashModel on a device that fails now and then, as the scenario says.

    `broken` is the first error that nobody injected: a step that broke the protocol. `is_trusted` is
    False from a step that raised to the next reset. `blame` is told who may fail, and why.
    """

    def __init__(self, scenario: Scenario, random: Random, blame: Callable[[list[int], str], None]) -> None:
        self._resets = Random(repr(scenario))
        self._raises = 0.0  # the first reset, in here, does not raise
        super().__init__(scenario.config, scenario.max_model_len, scenario.windows)
        self.broken: Exception | None = None
        self.is_trusted = True
        self.num_raised_late = 0
        self._rows: list[int] = []
        self._random = random
        self._raises = scenario.raises
        self._blame = blame

    @property
    def num_rows(self) -> int:
        """Requests in the batch."""
        return len(self._batch)

    def reset(self) -> None:
        """Forget every request, or raise before that."""
        self.is_trusted = False
        if self._resets.random() < self._raises / 2:
            raise RequestFailed(RESET_RAISED)
        super().reset()
        self.is_trusted = True

    def execute(self, step: RunStep) -> Sampled | None:
        """Run the step, or raise, before it or after it."""
        self._rows = unpack_ids(step.rows)
        return self._now_and_then(step, super().execute)

    def sample(self, step: SampleStep) -> Sampled:
        """Sample the step that waits, or raise, before it or after it."""
        return self._now_and_then(step, super().sample)

    def _now_and_then(self, step: Step, work: Callable[[Step], T]) -> T:
        draw = self._random.random()
        if draw < self._raises / 2:
            self._raise(step)
        try:
            done = work(step)
            self.check()
        except Exception as error:
            self.broken = self.broken or error
            raise
        if draw < self._raises:
            self.num_raised_late += 1
            self._raise(step)
        return done

    def command(self, action: str, argument: str) -> None:
        """Do what a command says, or raise, before it or after it."""
        draw = self._random.random()
        if draw >= self._raises / 2:
            super().command(action, argument)
        if draw < self._raises:
            raise RequestFailed(f"{action} was made to raise")

    def _raise(self, step: RunStep | SampleStep) -> None:
        error = RequestFailed(f"step {step.step} was made to raise")
        self.is_trusted = False
        self._blame(self._rows, str(error))
        raise error
