"""Frontend: one life-cycle for each request, and the road of its answer to the caller's cell."""

from dataclasses import dataclass, replace
from typing import assert_never

from ..messages import (
    Abort,
    Cancel,
    Command,
    CommandDone,
    Delta,
    Failed,
    FromFrontend,
    Generate,
    Question,
    Render,
    Rendered,
    Seen,
    Text,
    ToFrontend,
)
from . import NEVER


@dataclass(frozen=True, slots=True)
class FrontendStatistics:
    """Requests now; endings since the start, by finish reason."""

    num_open: int
    num_cancelled: int
    finished: tuple[tuple[str, int], ...]


class Frontend:
    """Passes each question on, its answer back, and a Cancel down the path of its request.

    What ended at a stop string still runs: it is aborted down the same path, ahead of the next question.
    """

    def __init__(self, seed: int) -> None:
        """`seed` (uint64): the seeds of requests that bring none derive from it and their id."""
        self._seed = seed
        self._open: dict[int, bool] = {}
        self._out: list[FromFrontend] = []
        self._seen = self._told_seen = 0
        self._finished: dict[str, int] = {}

    def feed(self, message: ToFrontend) -> None:
        """Absorb a message."""
        match message:
            case Generate(request, question):
                assert request not in self._open, f"request {request} is open already"
                self._open[request] = False
                self._out.append(Render(request, self._seeded(request, question)))
            case Cancel(request):
                if self._open.get(request) is False:
                    self._open[request] = True
                    self._out.append(Abort(request))
            case Command() | CommandDone():
                self._out.append(message)
            case Rendered(request):
                assert request in self._open, f"request {request} is rendered but not open"
                self._out.append(message)
            case Failed(request, reason):
                self._finish(request, reason)
                self._out.append(message)
            case Text(step, deltas):
                self._seen = max(self._seen, step)
                for delta in deltas:
                    self._pass_on(delta)
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromFrontend, ...]:
        """What goes on: one Seen a turn, when a step's text has come."""
        out, self._out = self._out, []
        if self._seen > self._told_seen:
            self._told_seen = self._seen
            out.append(Seen(self._seen))
        return tuple(out)

    @property
    def deadline(self) -> float:
        """Mail alone wakes the Frontend."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether no request is open."""
        return not self._open and not self._out and self._seen == self._told_seen

    def check(self) -> None:
        """Raise AssertionError when more was confirmed than came."""
        assert self._told_seen <= self._seen

    def statistics(self) -> FrontendStatistics:
        """Gauges and counters of this moment."""
        return FrontendStatistics(
            len(self._open), sum(self._open.values()), tuple(sorted(self._finished.items()))
        )

    def _pass_on(self, delta: Delta) -> None:
        request = delta.request
        assert request in self._open, f"text for request {request}, which is not open"
        self._out.append(delta)
        if delta.finish_reason is not None:
            if isinstance(delta.stop_reason, str) and not self._open[request]:
                self._out.append(Abort(request))
            self._finish(request, delta.finish_reason)

    def _finish(self, request: int, reason: str) -> None:
        assert request in self._open, f"request {request} ends twice"
        del self._open[request]
        self._finished[reason] = self._finished.get(reason, 0) + 1

    def _seeded(self, request: int, question: Question) -> Question:
        sampling = question.sampling
        if sampling.seed is None:
            seed = mix(self._seed ^ mix(request)) >> 1
            question = replace(question, sampling=replace(sampling, seed=seed))
        return question


def mix(number: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): scatters a uint64 over all uint64."""
    mask = 2**64 - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)
