import pytest

from actorllm.cores import NEVER
from actorllm.cores.worker import Worker, WorkerStatistics
from actorllm.messages import (
    Fault,
    FromWorker,
    Job,
    JobDone,
    RankDone,
    RankFailed,
    RunStep,
    Sampled,
    ToWorker,
)

FAULT = Fault("RequestFailed", "boom")
REFUSED = Fault("RequestFailed", "an earlier step failed")


def step(number: int, epoch: int = 0) -> RunStep:
    return RunStep(number, epoch, (), b"", b"", b"", b"", b"", b"")


def say(core: Worker, *messages: ToWorker) -> tuple[FromWorker, ...]:
    for message in messages:
        core.feed(message)
    out = core.poll(0.0)
    core.check()
    return out


def test_a_step_is_a_job_and_its_tokens_are_the_ranks() -> None:
    core = Worker(rank=3)
    assert say(core, step(1, epoch=2)) == (Job(1, step(1, epoch=2)),)
    assert not core.idle
    assert say(core, JobDone(1, Sampled(b"abcd"))) == (RankDone(3, 1, 2, b"abcd"),)
    assert core.idle
    assert core.deadline == NEVER
    assert core.statistics() == WorkerStatistics(steps_queued=0, num_done=1, num_failed=0)


def test_steps_are_queued_behind_each_other() -> None:
    core = Worker(0)
    assert say(core, step(1), step(2)) == (Job(1, step(1)), Job(2, step(2)))
    assert core.statistics().steps_queued == 2
    assert say(core, JobDone(1, Sampled(b"a")), JobDone(2, Sampled(b"b"))) == (
        RankDone(0, 1, 0, b"a"),
        RankDone(0, 2, 0, b"b"),
    )


def test_a_failed_step_is_told_and_the_refusals_behind_it_are_not() -> None:
    core = Worker(0)
    say(core, step(1), step(2))
    assert say(core, JobDone(1, fault=FAULT)) == (RankFailed(0, 1, 0, FAULT),)
    assert say(core, step(3)) == ()
    assert say(core, JobDone(2, fault=REFUSED)) == ()
    assert core.idle
    assert core.statistics() == WorkerStatistics(steps_queued=0, num_done=0, num_failed=1)


def test_the_next_epoch_queues_behind_the_rest_of_the_failed_one() -> None:
    core = Worker(0)
    say(core, step(1), step(2), JobDone(1, fault=FAULT))
    assert say(core, step(3, epoch=1)) == (Job(3, step(3, epoch=1)),)
    said = say(core, JobDone(2, fault=REFUSED), JobDone(3, Sampled(b"x")))
    assert said == (RankDone(0, 3, 1, b"x"),)


def test_each_epoch_fails_by_itself() -> None:
    core = Worker(0)
    say(core, step(1), JobDone(1, fault=FAULT), step(2, epoch=1))
    assert say(core, JobDone(2, fault=FAULT)) == (RankFailed(0, 2, 1, FAULT),)


def test_a_job_out_of_order_is_an_error() -> None:
    core = Worker(0)
    say(core, step(1), step(2))
    with pytest.raises(AssertionError, match="step 2 came before step 1"):
        core.feed(JobDone(2, Sampled(b"")))
