"""What a step costs the token side: the production Scheduler and KVPool, driven by hand and timed.

There is no model and no event loop. In a cycle one step comes back with a token for each request, and the
next one is planned, granted and sent:

    StepDone -> Scheduler -> Tokens, Reserve -> KVPool -> Reserved -> Scheduler -> RunStep;  Seen -> Scheduler

Each arrow into a core is a turn of its own, as it is when every message comes alone. What is taken is the
thread's CPU time, so that other programs on the machine count little.
"""

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import thread_time
from typing import Any

from ..cores import Core
from ..cores.kvpool import KVPool
from ..cores.policy import Fcfs
from ..cores.scheduler import Scheduler
from ..messages import (
    FromScheduler,
    Limits,
    Release,
    Reserve,
    ResetPool,
    RunStep,
    Sampling,
    Seen,
    StepDone,
    Submit,
    Tokens,
    ToScheduler,
    pack,
)

BLOCK_SIZE = 16
STEPS_IN_FLIGHT = 2

CYCLES = 2 * BLOCK_SIZE
"""Cycles of a repeat: in each so many a request takes two new blocks."""

PROMPT_BLOCKS = 16
"""Blocks of a running request before it decodes; the prompts differ in length, so that they do not all
take their next block in the same step."""

FILLER_BLOCKS = 1024
"""Blocks that one request leaves in the prefix cache when the cache is filled."""

MANY = 1 << 30
"""Tokens asked for: no request ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much there is while the time is taken.

    running   requests that decode, each in every step
    waiting   requests that wait for a seat
    cached    blocks with a content that nobody holds. As long as there are any, no block is empty: each
              new block of a running request evicts the oldest of them
    """

    running: int
    waiting: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """CPU seconds a cycle, over the repeats."""

    least: float
    median: float


@dataclass(frozen=True, slots=True)
class Times:
    """What a cycle costs the KVPool (one turn) and the Scheduler (three) under this load."""

    load: Load
    pool: Spread
    scheduler: Spread


class Cycles:
    """A Scheduler and a KVPool under a load, in the middle of decoding; the workers are played.

    There is room for `num_cycles` cycles. `seconds` are those that each core has taken so far.
    """

    def __init__(self, load: Load, num_cycles: int) -> None:
        self.load = load
        self.scheduler: Core[Any, Any] = Scheduler(
            policy=Fcfs(),
            eos_token_ids=frozenset(),
            max_num_seqs=load.running,
            max_num_batched_tokens=max(FILLER_BLOCKS, load.running) * BLOCK_SIZE,
            steps_in_flight=STEPS_IN_FLIGHT,
            step_window=4 * STEPS_IN_FLIGHT,
        )
        prompts = load.running * (PROMPT_BLOCKS + 1)
        growth = load.running * (-(-num_cycles // BLOCK_SIZE) + 3)
        self.pool: Core[Any, Any] = KVPool(prompts + max(load.cached, growth), BLOCK_SIZE)
        self.seconds: dict[str, float] = {"scheduler": 0.0, "pool": 0.0}
        self.steps: deque[RunStep] = deque()
        self._mail: deque[ToScheduler] = deque()
        self._num_requests = 0
        self._fill()
        self._start()

    def cycle(self) -> None:
        """The oldest step comes back with a token for each row that samples, and another is sent."""
        step = self.steps.popleft()
        self._mail.append(StepDone(step.step, step.epoch, pack([0] * sum(step.samples))))
        self._settle()

    def _fill(self) -> None:
        """Requests that end with their first token leave their prompts in the cache."""
        for begin in range(0, self.load.cached, FILLER_BLOCKS):
            count = min(FILLER_BLOCKS, self.load.cached - begin)
            self._submit(count * BLOCK_SIZE, max_tokens=1)
            self._settle()
            while self.steps:
                self.cycle()

    def _start(self) -> None:
        """Let the requests run that are to decode; then those come that wait."""
        for index in range(self.load.running):
            self._submit(PROMPT_BLOCKS * BLOCK_SIZE + index % BLOCK_SIZE, MANY)
        self._settle()
        while self.steps[0].new or sum(self.steps[0].samples) < self.load.running:
            self.cycle()
        for _ in range(self.load.waiting):
            self._submit(BLOCK_SIZE, MANY)
        self.cycle()

    def _submit(self, num_prompt: int, max_tokens: int) -> None:
        """A request whose prompt begins like no other's."""
        self._num_requests += 1
        prompt = pack([self._num_requests]) + bytes(4 * (num_prompt - 1))
        greedy = Sampling(temperature=0.0)
        self.scheduler.feed(Submit(self._num_requests, prompt, greedy, Limits(max_tokens)))

    def _settle(self) -> None:
        """Turns until nobody has mail, one for each message; the first hears what was fed before, too."""
        self._say(self._turn("scheduler", self.scheduler, *(self._mail and [self._mail.popleft()])))
        while self._mail:
            self._say(self._turn("scheduler", self.scheduler, self._mail.popleft()))

    def _say(self, said: tuple[FromScheduler, ...]) -> None:
        for message in said:
            if isinstance(message, Reserve | Release | ResetPool):
                self._mail.extend(self._turn("pool", self.pool, message))
            elif isinstance(message, RunStep):
                self.steps.append(message)
            elif isinstance(message, Tokens):
                self._mail.append(Seen(message.step))
            else:
                raise AssertionError(f"nobody has asked for {message}")

    def _turn(self, name: str, core: Core[Any, Any], *messages: Any) -> tuple[Any, ...]:
        """What the actor's loop does in a turn, and how long it took."""
        begun = thread_time()
        for message in messages:
            core.feed(message)
        said = core.poll(begun)
        _ = core.deadline
        self.seconds[name] += thread_time() - begun
        return said


def measure(loads: Sequence[Load], repeats: int) -> list[Times]:
    """Time so many repeats of `CYCLES` cycles under each load. The loads take turns: while the machine is
    slow, it is so for all of them. Raises ValueError when nothing runs.
    """
    if repeats < 1 or any(load.running < 1 for load in loads):
        raise ValueError(f"nothing runs: {repeats} repeats of {loads}")
    under = [Cycles(load, repeats * CYCLES) for load in loads]
    taken: list[dict[str, list[float]]] = [{name: [] for name in cycles.seconds} for cycles in under]
    with no_collection():
        for _ in range(repeats):
            for cycles, lists in zip(under, taken, strict=True):
                before = dict(cycles.seconds)
                for _ in range(CYCLES):
                    cycles.cycle()
                for name, seconds in cycles.seconds.items():
                    lists[name].append((seconds - before[name]) / CYCLES)
    return [
        Times(load, *(Spread(min(lists[name]), median(lists[name])) for name in ("pool", "scheduler")))
        for load, lists in zip(loads, taken, strict=True)
    ]


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: how long one takes depends on the rest of the process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
