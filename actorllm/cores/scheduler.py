"""Scheduler: the authoritative table of requests, and what the next step computes.

There is no prefill phase and no decode phase. Every request has a debt, and a step pays some of it.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

from ..messages import (
    Abort,
    Compile,
    Drop,
    Ending,
    Fault,
    FromScheduler,
    GrammarReady,
    NewRow,
    Release,
    Reserve,
    Reserved,
    ResetPool,
    RunStep,
    Seen,
    StepDone,
    StepFailed,
    Submit,
    Tokens,
    ToScheduler,
    pack,
    pack_ids,
    unpack,
    unpack_ids,
)
from . import NEVER
from .policy import Policy
from .requests import Request, Status, WaitingQueue

OFFER = 8
"""A turn offers waiting requests until it has told the pool so many times the step's budget of tokens:
more than a step takes, since prefixes may be cached, and little enough that the turn stays short."""


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Requests now; counts since the start."""

    num_running: int
    num_waiting: int
    steps_in_flight: int
    num_steps: int
    num_tokens_computed: int
    num_tokens_generated: int
    num_preemptions: int
    num_late_tokens: int
    num_failed_steps: int


@dataclass(frozen=True, slots=True)
class Row:
    """One request in a step that is on its way."""

    request: Request
    num_tokens: int
    samples: bool
    life: int


@dataclass(slots=True)
class Said:
    """What this turn has to say besides steps."""

    requests: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    released: list[Request] = field(default_factory=list)
    others: list[FromScheduler] = field(default_factory=list)


class Scheduler:
    """Plans steps, keeps every token, and ends every Submit exactly once."""

    def __init__(
        self,
        *,
        policy: Policy,
        eos_token_ids: frozenset[int],
        max_num_seqs: int,
        max_num_batched_tokens: int,
        steps_in_flight: int,
        step_window: int,
        max_chunk: int = 0,
    ) -> None:
        """`max_chunk` bounds the tokens of one request in a step (0: no bound), as it does in the pool.

        `step_window` bounds the steps whose text the front end has not yet confirmed (`Seen`).
        """
        self._policy = policy
        self._eos = eos_token_ids
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        self._max_in_flight = steps_in_flight
        self._max_chunk = max_chunk or max_num_batched_tokens
        self._window = step_window
        self._requests: dict[int, Request] = {}
        self._waiting = WaitingQueue(policy)
        self._running: list[Request] = []
        self._offered: list[Request] = []
        self._in_flight: deque[tuple[int, list[Row]]] = deque()
        self._unseen: deque[int] = deque()
        self._leaving: list[int] = []
        self._reserving = False
        self._changed = False
        self._epoch = 0
        self._step = 0
        self._step_done = 0
        self._said = Said()
        self._arrivals = 0
        self._steps = self._computed = self._generated = self._preempted = self._late = self._failed = 0

    def feed(self, message: ToScheduler) -> None:
        """Absorb a message."""
        match message:
            case Submit():
                self._submit(message)
            case Abort(request):
                self._abort(request)
            case Seen(step):
                while self._unseen and self._unseen[0] <= step:
                    self._unseen.popleft()
            case GrammarReady(request, fault):
                self._grammar_ready(request, fault)
            case Reserved():
                self._reserved(message)
            case StepDone():
                if message.epoch == self._epoch:
                    self._step_is_done(message)
            case StepFailed():
                if message.epoch == self._epoch:
                    self._step_has_failed(message)
            case _:
                assert_never(message)
        if not isinstance(message, Reserved | Seen):
            self._changed = True

    def poll(self, now: float) -> tuple[FromScheduler, ...]:
        """What the turn brought, and the next step's Reserve if there is room for a step."""
        said, self._said = self._said, Said()
        out = said.others
        if said.requests or said.endings:
            out.append(
                Tokens(self._step_done, pack_ids(said.requests), pack(said.tokens), tuple(said.endings))
            )
            if said.requests:
                self._unseen.append(self._step_done)
        if said.released:
            out.append(self._release(said.released))
        if self._may_plan:
            plan = self._propose() or self._flush()
            if plan is not None:
                out.append(plan)
        return tuple(out)

    @property
    def deadline(self) -> float:
        """Mail alone wakes the Scheduler."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether no request is known, no step is on its way and the workers hold no row."""
        owed = self._said.endings or self._said.others or self._unseen or self._leaving
        return not (self._requests or self._in_flight or self._reserving or owed)

    def check(self) -> None:
        """Raise AssertionError when the tables contradict each other."""
        for request in self._requests.values():
            request.check()
        assert len(self._running) <= self._max_num_seqs
        assert all(request.status is Status.RUNNING for request in self._running)
        assert len(self._in_flight) <= self._max_in_flight
        for request in self._requests.values():
            out = sum(row.request is request for _, rows in self._in_flight for row in rows)
            assert out == request.steps_out, "steps on their way are miscounted"
        grammar = sum(request.status is Status.GRAMMAR for request in self._requests.values())
        offered = sum(request.status is Status.OFFERED for request in self._offered)
        total = len(self._running) + len(self._waiting) + offered + grammar
        assert total == len(self._requests), "a request is in two tables or in none"

    def statistics(self) -> SchedulerStatistics:
        """Gauges and counters of this moment."""
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._requests) - len(self._running),
            steps_in_flight=len(self._in_flight),
            num_steps=self._steps,
            num_tokens_computed=self._computed,
            num_tokens_generated=self._generated,
            num_preemptions=self._preempted,
            num_late_tokens=self._late,
            num_failed_steps=self._failed,
        )

    # -- requests come and go ---------------------------------------------------------------------

    def _submit(self, message: Submit) -> None:
        tokens = unpack(message.prompt)
        limits = message.limits
        assert limits.max_tokens is not None, "the Renderer sets max_tokens"
        assert message.request not in self._requests, f"request {message.request} is submitted twice"
        request = Request(
            message.request, tokens, len(tokens), message.sampling, limits, limits.max_tokens, self._arrivals
        )
        self._arrivals += 1
        self._requests[request.id] = request
        if limits.grammar is None:
            self._waiting.push(request)
        else:
            request.status = Status.GRAMMAR
            self._said.others.append(Compile(request.id, limits.grammar))

    def _abort(self, id_: int) -> None:
        """End it, unless it has ended; one whose grammar compiles ends when Grammar has answered."""
        request = self._requests.get(id_)
        if request is None:
            return
        if request.status is Status.GRAMMAR:
            request.aborted = True
        else:
            self._end(request, "abort")

    def _grammar_ready(self, id_: int, fault: Fault | None) -> None:
        request = self._requests[id_]
        if request.aborted:
            self._end(request, "abort")
        elif fault is not None:
            self._end(request, "error", fault=fault)
        else:
            request.status = Status.WAITING
            self._waiting.push(request)

    def _end(
        self, request: Request, reason: str, *, stop_token: int | None = None, fault: Fault | None = None
    ) -> None:
        del self._requests[request.id]
        was, request.status = request.status, Status.ENDED
        if was is Status.RUNNING:
            self._running.remove(request)
        elif was is Status.WAITING:
            self._waiting.ended()
        if request.in_batch:
            self._leaving.append(request.id)
        if request.num_told:
            self._said.released.append(request)
        if request.limits.grammar is not None:
            self._said.others.append(Drop(request.id))
        self._said.endings.append(Ending(request.id, reason, stop_token, fault))

    def _release(self, released: list[Request]) -> Release:
        news = [request.tokens[request.num_told :] for request in released]
        return Release(
            pack_ids(request.id for request in released),
            pack(request.num_computed for request in released),
            pack(map(len, news)),
            pack(token for new in news for token in new),
        )

    # -- plan -------------------------------------------------------------------------------------

    @property
    def _may_plan(self) -> bool:
        return (
            not self._reserving
            and self._changed
            and len(self._in_flight) < self._max_in_flight
            and len(self._unseen) + len(self._in_flight) < self._window
        )

    def _propose(self) -> Reserve | None:
        """Ask the pool for the debts of the running, then of as many waiting as there are seats.

        What it refuses now it would refuse again: the next question waits until something has changed.
        """
        self._changed = False
        self._running.sort(key=self._policy.key)
        running = [request for request in self._running if request.debt > 0]
        left = self._budget - sum(min(request.debt, self._max_chunk) for request in running)
        self._offered = self._offer() if left > 0 else []
        wants = running + self._offered
        if not wants:
            return None
        self._step += 1
        self._reserving = True
        news = [request.tokens[request.num_told :] for request in wants]
        for request in wants:
            request.num_told = len(request.tokens)
        return Reserve(
            self._step,
            self._epoch,
            self._budget,
            len(running),
            not self._in_flight,
            pack_ids(request.id for request in wants),
            pack(request.num_computed for request in wants),
            pack(request.num_scheduled for request in wants),
            pack(request.debt for request in wants),
            pack(map(len, news)),
            pack(token for new in news for token in new),
        )

    def _offer(self) -> list[Request]:
        """The first of the waiting: no more than there are seats, and than the pool can take in a turn."""
        offered: list[Request] = []
        news = 0
        while len(self._running) + len(offered) < self._max_num_seqs and news < OFFER * self._budget:
            request = self._waiting.take()
            if request is None:
                break
            request.status = Status.OFFERED
            news += len(request.tokens) - request.num_told
            offered.append(request)
        return offered

    def _flush(self) -> RunStep | None:
        """With nothing left to compute: an empty step, so that the workers forget who has ended."""
        if self._requests or self._in_flight or not self._leaving:
            return None
        self._step += 1
        return self._run(self._step, [], [], b"", b"")

    def _reserved(self, message: Reserved) -> None:
        self._reserving = False
        if message.epoch == self._epoch:
            self._changed |= bool(message.requests or message.preempted or message.refused)
            for id_ in unpack_ids(message.preempted):
                self._preempt(id_)
            for id_ in unpack_ids(message.refused):
                self._refuse(id_)
            self._grant(message)
        for request in self._offered:
            if request.status is Status.OFFERED:
                request.status = Status.WAITING
                self._waiting.push(request)
        self._offered = []

    def _refuse(self, id_: int) -> None:
        request = self._requests.get(id_)
        if request is not None:
            fault = Fault("RequestFailed", "the KV cache is too small for this request alone")
            self._end(request, "error", fault=fault)

    def _preempt(self, id_: int) -> None:
        request = self._requests.get(id_)
        if request is None:
            return
        self._preempted += 1
        self._running.remove(request)
        self._send_back(request)

    def _send_back(self, request: Request) -> None:
        if request.in_batch:
            self._leaving.append(request.id)
        request.restart()
        self._waiting.push(request)

    def _grant(self, message: Reserved) -> None:
        """Make a step of the grants; those whose request has ended meanwhile are skipped."""
        rows: list[Row] = []
        new: list[NewRow] = []
        blocks: list[int] = []
        counts: list[int] = []
        all_blocks, at = unpack(message.blocks), 0
        columns = (message.num_cached, message.num_tokens, message.num_blocks)
        for id_, cached, count, num_blocks in zip(
            unpack_ids(message.requests), *map(unpack, columns), strict=True
        ):
            granted = all_blocks[at : at + num_blocks]
            at += num_blocks
            request = self._requests.get(id_)
            if request is None:
                continue
            if not request.in_batch:
                request.num_scheduled = request.num_computed = cached
                new.append(self._join(request))
            rows.append(self._schedule(request, count))
            blocks += granted
            counts.append(len(granted))
        if rows:
            self._said.others.append(self._run(message.step, rows, new, pack(counts), pack(blocks)))

    def _join(self, request: Request) -> NewRow:
        request.status = Status.RUNNING
        request.in_batch = True
        self._running.append(request)
        return NewRow(request.id, pack(request.tokens), request.num_computed, request.sampling)

    def _schedule(self, request: Request, count: int) -> Row:
        request.num_scheduled += count
        request.steps_out += 1
        samples = request.num_scheduled == len(request.tokens) + request.num_pending
        request.num_pending += samples
        return Row(request, count, samples, request.life)

    def _run(
        self, step: int, rows: list[Row], new: list[NewRow], num_blocks: bytes, blocks: bytes
    ) -> RunStep:
        leaving, self._leaving = self._leaving, []
        self._in_flight.append((step, rows))
        self._steps += 1
        return RunStep(
            step,
            self._epoch,
            tuple(new),
            pack_ids(row.request.id for row in rows),
            pack(row.num_tokens for row in rows),
            bytes(row.samples for row in rows),
            num_blocks,
            blocks,
            pack_ids(leaving),
        )

    # -- steps come back --------------------------------------------------------------------------

    def _step_is_done(self, message: StepDone) -> None:
        step, rows = self._in_flight.popleft()
        assert step == message.step, f"step {message.step} is done before step {step}"
        self._step_done = step
        tokens = unpack(message.tokens)
        assert len(tokens) == sum(row.samples for row in rows), "tokens and sampling rows differ in number"
        sampled = iter(tokens)
        for row in rows:
            self._computed += row.num_tokens
            token = next(sampled) if row.samples else None
            request = row.request
            if request.status is Status.ENDED:
                self._late += token is not None
                continue
            request.steps_out -= 1
            if row.life == request.life:
                request.num_computed += row.num_tokens
            if token is not None:
                request.num_pending -= 1
                self._accept(request, token)

    def _accept(self, request: Request, token: int) -> None:
        """A token is final: keep it, tell it, and end the request if it says so."""
        request.tokens.append(token)
        self._generated += 1
        self._said.requests.append(request.id)
        self._said.tokens.append(token)
        if token in self._eos and not request.limits.ignore_eos:
            self._end(request, "stop")
        elif token in request.limits.stop_token_ids:
            self._end(request, "stop", stop_token=token)
        elif request.num_output >= request.max_tokens:
            self._end(request, "length")

    def _step_has_failed(self, message: StepFailed) -> None:
        """Fail the requests of that step; plan all others again from their tokens."""
        self._failed += 1
        guilty = [row.request for step, rows in self._in_flight if step == message.step for row in rows]
        self._in_flight.clear()
        self._epoch += 1
        self._said.others.append(ResetPool(self._epoch))
        for request in guilty:
            if request.status is not Status.ENDED:
                self._end(request, "error", fault=message.fault)
        self._said.released.clear()
        for request in self._requests.values():
            request.num_pending = request.steps_out = request.num_told = 0
        for request in self._running:
            request.restart()
            self._waiting.push(request)
        self._running.clear()
        self._leaving.clear()
