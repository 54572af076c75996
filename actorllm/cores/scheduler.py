"""Scheduler: the authoritative table of requests, and what the next step computes.

There is no prefill phase and no decode phase. Every request has a debt, and a step pays some of it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from ..messages import (
    Abort,
    Command,
    Fault,
    FromScheduler,
    GrammarReady,
    MaskStep,
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
    pack_ids,
    unpack,
    unpack_ids,
)
from .admission import Admission
from .gate import Gate
from .histogram import Distribution
from .logprobs import split
from .plan import Said, Step, Wants, without
from .policy import Policy
from .requests import Request, Status
from .table import Table

OFFER = 8
"""A turn offers waiting requests until it has told the pool so many times the step's budget of tokens:
more than a step takes, since prefixes may be cached, and little enough that the turn stays short."""

NOTHING = Reserved(0, 0, b"", b"", b"", b"", b"")
"""What an empty step is granted."""


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Requests now; counts since the start. `state`: running, paused, asleep; `preemptions`: by request."""

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
    preemptions: Distribution


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
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        self._max_in_flight = steps_in_flight
        self._max_chunk = max_chunk or max_num_batched_tokens
        self._window = step_window
        self._shares_seats = policy.shares_seats
        admission = Admission(max_num_seqs, max_num_queued_reqs, max_num_queued_tokens)
        self._table = Table(policy, admission, eos_token_ids)
        self._gate = Gate()
        self._offered: list[Request] = []
        self._max_offered = max_num_seqs
        self._in_flight: deque[Step] = deque()
        self._unseen: deque[int] = deque()
        self._reserving = False
        self._changed = False
        self._epoch = self._step = self._step_done = self._step_told = self._resets_owed = 0
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
        table.admission.worked(now, self._computed, any(step.requests for step in self._in_flight))
        self._changed |= table.tick(now)
        if not (self._in_flight or self._reserving or self._resets_owed):
            self._begin_command()
        if self._may_plan:
            self._set_the_stage()
        said, table.said = table.said, Said()
        if said.has_text:
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
        for step in self._in_flight:
            for request in step.requests:
                out[id(request)] = out.get(id(request), 0) + 1
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
            preemptions=table.preemptions.read(),
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
        table, wants = self._table, Wants()
        table.put_in_order()
        left = self._budget - wants.add(table.running, self._max_chunk)
        num_running = len(wants.requests)
        if table.suspects:
            self._offered = table.offer_suspect()
        elif left > 0:
            seats = self._max_num_seqs - len(table.running)
            self._offered = table.offer(min(seats, self._max_offered), OFFER * self._budget)
        wants.add(self._offered, self._max_chunk)
        if not wants.requests:
            return None
        self._step += 1
        self._reserving = True
        return wants.message(self._step, self._epoch, self._budget, num_running, bool(self._in_flight))

    def _flush(self) -> RunStep | None:
        """With nobody there and nothing on its way: an empty step, so that the workers forget who ended."""
        busy = self._table.requests or self._in_flight or self._reserving or not self._gate.idle
        if busy or not self._table.leaving:
            return None
        self._step += 1
        return self._run(Step(self._step))

    def _reserved(self, message: Reserved) -> None:
        self._reserving = False
        if message.epoch == self._epoch:
            self._changed |= bool(message.requests or message.preempted or message.refused)
            self._table.preempt(unpack_ids(message.preempted))
            self._table.refuse(unpack_ids(message.refused))
            self._offer_more_or_less(self._grant(message), message.is_full)
        for request in self._offered:
            if request.status is Status.OFFERED:
                self._table.wait_again(request)
        self._offered = []

    def _offer_more_or_less(self, num_joined: int, is_full: bool) -> None:
        """While blocks are short, offer no more than twice as many as were let in, but always the first."""
        most = 2 * (num_joined if is_full else self._max_offered)
        self._max_offered = min(max(most, 1), self._max_num_seqs)

    def _grant(self, message: Reserved) -> int:
        """Make a step of the grants, but for those whose request has ended meanwhile; how many joined."""
        known, ids = self._table.requests, unpack_ids(message.requests)
        gone = [id_ for id_ in ids if id_ not in known]
        if gone:
            message = without(message, gone)
            ids = unpack_ids(message.requests)
        if not ids:
            return 0
        requests, num_tokens = [known[id_] for id_ in ids], unpack(message.num_tokens)
        new: list[NewRow] = []
        samples: list[bool] = []
        for request, cached, count in zip(requests, unpack(message.num_cached), num_tokens, strict=True):
            if not request.in_batch:
                new.append(self._join(request, cached))
            request.num_scheduled += count
            request.steps_out += 1
            is_last = request.num_scheduled == len(request.tokens) + request.num_pending
            request.num_pending += is_last
            samples.append(is_last)
        step = Step.of(message.step, requests, num_tokens, samples)
        is_next = not self._in_flight
        self._table.said.others.append(self._run(step, message, new))
        if is_next:
            self._ask_for_masks()
        return len(new)

    def _join(self, request: Request, num_cached: int) -> NewRow:
        self._table.join(request, num_cached)
        return NewRow(
            request.id,
            pack(request.tokens),
            num_cached,
            request.sampling,
            request.num_prompt,
            request.num_prompt_told,
        )

    def _run(self, step: Step, granted: Reserved = NOTHING, new: Sequence[NewRow] = ()) -> RunStep:
        """The step as it is said; its columns are those of the grant."""
        leaving, self._table.leaving = self._table.leaving, []
        self._in_flight.append(step)
        self._steps += 1
        return RunStep(
            step.number,
            self._epoch,
            tuple(new),
            granted.requests,
            granted.num_tokens,
            bytes(step.samples),
            granted.num_blocks,
            granted.blocks,
            pack_ids(leaving),
            bool(step.masked),
        )

    def _ask_for_masks(self) -> None:
        """Of the next step to be done, if it waits: all tokens before those that it samples are known."""
        if self._in_flight and (masked := self._in_flight[0].masked):
            step = self._in_flight[0].number
            self._table.said.others.append(MaskStep(step, self._epoch, pack_ids(masked)))

    # -- steps come back --------------------------------------------------------------------------

    def _step_is_done(self, message: StepDone) -> None:
        step = self._in_flight.popleft()
        assert step.number == message.step, f"step {message.step} is done before step {step.number}"
        self._step_done = step.number
        self._command_answered(message.fault)
        tokens, late = unpack(message.tokens), 0
        assert len(tokens) == sum(step.samples), "tokens and sampling rows differ in number"
        logprobs = [None] * len(tokens) if message.logprobs is None else split(message.logprobs)
        sampled = iter(zip(tokens, logprobs, strict=True))
        self._table.tell_prompts(message.prompt_logprobs)
        rows = zip(step.requests, step.num_tokens, step.samples, step.lives, strict=True)
        for request, count, samples, life in rows:
            token, candidates = next(sampled) if samples else (None, None)
            if request.status is Status.ENDED:
                late += samples
                continue
            request.steps_out -= 1
            if life == request.life:
                request.num_computed += count
            if token is not None:
                self._table.accept(request, token, candidates)
        self._table.said.advance()
        self._ask_for_masks()
        self._computed += sum(step.num_tokens)
        self._generated += len(tokens) - late
        self._late += late

    def _step_has_failed(self, message: StepFailed) -> None:
        """Plan everyone again from their tokens, and ask who is to blame; a command has failed by it."""
        self._failed += 1
        (step,) = (step for step in self._in_flight if step.number == message.step)
        self._command_answered(message.fault)
        self._end_epoch()
        self._table.blame(step.requests, message.fault)

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
        if (begun := self._gate.begin()) is None:
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
            self._in_flight.append(Step(self._step))
            command = begun.command
            said.append(RunCommand(self._step, self._epoch, command.action, command.argument))

    def _command_answered(self, fault: Fault | None = None) -> None:
        if self._gate.is_waiting and (done := self._gate.answered(fault)) is not None:
            self._table.said.others.append(done)
