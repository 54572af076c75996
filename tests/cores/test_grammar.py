from collections.abc import Sequence
from functools import partial

import pytest

from actorllm.actors.grammar import work_on
from actorllm.actors.jobs import do
from actorllm.cores import NEVER
from actorllm.cores.grammar import Grammar
from actorllm.messages import (
    Advance,
    Compile,
    Drop,
    Fill,
    FromGrammar,
    GrammarReady,
    Job,
    MaskStep,
    SampleStep,
    ToGrammar,
    pack,
    pack_ids,
)
from actorllm.testing.grammars import SimulatedGrammars

BAD = ("InvalidRequest", "this grammar was made to fail", "structured_outputs")


def known(said: tuple[FromGrammar, ...]) -> list[tuple[int, tuple[str, str, str | None] | None]]:
    """Requests and what they hear of their grammars, without tracebacks."""
    found = [message for message in said if isinstance(message, GrammarReady)]
    assert len(found) == len(said)
    faults = [
        None if each.fault is None else (each.fault.kind, each.fault.message, each.fault.param)
        for each in found
    ]
    return list(zip([each.request for each in found], faults, strict=True))


class Side:
    """A Grammar on simulated grammars, whose jobs are done when they are told to."""

    def __init__(self, **bounds: int) -> None:
        self.grammars = SimulatedGrammars()
        self.core = Grammar(self.grammars, timeout=10.0, **({"max_jobs": 4} | bounds))

    def say(self, *messages: ToGrammar, now: float = 0.0) -> tuple[FromGrammar, ...]:
        for message in messages:
            self.core.feed(message)
        out = self.core.poll(now)
        self.core.check()
        return out

    def finish(self, job: FromGrammar, now: float = 0.0) -> tuple[FromGrammar, ...]:
        """The job is done, or fails as it must."""
        assert isinstance(job, Job)
        return self.say(do(partial(work_on, self.grammars), job), now=now)

    def masks(self, *requests: int) -> bytes:
        """What the requests' next tokens may be."""
        return self.grammars.fill(requests)[0]

    def ready(self, request: int, grammar: str = "a:9") -> None:
        """Let a request have a matcher."""
        out = self.say(Compile(request, grammar))
        if isinstance(out[0], Job):
            out = self.finish(out[0])
        assert out == (GrammarReady(request),)


def advance(*pairs: tuple[int, int]) -> Advance:
    return Advance(pack_ids(request for request, _ in pairs), pack(token for _, token in pairs))


def allowed(side: Side, request: int) -> int:
    """The first token that the request's grammar allows now."""
    return int(side.grammars.rows[request].allowed().argmax())


def test_a_grammar_is_compiled_in_a_job_and_its_request_is_ready() -> None:
    side = Side()
    out = side.say(Compile(1, "a:9"))
    assert out == (Job(1, Compile(1, "a:9")),)
    assert not side.core.idle
    assert side.finish(out[0]) == (GrammarReady(1),)
    assert list(side.grammars.rows) == [1]
    assert side.say(Drop(1)) == ()
    assert (side.grammars.rows, side.core.idle, side.core.deadline) == ({}, True, NEVER)


def test_who_asks_for_a_grammar_that_compiles_waits_for_the_same_job() -> None:
    side = Side()
    (job,) = side.say(Compile(1, "a:9"), Compile(2, "a:9"))
    assert side.finish(job) == (GrammarReady(1), GrammarReady(2))
    assert side.say(Compile(3, "a:9")) == (GrammarReady(3),)
    statistics = side.core.statistics()
    assert (statistics.num_hits, statistics.num_misses, statistics.num_matchers) == (1, 2, 3)


def test_a_grammar_that_cannot_be_compiled_fails_those_that_wait_for_it_alone() -> None:
    side = Side()
    good, bad = side.say(Compile(1, "a:9"), Compile(2, "bad"), Compile(3, "bad"))
    assert known(side.finish(bad)) == [(2, BAD), (3, BAD)]
    assert side.finish(good) == (GrammarReady(1),)
    again = side.say(Compile(4, "bad"))
    assert again == (Job(3, Compile(4, "bad")),), "what failed is tried again"


def test_who_waits_too_long_fails_and_the_grammar_is_kept_for_later() -> None:
    side = Side()
    (job,) = side.say(Compile(1, "a:9"), now=5.0)
    assert side.core.deadline == 15.0
    assert side.say(now=14.9) == ()
    (late,) = side.say(now=15.0)
    assert isinstance(late, GrammarReady)
    assert late.request == 1
    assert late.fault is not None
    assert "still being compiled, after 10 s" in late.fault.message
    assert side.core.deadline == NEVER
    assert side.core.idle
    (refused,) = side.say(Compile(2, "a:9"), now=16.0)
    assert isinstance(refused, GrammarReady)
    assert refused.fault == late.fault, "nobody waits for a job that is late already"
    assert side.finish(job, now=20.0) == ()
    assert side.say(Compile(3, "a:9")) == (GrammarReady(3),)


def test_who_is_dropped_while_its_grammar_compiles_is_answered_at_once() -> None:
    side = Side()
    (job,) = side.say(Compile(1, "a:9"), Compile(2, "a:9"))
    assert side.say(Drop(1)) == (GrammarReady(1),)
    assert side.finish(job) == (GrammarReady(2),)
    assert list(side.grammars.rows) == [2]


def test_more_jobs_than_may_be_are_refused_with_the_time_to_come_again() -> None:
    side = Side(max_jobs=1)
    side.say(Compile(1, "a:9"))
    (refused,) = side.say(Compile(2, "b:9"))
    assert isinstance(refused, GrammarReady)
    assert refused.fault is not None
    assert (refused.fault.kind, refused.fault.retry_after) == ("Overloaded", 10.0)
    assert side.say(Compile(3, "a:9")) == (), "the same grammar needs no other job"


def test_tokens_wait_for_the_next_masks_and_a_job_takes_both() -> None:
    side = Side()
    side.ready(1)
    side.ready(2, "b:9")
    before = side.masks(1)
    one = allowed(side, 1)
    assert side.say(advance((1, one))) == ()
    assert side.masks(1) == before
    asked = MaskStep(7, 3, pack_ids([2, 1]))
    (job,) = side.say(asked)
    assert job == Job(3, Fill(pack_ids([1]), pack([one]), asked))
    assert not side.core.idle
    assert side.finish(job) == (SampleStep(7, 3, pack_ids([2, 1]), side.masks(2, 1)),)
    assert side.masks(1) != before
    (job,) = side.say(MaskStep(8, 3, b""))
    assert job == Job(4, Fill(b"", b"", MaskStep(8, 3, b""))), "each token is taken once"


def test_requests_that_are_gone_have_all_ones_and_no_request_has_no_mask() -> None:
    side = Side()
    side.ready(1)
    side.say(Drop(1))
    (job,) = side.say(advance((1, 5)), MaskStep(7, 0, pack_ids([1])))
    (step,) = side.finish(job)
    assert isinstance(step, SampleStep)
    assert set(step.masks) == {0xFF}
    (job,) = side.say(MaskStep(8, 0, b""))
    assert side.finish(job) == (SampleStep(8, 0, b"", b""),)


def test_masks_that_are_asked_for_while_others_are_filled_are_a_bug() -> None:
    side = Side()
    side.say(MaskStep(7, 0, pack_ids([1])))
    with pytest.raises(AssertionError, match="while others are filled"):
        side.core.feed(MaskStep(8, 0, pack_ids([1])))


def test_requests_come_and_go_while_masks_are_filled() -> None:
    side = Side()
    side.ready(1)
    (job,) = side.say(MaskStep(7, 0, pack_ids([1])))
    side.ready(2)
    assert side.say(Drop(1)) == ()
    assert list(side.grammars.rows) == [2]
    (step,) = side.finish(job)
    assert isinstance(step, SampleStep)
    assert set(step.masks) == {0xFF}
    assert side.say(Drop(2)) == ()
    assert side.core.idle


def test_the_least_recently_used_grammar_leaves_and_its_matchers_go_on() -> None:
    side = Side(max_compiled=2)
    side.ready(1, "a:9")
    side.ready(2, "b:9")
    side.ready(3, "a:9")
    side.ready(4, "c:9")
    assert side.core.statistics().num_compiled == 2
    (out,) = side.say(Compile(5, "b:9"))
    assert isinstance(out, Job), "b was used before a"
    assert side.say(Compile(6, "a:9")) == (GrammarReady(6),)
    assert sorted(side.grammars.rows) == [1, 2, 3, 4, 6]


def test_grammars_leave_when_they_take_more_bytes_than_may_be() -> None:
    side = Side(max_bytes=707)
    side.ready(1, "a:9")
    side.ready(2, "bc:9")
    assert (side.core.statistics().num_compiled, side.core.statistics().num_bytes) == (2, 707)
    side.ready(3, "d:9")
    assert (side.core.statistics().num_compiled, side.core.statistics().num_bytes) == (2, 707)
    (out,) = side.say(Compile(4, "a:9"))
    assert isinstance(out, Job)


def test_a_request_whose_matcher_cannot_go_on_fails_with_the_reason() -> None:
    side = Side()
    side.ready(1, "torn:0")
    side.ready(2)
    (job,) = side.say(advance((1, 5), (2, allowed(side, 2))), MaskStep(7, 0, pack_ids([1, 2])))
    failed, step = side.finish(job)
    reason = "token 5 does not fit the grammar"
    assert known((failed,)) == [(1, ("InvalidRequest", reason, "structured_outputs"))]
    assert isinstance(step, SampleStep)
    assert list(side.grammars.rows) == [2]
    assert side.say(Drop(1)) == ()


class Broken(SimulatedGrammars):
    """Raises at every real matcher."""

    def fill(self, requests: Sequence[int]) -> tuple[bytes, dict[int, str]]:
        if any(request in self.rows for request in requests):
            raise MemoryError("no room")
        return super().fill(requests)


def test_when_the_library_fails_so_do_the_requests_and_not_the_engine() -> None:
    side = Side()
    side.grammars = Broken()
    side.core = Grammar(side.grammars, timeout=10.0, max_jobs=4)
    side.ready(1)
    side.ready(2)
    (job,) = side.say(MaskStep(7, 0, pack_ids([1])))
    failed, step = side.finish(job)
    assert isinstance(failed, GrammarReady)
    assert failed.fault is not None
    assert failed.fault.message == "the grammar could not be followed: MemoryError: no room"
    assert isinstance(step, SampleStep)
    assert set(step.masks) == {0xFF}
    assert list(side.grammars.rows) == [2]


class Choking(SimulatedGrammars):
    """Raises at the tokens of request 1."""

    def accept(self, request: int, tokens: Sequence[int]) -> str | None:
        if request == 1:
            raise MemoryError("no room")
        return super().accept(request, tokens)


def test_when_the_library_fails_at_a_token_its_request_fails_alone() -> None:
    side = Side()
    side.grammars = Choking()
    side.core = Grammar(side.grammars, timeout=10.0, max_jobs=4)
    side.ready(1)
    side.ready(2)
    (job,) = side.say(advance((1, 5), (2, allowed(side, 2))), MaskStep(7, 0, pack_ids([1, 2])))
    failed, step = side.finish(job)
    reason = "the grammar could not be followed: MemoryError: no room"
    assert known((failed,)) == [(1, ("InvalidRequest", reason, "structured_outputs"))]
    assert isinstance(step, SampleStep)
    assert list(side.grammars.rows) == [2]
    assert side.core.statistics().num_stuck == 1
    assert side.core.statistics().num_masks == 2


@pytest.mark.parametrize("after", [0, 1])
def test_a_request_that_compiles_twice_is_a_bug(after: int) -> None:
    side = Side()
    out = side.say(Compile(1, "a:9"))
    if after:
        side.finish(out[0])
    with pytest.raises(AssertionError, match="1 compiles twice"):
        side.core.feed(Compile(1, "a:9"))
