"""A tap's core that writes down what the Scheduler planned, in the order in which it happened."""

from dataclasses import dataclass

from actorllm import Parts, Tap
from actorllm.actors.worker import OpenRunner, open_runner
from actorllm.messages import RunStep, Submit, unpack, unpack_ids


@dataclass(frozen=True, slots=True)
class Planned:
    """A step: tokens of each row by its request's id, and the requests that sample."""

    rows: dict[int, int]
    samples: frozenset[int]

    @property
    def size(self) -> int:
        """Tokens of the step."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class Came:
    """A request reached the Scheduler, with so many tokens."""

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
                self.events.append(Planned(rows, frozenset(each for each, yes in samples if yes)))

    def poll(self, now: float) -> tuple[()]:
        return ()

    def check(self) -> None:
        assert all(min(step.rows.values()) > 0 for step in self.steps)

    def statistics(self) -> StepsStatistics:
        return StepsStatistics(len(self.events))


def first_steps(events: list[Planned | Came], tenant: str) -> tuple[int, int, int]:
    """Of a tenant's only request: how many steps after its Submit it first runs, after how many it first
    samples, and how many tokens of prompts that had begun were still to be computed at its Submit.
    """
    request = next(each for each in events if isinstance(each, Came) and each.tenant == tenant)
    at = events.index(request)
    prompts = {each.request: each.num_prompt for each in events if isinstance(each, Came)}
    computed: dict[int, int] = {}
    for event in events[:at]:
        for id_, count in event.rows.items() if isinstance(event, Planned) else ():
            computed[id_] = computed.get(id_, 0) + count
    remaining = sum(max(0, prompts[id_] - count) for id_, count in computed.items())
    after = [event for event in events[at:] if isinstance(event, Planned)]
    runs = next(number for number, step in enumerate(after, 1) if request.request in step.rows)
    samples = next(number for number, step in enumerate(after, 1) if request.request in step.samples)
    return runs, samples, remaining
