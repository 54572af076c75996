"""A unit test of the Scheduler with a simulated pool and worker: no engine, no event loop, no clock.

Usage: pytest examples/test_scheduler.py
"""

from actorllm.cores.policy import Fcfs
from actorllm.cores.scheduler import Scheduler
from actorllm.messages import (
    FromScheduler,
    Limits,
    Reserve,
    Reserved,
    RunStep,
    Sampling,
    Seen,
    StepDone,
    Submit,
    Tokens,
    pack,
    unpack,
    unpack_ids,
)

END = 2


def generous_pool(reserve: Reserve) -> Reserved:
    """A pool that grants every debt and has a block for everyone."""
    wants = unpack_ids(reserve.requests)
    ones = pack([1] * len(wants))
    nothing = pack([0] * len(wants))
    return Reserved(
        reserve.step, reserve.epoch, reserve.requests, nothing, reserve.debts, ones, pack(range(len(wants)))
    )


def simulated_worker(step: RunStep) -> StepDone:
    """A worker that counts: the n-th step samples the token 100 + n, and the third the end token."""
    token = END if step.step == 3 else 100 + step.step
    return StepDone(step.step, step.epoch, pack([token] * sum(step.samples)))


def test_a_request_runs_until_the_end_token() -> None:
    scheduler = Scheduler(
        policy=Fcfs(),
        eos_token_ids=frozenset({END}),
        max_num_seqs=4,
        max_num_batched_tokens=64,
        steps_in_flight=1,
        step_window=4,
    )
    scheduler.feed(Submit(7, pack([5, 6, 8]), Sampling(), Limits(max_tokens=10)))
    emitted: list[int] = []
    reasons: list[str] = []
    mail: list[FromScheduler] = list(scheduler.poll(0.0))
    while mail:
        message = mail.pop(0)
        if isinstance(message, Reserve):
            scheduler.feed(generous_pool(message))
        elif isinstance(message, RunStep):
            scheduler.feed(simulated_worker(message))
        elif isinstance(message, Tokens):
            emitted += unpack(message.tokens)
            reasons += [ending.finish_reason for ending in message.endings]
            scheduler.feed(Seen(message.step))
        mail += scheduler.poll(0.0)
        scheduler.check()
    assert emitted == [101, 102, END]
    assert reasons == ["stop"]
    assert scheduler.idle
