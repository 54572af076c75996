"""The simulator finds what it should: each of these bugs is caught within 500 seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from actorllm.engine.topology import EDGES, Edge
from actorllm.engine.wrapped import Wrapped
from actorllm.testing.report import SimulationFailed
from actorllm.testing.scenarios import draw, pick
from actorllm.testing.simulate import Change, simulate

from .helpers import first_failure as first_of
from .planted import Bug
from .planted_answers import ANSWERS
from .planted_grammar import GRAMMAR
from .planted_pool import POOL
from .planted_ring import RING

SEEDS = 500

TIGHT: list[tuple[str, str, str, dict[str, Any]]] = [
    ("caller", "frontend", "impatient", {"requests": 1, "aborts": 1.0, "commands": 30}),
    ("frontend", "renderer", "impatient", {"requests": 1, "aborts": 1.0}),
    ("renderer", "scheduler", "impatient", {"requests": 1, "aborts": 1.0}),
    ("renderer", "frontend", "calm", {}),
    ("renderer", "detokenizer", "calm", {}),
    ("frontend", "scheduler", "calm", {"commands": 30}),
    ("scheduler", "grammar", "impatient", {"requests": 1, "grammar": 1.0, "aborts": 1.0}),
    ("grammar", "grammar", "calm", {"requests": 1, "grammar": 1.0}),
    ("grammar", "executor", "calm", {}),
    ("grammar", "scheduler", "impatient", {"requests": 1, "grammar": 1.0, "aborts": 1.0}),
    ("executor", "worker", "faulty", {"steps_in_flight": 1, "grammar": 1.0}),
    ("kvpool", "scheduler", "faulty", {}),
]
"""Edges whose windows can be full to the last place, and the scenarios that fill them soonest."""


def first_failure(
    family: str | None = None,
    *,
    changes: Mapping[str, Change] | None = None,
    edges: Sequence[Edge] = EDGES,
    **settings: Any,
) -> SimulationFailed:
    """What is found in the first seed that finds something, with these settings of the scenarios."""

    def run(seed: int) -> None:
        scenario = replace(pick(seed) if family is None else draw(family, seed), **settings)
        simulate(seed, scenario, changes=changes, edges=edges)

    return first_of(run, SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [*POOL, *RING, *GRAMMAR, *ANSWERS], ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    failure = first_failure(bug.family, **bug.settings)
    assert bug.caught_by in failure.problem


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target", "family", "settings"), TIGHT)
def test_a_window_that_is_one_too_small_is_caught(
    source: str, target: str, family: str, settings: dict[str, Any]
) -> None:
    def smaller(edge: Edge) -> Edge:
        is_it = (edge.source, edge.target) == (source, target)
        return replace(edge, window=lambda limits: edge.window(limits) - 1) if is_it else edge

    failure = first_failure(family, edges=[smaller(edge) for edge in EDGES], **settings)
    assert f"messages from {source} to {target}" in failure.problem


class Mute(Wrapped):
    """Hears all, and never answers."""

    def poll(self, now: float) -> tuple[Any, ...]:
        super().poll(now)
        return ()


def test_an_actor_that_keeps_silent_is_caught() -> None:
    failure = first_failure(changes={"renderer": lambda core: Mute("renderer", core)})
    assert "never ended" in failure.problem


def test_a_failure_tells_seed_scenario_and_last_words() -> None:
    failure = first_failure("calm", changes={"grammar": lambda core: Mute("grammar", core)})
    seed, text = failure.seed, str(failure)
    assert failure.scenario == draw("calm", seed)
    assert text.startswith(f"seed {seed} of calm: ")
    assert "Scenario(name='calm'" in text
    assert "scheduler -> detokenizer: Tokens(step=" in text


def test_a_core_that_raises_is_caught() -> None:
    class Broken(Wrapped):
        def feed(self, message: Any) -> None:
            raise LookupError("no such grammar")

    failure = first_failure(changes={"grammar": lambda core: Broken("grammar", core)})
    assert "LookupError: no such grammar" in failure.problem
