"""The production shells under seeded trio: cancellation anywhere, shutdown in the middle, links that cut."""

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from actorllm.actors import serve
from actorllm.cores.grammar import Grammar
from actorllm.engine import ring, stream
from actorllm.engine.cell import Bell
from actorllm.engine.door import Door
from actorllm.engine.events import Subscription
from actorllm.engine.stream import Choice, Stream
from actorllm.testing import seeded
from actorllm.testing.report import SimulationFailed
from actorllm.testing.scenarios import LONG, draw, pick
from actorllm.testing.schedules import FAULTS, schedules
from actorllm.wire.frames import FrameReader
from actorllm.wire.link import Link

from .helpers import fingerprints_elsewhere
from .helpers import first_failure as first_of
from .planted import Bug

SCHEDULES = 3_000 if os.environ.get("ACTORLLM_SOAK") == "1" else 300
"""Over all families."""

CHUNK = min(SCHEDULES // 3, 300)
"""So many runs are one test; each must reach every fault."""

SEEDS = 60
"""A planted bug is caught within so many."""


@pytest.mark.longest
@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_every_schedule(first: int) -> None:
    covered: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        report = schedules(seed, pick(seed))
        covered += report.covered
    assert {name for name in FAULTS if not covered[name]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = schedules(seed, pick(seed)), schedules(seed, pick(seed))
    assert first == second
    assert first.fingerprint != schedules(seed + 1000, pick(seed)).fingerprint


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    """With other hashes of strings, as each process has them."""
    here = [schedules(seed, pick(seed)).fingerprint for seed in range(5)]
    assert fingerprints_elsewhere("schedules", 5) == here


def test_a_run_is_of_some_size() -> None:
    lines: list[str] = []
    scenario = draw("calm", 3)
    report = schedules(3, scenario, write=lines.append)
    assert scenario.num_requests >= 20
    assert len([line for line in lines if "->" in line]) == report.num_messages
    assert any("the engine is left" in line for line in lines)
    assert any("scheduler -> executor: RunStep(step=" in line for line in lines)


def test_trio_is_left_as_it_was() -> None:
    from trio._core import _run

    before = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    schedules(1, pick(1))
    assert (_run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING) == before


BUGS = (
    Bug(
        "a deadline is ignored",
        "impatient",
        serve,
        "_receive",
        {"math.isinf(deadline)": "True"},
        caught_by="nobody woke for it",
    ),
    Bug(
        "a checkpoint between feed and poll",
        "calm",
        seeded,
        "serve",
        {"drain(core, inbox)": "drain(core, inbox); await anyio.sleep(0)"},
        caught_by="a checkpoint in a turn",
    ),
    Bug(
        "a checkpoint between two words",
        "calm",
        seeded,
        "serve",
        {"send(out)": "send(out); await anyio.sleep(0)"},
        caught_by="a checkpoint in a turn",
    ),
    Bug(
        "a stream that is left does not abort",
        "impatient",
        Stream,
        "close",
        {"self._door.abandon(choice.cell.request)": "pass"},
        caught_by="the engine was not told",
    ),
    Bug(
        "a stream that is closed at the door stays there",
        "impatient",
        Stream,
        "close",
        {"self._queue is not None": "False"},
        caught_by="closed at the door still waits there",
    ),
    Bug(
        "a stream that is left leaves one of its answers running",
        "impatient",
        Stream,
        "close",
        {"in self._choices": "in self._choices[:1]"},
        caught_by="the engine was not told",
    ),
    Bug(
        "an answer that fails leaves the others running",
        "impatient",
        Stream,
        "_raise_if_failed",
        {"self.close()": "self._finished = True"},
        caught_by="the engine was not told",
    ),
    Bug(
        "a stream ends with the first of its answers",
        "calm",
        Stream,
        "_take",
        {"and all(are_done)": "and any(are_done)"},
        caught_by="finished before all answers are",
    ),
    Bug(
        "a stream of several hears the news of the first alone",
        "calm",
        Stream,
        "_has_news",
        {"any(choice.has_news for choice in self._choices)": "self._choices[0].has_news"},
        caught_by="still not idle",
    ),
    Bug(
        "a stream of several forgets those that have finished",
        "calm",
        Stream,
        "_take",
        {"in enumerate(self._choices))": "in enumerate(self._choices) if not choice.is_done)"},
        caught_by="in the place of",
    ),
    Bug(
        "all answers have the same seed",
        "calm",
        Stream,
        "_next_question",
        {"nth_seed(seed, len(self._choices))": "seed"},
        caught_by="expected Answer",
    ),
    Bug(
        "seeds go on beyond an int64",
        "tight",
        stream,
        "nth_seed",
        {"(seed + index + 2**63) % 2**64 - 2**63": "min(seed + index, 2**63 - 1)"},
        caught_by="expected Answer",
        settings={"warm": 1.0},
    ),
    Bug(
        "a subscription is not ended when the door closes",
        "calm",
        Door,
        "close",
        {"subscription.end(error)": "pass"},
        caught_by="still not idle: 0 callers, ",
    ),
    Bug(
        "whoever subscribes too late waits forever",
        "calm",
        Door,
        "subscribe",
        {"self._closed is not None": "False"},
        caught_by="still not idle: 0 callers, ",
    ),
    Bug(
        "a subscription that is left stays",
        "calm",
        Door,
        "subscribe",
        {"self._subscriptions.remove(subscription)": "pass"},
    ),
    Bug(
        "a subscriber is not told what it has lost",
        "calm",
        Subscription,
        "__anext__",
        {"news.sequence - self._next": "0"},
        caught_by="news are lost before",
    ),
    Bug(
        "a subscriber is not told what it has lost at the end",
        "calm",
        Subscription,
        "__anext__",
        {"self._offered > self._next": "False"},
        caught_by="news, but none after number",
    ),
    Bug(
        "a subscription drops what came last when it ends",
        "calm",
        Subscription,
        "end",
        {"self._port.close()": "self.close()"},
    ),
    Bug(
        "a stream forgets what came at once",
        "calm",
        Choice,
        "take",
        {'"".join(parts)': '"".join(parts[-1:])'},
        caught_by="the deltas are not the text",
    ),
    Bug(
        "a stream forgets the log-probabilities of what came at once",
        "calm",
        Choice,
        "take",
        {"gathered.logprobs += logprobs": "gathered.logprobs += logprobs[-1:]"},
        caught_by="log-probabilities",
        settings={"logprobs": 0.8},
    ),
    Bug(
        "a stream tells of the prompt with each of its answers",
        "calm",
        Stream,
        "_next_question",
        {"replace(self._others.sampling, prompt_logprobs=None)": "self._others.sampling"},
        caught_by="which nobody asked for",
        settings={"logprobs": 0.8},
    ),
    Bug(
        "grammars are never compiled",
        "calm",
        ring,
        "_jobs",
        {'start(match_all, nursery, done["grammar"], COMPILERS)': "lambda job: None"},
        caught_by="still not idle",
        settings={"grammar": 0.8, "grammar_timeout": LONG},
    ),
    Bug(
        "timeouts stand still at the door",
        "impatient",
        Door,
        "enter",
        {"since + _patience(question)": "float('inf')"},
        caught_by="beyond a timeout",
    ),
    Bug(
        "a seat is never given back",
        "calm",
        Door,
        "deliver",
        {"self._seats.release(self._cells.pop(message.request).group)": "del self._cells[message.request]"},
        caught_by="still not idle",
    ),
    Bug(
        "a seat is lost now and then",
        "calm",
        Door,
        "deliver",
        {
            "self._seats.release(self._cells.pop(message.request).group)": (
                "(lambda cell: message.request % 20 and self._seats.release(cell.group))"
                "(self._cells.pop(message.request))"
            )
        },
        caught_by="seats are lost",
    ),
    Bug(
        "those who wait at a door that closes are forgotten",
        "impatient",
        Door,
        "close",
        {"self._seats.dismiss()": "pass"},
        caught_by="still not idle",
    ),
    Bug(
        "those who are inside when it closes are forgotten",
        "calm",
        Door,
        "close",
        {"cell.bell.ring()": "pass"},
        caught_by="still not idle",
    ),
    Bug(
        "a reader runs in circles",
        "calm",
        Bell,
        "ring",
        {"self._event = None": "pass"},
        caught_by="still not idle",
    ),
    Bug("a link drops what came with the first", "calm", Link, "_take", {"return batch": "return batch[:1]"}),
    Bug("a link sends twice", "calm", Link, "_take", {"return batch": "return batch[:1] + batch"}),
    Bug(
        "a frame that is cut is forgotten",
        "calm",
        FrameReader,
        "feed",
        {"self._buffer += data": "self._buffer = bytearray(data)"},
    ),
    Bug(
        "the actors are never started",
        "calm",
        ring,
        "_guard",
        {"await run()": "await anyio.sleep(0.05)"},
        caught_by="still not idle",
    ),
)


def first_failure(family: str, **settings: Any) -> SimulationFailed:
    """What is found in the first seed that finds something, with these settings of the scenarios."""
    return first_of(lambda seed: schedules(seed, replace(draw(family, seed), **settings)), SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    assert bug.caught_by in first_failure(bug.family, **bug.settings).problem


def test_a_failure_tells_seed_scenario_and_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Grammar, message: Any) -> None:
        raise LookupError("no such grammar")

    monkeypatch.setattr(Grammar, "feed", broken)
    failure = first_failure("calm")
    text = str(failure)
    assert failure.scenario == draw("calm", failure.seed)
    assert text.startswith(f"seed {failure.seed} of calm: LookupError: no such grammar")
    assert "scheduler -> grammar: Compile(request=" in text
