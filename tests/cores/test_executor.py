from dataclasses import replace

from actorllm.cores import NEVER
from actorllm.cores.executor import Executor, ExecutorStatistics
from actorllm.messages import (
    Fault,
    FromExecutor,
    Logprobs,
    PromptLogprobs,
    RankDone,
    RankFailed,
    RunStep,
    SampleStep,
    StepDone,
    StepFailed,
    ToExecutor,
)

FAULT = Fault("RequestFailed", "boom")


def step(number: int, epoch: int = 0) -> RunStep:
    return RunStep(number, epoch, (), b"", b"", b"", b"", b"", b"")


def say(core: Executor, *messages: ToExecutor) -> tuple[FromExecutor, ...]:
    for message in messages:
        core.feed(message)
    out = core.poll(0.0)
    core.check()
    return out


def test_a_step_goes_to_the_ranks_and_its_tokens_come_back() -> None:
    core = Executor(1)
    assert say(core, step(1)) == (step(1),)
    assert not core.idle
    assert say(core, RankDone(0, 1, 0, b"abcd")) == (StepDone(1, 0, b"abcd"),)
    assert core.idle
    assert core.deadline == NEVER
    assert core.statistics() == ExecutorStatistics(epoch=0, steps_in_flight=0, num_done=1, num_failed=0)


def test_a_step_is_done_when_every_rank_has_done_it() -> None:
    core = Executor(3, output_rank=2)
    say(core, step(1))
    assert say(core, RankDone(2, 1, 0, b"abcd"), RankDone(0, 1, 0, b"")) == ()
    assert say(core, RankDone(1, 1, 0, b"")) == (StepDone(1, 0, b"abcd"),)


def test_steps_in_flight_are_done_in_their_order() -> None:
    core = Executor(2)
    say(core, step(1), step(2))
    said = say(
        core, RankDone(0, 1, 0, b"a"), RankDone(0, 2, 0, b"b"), RankDone(1, 1, 0, b""), RankDone(1, 2, 0, b"")
    )
    assert said == (StepDone(1, 0, b"a"), StepDone(2, 0, b"b"))


def test_a_failed_step_takes_the_rest_of_its_epoch_with_it() -> None:
    core = Executor(1)
    say(core, step(1), step(2))
    assert say(core, RankFailed(0, 1, 0, FAULT)) == (StepFailed(1, 0, FAULT),)
    assert say(core, RankDone(0, 2, 0, b"late"), step(3), RankFailed(0, 2, 0, FAULT)) == ()
    assert core.idle
    assert core.statistics() == ExecutorStatistics(epoch=0, steps_in_flight=0, num_done=0, num_failed=1)


def test_a_step_fails_once_however_many_ranks_say_so() -> None:
    core = Executor(2)
    say(core, step(1))
    said = say(core, RankDone(0, 1, 0, b"a"), RankFailed(1, 1, 0, FAULT), RankFailed(0, 1, 0, FAULT))
    assert said == (StepFailed(1, 0, FAULT),)


def test_the_next_epoch_runs_while_ranks_still_speak_of_the_last() -> None:
    core = Executor(2)
    say(core, step(1), step(2), RankFailed(0, 1, 0, FAULT))
    assert say(core, step(3, epoch=1)) == (step(3, epoch=1),)
    assert say(core, RankDone(1, 1, 0, b""), RankDone(0, 3, 1, b"x"), RankDone(1, 2, 0, b"")) == ()
    assert say(core, RankDone(1, 3, 1, b"")) == (StepDone(3, 1, b"x"),)
    assert core.statistics().epoch == 1


def test_masks_go_to_the_ranks_even_before_their_step_but_not_in_an_epoch_that_failed() -> None:
    core = Executor(1)
    masks = SampleStep(1, 0, b"", b"")
    assert say(core, masks, step(1)) == (masks, step(1))
    assert say(core, RankFailed(0, 1, 0, FAULT)) == (StepFailed(1, 0, FAULT),)
    assert say(core, SampleStep(2, 0, b"", b"")) == ()
    assert say(core, SampleStep(2, 1, b"", b"")) == (SampleStep(2, 1, b"", b""),)


def test_what_the_output_rank_tells_is_the_steps() -> None:
    core = Executor(2, output_rank=1)
    say(core, step(1))
    told = Logprobs(b"c", b"t", b"v", b"r")
    prompts = (PromptLogprobs(1, 1, told),)
    say(core, RankDone(1, 1, 0, b"abcd", None, told, prompts))
    assert say(core, RankDone(0, 1, 0, b"")) == (StepDone(1, 0, b"abcd", None, told, prompts),)


def waiting(number: int, epoch: int = 0) -> RunStep:
    return replace(step(number, epoch), waits=True)


def masks(number: int, epoch: int = 0) -> SampleStep:
    return SampleStep(number, epoch, b"", b"")


def test_an_epoch_that_has_failed_is_over_when_the_masks_of_its_first_step_have_come() -> None:
    core = Executor(1)
    say(core, waiting(1), waiting(2))
    assert say(core, RankFailed(0, 1, 0, FAULT)) == ()
    assert not core.idle
    assert say(core, masks(1)) == (StepFailed(1, 0, FAULT),)
    assert core.idle
    assert say(core, masks(3, 1), waiting(3, 1)) == (masks(3, 1), waiting(3, 1))
    assert say(core, RankFailed(0, 3, 1, FAULT)) == (StepFailed(3, 1, FAULT),)


def test_the_masks_that_are_waited_for_are_those_of_the_first_step_and_not_of_the_one_that_failed() -> None:
    core = Executor(2)
    say(core, waiting(1), masks(1), waiting(2), RankDone(0, 1, 0, b"a"))
    assert say(core, RankFailed(0, 2, 0, FAULT)) == (StepFailed(2, 0, FAULT),)
