"""Scheduler: the authoritative table of requests, and what the next step computes.

There is no prefill phase and no decode phase. Every request has a debt, and a step pays some of it.
"""

from collections import deque
from dataclasses import dataclass
from typing import assert_never

from ..messages import (
    Abort,
    Command,
    Fault,
    FromScheduler,
    GrammarReady,
    NewRow,
    PoolReset,
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
    ToScheduler,
    pack,
    unpack,
    unpack_ids,
)
from .admission import Admission
from .gate import Gate
from .plan import Row, Said, Step, reserve
from .policy import Policy
from .requests import Request, Status
from .table import Table

OFFER = 8
"""A turn offers waiting requests until it has told the pool so many times the step's budget of tokens:
more than a step takes, since prefixes may be cached, and little enough that the turn stays short."""

CRASHES = 2
"""After so many steps that crashed with it, a request must show alone that it is not the one."""


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Requests now; counts since the start. `state` is running, paused or asleep."""

    state: str
    num_running: int
    num_waiting: int
    num_on_probation: int
    num_queued_tokens: int
    steps_in_flight: int
    num_steps: int
    num_tokens_computed: int
    num_tokens_generated: int
    num_preemptions: int
    num_late_tokens: int
    num_failed_steps: int
    num_timeouts: int
    num_refused: int


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
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
    ) -> None:
        """`max_chunk` bounds the tokens of one request in a step (0: no bound), as it does in the pool.

        `step_window` bounds the steps whose text the front end has not yet confirmed (`Seen`).
        """
        self._eos = eos_token_ids
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        self._max_in_flight = steps_in_flight
        self._max_chunk = max_chunk or max_num_batched_tokens
        self._window = step_window
        self._shares_seats = policy.shares_seats
        self._table = Table(policy, Admission(max_num_queued_reqs, max_num_queued_tokens))
        self._gate = Gate()
        self._resets_owed = 0
        self._offered: list[Request] = []
        self._in_flight: deque[tuple[int, list[Row]]] = deque()
        self._unseen: deque[int] = deque()
        self._reserving = False
        self._changed = False
        self._epoch = self._step = self._step_done = self._step_told = 0
        self._steps = self._computed = self._generated = self._late = self._failed = 0

    def feed(self, message: ToScheduler) -> None:
        """Absorb a message."""
        match message:
            case Submit() | Abort() | GrammarReady():
                self._table.feed(message)
            case Seen(step):
                while self._unseen and self._unseen[0] <= step:
                    self._unseen.popleft()
            case Command():
                self._gate.feed(message)
            case Reserved():
                self._reserved(message)
            case PoolReset():
                self._resets_owed -= 1
                self._command_answered()
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
        table = self._table
        table.admission.worked(now, self._computed)
        self._changed |= table.tick(now)
        if not (self._in_flight or self._reserving or self._resets_owed):
            self._begin_command()
        if self._may_plan:
            self._set_the_stage()
        said, table.said = table.said, Said()
        if said.requests:
            self._step_told = self._step_done
            self._unseen.append(self._step_done)
        out = said.messages(self._step_told)
        plan = (self._propose() if self._may_plan else None) or self._flush()
        return (*out, plan) if plan is not None else tuple(out)

    def _set_the_stage(self) -> None:
        """Send back who must not run in the next step. No Reserve is open, so that the pool has not been
        asked for them.
        """
        table = self._table
        if table.suspects:
            table.clear_the_stage()
        elif self._shares_seats and len(table.running) == self._max_num_seqs:
            table.share_seats()

    @property
    def deadline(self) -> float:
        """The next timeout of a request."""
        return self._table.timeouts.next

    @property
    def idle(self) -> bool:
        """Whether no request is known, no step is on its way and the workers hold no row."""
        owed = self._table.said or self._unseen or self._table.leaving
        is_open = self._resets_owed or not self._gate.idle
        return not (self._table.requests or self._in_flight or self._reserving or owed or is_open)

    def check(self) -> None:
        """Raise AssertionError when the tables contradict each other."""
        self._table.check()
        assert len(self._table.running) <= self._max_num_seqs
        assert len(self._in_flight) <= self._max_in_flight
        out: dict[int, int] = {}
        for _, rows in self._in_flight:
            for row in rows:
                out[id(row.request)] = out.get(id(row.request), 0) + 1
        for request in self._table.requests.values():
            assert out.get(id(request), 0) == request.steps_out, "steps on their way are miscounted"

    def statistics(self) -> SchedulerStatistics:
        """Gauges and counters of this moment."""
        table = self._table
        return SchedulerStatistics(
            state=self._gate.state,
            num_running=len(table.running),
            num_waiting=len(table.requests) - len(table.running),
            num_on_probation=len(table.suspects),
            num_queued_tokens=table.admission.num_tokens,
            steps_in_flight=len(self._in_flight),
            num_steps=self._steps,
            num_tokens_computed=self._computed,
            num_tokens_generated=self._generated,
            num_preemptions=table.num_preempted,
            num_late_tokens=self._late,
            num_failed_steps=self._failed,
            num_timeouts=table.num_timeouts,
            num_refused=table.admission.num_refused,
        )

    # -- plan -------------------------------------------------------------------------------------

    @property
    def _may_plan(self) -> bool:
        return (
            self._gate.is_open
            and not self._reserving
            and self._changed
            and len(self._in_flight) < self._max_in_flight
            and len(self._unseen) + len(self._in_flight) < self._window
        )

    def _propose(self) -> Reserve | None:
        """Ask the pool for the debts of the running, then of as many waiting as there are seats.

        What it refuses now it would refuse again: the next question waits until something has changed.
        """
        self._changed = False
        self._table.running.sort(key=self._table.order)
        running = [request for request in self._table.running if request.debt > 0]
        left = self._budget - sum(min(request.debt, self._max_chunk) for request in running)
        if self._table.suspects:
            self._offered = self._table.offer_suspect()
        else:
            seats = self._max_num_seqs - len(self._table.running)
            self._offered = self._table.offer(seats, OFFER * self._budget) if left > 0 else []
        if not running and not self._offered:
            return None
        self._step += 1
        self._reserving = True
        in_flight = bool(self._in_flight)
        return reserve(self._step, self._epoch, self._budget, running, self._offered, in_flight)

    def _flush(self) -> RunStep | None:
        """With nobody there and nothing on its way: an empty step, so that the workers forget who ended."""
        busy = self._table.requests or self._in_flight or self._reserving or not self._gate.idle
        if busy or not self._table.leaving:
            return None
        self._step += 1
        return self._run(self._step, Step())

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
                self._table.wait_again(request)
        self._offered = []

    def _refuse(self, id_: int) -> None:
        request = self._table.requests.get(id_)
        if request is not None:
            fault = Fault("RequestFailed", "the KV cache is too small for this request alone")
            self._table.end(request, "error", fault=fault)

    def _preempt(self, id_: int) -> None:
        request = self._table.requests.get(id_)
        if request is not None:
            self._table.send_back(request)

    def _grant(self, message: Reserved) -> None:
        """Make a step of the grants; those whose request has ended meanwhile are skipped."""
        step = Step()
        blocks, at = unpack(message.blocks), 0
        columns = (message.num_cached, message.num_tokens, message.num_blocks)
        for id_, cached, count, num_blocks in zip(
            unpack_ids(message.requests), *map(unpack, columns), strict=True
        ):
            granted = blocks[at : at + num_blocks]
            at += num_blocks
            request = self._table.requests.get(id_)
            if request is None:
                continue
            if not request.in_batch:
                request.num_scheduled = request.num_computed = cached
                step.new.append(self._join(request))
            step.rows.append(self._schedule(request, count))
            step.num_blocks.append(num_blocks)
            step.blocks += granted
        if step.rows:
            self._table.said.others.append(self._run(message.step, step))

    def _join(self, request: Request) -> NewRow:
        self._table.join(request)
        return NewRow(request.id, pack(request.tokens), request.num_computed, request.sampling)

    def _schedule(self, request: Request, count: int) -> Row:
        request.num_scheduled += count
        request.steps_out += 1
        samples = request.num_scheduled == len(request.tokens) + request.num_pending
        request.num_pending += samples
        return Row(request, count, samples, request.life)

    def _run(self, number: int, step: Step) -> RunStep:
        leaving, self._table.leaving = self._table.leaving, []
        self._in_flight.append((number, step.rows))
        self._steps += 1
        return step.message(number, self._epoch, leaving)

    # -- steps come back --------------------------------------------------------------------------

    def _step_is_done(self, message: StepDone) -> None:
        step, rows = self._in_flight.popleft()
        assert step == message.step, f"step {message.step} is done before step {step}"
        self._step_done = step
        self._command_answered()
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
        """A token is final: tell it, and end the request if it says so."""
        self._generated += 1
        self._table.accept(request, token)
        if token in self._eos and not request.limits.ignore_eos:
            self._table.end(request, "stop")
        elif token in request.limits.stop_token_ids:
            self._table.end(request, "stop", stop_token=token)
        elif request.num_output >= request.max_tokens:
            self._table.end(request, "length")
        else:
            self._table.acquit(request)

    def _step_has_failed(self, message: StepFailed) -> None:
        """Plan everyone again from their tokens; who was alone in the step is the guilty one.

        A first crash may have been an accident. Whoever was there at a second one is on probation: it runs
        alone until it is a token past that point, so that the next crash names the guilty one.
        """
        self._failed += 1
        present = [row.request for step, rows in self._in_flight if step == message.step for row in rows]
        present = [request for request in present if request.status is not Status.ENDED]
        self._end_epoch()
        if self._gate.is_waiting:
            self._table.said.others.append(self._gate.finish(message.fault))
        if len(present) == 1:
            self._table.end(present[0], "error", fault=message.fault)
        else:
            for request in present:
                request.num_crashes += 1
                if request.num_crashes >= CRASHES:
                    self._table.suspect(request)

    def _end_epoch(self) -> None:
        """All KV is lost, and what is said of the steps on their way is not heard."""
        self._in_flight.clear()
        self._epoch += 1
        self._table.restart_all()
        self._table.said.others.append(ResetPool(self._epoch))
        self._resets_owed += 1

    # -- commands ---------------------------------------------------------------------------------

    def _begin_command(self) -> None:
        """Say what the command needs, if there is one; no step is on its way and no Reserve is open."""
        begun = self._gate.begin()
        if begun is None:
            return
        said = self._table.said.others
        if begun.done is not None:
            said.append(begun.done)
        if begun.ends_epoch:
            self._end_epoch()
        if begun.resets_cache:
            said.append(ResetPrefixCache())
            self._resets_owed += 1
        if begun.runs:
            self._step += 1
            self._in_flight.append((self._step, []))
            command = begun.command
            said.append(RunCommand(self._step, self._epoch, command.action, command.argument))

    def _command_answered(self) -> None:
        if self._gate.is_waiting:
            done = self._gate.answered()
            if done is not None:
                self._table.said.others.append(done)
