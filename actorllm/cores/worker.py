"""Worker: hands steps to its device in their order, and tells what came of each."""

from collections import deque
from dataclasses import dataclass
from typing import assert_never

from ..messages import (
    FromWorker,
    Job,
    JobDone,
    RankDone,
    RankFailed,
    RunCommand,
    RunStep,
    Sampled,
    SampleStep,
    ToWorker,
)
from . import NEVER


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Steps now; counts since the start."""

    steps_queued: int
    num_done: int
    num_failed: int


class Worker:
    """The device runs jobs one after the other: run(n), sample(n), run(n + 1), ...

    A step that waits is two jobs; the one that samples, and all that come after it, are handed over when its
    SampleStep is there, which may come before the step. A failed step takes the rest of its epoch with it.
    The device itself refuses the later steps of an epoch in which a step raised, since its batch is not to be
    trusted; here their refusals are dropped.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._queue: deque[RunStep | RunCommand] = deque()
        self._jobs: deque[tuple[RunStep | RunCommand, bool]] = deque()
        self._masks: dict[int, SampleStep] = {}
        self._waiting: RunStep | None = None
        self._epoch = 0
        self._failed_epoch = -1
        self._out: list[FromWorker] = []
        self._done = self._failed = 0

    def feed(self, message: ToWorker) -> None:
        """Absorb a message."""
        match message:
            case RunStep() | RunCommand():
                self._step(message)
            case SampleStep(step, epoch):
                if epoch > self._failed_epoch and epoch >= self._epoch:
                    self._masks[step] = message
                    self._hand_over()
            case JobDone():
                self._job_done(message)
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromWorker, ...]:
        """Jobs for the device and results for the Executor, in order."""
        out, self._out = tuple(self._out), []
        return out

    @property
    def deadline(self) -> float:
        """Mail alone wakes the Worker."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether the device has nothing to do."""
        return not (self._queue or self._jobs or self._waiting or self._masks or self._out)

    def check(self) -> None:
        """Raise AssertionError when steps stand out of order."""
        held = [step.step for step, _ in self._jobs]
        waiting = [] if self._waiting is None else [self._waiting.step]
        steps = [*held, *waiting, *(step.step for step in self._queue)]
        assert steps == sorted(steps)
        assert self._waiting is not None or not self._queue, "a step is held back for nothing"

    def statistics(self) -> WorkerStatistics:
        """Gauges and counters of this moment."""
        ends = sum(is_last for _, is_last in self._jobs)
        queued = ends + (self._waiting is not None) + len(self._queue)
        return WorkerStatistics(queued, self._done, self._failed)

    def _step(self, message: RunStep | RunCommand) -> None:
        if message.epoch <= self._failed_epoch:
            return
        if message.epoch > self._epoch:
            self._epoch = message.epoch
            self._forget_before(message.epoch)
        self._queue.append(message)
        self._hand_over()

    def _forget_before(self, epoch: int) -> None:
        """What the device does not have yet of an epoch that is over."""
        self._queue = deque(step for step in self._queue if step.epoch >= epoch)
        self._masks = {step: mask for step, mask in self._masks.items() if mask.epoch >= epoch}
        if self._waiting is not None and self._waiting.epoch < epoch:
            self._waiting = None

    def _hand_over(self) -> None:
        """Give the device what it can do, up to the first step whose masks are not there."""
        while True:
            if self._waiting is not None:
                masks = self._masks.pop(self._waiting.step, None)
                if masks is None:
                    return
                self._start(self._waiting, masks, is_last=True)
                self._waiting = None
            if not self._queue:
                return
            step = self._queue.popleft()
            waits = isinstance(step, RunStep) and step.waits
            self._start(step, step, is_last=not waits)
            if isinstance(step, RunStep) and step.waits:
                self._waiting = step

    def _start(
        self, step: RunStep | RunCommand, work: RunStep | RunCommand | SampleStep, *, is_last: bool
    ) -> None:
        self._jobs.append((step, is_last))
        self._out.append(Job(step.step, work))

    def _job_done(self, done: JobDone) -> None:
        step, is_last = self._jobs.popleft()
        assert step.step == done.id, f"step {done.id} came before step {step.step}"
        if done.fault is not None:
            self._job_failed(step, done)
        elif is_last:
            sampled = done.value
            assert isinstance(sampled, Sampled)
            self._done += 1
            self._out.append(
                RankDone(
                    self._rank,
                    step.step,
                    step.epoch,
                    sampled.tokens,
                    sampled.fault,
                    sampled.logprobs,
                    sampled.prompt_logprobs,
                )
            )

    def _job_failed(self, step: RunStep | RunCommand, done: JobDone) -> None:
        if step.epoch > self._failed_epoch:
            assert done.fault is not None
            self._failed_epoch = step.epoch
            self._failed += 1
            self._out.append(RankFailed(self._rank, step.step, step.epoch, done.fault))
            self._forget_before(step.epoch + 1)
            self._hand_over()
