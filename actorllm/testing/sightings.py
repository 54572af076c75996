"""Rare paths that a simulation should have taken: counted from what is said, and from statistics."""

from collections import Counter
from typing import Any

from ..messages import (
    Abort,
    Command,
    CommandDone,
    Compile,
    Delta,
    Failed,
    Fault,
    GrammarReady,
    Job,
    JobDone,
    RankDone,
    RankFailed,
    Render,
    Reserve,
    Reserved,
    ResetPool,
    ResetPrefixCache,
    RunCommand,
    RunStep,
    Seen,
    StepDone,
    StepFailed,
    Submit,
    Text,
    Tokens,
    unpack,
    unpack_ids,
)
from .grammar_sightings import GRAMMAR_SIGHTINGS, GrammarSightings
from .grammars import REFUSED

FAULTS = (
    "cell merged",
    "command failed",
    "ended with timeout",
    "never read",
    "no seat",
    "overloaded",
    "paused",
    "slept",
    "step failed",
    "step raised after its effect",
)
"""What goes wrong on purpose, here and in `schedules`."""

SIGHTINGS = tuple(
    sorted(
        (
            *FAULTS,
            *GRAMMAR_SIGHTINGS,
            "abort after the end",
            "abort while compiling",
            "abort while offered",
            "abort while preempted",
            "abort while rendering",
            "abort while running",
            "abort while waiting",
            "blocks evicted",
            "chunked prefill",
            "empty step",
            "ended with abort",
            "ended with error",
            "ended with length",
            "ended with repetition",
            "ended with stop",
            "ended with stop string",
            "ended with stop token",
            "grant of an ended request",
            "late token dropped",
            "mixed batch",
            "old reply at the executor",
            "old reply at the scheduler",
            "old reserved",
            "old step at the executor",
            "part of the mail",
            "preempted",
            "prefix cache reset",
            "prefix hit",
            "prefix hit behind a window",
            "prompt refused",
            "probation",
            "resumed",
            "sent back",
            "shut down",
            "step of a failed epoch refused",
            "stop string across steps",
            "token after a stop string",
            "token of a preempted request",
            "tombstone",
            "twin waited",
            "two steps in flight",
            "window full",
        )
    )
)
"""Every name that is counted. Over some hundred seeds of all families none should stay at zero."""


class Sightings:
    """Listens to the ring; `covered` has the counts."""

    def __init__(self, window: int, max_steps: int) -> None:
        self.covered: Counter[str] = Counter()
        self._grammars = GrammarSightings(self.covered)
        self._window = window
        self._max_steps = max_steps
        self._phase: dict[int, str] = {}
        self._joined: set[int] = set()
        self._preempted: set[int] = set()
        self._offered: list[int] = []
        self._num_running = 0
        self._unseen: list[int] = []
        self._in_flight = 0
        self._epoch = 0
        self._failed_epoch = -1

    def see(self, name: str, count: int = 1) -> None:
        """Count."""
        self.covered[name] += count

    # -- what actors hear -------------------------------------------------------------------------

    def heard(self, actor: str, message: Any) -> None:
        """An actor is about to absorb a message."""
        self._grammars.heard(actor, message)
        match actor, message:
            case "renderer", Render(request):
                self._phase[request] = "submitted"
            case "renderer", JobDone(request):
                self._phase[request] = "submitted"
            case "renderer", Abort(request) if self._phase.get(request) == "rendering":
                self.see("abort while rendering")
            case "scheduler", _:
                self._scheduler_hears(message)
            case "worker", JobDone(_, None, Fault(_, text)):
                self.covered["step of a failed epoch refused"] += text.startswith("an earlier step")
            case "executor", RankDone() | RankFailed():
                self.covered["old reply at the executor"] += message.epoch <= self._failed_epoch
                if isinstance(message, RankFailed):
                    self._failed_epoch = max(self._failed_epoch, message.epoch)
            case "executor", RunStep():
                self.covered["old step at the executor"] += message.epoch <= self._failed_epoch

    def _scheduler_hears(self, message: Any) -> None:
        match message:
            case Submit(request):
                self._phase[request] = "waiting"
            case Command(_, action):
                self.covered["paused"] += action == "pause" and "running" in self._phase.values()
            case Abort(request):
                phase = self._phase[request]
                self.see("abort after the end" if phase == "ended" else f"abort while {phase}")
                self.covered["abort while preempted"] += request in self._preempted
            case GrammarReady(request):
                self._phase[request] = "waiting"
            case Seen(step):
                self._unseen = [unseen for unseen in self._unseen if unseen > step]
            case Reserved():
                self._hear_reserved(message)
            case StepDone() | StepFailed():
                self.covered["old reply at the scheduler"] += message.epoch < self._epoch
                if message.epoch == self._epoch:
                    self._in_flight -= 1

    def _hear_reserved(self, message: Reserved) -> None:
        if message.epoch < self._epoch:
            self.see("old reserved")
            return
        granted = unpack_ids(message.requests)
        self.covered["prefix hit"] += any(unpack(message.num_cached))
        self.covered["prefix hit behind a window"] += -1 in unpack(message.blocks)
        self.covered["preempted"] += bool(message.preempted)
        self.covered["grant of an ended request"] += any(
            self._phase[request] == "ended" for request in granted
        )
        waiting = self._offered[self._num_running :]
        let_in = [request in granted for request in waiting]
        refused = unpack_ids(message.refused)
        self.covered["twin waited"] += any(
            not let_in[at] and request not in refused and any(let_in[at:])
            for at, request in enumerate(waiting)
        )
        for request in waiting:
            if self._phase[request] == "offered":
                self._phase[request] = "waiting"
        for request in granted:
            if self._phase[request] != "ended":
                self._phase[request] = "running"
        for request in unpack_ids(message.preempted):
            if self._phase[request] != "ended":
                self._phase[request] = "waiting"
                self._preempted.add(request)

    # -- what actors say --------------------------------------------------------------------------

    def said(self, actor: str, message: Any) -> None:
        """An actor has said a message."""
        match message:
            case Job(request, Render()):
                self._phase[request] = "rendering"
            case Compile(request):
                self._phase[request] = "compiling"
            case Reserve():
                self._say_reserve(message)
            case RunStep() if actor == "scheduler":
                self._say_step(message)
            case Tokens():
                self._say_tokens(message)
            case ResetPool(epoch):
                self._epoch = epoch
                self._in_flight = 0
            case RunCommand(_, _, action) if actor == "scheduler":
                self._in_flight += 1
                self.covered["slept"] += action == "sleep"
            case ResetPrefixCache():
                self.see("prefix cache reset")
            case CommandDone(_, fault) if actor == "scheduler":
                self.covered["command failed"] += fault is not None
            case StepFailed():
                self.see("step failed")
            case Text(_, deltas):
                for delta in deltas:
                    self._say_delta(delta)
            case Failed(_, reason):
                self.covered["prompt refused"] += reason == "error"
        self._grammars.said(actor, message, self._in_flight)

    def _say_reserve(self, message: Reserve) -> None:
        self._offered = unpack_ids(message.requests)
        self._num_running = message.num_running
        for request in self._offered[message.num_running :]:
            self._phase[request] = "offered"

    def _say_step(self, message: RunStep) -> None:
        self._in_flight += 1
        counts = unpack(message.num_tokens)
        for request in unpack_ids(message.finished):
            if self._phase[request] != "ended" and request not in self._preempted:
                self.see("sent back")
                self._preempted.add(request)
        new = [row.request for row in message.new]
        self.covered["resumed"] += any(request in self._joined for request in new)
        self._joined.update(new)
        self._preempted.difference_update(new)
        self.covered["two steps in flight"] += self._in_flight == 2
        self.covered["chunked prefill"] += not all(message.samples)
        self.covered["mixed batch"] += 1 in counts and any(count > 1 for count in counts)
        self.covered["empty step"] += not counts

    def _say_tokens(self, message: Tokens) -> None:
        requests = unpack_ids(message.requests)
        self.covered["token of a preempted request"] += any(
            request in self._preempted for request in requests
        )
        if requests or message.prompt_logprobs:
            self._unseen.append(message.step)
        for ending in message.endings:
            self._phase[ending.request] = "ended"
            self._preempted.discard(ending.request)
            self.see(f"ended with {ending.finish_reason}")
            self.covered["ended with stop token"] += ending.stop_token is not None
            if ending.fault is not None:
                self.covered["grammar refused"] += ending.fault.message == REFUSED
                self.covered["overloaded"] += ending.fault.kind == "Overloaded"

    def _say_delta(self, delta: Delta) -> None:
        if isinstance(delta.stop_reason, str):
            self.see("ended with stop string")
            across = len(delta.tokens) // 4 < len(delta.stop_reason)
            self.covered["stop string across steps"] += across

    # -- what cores are ---------------------------------------------------------------------------

    def turned(self, num_suspects: int) -> None:
        """The Scheduler's turn is over; so many requests must run alone."""
        full = len(self._unseen) + self._in_flight >= self._window
        self.covered["window full"] += full and self._in_flight < self._max_steps
        self.covered["probation"] += num_suspects > 0

    def ended(self, cores: dict[str, Any]) -> None:
        """The simulation is over: the counters of the cores."""
        self._grammars.ended(cores)
        scheduler, pool = cores["scheduler"].statistics(), cores["kvpool"].statistics()
        self.covered["late token dropped"] += scheduler.num_late_tokens
        self.covered["blocks evicted"] += pool.evictions
        self.covered["token after a stop string"] += cores["detokenizer"].statistics().dropped
