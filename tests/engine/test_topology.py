"""The table of the ring: every message has a road, and every inbox holds what may come."""

import typing
from typing import Any

import pytest

from actorllm import EngineConfig, messages
from actorllm.engine.topology import ACTORS, EDGES, Bounds, bounds, capacity, routes
from actorllm.messages import Job

UNIONS = {
    "frontend": "Frontend",
    "renderer": "Renderer",
    "scheduler": "Scheduler",
    "kvpool": "KVPool",
    "grammar": "Grammar",
    "executor": "Executor",
    "worker": "Worker",
    "detokenizer": "Detokenizer",
}


def members(union: Any) -> set[type[Any]]:
    return set(typing.get_args(union)) or {union}


@pytest.mark.parametrize("actor", ACTORS)
def test_an_actor_has_a_road_for_all_it_says_and_for_nothing_else(actor: str) -> None:
    says = members(getattr(messages, f"From{UNIONS[actor]}")) - {Job}
    jobs = {messages.JobDone} if actor in ("renderer", "grammar", "worker") else set()
    assert set(routes(actor)) == says | jobs


@pytest.mark.parametrize("actor", ACTORS)
def test_an_actor_understands_all_that_its_edges_bring(actor: str) -> None:
    brought = {kind for edge in EDGES if edge.target == actor for kind in edge.messages}
    assert brought == members(getattr(messages, f"To{UNIONS[actor]}"))


def test_the_table_has_the_eight_actors_of_the_design() -> None:
    assert set(ACTORS) == set(UNIONS)


@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("limits", [Bounds(1, 1), Bounds(1152, 2)])
def test_a_capacity_is_the_sum_of_the_windows(actor: str, limits: Bounds) -> None:
    windows = [edge.window(limits) for edge in EDGES if edge.target == actor]
    assert capacity(actor, limits) == sum(windows)
    assert all(window > 0 for window in windows)


def test_the_bounds_follow_from_the_configuration() -> None:
    config = EngineConfig(max_requests=12, steps_in_flight=1)
    assert bounds(config) == Bounds(requests=12, steps=1)
