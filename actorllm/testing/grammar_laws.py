"""The laws of grammars: when masks are asked for and of what, and how long a grammar may take."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from ..cores import NEVER
from ..messages import (
    Advance,
    Compile,
    Drop,
    GrammarReady,
    Job,
    JobDone,
    MaskStep,
    ResetPool,
    RunCommand,
    RunStep,
    SampleStep,
    StepDone,
    StepFailed,
    Submit,
    Tokens,
    unpack,
    unpack_ids,
)
from .grammars import CROWDED, NOT_READY, WORDS


@dataclass(slots=True)
class Sent:
    """A step that was sent: whose tokens it samples, and whether its masks have been asked for."""

    number: int
    sampled: list[int]
    masked: list[int]
    is_asked: bool = False


@dataclass(slots=True)
class Work:
    """A grammar that compiles. It is late at `due`, which is known when the turn that began it is over."""

    grammar: str
    due: float = NEVER


class GrammarLaws:
    """Each method raises AssertionError when a law is broken.

    - Every Compile has one answer, and behind a good one there is at most one failure; a request that hears
      of a failure ends in the same turn. A request runs only behind a good answer.
    - Nobody waits longer for a grammar than may be, and nobody is told before that it is late; no job is
      refused while there are fewer than may be.
    - A step waits if, and only if, a request under a grammar gets a token by it. Its masks are asked for
      once, of exactly those requests, in the turn in which the last step before it is done; there is one
      SampleStep of it.
    - Each token of such a request is said to Grammar once, in order, and before its next mask is asked for,
      until the request is dropped, as each is once: with its end, or before.
    - The device gets the step, then its SampleStep, then the next step.
    """

    def __init__(self, timeout: float, max_jobs: int) -> None:
        self._timeout = timeout
        self._max_jobs = max_jobs
        self._grammars: dict[int, str] = {}
        self._answers: dict[int, str] = {}
        self._ready: set[int] = set()
        self._dropped: set[int] = set()
        self._ended: set[int] = set()
        self._failing: set[int] = set()
        self._owed: dict[int, deque[int]] = {}
        self._epoch = 0
        self._steps: dict[int, deque[Sent]] = {0: deque()}
        self._masks: deque[MaskStep] = deque()
        self._jobs: dict[int, Work] = {}
        self._done: list[Work] = []
        self._late: list[int] = []
        self._unsampled: RunStep | None = None

    def heard(self, actor: str, message: Any) -> None:
        """An actor is about to absorb a message."""
        match actor, message:
            case "scheduler", Submit(request):
                if message.limits.grammar is not None:
                    self._grammars[request] = message.limits.grammar
            case "scheduler", StepDone(_, epoch) if epoch == self._epoch:
                self._step_done(message)
            case "scheduler", StepFailed(_, epoch) if epoch == self._epoch:
                self._epoch += 1
                self._steps[self._epoch] = deque()
            case "scheduler", GrammarReady(request, fault) if request not in self._ended:
                self._ready.add(request)
                if fault is not None:
                    self._failing.add(request)
            case "grammar", Compile(request):
                self._answers[request] = "owed"
            case "grammar", JobDone(job) if job in self._jobs:
                self._done.append(self._jobs.pop(job))

    def said(self, actor: str, message: Any) -> None:
        """An actor has said a message."""
        match actor, message:
            case "scheduler", Compile(request, grammar):
                assert self._grammars[request] == grammar, f"another grammar than that of request {request}"
            case "scheduler", Drop(request):
                assert request not in self._dropped, f"request {request} is dropped twice"
                self._dropped.add(request)
            case "scheduler", Advance(requests, tokens):
                for request, token in zip(unpack_ids(requests), unpack(tokens), strict=True):
                    self._advance(request, token)
            case "scheduler", MaskStep():
                self._ask(message)
            case "scheduler", RunStep() | RunCommand():
                self._send(message)
            case "scheduler", ResetPool(epoch):
                self._epoch = epoch
                self._steps.setdefault(epoch, deque())
            case "scheduler", Tokens():
                self._end(message)
            case "grammar", _:
                self._grammar_says(message)
            case "worker", Job():
                self._hand_over(message.work)

    def turned(self) -> None:
        """The Scheduler's turn is over."""
        assert not self._failing, f"requests {sorted(self._failing)} go on without their grammars"
        for request, tokens in self._owed.items():
            fine = not tokens or request in self._dropped
            assert fine, f"tokens {list(tokens)} of request {request} are not said to Grammar"
        self._owed.clear()
        self._steps = {self._epoch: self._steps[self._epoch]}
        first = next(iter(self._steps[self._epoch]), None)
        forgotten = first is not None and first.masked and not first.is_asked
        assert not forgotten, f"nobody asks for the masks of {first}"

    def grammar_turned(self, now: float) -> None:
        """Grammar's turn at this time is over."""
        for work in self._jobs.values():
            work.due = min(work.due, now + self._timeout)
        late = {work.grammar for work in (*self._jobs.values(), *self._done) if work.due <= now}
        early = [request for request in self._late if self._grammars[request] not in late]
        assert not early, f"requests {early} are told at {now} that their grammars are late"
        self._late.clear()
        self._done.clear()
        dues = {work.grammar: work.due for work in self._jobs.values()}
        for request, answer in self._answers.items():
            if answer == "owed":
                grammar = self._grammars[request]
                assert grammar in dues, f"request {request} waits for {grammar}, which nobody compiles"
                due = dues[grammar]
                assert now < due, f"request {request} waits at {now} for a grammar that was due at {due}"

    @property
    def next_due(self) -> float:
        """When the first of those that wait for a grammar must be told that it is late."""
        waited = {self._grammars[request] for request, answer in self._answers.items() if answer == "owed"}
        return min((work.due for work in self._jobs.values() if work.grammar in waited), default=NEVER)

    def ended(self) -> None:
        """Nothing can move any more."""
        unanswered = [request for request, answer in self._answers.items() if answer == "owed"]
        assert not unanswered, f"requests {unanswered} never hear of their grammars"
        assert not self._masks, f"{self._masks[0]} is never answered"

    # -- steps ------------------------------------------------------------------------------------

    def _send(self, message: RunStep | RunCommand) -> None:
        sampled = list[int]()
        if isinstance(message, RunStep):
            rows = unpack_ids(message.rows)
            early = [row for row in rows if row in self._grammars and row not in self._ready]
            assert not early, f"requests {early} run before their grammars are ready"
            sampled = [row for row, samples in zip(rows, message.samples, strict=True) if samples]
        masked = [row for row in sampled if row in self._grammars]
        waits = isinstance(message, RunStep) and message.waits
        assert waits == bool(masked), f"step {message.step} of {masked} under grammars waits: {waits}"
        self._steps[message.epoch].append(Sent(message.step, sampled, masked))

    def _step_done(self, message: StepDone) -> None:
        step = self._steps[self._epoch].popleft()
        assert step.number == message.step, f"step {message.step} is done before step {step.number}"
        assert step.is_asked or not step.masked, f"step {step.number} is done without its masks"
        for request, token in zip(step.sampled, unpack(message.tokens), strict=True):
            if request in self._grammars and request not in self._ended:
                self._owed.setdefault(request, deque()).append(token)

    def _ask(self, message: MaskStep) -> None:
        name = f"the masks of step {message.step}"
        steps = self._steps[message.epoch]
        assert steps, f"{name} are asked for, which is not on its way"
        assert steps[0].number == message.step, f"{name} are asked for before step {steps[0].number} is done"
        assert not steps[0].is_asked, f"{name} are asked for twice"
        steps[0].is_asked = True
        asked = unpack_ids(message.requests)
        assert asked == steps[0].masked, f"{name} are asked for of {asked}, and not of {steps[0].masked}"
        for request in asked:
            fine = request in self._dropped or not self._owed.get(request)
            assert fine, f"{name} are asked for before tokens of request {request} are said"
        self._masks.append(message)

    def _advance(self, request: int, token: int) -> None:
        owed = self._owed.get(request)
        assert owed, f"token {token} of request {request} is said to Grammar, and is none or was said"
        assert owed[0] == token, f"token {token} of request {request} is said to Grammar before {owed[0]}"
        assert request not in self._dropped, f"a token of request {request}, which is dropped"
        owed.popleft()

    def _end(self, message: Tokens) -> None:
        for ending in message.endings:
            request = ending.request
            self._ended.add(request)
            self._failing.discard(request)
            kept = request in self._answers and request not in self._dropped
            assert not kept, f"request {request} has ended, and Grammar is not told"

    # -- Grammar and the device -------------------------------------------------------------------

    def _grammar_says(self, message: Any) -> None:
        match message:
            case Job(job, Compile(_, grammar)):
                assert grammar not in {work.grammar for work in self._jobs.values()}, f"{grammar} twice"
                self._jobs[job] = Work(grammar)
            case GrammarReady():
                self._answer(message)
            case SampleStep(step, epoch, requests, masks):
                assert self._masks, f"a SampleStep of step {step}, for which nobody asked"
                asked = self._masks.popleft()
                same = (asked.step, asked.epoch, asked.requests) == (step, epoch, requests)
                assert same, f"the masks of step {step}, and asked was for {asked}"
                assert len(masks) == 4 * WORDS * len(unpack_ids(requests)), "masks of another vocabulary"

    def _answer(self, message: GrammarReady) -> None:
        request, fault = message.request, message.fault
        before = self._answers[request]
        fine = before == "owed" or (before == "good" and fault is not None)
        assert fine, f"request {request} hears twice of its grammar"
        self._answers[request] = "good" if fault is None else "bad"
        if fault is not None and fault.message.startswith(NOT_READY):
            self._late.append(request)
        if fault is not None and fault.message.endswith(CROWDED):
            num_jobs = len(self._jobs) + len(self._done)
            assert num_jobs >= self._max_jobs, f"request {request} is refused with {num_jobs} jobs"

    def _hand_over(self, work: Any) -> None:
        """The device gets this to do."""
        waiting = self._unsampled
        if isinstance(work, SampleStep):
            assert waiting is not None, f"the device gets the masks of step {work.step}, which is none's turn"
            same = (work.step, work.epoch) == (waiting.step, waiting.epoch)
            assert same, f"step {waiting.step} of epoch {waiting.epoch} gets the masks of step {work.step}"
            self._unsampled = None
        else:
            fine = waiting is None or work.epoch > waiting.epoch
            assert fine, f"the device gets step {work.step} before the last one has sampled"
            self._unsampled = work if isinstance(work, RunStep) and work.waits else None
