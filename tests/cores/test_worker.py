import pytest

from actorllm.cores import NEVER
from actorllm.cores.worker import Worker, WorkerStatistics
from actorllm.messages import (
    Fault,
    FromWorker,
    Job,
    JobDone,
    Logprobs,
    PromptLogprobs,
    RankDone,
    RankFailed,
    RunStep,
    Sampled,
    SampleStep,
    ToWorker,
)

FAULT = Fault("RequestFailed", "boom")
REFUSED = Fault("RequestFailed", "an earlier step failed")


def step(number: int, epoch: int = 0, waits: bool = False) -> RunStep:
    return RunStep(number, epoch, (), b"", b"", b"", b"", b"", b"", waits)


def masks(number: int, epoch: int = 0) -> SampleStep:
    return SampleStep(number, epoch, b"", b"")


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


def test_a_step_that_waits_is_two_jobs_and_those_behind_it_wait_too() -> None:
    core = Worker(0)
    assert say(core, step(1, waits=True), step(2)) == (Job(1, step(1, waits=True)),)
    assert core.statistics().steps_queued == 2
    assert say(core, JobDone(1)) == ()
    assert say(core, masks(1)) == (Job(1, masks(1)), Job(2, step(2)))
    said = say(core, JobDone(1, Sampled(b"a")), JobDone(2, Sampled(b"b")))
    assert said == (RankDone(0, 1, 0, b"a"), RankDone(0, 2, 0, b"b"))
    assert core.idle


def test_masks_may_come_before_their_step_and_while_it_runs() -> None:
    core = Worker(0)
    assert say(core, masks(1)) == ()
    assert not core.idle
    first, second = step(1, waits=True), step(2, waits=True)
    assert say(core, first, second) == (Job(1, first), Job(1, masks(1)), Job(2, second))
    assert say(core, masks(2)) == (Job(2, masks(2)),)


def test_what_waits_in_a_failed_epoch_is_forgotten_with_its_masks() -> None:
    core = Worker(0)
    say(core, step(1, waits=True), step(2))
    assert say(core, JobDone(1, fault=FAULT)) == (RankFailed(0, 1, 0, FAULT),)
    assert say(core, masks(1)) == ()
    assert core.idle
    assert say(core, step(1, epoch=1, waits=True)) == (Job(1, step(1, epoch=1, waits=True)),)


def test_masks_of_an_older_epoch_are_not_heard() -> None:
    core = Worker(0)
    say(core, step(1, waits=True), JobDone(1))
    assert say(core, step(2, epoch=1, waits=True)) == (Job(2, step(2, epoch=1, waits=True)),)
    assert say(core, masks(1), masks(2, epoch=0)) == ()
    assert say(core, masks(2, epoch=1)) == (Job(2, masks(2, epoch=1)),)


def test_masks_of_the_next_epoch_may_come_first() -> None:
    core = Worker(0)
    say(core, step(1, waits=True), masks(2, epoch=1), JobDone(1, fault=FAULT))
    later = step(2, epoch=1, waits=True)
    assert say(core, later) == (Job(2, later), Job(2, masks(2, epoch=1)))


def test_what_a_step_tells_besides_its_tokens_is_passed_on() -> None:
    core = Worker(0)
    say(core, step(1))
    told = Logprobs(b"c", b"t", b"v", b"r")
    prompts = (PromptLogprobs(1, 1, told),)
    said = say(core, JobDone(1, Sampled(b"a", None, told, prompts)))
    assert said == (RankDone(0, 1, 0, b"a", None, told, prompts),)
