"""Whom the Scheduler lets in, sends away, and suspects: limits, timeouts, seats and probation."""

from dataclasses import replace
from math import inf

from actorllm.cores.kvpool import KVPool
from actorllm.cores.policy import Fair
from actorllm.messages import Abort, Ending, Reserve, RunStep, Terms, Tokens
from tests.cores.build import BOOM, Grant, TokenSide, reserved, rows, say, scheduler, submit, wants
from tests.cores.test_scheduler import done, only, running


def crashed(side: TokenSide) -> tuple[list[int], list[Ending]]:
    """Crash the oldest step; who was in it, and how requests have ended so far."""
    present = [row[0] for row in rows(side.steps[-1])]
    side.fail()
    return present, side.endings


def test_after_a_second_crash_each_runs_alone_and_the_guilty_one_is_named() -> None:
    side = TokenSide(scheduler(), KVPool(100, 4))
    side.feed(submit(1, [1, 2], max_tokens=2), submit(2, [3], max_tokens=2), submit(3, [4], max_tokens=2))
    assert crashed(side) == ([1, 2, 3], [])
    assert crashed(side) == ([1, 2, 3], [])
    assert side.scheduler.statistics().num_on_probation == 3
    assert [row[0] for row in rows(side.steps[-1])] == [1]
    side.done(7)
    assert crashed(side) == ([2], [Ending(2, "error", None, BOOM)])
    side.done(8)
    assert [row[0] for row in rows(side.steps[-1])] == [3, 1]
    side.done(8, 7)
    assert side.endings[1:] == [Ending(3, "length"), Ending(1, "length")]
    assert side.scheduler.statistics().num_on_probation == 0


def test_one_that_has_gone_past_the_crash_waits_for_the_others_to_do_so() -> None:
    side = TokenSide(scheduler(), KVPool(100, 4))
    side.feed(submit(1, [1, 2], max_tokens=5), submit(2, [3], max_tokens=5))
    crashed(side)
    crashed(side)
    side.done(7)
    assert [row[0] for row in rows(side.steps[-1])] == [2]
    side.done(8)
    assert [row[0] for row in rows(side.steps[-1])] == [2, 1]


def test_who_was_in_a_crash_with_one_that_has_left_was_not_alone() -> None:
    side = TokenSide(scheduler(), KVPool(100, 4))
    side.feed(submit(1, [1, 2], max_tokens=2), submit(2, [3], max_tokens=2))
    crashed(side)
    side.feed(Abort(2))
    assert crashed(side) == ([1, 2], [Ending(2, "abort")])
    assert side.scheduler.statistics().num_on_probation == 1
    side.done(7)
    side.done(7)
    assert side.endings[1:] == [Ending(1, "length")]


def test_a_crash_does_not_count_once_the_request_has_got_past_it() -> None:
    side = TokenSide(scheduler(), KVPool(100, 4))
    side.feed(submit(1, [1, 2], max_tokens=3))
    for _ in range(2):
        assert crashed(side) == ([1], [])
        side.done(7)
    assert crashed(side) == ([1], [])
    assert crashed(side) == ([1], [Ending(1, "error", None, BOOM)])


def test_one_that_was_acquitted_does_not_die_of_an_accident_of_its_own() -> None:
    side = TokenSide(scheduler(), KVPool(100, 4))
    side.feed(submit(1, [1, 2], max_tokens=4), submit(2, [3], max_tokens=9))
    crashed(side)
    crashed(side)
    side.done(7)
    assert crashed(side) == ([2], [Ending(2, "error", None, BOOM)])
    side.done(7)
    assert crashed(side) == ([1], [Ending(2, "error", None, BOOM)])
    side.done(7)
    side.done(7)
    assert side.endings[1:] == [Ending(1, "length")]


def test_a_timeout_ends_a_request_that_has_not_come_far_enough() -> None:
    core = scheduler(seqs=1)
    running(core, submit(1, [1], max_tokens=9))
    core.feed(replace(submit(2, [2]), terms=Terms(queue_timeout=2.0, timeout=5.0)))
    core.feed(replace(submit(3, [3]), terms=Terms(ttft_timeout=3.0)))
    assert core.poll(10.0) == ()
    assert core.deadline == 12.0
    assert only(core.poll(12.0), Tokens).endings == (Ending(2, "timeout"),)
    assert core.deadline == 13.0
    assert only(core.poll(20.0), Tokens).endings == (Ending(3, "timeout"),)
    assert (core.deadline, core.statistics().num_timeouts) == (inf, 2)


def test_a_timeout_that_was_met_is_forgotten() -> None:
    core = scheduler()
    step = running(
        core, replace(submit(1, [1], max_tokens=9), terms=Terms(queue_timeout=1.0, ttft_timeout=2.0))
    )
    assert core.deadline == 2.0
    say(core, done(step, 7))
    assert core.deadline == inf


def test_requests_that_have_ended_are_not_kept_for_their_timeouts() -> None:
    core = scheduler(seqs=1)
    running(core, replace(submit(1, [1], max_tokens=9), terms=Terms(timeout=100.0)))
    for request in range(2, 50):
        say(core, replace(submit(request, [2]), terms=Terms(queue_timeout=200.0, timeout=300.0)))
        say(core, Abort(request))
        assert len(core._table.timeouts._heap) <= 1 + 2
    assert core.deadline == 100.0
    say(core, Abort(1))
    assert not core._table.timeouts._heap


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    core = scheduler(seqs=1, max_num_queued_reqs=1)
    running(core, submit(1, [1], max_tokens=9))
    said = say(core, submit(2, [2]), submit(3, [3]))
    ending = only(said, Tokens).endings[0]
    assert (ending.request, ending.finish_reason) == (3, "error")
    assert ending.fault is not None
    assert (ending.fault.kind, ending.fault.retry_after) == ("Overloaded", 1.0)
    assert "1 requests wait already" in ending.fault.message


def test_a_queue_full_of_tokens_refuses_but_never_the_first() -> None:
    core = scheduler(seqs=1, max_num_queued_tokens=10)
    running(core, submit(1, [1], max_tokens=9))
    assert say(core, submit(2, range(20))) == ()
    ending = only(say(core, submit(3, [3])), Tokens).endings[0]
    assert ending.fault is not None
    assert "20 tokens wait already, and this request brings 1" in ending.fault.message
    assert core.statistics().num_queued_tokens == 20


def test_a_tenant_without_a_seat_takes_one_from_a_tenant_with_several() -> None:
    side = TokenSide(scheduler(seqs=2, policy=Fair()), KVPool(100, 4))
    side.feed(*(replace(submit(n, [n], max_tokens=50), terms=Terms(tenant="flood")) for n in (1, 2, 3)))
    side.done(7, 8)
    side.feed(replace(submit(4, [4], max_tokens=2), terms=Terms(tenant="one")))
    side.done(7, 8)
    assert [row[0] for row in rows(side.steps[-1])] == [1, 4]
    assert side.scheduler.statistics().num_preemptions == 1


def offered(asked: Reserve) -> int:
    """How many waiting requests the pool is asked for."""
    return len(wants(asked)) - asked.num_running


def test_while_blocks_are_short_few_are_offered_and_more_as_they_are_let_in() -> None:
    core = scheduler(seqs=100)
    asked = only(say(core, *(submit(n, [n], max_tokens=9) for n in range(1, 21))), Reserve)
    assert offered(asked) == 20
    full = replace(reserved(asked, Grant(1, 0, 1, [0])), is_full=True)
    step = only(say(core, full), RunStep)
    counts = []
    for first in (0, 0, 2, 3, 5, 9):
        asked = only(say(core, done(step, *[7] * step.samples.count(1))), Reserve)
        counts.append(offered(asked))
        running = [Grant(want.request, 0, 1) for want in wants(asked)[: asked.num_running]]
        new = [Grant(n, 0, 1, [n]) for n in range(first, first + counts[-1])] if first else []
        answer = replace(reserved(asked, *running, *new), is_full=not first)
        step = only(say(core, answer), RunStep)
    assert counts == [2, 1, 1, 2, 4, 8]
