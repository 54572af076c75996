"""Worker: hands steps to its device in their order, and tells what came of each."""

from collections import deque
from dataclasses import dataclass
from typing import assert_never

from ..messages import FromWorker, Job, JobDone, RankDone, RankFailed, RunCommand, RunStep, Sampled, ToWorker
from . import NEVER


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Steps now; counts since the start."""

    steps_queued: int
    num_done: int
    num_failed: int


class Worker:
    """The device runs jobs one after the other; a failed step takes the rest of its epoch with it.

    The device itself refuses the later steps of an epoch in which a step raised, since its batch is
    not to be trusted; here their refusals are dropped.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._queue: deque[RunStep | RunCommand] = deque()
        self._failed_epoch = -1
        self._out: list[FromWorker] = []
        self._done = self._failed = 0

    def feed(self, message: ToWorker) -> None:
        """Absorb a message."""
        match message:
            case RunStep(step, epoch) | RunCommand(step, epoch):
                if epoch > self._failed_epoch:
                    self._queue.append(message)
                    self._out.append(Job(step, message))
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
        return not self._queue and not self._out

    def check(self) -> None:
        """Raise AssertionError when steps stand out of order."""
        steps = [step.step for step in self._queue]
        assert steps == sorted(steps)

    def statistics(self) -> WorkerStatistics:
        """Gauges and counters of this moment."""
        return WorkerStatistics(len(self._queue), self._done, self._failed)

    def _job_done(self, done: JobDone) -> None:
        step = self._queue.popleft()
        assert step.step == done.id, f"step {done.id} came before step {step.step}"
        if done.fault is None:
            assert isinstance(done.value, Sampled)
            self._done += 1
            self._out.append(RankDone(self._rank, step.step, step.epoch, done.value.tokens, done.value.fault))
        elif step.epoch > self._failed_epoch:
            self._failed_epoch = step.epoch
            self._failed += 1
            self._out.append(RankFailed(self._rank, step.step, step.epoch, done.fault))
