"""`fair` in the simulator: a tenant floods the queue with 200 requests, and the one of another runs soon.

The same bound as on the engine, under the schedules of some seeds.
"""

from dataclasses import replace
from typing import Any

import pytest

from actorllm.cores import Core
from actorllm.messages import RunStep, Submit, Terms
from actorllm.testing.scenarios import Scenario, draw
from actorllm.testing.simulate import simulate

from ..engine.steps import First, Promise, Steps, first

pytestmark = pytest.mark.slow

FLOOD = 200
SEEDS = range(8)
LARGE, SMALL = 32, 12
"""Tokens of a step, at least: those that decode leave most of it to prompts, or next to nothing."""


class Flooded:
    """A Scheduler to which 200 requests of one tenant come at once, and one of another some steps later."""

    def __init__(self, core: Core[Any, Any], num_before: int) -> None:
        self.steps = Steps()
        self._core = core
        self._num_before = num_before
        self._held: list[Submit] = []
        self._tenants = ["flood"] * FLOOD + ["one"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    @property
    def idle(self) -> bool:
        return self._core.idle and not self._held

    def feed(self, message: Any) -> None:
        if not isinstance(message, Submit):
            self._core.feed(message)
            return
        self._held.append(message)
        if len(self._held) == len(self._tenants):
            for _ in range(FLOOD):
                self._let_in()

    def poll(self, now: float) -> tuple[Any, ...]:
        if len(self._tenants) == 1 and len(self.steps.steps) >= self._num_before:
            self._let_in()
        said: tuple[Any, ...] = self._core.poll(now)
        for message in said:
            if isinstance(message, RunStep):
                self.steps.feed(message)
        return said

    def _let_in(self) -> None:
        message = replace(self._held.pop(0), terms=Terms(tenant=self._tenants.pop(0)))
        self.steps.feed(message)
        self._core.feed(message)


def scenario(seed: int, policy: str, budget: int) -> Scenario:
    """A calm one with 201 callers, whose prompts fit the free blocks and are not cut but by the budget."""
    drawn = draw("calm", seed)
    seats = 8 if budget == SMALL else max(2, drawn.seats)
    return replace(
        drawn,
        num_requests=FLOOD + 1,
        requests=FLOOD + 1,
        seats=seats,
        policy=policy,
        budget=SMALL if budget == SMALL else max(drawn.budget, LARGE),
        chunk=0,
        longest_answer=4,
        num_blocks=(seats + 1) * -(-drawn.max_model_len // drawn.block_size),
        watermark=0.0,
        bad=0.0,
        grammar=0.0,
    )


def flooded(seed: int, policy: str, budget: int = LARGE) -> tuple[First, Promise]:
    """When the one is served, and what it is promised. The simulator judges every answer."""
    chosen, made = scenario(seed, policy, budget), []

    def change(core: Core[Any, Any]) -> Flooded:
        made.append(Flooded(core, seed % 5 * 7))
        return made[0]

    report = simulate(seed, chosen, changes={"scheduler": change})
    assert report.num_requests == FLOOD + 1
    promise = Promise(chosen.budget, chosen.seats, chosen.steps_in_flight)
    return first(made[0].steps.events, "one"), promise


@pytest.mark.parametrize("budget", [LARGE, SMALL])
@pytest.mark.parametrize("seed", SEEDS)
def test_its_first_token_comes_within_the_bound(seed: int, budget: int) -> None:
    when, promise = flooded(seed, "fair", budget)
    assert when.runs <= promise.runs(when)
    assert when.speaks <= promise.speaks(when)


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_first_come_first_served_exceeds_the_bound(seed: int) -> None:
    when, promise = flooded(seed, "fcfs")
    assert when.runs > 2 * promise.runs(when)
