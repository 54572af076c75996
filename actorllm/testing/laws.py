"""The protocol's laws, which no core sees alone: held against all that the actors hear and say."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..cores import NEVER
from ..cores.prefix import Groups
from ..messages import (
    Abort,
    CacheEvents,
    Cancel,
    Command,
    CommandDone,
    Compile,
    Ending,
    GrammarReady,
    ResetPool,
    RunCommand,
    RunStep,
    Seen,
    StepDone,
    StepFailed,
    Submit,
    Terms,
    Tokens,
    Track,
    unpack,
    unpack_ids,
)
from .grammar_laws import GrammarLaws
from .grammars import CROWDED
from .scenarios import Scenario
from .tables import Mirror, Tables


@dataclass(slots=True)
class Due:
    """Until when a request must have come how far."""

    arrived: float
    terms: Terms
    has_run: bool = False
    has_spoken: bool = False

    @property
    def first(self) -> float:
        """The first time that it has not met yet."""
        times = [self.terms.timeout]
        if not self.has_run:
            times.append(self.terms.queue_timeout)
        if not self.has_spoken:
            times.append(self.terms.ttft_timeout)
        return min((self.arrived + seconds for seconds in times if seconds is not None), default=NEVER)


class Laws:
    """Each method raises AssertionError when a law is broken.

    - A Track is heard before the first Tokens of its request, and a Submit before its Abort.
    - Every Submit gets one Ending; nothing is said of a request after it, nor after the turn that heard
      its Abort.
    - A request with a timeout ends in the first turn after it has passed, and not before.
    - No request is refused for a full queue while a seat is free.
    - A request fails by a step that raised only if no other one was in it, and not by the first that it was
      in since its last token; while there is a suspect, a step has one row.
    - A step keeps to the budget, the chunk and the seats, and the unseen steps to their window.
    - After a pause and in a sleep there is no step; when they begin, none is on its way.
    - A command whose step raised has failed.
    - The laws of blocks (`Tables`), and subscribers hear of each block that can be found (`Mirror`).
    - The laws of grammars (`GrammarLaws`).

    `cancelled` has the requests whose Cancel the Frontend has heard.
    """

    def __init__(self, scenario: Scenario, window: int) -> None:
        self.cancelled: set[int] = set()
        self.grammars = GrammarLaws(scenario.config.structured_outputs_timeout, scenario.requests)
        self._scenario = scenario
        self._window = window
        self._tracked: set[int] = set()
        self._submitted: set[int] = set()
        self._fresh: list[Submit] = []
        self._compiling: set[int] = set()
        self._due: dict[int, Due] = {}
        self._ended: set[int] = set()
        self._endings: list[Ending] = []
        self._aborting: set[int] = set()
        self._aborted: set[int] = set()
        self._unseen: list[int] = []
        self._in_flight = self._epoch = 0
        self._most_rows = 0
        self._rows: dict[int, list[int]] = {}
        self._raised: list[int] = []
        self._has_raised = False
        self._crashes: Counter[int] = Counter()
        self._tables = Tables(Groups(scenario.windows, scenario.block_size))
        self._mirror = Mirror(scenario.block_size)
        self._command = Command(0, "")
        self._command_step = 0
        self._command_raised = False
        self._stopped: set[str] = set()

    def heard(self, actor: str, message: Any) -> None:
        """An actor is about to absorb a message."""
        self.grammars.heard(actor, message)
        match actor, message:
            case "frontend", Cancel(request):
                self.cancelled.add(request)
            case "detokenizer", Track(request):
                self._tracked.add(request)
            case "detokenizer", Tokens():
                for request in unpack_ids(message.requests):
                    assert request in self._tracked, f"tokens of request {request}, which is not tracked"
            case "scheduler", Submit(request):
                assert request not in self._aborted, f"the Abort of request {request} overtook its Submit"
                assert request not in self._submitted, f"request {request} is submitted twice"
                self._submitted.add(request)
                self._fresh.append(message)
                self._tables.submitted(message)
            case "scheduler", Command(_, action):
                self._command, self._command_raised = message, False
                if action == "resume":
                    self._stopped.discard("pause")
            case "scheduler", Abort(request):
                self._aborting.add(request)
            case "scheduler", GrammarReady(request):
                self._compiling.discard(request)
            case "scheduler", Seen(step):
                self._unseen = [unseen for unseen in self._unseen if unseen > step]
            case "scheduler", StepDone(step, epoch) | StepFailed(step, epoch) if epoch == self._epoch:
                self._in_flight -= 1
                if isinstance(message, StepFailed):
                    self._raised, self._has_raised = self._rows.get(step, []), True
                    self._command_raised |= step == self._command_step

    def said(self, actor: str, message: Any) -> None:
        """An actor has said a message."""
        self.grammars.said(actor, message)
        match message:
            case CacheEvents():
                self._mirror.hear(message)
            case CommandDone() if actor == "scheduler":
                self._say_done(message)
            case Tokens():
                self._say_tokens(message)
            case RunStep() if actor == "scheduler":
                self._say_step(message)
            case RunCommand(step, _, action) if actor == "scheduler":
                self._in_flight += 1
                self._command_step = step
                self._stopped -= {"sleep"} if action == "wake_up" else set()
            case Compile(request):
                self._compiling.add(request)
            case ResetPool(epoch):
                self._epoch, self._in_flight, self._most_rows = epoch, 0, 0
                self._tables.rows.clear()

    @property
    def next_due(self) -> float:
        """When the first of the requests with timeouts must end."""
        open_ = (due.first for request, due in self._due.items() if request not in self._compiling)
        return min(open_, default=NEVER)

    def turned(self, now: float, num_suspects: int) -> None:
        """The Scheduler's turn at this time is over; so many requests must run alone."""
        self.grammars.turned()
        alone = num_suspects == 0 or self._most_rows < 2
        assert alone, f"{self._most_rows} rows in a step that should be a suspect's alone"
        self._most_rows = 0
        self._aborted |= self._aborting
        self._aborting.clear()
        if self._has_raised:
            self._crashes.update(self._raised)
            self._has_raised = False
        for submit in self._fresh:
            due = Due(now, submit.terms)
            if due.first < NEVER:
                self._due[submit.request] = due
        self._fresh.clear()
        for ending in self._endings:
            self._judge(ending, now)
            self._due.pop(ending.request, None)
        self._endings.clear()
        for request, due in self._due.items():
            late = due.first <= now and request not in self._compiling
            assert not late, f"request {request} was due at {due.first}, and it is {now}"

    def _judge(self, ending: Ending, now: float) -> None:
        """Whether the request may end like this."""
        request, fault = ending.request, ending.fault
        if ending.finish_reason == "timeout":
            assert request in self._due, f"request {request} has timed out, but has no timeout"
            first = self._due[request].first
            assert first <= now, f"request {request} has timed out at {now}, but has time until {first}"
        elif fault is not None and fault.kind == "Overloaded" and not fault.message.endswith(CROWDED):
            late = sum(ending.finish_reason == "timeout" for ending in self._endings)
            inside = len(self._submitted) - len(self._ended) + late
            assert inside >= self._scenario.seats, f"request {request} was refused while a seat is free"
        elif fault is not None and fault.message.endswith("was made to raise"):
            others = [other for other in self._raised if other != request]
            assert request in self._raised, f"request {request} failed by a step that it was not in"
            assert not others, f"request {request} failed by a step that {others} were in too"
            assert self._crashes[request] > 1, (
                f"request {request} failed by the first step that raised with it since its last token"
            )

    def _say_done(self, message: CommandDone) -> None:
        action = self._command.action
        assert message.id == self._command.id, f"the end of command {message.id}; {self._command.id} is open"
        assert self._in_flight == 0, f"{action} is done while a step is on its way"
        assert message.fault or not self._command_raised, f"{action}, whose step raised, is done all the same"
        if action == "sleep" or (action == "pause" and message.fault is None):
            self._stopped.add(action)
        elif action == "wake_up" and message.fault is not None:
            self._stopped.add("sleep")
        elif action == "reset_prefix_cache":
            self._tables.reset()

    def pool_turned(self, num_cached_blocks: int) -> None:
        """The pool's turn is over; so many of its blocks can be found."""
        told = len(self._mirror.contents)
        assert told == num_cached_blocks, f"{num_cached_blocks} blocks can be found, subscribers know {told}"

    def _say_tokens(self, message: Tokens) -> None:
        requests = unpack_ids(message.requests)
        for request in requests:
            assert request not in self._ended, f"a token of request {request} after its ending"
            assert request not in self._aborted, f"a token of request {request} after its Abort"
            self._crashes[request] = 0
            if request in self._due:
                self._due[request].has_spoken = True
        for ending in message.endings:
            assert ending.request in self._submitted, f"an ending of request {ending.request} before it came"
            assert ending.request not in self._ended, f"request {ending.request} ends twice"
            self._ended.add(ending.request)
        self._endings += message.endings
        if requests or message.prompt_logprobs:
            self._unseen.append(message.step)

    def _say_step(self, message: RunStep) -> None:
        self._in_flight += 1
        rows, counts = unpack_ids(message.rows), unpack(message.num_tokens)
        self._rows[message.step] = rows
        self._most_rows = max(self._most_rows, len(rows))
        scenario = self._scenario
        assert not rows or len(self._unseen) + self._in_flight <= self._window, "a step beyond the window"
        assert self._in_flight <= scenario.steps_in_flight, "too many steps in flight"
        assert sum(counts) <= scenario.budget, f"{sum(counts)} tokens; the budget is {scenario.budget}"
        assert len(counts) <= scenario.seats, f"{len(counts)} rows; there are {scenario.seats} seats"
        assert max(counts, default=0) <= (scenario.chunk or scenario.budget), "a chunk is too long"
        assert not (rows and self._stopped), f"a step in spite of {sorted(self._stopped)}"
        for row in message.new:
            if row.request in self._due:
                self._due[row.request].has_run = True
        self._tables.step(message)
