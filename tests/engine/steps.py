"""What the Scheduler planned, in the order in which it happened; a model that waits until all have come."""

import threading
from dataclasses import dataclass, field
from typing import Any

from actorllm import EngineConfig, Parts, Tap
from actorllm.actors.worker import OpenRunner, Runner, open_runner
from actorllm.checkpoint import Checkpoint
from actorllm.messages import RunStep, Sampled, Submit, unpack, unpack_ids


@dataclass(frozen=True, slots=True)
class Planned:
    """A step: tokens of each row by its request's id; the requests that sample; of those that are new to
    the workers, the tokens that are not computed.
    """

    rows: dict[int, int]
    samples: frozenset[int]
    joined: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Tokens of the step."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class Came:
    """A request reached the Scheduler, with a prompt of so many tokens."""

    request: int
    num_prompt: int
    tenant: str


@dataclass(frozen=True, slots=True)
class StepsStatistics:
    """How much was heard."""

    num_events: int


class Steps:
    """Keeps every Submit and every step that is not empty; a step is heard twice and kept once."""

    deadline = float("inf")
    idle = True

    def __init__(self) -> None:
        self.events: list[Planned | Came] = []
        self._last = 0

    def parts(self, open_runner: OpenRunner = open_runner) -> Parts:
        """Parts of an engine that it listens to."""
        return Parts(open_runner=open_runner, taps=(Tap(self, (Submit, RunStep), capacity=10_000),))

    @property
    def steps(self) -> list[Planned]:
        """The steps alone."""
        return [event for event in self.events if isinstance(event, Planned)]

    @property
    def longest_chunk(self) -> int:
        """The most tokens that a request had in a step."""
        return max(max(step.rows.values()) for step in self.steps)

    def feed(self, message: Submit | RunStep) -> None:
        if isinstance(message, Submit):
            self.events.append(Came(message.request, len(message.prompt) // 4, message.terms.tenant))
        elif message.step > self._last:
            self._last = message.step
            requests = unpack_ids(message.rows)
            if requests:
                rows = dict(zip(requests, unpack(message.num_tokens), strict=True))
                samples = zip(requests, message.samples, strict=True)
                joined = {row.request: len(row.tokens) // 4 - row.num_computed for row in message.new}
                self.events.append(Planned(rows, frozenset(each for each, yes in samples if yes), joined))

    def poll(self, now: float) -> tuple[()]:
        return ()

    def check(self) -> None:
        assert all(min(step.rows.values()) > 0 for step in self.steps)

    def statistics(self) -> StepsStatistics:
        return StepsStatistics(len(self.events))


@dataclass(frozen=True, slots=True)
class First:
    """Of a tenant's only request, counted from when it came: the number of the step in which it first runs,
    and of the one that brings its first token. Then, `num_prompt` are its own tokens, and `remaining` those
    that the prompts which had begun still lacked.
    """

    runs: int
    speaks: int
    num_prompt: int
    remaining: int


def first(events: list[Planned | Came], tenant: str) -> First:
    """Raises StopIteration when it has no token."""
    came = next(each for each in events if isinstance(each, Came) and each.tenant == tenant)
    at = events.index(came)
    left: dict[int, int] = {}
    for step in events[:at]:
        if isinstance(step, Planned):
            left |= step.joined
            for request, count in step.rows.items():
                left[request] = max(0, left[request] - count)
    after = [step for step in events[at:] if isinstance(step, Planned)]
    runs = next(number for number, step in enumerate(after, 1) if came.request in step.rows)
    speaks = next(number for number, step in enumerate(after, 1) if came.request in step.samples)
    return First(runs, speaks, came.num_prompt, sum(left.values()))


@dataclass(frozen=True, slots=True)
class Promise:
    """What `Fair` promises a tenant's first request, as its docstring says; for its first token, its own
    prompt is to be computed, too. Steps of so many tokens and rows.
    """

    budget: int
    seats: int
    steps_in_flight: int

    def runs(self, first: First) -> int:
        """The most steps after which it runs."""
        return self._steps(first.remaining) + 2 * self.steps_in_flight + 1

    def speaks(self, first: First) -> int:
        """The most steps after which it has its first token."""
        return self.runs(first) + self._steps(first.num_prompt)

    def _steps(self, num_tokens: int) -> int:
        return -(-num_tokens // (self.budget - self.seats))


class Gated:
    """A runner whose steps wait until the gate opens."""

    def __init__(self, runner: Runner, gate: threading.Event) -> None:
        self._runner = runner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, step: RunStep) -> Sampled | None:
        assert self._gate.wait(30), "the gate stays closed"
        return self._runner.execute(step)


def gated(gate: threading.Event) -> OpenRunner:
    """Opens the model's own runner behind a gate."""

    def open_gated(checkpoint: Checkpoint, config: EngineConfig) -> Any:
        return Gated(open_runner(checkpoint, config), gate)

    return open_gated
