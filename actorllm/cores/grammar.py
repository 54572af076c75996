"""Grammar: compiled grammars, a matcher for each request that has one, and the masks of the steps."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from ..messages import (
    Advance,
    Compile,
    Compiled,
    Drop,
    Fault,
    Fill,
    Filled,
    FromGrammar,
    GrammarReady,
    Job,
    JobDone,
    MaskStep,
    ToGrammar,
    pack,
    pack_ids,
    unpack,
    unpack_ids,
)
from . import NEVER


class Grammars(Protocol):
    """What knows the language of grammars: compiled ones by their text, and matchers by their request.

    What is done on threads may meet what is done in the actor's turn; `accept` and `fill` are never called
    twice at a time.
    """

    def compile(self, grammar: str, /) -> None:
        """Compile it and keep it. Runs on a thread, several at once. Raises InvalidRequest."""

    def size(self, grammar: str, /) -> int:
        """Bytes of a compiled grammar. Runs on a thread."""

    def forget(self, grammar: str, /) -> None:
        """Let go of a compiled grammar; its open matchers live on."""

    def open(self, request: int, grammar: str, /) -> None:
        """Make a matcher for the request, of a compiled grammar."""

    def accept(self, request: int, tokens: Sequence[int], /) -> str | None:
        """The request's next tokens; why its matcher cannot go on, or None. Runs on a thread."""

    def fill(self, requests: Sequence[int], /) -> tuple[bytes, dict[int, str]]:
        """The masks of these requests, one after the other, as in a SampleStep; and of those whose matchers
        cannot go on, why. Runs on a thread.

        All ones for a request that has no matcher, or whose matcher has ended or cannot go on.
        """

    def close(self, request: int, /) -> None:
        """Let go of the request's matcher, if it has one."""


@dataclass(frozen=True, slots=True)
class GrammarStatistics:
    """Gauges: grammars that are compiled and that compile, bytes, matchers. Counters: the rest."""

    num_compiled: int
    num_compiling: int
    num_bytes: int
    num_matchers: int
    num_hits: int
    num_misses: int
    num_timeouts: int
    num_failed: int
    num_stuck: int
    num_masks: int


@dataclass(slots=True)
class Compiling:
    """A job on its way: who waits for it, and until when. Nobody waits any more for one that is late."""

    grammar: str
    waiting: list[int] = field(default_factory=list)
    due: float | None = None
    is_late: bool = False


class Grammar:
    """Every Compile gets exactly one GrammarReady; every MaskStep one SampleStep.

    Matchers are worked on in jobs: most take some microseconds, but there are grammars of which the masks
    are not known beforehand, or that can be read in many ways, and they must not hold up the event loop. So
    tokens wait until masks are asked for. While a job is at it, no masks are asked for: the Scheduler says no
    other MaskStep before the step is done, or its epoch over.

    A compiled grammar is kept for later requests, the least recently used of them leave when there are more
    than `max_compiled`, or more than `max_bytes` of them.
    """

    def __init__(
        self,
        grammars: Grammars,
        *,
        timeout: float,
        max_jobs: int,
        max_compiled: int = 256,
        max_bytes: int = 256 << 20,
    ) -> None:
        """`timeout` is how many seconds a request waits for its grammar; `max_jobs` may compile at once."""
        self._grammars = grammars
        self._timeout = timeout
        self._max_jobs = max_jobs
        self._max_compiled = max_compiled
        self._max_bytes = max_bytes
        self._compiled: OrderedDict[str, int] = OrderedDict()
        self._num_bytes = 0
        self._jobs: dict[int, Compiling] = {}
        self._compiling: dict[str, Compiling] = {}
        self._waiting: dict[int, Compiling] = {}
        self._matchers: dict[int, None] = {}
        self._filling: int | None = None
        self._new_requests: list[int] = []
        self._new_tokens: list[int] = []
        self._out: list[FromGrammar] = []
        self._num_jobs = 0
        self._hits = self._misses = self._timeouts = self._failed = self._stuck = self._masks = 0

    def feed(self, message: ToGrammar) -> None:
        """Absorb a message."""
        match message:
            case Compile():
                self._compile(message)
            case JobDone():
                if message.id == self._filling:
                    self._filled(message)
                else:
                    self._job_done(message)
            case Advance(requests, tokens):
                self._new_requests += unpack_ids(requests)
                self._new_tokens += unpack(tokens)
            case MaskStep():
                self._fill(message)
            case Drop(request):
                self._drop(request)
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromGrammar, ...]:
        """The answers, in order; who has waited too long fails."""
        for compiling in self._compiling.values():
            if compiling.due is None:
                compiling.due = now + self._timeout
            elif compiling.due <= now and not compiling.is_late:
                compiling.is_late = True
                self._timeouts += len(compiling.waiting)
                self._answer(compiling, self._late())
        out, self._out = tuple(self._out), []
        return out

    @property
    def deadline(self) -> float:
        """When the first of those that wait for a grammar has waited too long."""
        dues = [each.due for each in self._compiling.values() if each.due is not None and not each.is_late]
        return min(dues, default=NEVER)

    @property
    def idle(self) -> bool:
        """Whether nobody waits for a grammar and no request has a matcher."""
        return not (self._waiting or self._matchers or self._filling or self._out)

    def check(self) -> None:
        """Raise AssertionError when a request stands in two places, or a cache is over its bound."""
        assert self._waiting.keys().isdisjoint(self._matchers), "a request waits and has a matcher"
        waiting = [request for compiling in self._compiling.values() for request in compiling.waiting]
        assert sorted(waiting) == sorted(self._waiting), "who waits is miscounted"
        assert self._compiled.keys().isdisjoint(self._compiling), "a grammar is compiled and compiles"
        assert self._num_bytes == sum(self._compiled.values()), "bytes are miscounted"
        assert len(self._compiled) <= self._max_compiled, "too many compiled grammars"

    def statistics(self) -> GrammarStatistics:
        """Gauges and counters of this moment."""
        return GrammarStatistics(
            len(self._compiled),
            len(self._compiling),
            self._num_bytes,
            len(self._matchers),
            self._hits,
            self._misses,
            self._timeouts,
            self._failed,
            self._stuck,
            self._masks,
        )

    def _compile(self, message: Compile) -> None:
        request, grammar = message.request, message.grammar
        assert request not in self._waiting, f"{request} compiles twice"
        assert request not in self._matchers, f"{request} compiles twice"
        if grammar in self._compiled:
            self._hits += 1
            self._open(request, grammar)
            return
        self._misses += 1
        compiling = self._compiling.get(grammar)
        if compiling is None:
            if len(self._jobs) == self._max_jobs:
                self._out.append(GrammarReady(request, self._crowded()))
                return
            self._num_jobs += 1
            compiling = self._compiling[grammar] = self._jobs[self._num_jobs] = Compiling(grammar)
            self._out.append(Job(self._num_jobs, message))
        if compiling.is_late:
            self._timeouts += 1
            self._out.append(GrammarReady(request, self._late()))
        else:
            compiling.waiting.append(request)
            self._waiting[request] = compiling

    def _job_done(self, done: JobDone) -> None:
        compiling = self._jobs.pop(done.id)
        del self._compiling[compiling.grammar]
        if isinstance(done.value, Compiled):
            size = done.value.size + len(compiling.grammar)
            self._compiled[compiling.grammar] = size
            self._num_bytes += size
        else:
            self._failed += 1
        self._answer(compiling, done.fault)
        self._make_room()

    def _answer(self, compiling: Compiling, fault: Fault | None) -> None:
        """Say to all that wait for it what came of it."""
        waiting, compiling.waiting = compiling.waiting, []
        for request in waiting:
            del self._waiting[request]
            if fault is None:
                self._open(request, compiling.grammar)
            else:
                self._out.append(GrammarReady(request, fault))

    def _late(self) -> Fault:
        text = (
            f"the grammar is still being compiled, after {self._timeout:g} s; make it simpler, or raise the "
            "engine's structured_outputs_timeout"
        )
        return Fault("InvalidRequest", text, "structured_outputs")

    def _crowded(self) -> Fault:
        text = f"{len(self._jobs)} grammars are being compiled already; come again when some are ready"
        return Fault("Overloaded", text, retry_after=self._timeout)

    def _open(self, request: int, grammar: str) -> None:
        self._compiled.move_to_end(grammar)
        self._grammars.open(request, grammar)
        self._matchers[request] = None
        self._out.append(GrammarReady(request))

    def _make_room(self) -> None:
        """Forget what was not used for longest; open matchers do not need it any more."""
        while len(self._compiled) > self._max_compiled or self._num_bytes > self._max_bytes:
            grammar, size = self._compiled.popitem(last=False)
            self._num_bytes -= size
            self._grammars.forget(grammar)

    def _fill(self, message: MaskStep) -> None:
        """Let a job take the tokens that have come, and then fill these masks."""
        assert self._filling is None, "masks are asked for while others are filled"
        self._num_jobs += 1
        self._filling = self._num_jobs
        requests, self._new_requests = pack_ids(self._new_requests), []
        tokens, self._new_tokens = pack(self._new_tokens), []
        self._out.append(Job(self._num_jobs, Fill(requests, tokens, message)))

    def _filled(self, done: JobDone) -> None:
        """Pass the masks on; a request whose matcher cannot go on fails."""
        filled = done.value
        assert isinstance(filled, Filled), f"masks could not be filled: {done.fault}"
        self._filling = None
        self._masks += len(filled.step.requests) // 8
        for request, reason in zip(unpack_ids(filled.requests), filled.reasons, strict=True):
            if request in self._matchers:
                self._stuck += 1
                del self._matchers[request]
                self._grammars.close(request)
                fault = Fault("InvalidRequest", reason, "structured_outputs")
                self._out.append(GrammarReady(request, fault))
        self._out.append(filled.step)

    def _drop(self, request: int) -> None:
        """It needs nothing any more; one that waits is answered, since it ends with the answer."""
        compiling = self._waiting.pop(request, None)
        if compiling is not None:
            compiling.waiting.remove(request)
            self._out.append(GrammarReady(request))
        elif request in self._matchers:
            del self._matchers[request]
            self._grammars.close(request)
        if not self._matchers:
            self._new_requests.clear()
            self._new_tokens.clear()
