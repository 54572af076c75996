"""Longer than other files: a section for each thing that the Scheduler is responsible for."""

from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorllm.cores import NEVER
from actorllm.cores.kvpool import KVPool
from actorllm.cores.scheduler import Scheduler
from actorllm.messages import (
    Abort,
    Command,
    CommandDone,
    Compile,
    Drop,
    Ending,
    Fault,
    FromScheduler,
    GrammarReady,
    Limits,
    NewRow,
    PoolReset,
    Release,
    Reserve,
    ResetPool,
    RunCommand,
    RunStep,
    Seen,
    StepDone,
    StepFailed,
    Submit,
    Tokens,
    pack,
    unpack,
    unpack_ids,
)
from tests.cores.build import (
    BOOM,
    GREEDY,
    Grant,
    Ring,
    TokenSide,
    Want,
    reserved,
    rows,
    say,
    scheduler,
    submit,
    tokens,
    wants,
)

EOS = 99
T = TypeVar("T")


def side(
    *,
    blocks: int = 100,
    size: int = 4,
    max_chunk: int = 0,
    budget: int = 1000,
    in_flight: int = 1,
    seqs: int = 8,
) -> TokenSide:
    core = scheduler(budget=budget, in_flight=in_flight, seqs=seqs, eos=[EOS])
    return TokenSide(core, KVPool(blocks, size, max_chunk=max_chunk))


def only(said: tuple[FromScheduler, ...], kind: type[T]) -> T:
    """The one message of this kind."""
    (message,) = (message for message in said if isinstance(message, kind))
    return message


def done(step: RunStep, *sampled: int) -> StepDone:
    return StepDone(step.step, step.epoch, pack(sampled))


def running(core: Scheduler, *submits: Submit) -> RunStep:
    """The step in which all these are admitted, their whole prompts at once."""
    asked = only(say(core, *submits), Reserve)
    answer = reserved(
        asked, *(Grant(want.request, 0, len(want.tokens), [want.request]) for want in wants(asked))
    )
    return only(say(core, answer), RunStep)


# -- what a step computes -----------------------------------------------------------------------------


def test_prompts_are_admitted_in_order_and_share_the_budget() -> None:
    ring = side(size=16, blocks=200, budget=1024, max_chunk=400)
    ring.feed(*(submit(request, [request] * 800, max_tokens=2) for request in (1, 2, 3)))
    assert ring.planned == [(1, 400, 0), (2, 400, 0), (3, 224, 0)]
    ring.done()
    assert ring.planned == [(1, 400, 1), (2, 400, 1), (3, 224, 0)]
    ring.done(11, 12)
    assert ring.planned == [(1, 1, 1), (2, 1, 1), (3, 352, 1)]
    ring.done(21, 22, 13)
    assert ring.planned == [(3, 1, 1)]
    ring.done(23)
    assert ring.told == [(1, 11), (2, 12), (1, 21), (2, 22), (3, 13), (3, 23)]
    assert ring.endings == [Ending(request, "length") for request in (1, 2, 3)]


def test_a_prompt_beyond_the_budget_is_computed_in_chunks() -> None:
    ring = side(budget=4)
    ring.feed(submit(1, range(10), max_tokens=1))
    planned = [ring.planned]
    for _ in range(2):
        ring.done()
        planned.append(ring.planned)
    assert planned == [[(1, 4, 0)], [(1, 4, 0)], [(1, 2, 1)]]


def test_a_step_mixes_an_answer_with_a_prompt() -> None:
    ring = side()
    ring.feed(submit(1, [1, 2, 3]))
    ring.feed(submit(2, [4, 5]))
    ring.done(7)
    assert ring.planned == [(1, 1, 1), (2, 2, 1)]
    assert [row.request for row in ring.steps[-1].new] == [2]


def test_a_new_row_brings_its_tokens_and_what_the_cache_holds_of_them() -> None:
    ring = side()
    ring.feed(submit(1, range(9), max_tokens=1))
    ring.done(50)
    ring.done()
    ring.feed(submit(2, range(9), max_tokens=1))
    assert ring.steps[-1].new == (NewRow(2, pack(range(9)), 8, GREEDY, 9),)
    assert ring.planned == [(2, 1, 1)]
    assert (unpack(ring.steps[-1].num_blocks), unpack(ring.steps[-1].blocks)) == ([3], [0, 1, 2])


def test_no_more_requests_run_than_there_are_seats() -> None:
    ring = side(seqs=2)
    ring.feed(*(submit(request, [request]) for request in (1, 2, 3)))
    assert ring.planned == [(1, 1, 1), (2, 1, 1)]
    assert (ring.scheduler.statistics().num_running, ring.scheduler.statistics().num_waiting) == (2, 1)


def test_waiting_requests_are_not_offered_a_budget_that_the_running_will_use() -> None:
    core = scheduler(budget=2)
    asked = only(say(core, submit(1, [1, 2, 3, 4, 5])), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 2, [0])), submit(2, [6])), RunStep)
    asked = only(say(core, done(step)), Reserve)
    assert wants(asked) == [Want(1, [], 3, 2, 2)]
    step = only(say(core, reserved(asked, Grant(1, 0, 2))), RunStep)
    assert wants(only(say(core, done(step)), Reserve)) == [Want(1, [], 1, 4, 4), Want(2, [6], 1)]


def test_running_requests_stand_in_the_order_of_the_policy_whenever_they_were_admitted() -> None:
    core = scheduler()
    asked = only(say(core, submit(1, [1]), submit(2, [2]), submit(3, [3])), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 1, [1]), Grant(3, 0, 1, [3]))), RunStep)
    asked = only(say(core, done(step, 7, 7)), Reserve)
    assert [want.request for want in wants(asked)] == [1, 3, 2]
    step = only(say(core, reserved(asked, *(Grant(request, 0, 1, [2]) for request in (1, 3, 2)))), RunStep)
    asked = only(say(core, done(step, 7, 7, 7)), Reserve)
    assert [want.request for want in wants(asked)] == [1, 2, 3]


def test_what_the_pool_has_not_granted_is_asked_for_again_only_after_a_change() -> None:
    core = scheduler(in_flight=2)
    running(core, submit(1, [1, 2], max_tokens=1))
    asked = only(say(core, submit(2, [3])), Reserve)
    assert say(core, reserved(asked)) == ()
    assert say(core, Seen(0)) == ()
    said = say(core, Abort(1))
    assert wants(only(said, Reserve)) == [Want(2, [], 1)]
    assert [type(message) for message in said] == [Tokens, Release, Reserve]


def test_two_steps_in_flight_compute_a_token_that_is_not_sampled_yet() -> None:
    ring = side(in_flight=2)
    ring.feed(submit(1, [1, 2, 3], max_tokens=3))
    assert [rows(step) for step in ring.steps] == [[(1, 3, 1)], [(1, 1, 1)]]
    ring.done(5)
    assert len(ring.steps) == 3
    assert ring.planned == [(1, 1, 1)]


def test_no_step_computes_a_token_beyond_max_tokens() -> None:
    ring = side(in_flight=2)
    ring.feed(submit(1, [1, 2, 3], max_tokens=2))
    ring.done(5)
    assert [rows(step) for step in ring.steps] == [[(1, 3, 1)], [(1, 1, 1)]]
    ring.done(6)
    assert ring.endings == [Ending(1, "length")]


def test_the_pool_hears_each_confirmed_token_once() -> None:
    core = scheduler()
    step = running(core, submit(1, [1, 2, 3]))
    asked = only(say(core, done(step, 7)), Reserve)
    assert wants(asked) == [Want(1, [7], 1, 3, 3)]
    step = only(say(core, reserved(asked, Grant(1, 0, 1))), RunStep)
    assert wants(only(say(core, done(step, 8)), Reserve)) == [Want(1, [8], 1, 4, 4)]


# -- endings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "token", "ending"),
    [
        (Limits(2), EOS, Ending(1, "stop")),
        (Limits(1), EOS, Ending(1, "stop")),
        (Limits(2, stop_token_ids=(EOS,)), EOS, Ending(1, "stop")),
        (Limits(2, ignore_eos=True, stop_token_ids=(EOS,)), EOS, Ending(1, "stop", EOS)),
        (Limits(1, stop_token_ids=(5, 6)), 6, Ending(1, "stop", 6)),
        (Limits(1, ignore_eos=True), EOS, Ending(1, "length")),
        (Limits(1), 7, Ending(1, "length")),
    ],
)
def test_why_a_request_ends(limits: Limits, token: int, ending: Ending) -> None:
    ring = side()
    ring.feed(Submit(1, pack([1, 2]), GREEDY, limits))
    ring.done(token)
    assert (ring.told, ring.endings) == ([(1, token)], [ending])


@pytest.mark.parametrize(("limits", "token"), [(Limits(2, ignore_eos=True), EOS), (Limits(2, (5,)), 6)])
def test_why_a_request_goes_on(limits: Limits, token: int) -> None:
    ring = side()
    ring.feed(Submit(1, pack([1, 2]), GREEDY, limits))
    ring.done(token)
    assert ring.endings == []
    assert ring.planned == [(1, 1, 1)]


def test_the_late_token_of_a_finished_request_is_dropped() -> None:
    ring = side(in_flight=2)
    ring.feed(submit(1, [1, 2]))
    ring.done(EOS)
    assert len(ring.steps) == 2
    ring.done(6)
    assert (ring.told, ring.endings) == ([(1, EOS)], [Ending(1, "stop")])
    assert ring.scheduler.statistics().num_late_tokens == 1
    assert ring.scheduler.statistics().num_tokens_generated == 1


def test_a_release_names_what_was_computed_and_the_tokens_that_the_pool_has_not_heard() -> None:
    core = scheduler()
    step = running(core, submit(1, [1, 2, 3], max_tokens=1))
    released = only(say(core, done(step, 7)), Release)
    columns = (released.num_computed, released.num_tokens, released.tokens)
    assert (unpack_ids(released.requests), [unpack(column) for column in columns]) == ([1], [[3], [1], [7]])


def test_all_that_end_in_a_turn_share_one_release_and_one_tokens() -> None:
    core = scheduler()
    step = running(core, submit(1, [1], 1), submit(2, [2], 1), submit(3, [3], 2))
    said = say(core, done(step, 7, 8, 9))
    assert [type(message) for message in said] == [Tokens, Release, Reserve]
    assert unpack_ids(only(said, Release).requests) == [1, 2]
    assert tokens(only(said, Tokens)) == [(1, 7), (2, 8), (3, 9)]
    assert only(said, Tokens).endings == (Ending(1, "length"), Ending(2, "length"))


def test_with_nothing_left_an_empty_step_makes_the_workers_forget() -> None:
    ring = side()
    ring.feed(submit(1, [1, 2], max_tokens=1))
    ring.done(7)
    flush = ring.steps[-1]
    assert (rows(flush), unpack_ids(flush.finished)) == ([], [1])
    assert not ring.scheduler.idle
    ring.done()
    assert not ring.scheduler.idle
    ring.feed(Seen(1))
    assert ring.scheduler.idle
    assert ring.pool.idle
    assert len(ring.steps) == 2
    assert ring.scheduler.deadline == NEVER


def test_the_next_step_names_those_who_left_before_its_new_rows() -> None:
    ring = side()
    ring.feed(submit(1, [1, 2], max_tokens=1))
    ring.feed(submit(2, [3]))
    ring.done(7)
    assert unpack_ids(ring.steps[-1].finished) == [1]
    assert [row.request for row in ring.steps[-1].new] == [2]


# -- aborts -------------------------------------------------------------------------------------------


def test_an_abort_of_a_waiting_request_ends_it_at_once() -> None:
    ring = side(seqs=1)
    ring.feed(submit(1, [1, 2], max_tokens=1), submit(2, [3]), submit(3, [4]))
    ring.feed(Abort(2))
    assert ring.endings == [Ending(2, "abort")]
    ring.done(7)
    assert ring.planned == [(3, 1, 1)]


def test_an_abort_of_a_request_whose_grammar_compiles_waits_for_the_answer() -> None:
    core = scheduler()
    assert say(core, submit(1, [1], grammar="g")) == (Compile(1, "g"),)
    assert say(core, Abort(1)) == (Drop(1),)
    assert say(core, Abort(1)) == ()
    said = say(core, GrammarReady(1))
    assert only(said, Tokens).endings == (Ending(1, "abort"),)
    assert core.idle


def test_an_abort_of_an_offered_request_skips_its_grant_and_releases_it() -> None:
    core = scheduler()
    asked = only(say(core, submit(1, [1, 2]), submit(2, [3])), Reserve)
    said = say(core, Abort(1))
    assert only(said, Tokens).endings == (Ending(1, "abort"),)
    assert unpack_ids(only(said, Release).requests) == [1]
    step = only(say(core, reserved(asked, Grant(1, 0, 2, [0]), Grant(2, 0, 1, [1]))), RunStep)
    assert rows(step) == [(2, 1, 1)]
    assert (unpack(step.num_blocks), unpack(step.blocks)) == ([1], [1])


def test_when_every_grant_was_aborted_the_scheduler_asks_again() -> None:
    core = scheduler()
    asked = only(say(core, submit(1, [1, 2])), Reserve)
    say(core, Abort(1), submit(2, [3]))
    again = only(say(core, reserved(asked, Grant(1, 0, 2, [0]))), Reserve)
    assert wants(again) == [Want(2, [3], 1)]


def test_an_abort_of_a_running_request_lets_its_step_finish() -> None:
    ring = side()
    ring.feed(submit(1, [1, 2]), submit(2, [3]))
    ring.feed(Abort(1))
    assert ring.endings == [Ending(1, "abort")]
    ring.done(7, 8)
    assert ring.told == [(2, 8)]
    assert unpack_ids(ring.steps[-1].finished) == [1]


def test_an_abort_of_a_preempted_request_with_a_step_out_ends_it_once() -> None:
    core = scheduler(in_flight=2)
    step, again = two_running(core)
    say(core, reserved(again, Grant(1, 0, 1), preempted=[2]))
    said = say(core, Abort(2))
    assert only(said, Tokens).endings == (Ending(2, "abort"),)
    assert tokens(only(say(core, done(step, 7, 8)), Tokens)) == [(1, 7)]
    assert core.statistics().num_late_tokens == 1


def test_an_abort_after_the_ending_says_nothing() -> None:
    ring = side()
    ring.feed(submit(1, [1, 2], max_tokens=1))
    ring.done(7)
    assert ring.feed(Abort(1), Abort(1), Abort(55)) == []
    assert ring.endings == [Ending(1, "length")]


def test_a_refused_request_ends_with_an_error() -> None:
    ring = side(blocks=2, size=4)
    ring.feed(submit(1, range(9)), submit(2, [1]))
    fault = Fault("RequestFailed", "the KV cache is too small for this request alone")
    assert ring.endings == [Ending(1, "error", None, fault)]
    assert ring.planned == [(2, 1, 1)]


# -- grammars -----------------------------------------------------------------------------------------


def test_a_request_waits_for_its_grammar() -> None:
    core = scheduler()
    assert say(core, submit(1, [1], grammar="g")) == (Compile(1, "g"),)
    assert wants(only(say(core, GrammarReady(1)), Reserve)) == [Want(1, [1], 1)]


def test_a_grammar_that_is_refused_ends_its_request() -> None:
    core = scheduler()
    say(core, submit(1, [1], grammar="g"))
    said = say(core, GrammarReady(1, BOOM))
    assert said == (Drop(1), Tokens(0, b"", b"", (Ending(1, "error", None, BOOM),)))


def test_grammar_is_told_when_its_request_ends() -> None:
    core = scheduler()
    say(core, submit(1, [1], max_tokens=1, grammar="g"))
    asked = only(say(core, GrammarReady(1)), Reserve)
    step = only(say(core, reserved(asked, Grant(1, 0, 1, [0]))), RunStep)
    assert only(say(core, done(step, 7)), Drop) == Drop(1)


# -- preemption ---------------------------------------------------------------------------------------


def two_running(core: Scheduler) -> tuple[RunStep, Reserve]:
    """Requests 1 and 2 sample in a step that is out, and are asked for again."""
    asked = only(say(core, submit(1, [1, 2]), submit(2, [3, 4])), Reserve)
    said = say(core, reserved(asked, Grant(1, 0, 2, [0]), Grant(2, 0, 2, [1])))
    return only(said, RunStep), only(said, Reserve)


def test_the_late_token_of_a_preempted_request_is_kept() -> None:
    core = scheduler(in_flight=2)
    first, again = two_running(core)
    said = say(core, reserved(again, Grant(1, 0, 1), preempted=[2]))
    second = only(said, RunStep)
    assert unpack_ids(second.finished) == [2]
    assert core.statistics().num_preemptions == 1
    said = say(core, done(first, 7, 8))
    assert tokens(only(said, Tokens)) == [(1, 7), (2, 8)]
    assert wants(only(said, Reserve)) == [Want(1, [7], 1, 2, 3), Want(2, [8], 3)]
    assert core.statistics().num_tokens_generated == 2


def test_what_was_in_the_cache_is_told_once_with_the_first_token() -> None:
    core = scheduler()
    asked = only(say(core, submit(1, [1, 2, 3]), submit(2, [1, 2, 4])), Reserve)
    first = only(say(core, reserved(asked, Grant(1, 0, 3, [0, 1]), Grant(2, 2, 1, [0, 2]))), RunStep)
    said = say(core, done(first, 7, 8))
    told = only(said, Tokens)
    assert (unpack_ids(told.hits), unpack(told.num_cached)) == ([2], [2])
    again = only(say(core, reserved(only(said, Reserve), Grant(1, 0, 1), preempted=[2])), RunStep)
    said = say(core, done(again, 9))
    assert only(said, Tokens).hits == b""
    asked = only(said, Reserve)
    assert [want.request for want in wants(asked)] == [1, 2]
    third = only(say(core, reserved(asked, Grant(1, 0, 1), Grant(2, 2, 2, [0, 3]))), RunStep)
    assert only(say(core, done(third, 10, 11)), Tokens).hits == b""


def test_a_preempted_request_is_not_offered_while_a_step_that_carried_it_is_out() -> None:
    core = scheduler(in_flight=2)
    first, again = two_running(core)
    asked = only(say(core, reserved(again, preempted=[2])), Reserve)
    assert [want.request for want in wants(asked)] == [1]
    said = say(core, reserved(asked), done(first, 7, 8))
    assert [want.request for want in wants(only(said, Reserve))] == [1, 2]


def test_the_late_token_of_a_preempted_request_may_end_it() -> None:
    core = scheduler(in_flight=2, eos=[EOS])
    first, again = two_running(core)
    say(core, reserved(again, Grant(1, 0, 1), preempted=[2]))
    said = say(core, done(first, 7, EOS))
    assert only(said, Tokens).endings == (Ending(2, "stop"),)
    released = only(said, Release)
    assert (unpack_ids(released.requests), unpack(released.num_computed)) == ([2], [0])


def test_a_preempted_request_starts_again_from_its_tokens_over_cached_blocks() -> None:
    ring = side(blocks=5, size=2)
    ring.feed(submit(1, [1, 2, 3, 4], max_tokens=3), submit(2, [5, 6, 7], max_tokens=3))
    assert ring.planned == [(1, 4, 1), (2, 3, 1)]
    ring.done(10, 20)
    assert ring.planned == [(1, 1, 1), (2, 1, 1)]
    ring.done(11, 21)
    assert ring.planned == [(1, 1, 1)]
    assert unpack_ids(ring.steps[-1].finished) == []
    ring.done(12)
    assert ring.endings == [Ending(1, "length")]
    assert ring.planned == [(2, 1, 1)]


# -- the window ---------------------------------------------------------------------------------------


def test_no_step_is_planned_beyond_what_the_front_end_has_seen() -> None:
    ring = TokenSide(scheduler(window=2), KVPool(10, 4))
    ring.feed(submit(1, [1, 2], max_tokens=9))
    ring.done(5)
    ring.done(6)
    assert len(ring.steps) == 2
    ring.feed(Seen(1))
    assert len(ring.steps) == 3
    ring.done(7)
    assert len(ring.steps) == 3
    ring.feed(Seen(3))
    assert len(ring.steps) == 4


def test_steps_in_flight_take_their_places_in_the_window() -> None:
    ring = TokenSide(scheduler(window=1, in_flight=2), KVPool(10, 4))
    ring.feed(submit(1, [1, 2], max_tokens=9))
    assert len(ring.steps) == 1


def test_a_step_that_samples_nothing_takes_no_place_in_the_window() -> None:
    ring = TokenSide(scheduler(window=1, budget=2), KVPool(10, 4))
    ring.feed(submit(1, range(6), max_tokens=9))
    ring.done()
    ring.done()
    assert ring.planned == [(1, 2, 1)]
    ring.done(5)
    assert len(ring.steps) == 3


# -- failures -----------------------------------------------------------------------------------------


def test_a_failed_step_plans_all_anew_and_at_the_second_fails_who_was_alone() -> None:
    ring = side(seqs=1)
    ring.feed(submit(1, [1, 2], max_tokens=1), submit(2, [3, 4]))
    ring.done(7)
    assert ring.planned == [(2, 2, 1)]
    ring.feed(submit(3, [5, 6]))
    assert ResetPool(1) in ring.fail()
    assert ring.endings == [Ending(1, "length")]
    assert ring.planned == [(2, 2, 1)]
    assert ResetPool(2) in ring.fail()
    assert ring.endings == [Ending(1, "length"), Ending(2, "error", None, BOOM)]
    step = ring.steps[-1]
    assert (step.epoch, rows(step), unpack_ids(step.finished)) == (2, [(3, 2, 1)], [])
    assert ring.scheduler.statistics().num_failed_steps == 2


def test_of_two_steps_in_flight_only_the_failed_one_fails_its_request() -> None:
    core = scheduler(budget=2, in_flight=2)
    said = say(core, submit(1, [1, 2], max_tokens=1), submit(2, [3, 4]))
    for epoch in (0, 1):
        said = say(core, reserved(only(said, Reserve), Grant(1, 0, 2, [0])))
        first, asked = only(said, RunStep), only(said, Reserve)
        say(core, reserved(asked, Grant(2, 0, 2, [1])))
        said = say(core, StepFailed(first.step, epoch, BOOM))
        assert said[0] == ResetPool(epoch + 1)
    assert only(said, Tokens).endings == (Ending(1, "error", None, BOOM),)
    assert not any(isinstance(message, Release) for message in said)
    assert wants(only(said, Reserve)) == [Want(2, [3, 4], 2)]


def test_what_ended_in_the_turn_of_a_failure_is_not_released() -> None:
    core = scheduler(in_flight=2)
    step = running(core, submit(1, [1, 2], max_tokens=1), submit(2, [3], max_tokens=1))
    said = say(core, Abort(1), StepFailed(step.step, 0, BOOM))
    assert [type(message) for message in said] == [ResetPool, Tokens, Reserve]
    assert only(said, Tokens).endings == (Ending(1, "abort"),)


def test_a_request_whose_step_is_lost_keeps_its_tokens_and_starts_again() -> None:
    core = scheduler(in_flight=2)
    first, again = two_running(core)
    asked = only(say(core, reserved(again, Grant(1, 0, 1)), done(first, 7, 8), Abort(1)), Reserve)
    assert [want.request for want in wants(asked)] == [2]
    failed = StepFailed(again.step, 0, BOOM)
    asked = only(say(core, failed, reserved(asked, Grant(2, 0, 1))), Reserve)
    assert (asked.epoch, wants(asked)) == (1, [Want(2, [3, 4, 8], 3)])
    said = say(core, reserved(asked, Grant(2, 0, 3, [0, 1])))
    assert only(said, RunStep).new == (NewRow(2, pack([3, 4, 8]), 0, GREEDY, 2),)


def test_a_reserved_of_the_failed_epoch_is_ignored() -> None:
    core = scheduler(in_flight=2)
    step = running(core, submit(1, [1, 2], max_tokens=1))
    asked = only(say(core, submit(2, [3, 4])), Reserve)
    assert say(core, StepFailed(step.step, 0, BOOM)) == (ResetPool(1),)
    said = say(core, reserved(asked, Grant(2, 0, 2, [0]), refused=[2]))
    again = only(said, Reserve)
    assert len(said) == 1
    assert (again.epoch, wants(again)) == (1, [Want(1, [1, 2], 2), Want(2, [3, 4], 2)])


def test_steps_of_the_failed_epoch_are_ignored() -> None:
    core = scheduler(in_flight=2)
    first, again = two_running(core)
    second = only(say(core, reserved(again, Grant(1, 0, 1), Grant(2, 0, 1))), RunStep)
    said = say(core, StepFailed(first.step, 0, BOOM))
    assert wants(only(said, Reserve)) == [Want(1, [1, 2], 2), Want(2, [3, 4], 2)]
    assert say(core, done(second, 7, 8), StepFailed(second.step, 0, BOOM)) == ()
    assert core.statistics().num_failed_steps == 1


def test_a_command_whose_step_raised_has_failed() -> None:
    core = scheduler()
    said = say(core, Command(7, "sleep"))
    assert [type(message) for message in said] == [ResetPool, RunCommand]
    assert say(core, PoolReset(1)) == ()
    assert say(core, StepFailed(1, 1, BOOM)) == (CommandDone(7, BOOM), ResetPool(2))
    assert say(core, Command(8, "wake_up")) == ()
    said = say(core, PoolReset(2))
    assert said == (RunCommand(2, 2, "wake_up", ""),)


def test_an_abort_of_an_offered_request_after_a_failure_releases_nothing() -> None:
    core = scheduler(in_flight=2)
    step = running(core, submit(1, [1, 2], max_tokens=1))
    asked = only(say(core, submit(2, [3, 4])), Reserve)
    said = say(core, StepFailed(step.step, 0, BOOM), Abort(1), Abort(2))
    assert [type(message) for message in said] == [ResetPool, Tokens]
    assert say(core, reserved(asked, Grant(2, 0, 2, [0])), PoolReset(1)) == ()
    assert core.idle


# -- all together -------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_every_schedule_gives_every_request_its_tokens_and_one_ending(seed: int) -> None:
    ring = Ring(Random(seed))
    for _ in range(ring.random.randint(1, 150)):
        ring.act()
    assert ring.drain() < 2000
    ring.judge()


@pytest.mark.slow
def test_the_schedules_of_some_seeds_show_all_that_can_happen() -> None:
    preemptions = hits = evictions = late = failed = 0
    reasons = set()
    for seed in range(30):
        ring = Ring(Random(seed))
        for _ in range(150):
            ring.act()
        ring.drain()
        ring.judge()
        now, cache = ring.scheduler.statistics(), ring.pool.statistics()
        preemptions += now.num_preemptions
        hits += cache.hit_tokens
        evictions += cache.evictions
        late += now.num_late_tokens
        failed += now.num_failed_steps
        reasons |= {ending.finish_reason for ending in ring.endings.values()}
    assert min(preemptions, hits, evictions, late, failed) > 0
    assert reasons == {"stop", "length", "abort", "error"}


def test_a_long_prompt_leaves_the_rest_of_the_budget_to_others() -> None:
    side = TokenSide(scheduler(budget=1024, max_chunk=400), KVPool(1000, 16, max_chunk=400))
    side.feed(submit(1, range(4000)))
    side.feed(submit(2, range(5000, 5010)))
    side.done()
    assert side.planned == [(1, 400, 0), (2, 10, 1)]


def test_a_step_counts_when_it_runs() -> None:
    core = scheduler()
    asked = only(say(core, submit(1, [1, 2])), Reserve)
    assert (asked.step, core.statistics().num_steps) == (1, 0)
    side = TokenSide(scheduler(), KVPool(10, 4))
    side.feed(submit(1, [1, 2]))
    assert side.scheduler.statistics().num_steps == 1


def test_it_is_not_idle_while_it_owes_an_ending() -> None:
    core = scheduler()
    core.feed(submit(1, [1]))
    core.feed(Abort(1))
    assert not core.idle


def test_a_request_cannot_be_submitted_twice() -> None:
    core = scheduler()
    core.feed(submit(1, [1]))
    with pytest.raises(AssertionError, match="submitted twice"):
        core.feed(submit(1, [1]))
