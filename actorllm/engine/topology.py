"""The ring as a table: who says what to whom, and how much of it can be on its way at once.

Every edge has a window, and the capacity of an inbox is the sum of the windows of its edges. Nothing
else bounds a mailbox, so a send that finds one full has found a bug.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config import EngineConfig
from ..messages import (
    Abort,
    Advance,
    CacheEvents,
    Cancel,
    Command,
    CommandDone,
    Compile,
    Delta,
    Drop,
    Failed,
    Generate,
    GrammarReady,
    JobDone,
    MaskStep,
    PoolReset,
    RankDone,
    RankFailed,
    Release,
    Render,
    Rendered,
    Reserve,
    Reserved,
    ResetPool,
    ResetPrefixCache,
    RunCommand,
    RunStep,
    SampleStep,
    Seen,
    StepDone,
    StepFailed,
    Submit,
    Text,
    Tokens,
    Track,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the windows are made of."""

    requests: int
    """Requests admitted at once."""
    steps: int
    """Steps in flight."""

    @property
    def texts(self) -> int:
        """Steps whose text may be on its way to the callers' cells (the Scheduler's `step_window`)."""
        return 4 * self.steps


@dataclass(frozen=True, slots=True)
class Edge:
    """`source` says these messages to `target`; at most `window(bounds)` of them wait there."""

    source: str
    target: str
    messages: tuple[type[Any], ...]
    window: Callable[[Bounds], int]


EDGES: tuple[Edge, ...] = (
    # A seat is given back when its request has ended at the Frontend, which has then read all its mail.
    # One command is open at a time.
    Edge("caller", "frontend", (Generate, Cancel, Command), lambda b: 2 * b.requests + 1),
    # In one seat: the late Abort of a request that ended, then the Render and the Abort of the next.
    Edge("frontend", "renderer", (Render, Abort), lambda b: 3 * b.requests),
    Edge("renderer", "renderer", (JobDone,), lambda b: b.requests),
    Edge("renderer", "frontend", (Rendered, Failed), lambda b: b.requests),
    Edge("renderer", "detokenizer", (Track,), lambda b: b.requests),
    Edge("renderer", "scheduler", (Submit, Abort), lambda b: 3 * b.requests),
    # The Scheduler plans no step while `texts` steps are unseen. Besides, each request ends once, and
    # one that a stop string ended may still owe its ending when the next in its seat ends.
    Edge("scheduler", "detokenizer", (Tokens,), lambda b: b.texts + 2 * b.requests),
    Edge("detokenizer", "frontend", (Text,), lambda b: b.texts + 2 * b.requests),
    Edge("frontend", "scheduler", (Seen, Command), lambda b: b.texts + 1),
    Edge("scheduler", "frontend", (CommandDone,), lambda b: 1),
    Edge("frontend", "caller", (Rendered, Failed, Delta, CommandDone), lambda b: 0),
    # One Reserve is open at a time; before the next, the pool is reset at most once, and each request that it
    # has heard of is released once.
    Edge(
        "scheduler",
        "kvpool",
        (Reserve, Release, ResetPool, ResetPrefixCache),
        lambda b: 2 + 2 * b.requests,
    ),
    Edge("kvpool", "scheduler", (Reserved, PoolReset), lambda b: 2),
    Edge("kvpool", "caller", (CacheEvents,), lambda b: 0),
    # A request does not end before its Compile is answered: in one seat, the Drop of one, then Compile and
    # Drop of the next. Besides, the tokens of a step and the masks of the next: no step goes on without its
    # masks, and no epoch is over without those that were asked for.
    Edge("scheduler", "grammar", (Compile, Drop, Advance, MaskStep), lambda b: 3 * b.requests + 2),
    Edge("grammar", "grammar", (JobDone,), lambda b: b.requests + 1),
    # Of one seat, that a token did not fit, and the answer to the next one's Compile.
    Edge("grammar", "scheduler", (GrammarReady,), lambda b: 2 * b.requests),
    Edge("grammar", "executor", (SampleStep,), lambda b: 1),
    # Steps of a failed epoch may still wait while those of the next come: two epochs of steps. Of each epoch
    # only the first step has its masks, and that of the failed one has been heard.
    Edge("scheduler", "executor", (RunStep, RunCommand), lambda b: 2 * b.steps),
    Edge("executor", "worker", (RunStep, RunCommand, SampleStep), lambda b: 2 * b.steps + 1),
    Edge("worker", "worker", (JobDone,), lambda b: 2 * b.steps + 1),
    Edge("worker", "executor", (RankDone, RankFailed), lambda b: 2 * b.steps),
    Edge("executor", "scheduler", (StepDone, StepFailed), lambda b: 2 * b.steps),
)

ACTORS = tuple(dict.fromkeys(edge.target for edge in EDGES if edge.target != "caller"))


def bounds(config: EngineConfig) -> Bounds:
    """The bounds that follow from the configuration."""
    return Bounds(config.max_requests, config.steps_in_flight)


def capacity(actor: str, limits: Bounds) -> int:
    """The capacity of the actor's inbox: the sum of the windows of the edges that end there."""
    return sum(edge.window(limits) for edge in EDGES if edge.target == actor)


def routes(actor: str) -> dict[type[Any], tuple[str, ...]]:
    """Where each kind of message that the actor says goes."""
    found: dict[type[Any], tuple[str, ...]] = {}
    for edge in EDGES:
        if edge.source == actor:
            for kind in edge.messages:
                found[kind] = (*found.get(kind, ()), edge.target)
    return found
