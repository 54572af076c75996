"""Hundreds of engines, each moved by a seed: nothing may go wrong, and every rare path is taken."""

import os
from collections import Counter
from pathlib import Path

import pytest

from actorllm.testing.scenarios import FAMILIES, draw, pick
from actorllm.testing.sightings import SIGHTINGS
from actorllm.testing.simulate import simulate

from .helpers import fingerprints_elsewhere

RUNS = 50_000 if os.environ.get("ACTORLLM_SOAK") == "1" else 2_000
"""Over all families."""

CHUNK = 200
"""Seeds of a test; in the first so many of a family everything is seen that it must see."""

ALWAYS = {
    "calm": (
        "blocks evicted",
        "chunked prefill",
        "empty step",
        "ended with length",
        "ended with repetition",
        "ended with stop",
        "ended with stop string",
        "ended with stop token",
        "SampleStep before its RunStep",
        "dropped request in a mask",
        "grammar cached",
        "grammar does not fit",
        "grammar evicted",
        "grammar refused",
        "grammar shared",
        "log-probabilities",
        "mixed batch",
        "no seat",
        "part of the mail",
        "paused",
        "prompt log-probabilities",
        "prompt log-probabilities in parts",
        "step waits behind another",
        "prefix cache reset",
        "prefix hit",
        "prefix hit behind a window",
        "prompt refused",
        "slept",
        "stop string across steps",
        "token after a stop string",
        "tombstone",
        "twin waited",
        "two steps in flight",
        "window full",
    ),
    "tight": (
        "abort while preempted",
        "preempted",
        "prompt log-probabilities resumed",
        "request under a grammar preempted",
        "resumed",
        "sent back",
        "token of a preempted request",
    ),
    "faulty": (
        "command failed",
        "ended with error",
        "old reply at the executor",
        "old reply at the scheduler",
        "old reserved",
        "old step at the executor",
        "probation",
        "request under a grammar sent back by a crash",
        "step failed",
        "step of a failed epoch refused",
        "step raised after its effect",
    ),
    "impatient": (
        "abort after the end",
        "abort while compiling",
        "abort while offered",
        "abort while rendering",
        "abort while running",
        "abort while waiting",
        "cell merged",
        "ended with abort",
        "ended with timeout",
        "grammar compiled late",
        "grant of an ended request",
        "late token dropped",
        "never read",
        "overloaded",
        "shut down",
        "too many grammars compile",
    ),
    "mixed": ("ended with abort", "preempted", "step failed"),
}
"""What the runs of a family must have seen."""


@pytest.mark.longest
@pytest.mark.parametrize("first", range(0, RUNS // len(FAMILIES), CHUNK))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_seed_of_a_family(family: str, first: int) -> None:
    covered: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        covered += simulate(seed, draw(family, seed)).covered
    if first == 0:
        assert {name for name in ALWAYS[family] if not covered[name]} == set()


def test_every_rare_path_has_a_family_that_must_see_it() -> None:
    assert {name for names in ALWAYS.values() for name in names} == set(SIGHTINGS)


def seeds() -> list[tuple[str, int]]:
    lines = (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    told = [line.partition("#")[0].split() for line in lines]
    return [(family, int(seed)) for family, seed in filter(None, told)]


@pytest.mark.parametrize(("family", "seed"), seeds())
def test_a_seed_that_once_failed(family: str, seed: int) -> None:
    simulate(seed, draw(family, seed))


@pytest.mark.parametrize("seed", range(len(FAMILIES)))
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = simulate(seed, pick(seed)), simulate(seed, pick(seed))
    assert first == second
    assert first.fingerprint != simulate(seed + 1000, pick(seed)).fingerprint


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    """With other hashes of strings, as each process has them."""
    here = [simulate(seed, pick(seed)).fingerprint for seed in range(5)]
    assert fingerprints_elsewhere("simulate", 5) == here


def test_every_message_can_be_written() -> None:
    lines: list[str] = []
    report = simulate(3, pick(3), write=lines.append)
    assert len(lines) == report.num_messages
    for message in ("scheduler -> kvpool: Reserve(step=", "scheduler -> executor: RunStep(step="):
        assert any(message in line for line in lines)
