"""Rare paths of grammars and log-probabilities, counted from what is said."""

from collections import Counter
from typing import Any

from ..messages import (
    Compile,
    Drop,
    GrammarReady,
    Job,
    JobDone,
    MaskStep,
    RunStep,
    SampleStep,
    StepDone,
    StepFailed,
    Submit,
    Tokens,
    unpack_ids,
)
from .grammars import CROWDED, NOT_READY

GRAMMAR_SIGHTINGS = (
    "dropped request in a mask",
    "grammar cached",
    "grammar compiled late",
    "grammar does not fit",
    "grammar evicted",
    "grammar refused",
    "grammar shared",
    "log-probabilities",
    "prompt log-probabilities",
    "prompt log-probabilities in parts",
    "prompt log-probabilities resumed",
    "request under a grammar preempted",
    "request under a grammar sent back by a crash",
    "SampleStep before its RunStep",
    "step waits behind another",
    "too many grammars compile",
)
"""Every name that is counted here."""


class GrammarSightings:
    """Listens to the ring, and counts in `covered`."""

    def __init__(self, covered: Counter[str]) -> None:
        self._covered = covered
        self._grammars: dict[int, str] = {}
        self._jobs: dict[int, str] = {}
        self._num_kept = 0
        self._ready: set[int] = set()
        self._dropped: set[int] = set()
        self._epochs: dict[int, int] = {}
        self._num_crashes = 0
        self._last_step = 0

    def heard(self, actor: str, message: Any) -> None:
        """An actor is about to absorb a message."""
        match actor, message:
            case "scheduler", Submit(request):
                if message.limits.grammar is not None:
                    self._grammars[request] = message.limits.grammar
            case "scheduler", StepDone():
                self._covered["log-probabilities"] += message.logprobs is not None
            case "scheduler", StepFailed():
                self._num_crashes += 1
            case "grammar", Compile(_, grammar):
                self._covered["grammar shared"] += grammar in self._jobs.values()
            case "grammar", JobDone(job, _, fault) if job in self._jobs:
                del self._jobs[job]
                self._num_kept += fault is None
            case "grammar", Drop(request):
                self._dropped.add(request)
            case "grammar", MaskStep(_, _, requests):
                self._covered["dropped request in a mask"] += not self._dropped.isdisjoint(
                    unpack_ids(requests)
                )
            case "executor", RunStep(step):
                self._last_step = step
            case "executor", SampleStep(step):
                self._covered["SampleStep before its RunStep"] += step > self._last_step

    def said(self, actor: str, message: Any, num_in_flight: int) -> None:
        """An actor has said a message; so many steps are on their way."""
        match actor, message:
            case "scheduler", RunStep():
                self._covered["step waits behind another"] += message.waits and num_in_flight > 1
                self._look_at_new(message)
            case "scheduler", Tokens():
                for part in message.prompt_logprobs:
                    self._covered["prompt log-probabilities"] += part.first == 1
                    self._covered["prompt log-probabilities in parts"] += part.first > 1
            case "grammar", Job(job, Compile(_, grammar)):
                self._jobs[job] = grammar
            case "grammar", GrammarReady():
                self._say_ready(message)

    def _look_at_new(self, message: RunStep) -> None:
        for row in message.new:
            self._covered["prompt log-probabilities resumed"] += 0 < row.num_told < row.num_prompt
            if row.request in self._grammars:
                crashes = self._epochs.get(row.request)
                name = "preempted" if crashes == self._num_crashes else "sent back by a crash"
                self._covered[f"request under a grammar {name}"] += crashes is not None
                self._epochs[row.request] = self._num_crashes

    def _say_ready(self, message: GrammarReady) -> None:
        text = message.fault.message if message.fault is not None else ""
        self._covered["grammar compiled late"] += text.startswith(NOT_READY)
        self._covered["too many grammars compile"] += text.endswith(CROWDED)
        self._covered["grammar does not fit"] += message.request in self._ready
        self._ready.add(message.request)

    def ended(self, cores: dict[str, Any]) -> None:
        """The simulation is over: the counters of Grammar."""
        grammar = cores["grammar"].statistics()
        self._covered["grammar cached"] += grammar.num_hits
        self._covered["grammar evicted"] += self._num_kept - grammar.num_compiled
