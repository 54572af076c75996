"""How a simulation ends: with a bug, or with a count of what happened."""

from collections import Counter
from dataclasses import dataclass

from .scenarios import Scenario


class SimulationFailed(AssertionError):
    """A simulation has found a bug. The text has the seed, what is wrong, and the last messages."""

    def __init__(self, seed: int, scenario: Scenario, problem: str, last: str) -> None:
        super().__init__(f"seed {seed} of {scenario.name}: {problem}\n{scenario}\n{last}")
        self.seed = seed
        self.scenario = scenario
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What happened in a simulation that found nothing wrong.

    `fingerprint` is the same for the same seed, scenario and code; `covered` counts the rare paths that
    were taken (`sightings.SIGHTINGS`).
    """

    seed: int
    scenario: Scenario
    num_requests: int
    num_moves: int
    num_messages: int
    num_steps: int
    num_ticks: int
    fingerprint: str
    covered: Counter[str]
