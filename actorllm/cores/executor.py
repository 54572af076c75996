"""Executor: the ledger of steps. It hands each step to every rank and says when all have done it."""

from dataclasses import dataclass, field
from typing import assert_never

from ..messages import (
    Fault,
    FromExecutor,
    Logprobs,
    PromptLogprobs,
    RankDone,
    RankFailed,
    RunCommand,
    RunStep,
    SampleStep,
    StepDone,
    StepFailed,
    ToExecutor,
)
from . import NEVER


@dataclass(frozen=True, slots=True)
class ExecutorStatistics:
    """Steps now; counts since the start."""

    epoch: int
    steps_in_flight: int
    num_done: int
    num_failed: int


@dataclass(slots=True)
class Open:
    """A step that some ranks still work on; what it brings comes from the output rank, a `fault` from any.

    `waits` is whether its tokens are sampled only when its SampleStep has come.
    """

    epoch: int
    waits: bool = False
    waiting: set[int] = field(default_factory=set)
    tokens: bytes = b""
    fault: Fault | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


class Executor:
    """Survives its ranks: what a rank says of an epoch that has failed is not heard.

    Of the steps on their way, masks are asked for of the first. When their epoch fails, the Scheduler hears
    of it behind these masks: however slow Grammar is, those of one step are on their way at most.
    """

    def __init__(self, num_ranks: int, output_rank: int = 0) -> None:
        self._ranks = range(num_ranks)
        self._output_rank = output_rank
        self._open: dict[int, Open] = {}
        self._sampled: set[int] = set()
        self._unsampled = 0
        self._failing: StepFailed | None = None
        self._failed_epoch = -1
        self._epoch = 0
        self._out: list[FromExecutor] = []
        self._done = self._failed = 0

    def feed(self, message: ToExecutor) -> None:
        """Absorb a message."""
        match message:
            case RunStep(step, epoch) | RunCommand(step, epoch):
                if epoch > self._failed_epoch:
                    self._epoch = epoch
                    waits = isinstance(message, RunStep) and message.waits
                    self._open[step] = Open(epoch, waits, set(self._ranks))
                    self._out.append(message)
            case SampleStep():
                self._sample(message)
            case RankDone(_, _, epoch):
                if epoch > self._failed_epoch:
                    self._rank_done(message)
            case RankFailed(_, step, epoch, fault):
                if epoch > self._failed_epoch:
                    self._fail(StepFailed(step, epoch, fault))
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromExecutor, ...]:
        """Steps to the ranks and results to the Scheduler, in order."""
        out, self._out = tuple(self._out), []
        return out

    @property
    def deadline(self) -> float:
        """Mail alone wakes the Executor."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether no step is on its way."""
        return not (self._open or self._out or self._failing)

    def check(self) -> None:
        """Raise AssertionError when a finished or failed step is still in the ledger."""
        for entry in self._open.values():
            assert entry.waiting
            assert entry.epoch > self._failed_epoch

    def statistics(self) -> ExecutorStatistics:
        """Gauges and counters of this moment."""
        return ExecutorStatistics(self._epoch, len(self._open), self._done, self._failed)

    def _sample(self, message: SampleStep) -> None:
        if message.epoch > self._failed_epoch:
            self._sampled.add(message.step)
            self._out.append(message)
        elif self._failing is not None and message.step == self._unsampled:
            self._out.append(self._failing)
            self._failing = None

    def _fail(self, failed: StepFailed) -> None:
        """The epoch is over; all of its steps are, once the masks of the first have come."""
        self._failed_epoch = failed.epoch
        self._failed += 1
        first = next(iter(self._open))
        if self._open[first].waits and first not in self._sampled:
            self._failing, self._unsampled = failed, first
        else:
            self._out.append(failed)
        self._open.clear()
        self._sampled.clear()

    def _rank_done(self, message: RankDone) -> None:
        step = message.step
        entry = self._open[step]
        entry.waiting.remove(message.rank)
        entry.fault = entry.fault or message.fault
        if message.rank == self._output_rank:
            entry.tokens, entry.logprobs = message.tokens, message.logprobs
            entry.prompt_logprobs = message.prompt_logprobs
        if not entry.waiting:
            del self._open[step]
            self._sampled.discard(step)
            self._done += 1
            self._out.append(
                StepDone(step, entry.epoch, entry.tokens, entry.fault, entry.logprobs, entry.prompt_logprobs)
            )
