"""Callers who come in by the door: tasks that read a Stream, and leave it in every way that there is."""

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import cast

import trio

from ..cores import NEVER
from ..engine.cell import Bell, Cell
from ..engine.door import Door
from ..engine.logprobs import Position
from ..engine.outputs import CompletionOutput, RequestOutput
from ..engine.stream import Reading, Stream
from ..errors import EngineClosed, EngineDied, RequestError
from ..messages import Logprobs, Question, Sampling, Terms, pack
from ..model.hash import END, VOCAB_SIZE
from .callers import SLOW, VANISHED, Caller
from .scenarios import SECOND, Scenario
from .steps import Steps, sleep, tick

AT_A_STEP = "caller cancelled at a step"
AT_A_TICK = "caller cancelled at a tick"
BREAKS = "caller broke out"
DROPS = "stream dropped"
CLOSES = "stream closed"
CLOSED = "stream closed by another task"
LEAVINGS = (AT_A_STEP, AT_A_TICK, BREAKS, DROPS, CLOSES, CLOSED)
"""How a caller leaves before its answer has ended."""

PIECES = [bytes([token]) if token < END else b"" for token in range(VOCAB_SIZE)]
"""The bytes of each token."""

LATE = "timed out at the door"

SEVERAL = "several answers"
ONE_FAILED = "one of several answers failed"
SHORT_OF_SEATS = "fewer seats than answers"
SEVERAL_LEFT = "several answers left"
ASKING = (SEVERAL, ONE_FAILED, SHORT_OF_SEATS, SEVERAL_LEFT)
"""What becomes of callers who ask for several answers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """When a caller comes, how it leaves (None: not at all), and after how many steps, ticks or outputs.

    n  how many answers it asks for
    """

    comes_at: int
    leaving: str | None
    after: int
    reads_whole: bool
    n: int


def draw_plan(random: Random, caller: Caller, last: int, leaves: float) -> Plan:
    """The plan of a caller that comes before the tick `last` and leaves with this probability."""
    leaving = random.choice(LEAVINGS) if random.random() < leaves else None
    after = random.randint(1, random.choice((2, 6, 20, 60)))
    if leaving in (BREAKS, DROPS, CLOSES):
        after = random.randint(1, 4)
    may_have_several = not caller.bad and caller.question.sampling.temperature > 0
    n = random.choice((1, 1, 1, 2, 3)) if may_have_several else 1
    return Plan(random.randint(0, last), leaving, after, random.random() < 0.3, n)


class Visitor:
    """A caller and what becomes of it. `see` counts what has happened.

    answers   what each of its n answers must be, and has been up to now
    cells     those of them that have had a seat
    shut_out  the engine was closed to it before its answers had ended
    left      it went before that
    dropped   requests that went on when it had left: the Frontend must hear of each
    """

    def __init__(self, caller: Caller, plan: Plan, random: Random, see: Callable[[str], None]) -> None:
        if plan.n > 1 and caller.question.sampling.seed is not None and random.random() < 0.5:
            caller.question = _seeded(caller.question, 2**63 - random.randint(1, plan.n))
        self.caller = caller
        self.plan = plan
        self.answers = [_nth(caller, index) for index in range(plan.n)]
        self.cells: list[Cell] = []
        self.error: RequestError | None = None
        self.shut_out = self.left = False
        self.dropped: set[int] = set()
        self._random = random
        self.see = see
        self._here = True
        self._kept: Stream | None = None

    async def visit(self, door: Door, steps: Steps, nursery: trio.Nursery) -> None:
        """Come, ask, read, and leave as planned."""
        await sleep(self.plan.comes_at)
        with trio.CancelScope() as scope:
            if self.plan.leaving == AT_A_STEP:
                steps.strike(self.plan.after, scope.cancel)
            elif self.plan.leaving == AT_A_TICK:
                scope.deadline = trio.current_time() + self.plan.after / SECOND
            await self._meet_errors(partial(self._ask, door, nursery))
        self._here = False
        if scope.cancelled_caught:
            self._leave()
        if door.closed is None and self._kept is None:
            self.dropped = {cell.request for cell in self.cells if cell.finish_reason is None}
            if len(self.dropped) > 1:
                self.see(SEVERAL_LEFT)

    async def read_late(self) -> None:
        """One who has never read does so now, when all has come."""
        if self._kept is not None:
            try:
                await self._meet_errors(partial(self._iterate, self._kept))
            except trio.Cancelled:
                self.left = True
                raise

    async def _meet_errors(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except (EngineClosed, EngineDied):
            self.shut_out = True
            self.see("request met a closed engine")
        except RequestError as error:
            self.error = error

    async def _ask(self, door: Door, nursery: trio.Nursery) -> None:
        """Only this frame holds the stream of one who drops it."""
        question = self.caller.question
        stream = Stream(cast(Door, Entrance(door, self)), question, self.plan.n, _reading(question.sampling))
        if self.plan.leaving == CLOSED:
            nursery.start_soon(self._close_later, stream)
        if self.caller.reading == VANISHED and self.plan.leaving in (None, AT_A_STEP, AT_A_TICK):
            await stream.accepted()
            self.see("never read")
            self._kept = stream
        elif self.plan.leaving == DROPS:
            await self._iterate(stream)
        elif self.plan.reads_whole and self.plan.leaving in (None, AT_A_STEP, AT_A_TICK):
            self._take(await stream)
        else:
            async with stream:
                await self._iterate(stream)

    async def _iterate(self, stream: Stream) -> None:
        count = 0
        async for output in stream:
            self._take(output)
            count += 1
            if output.finished:
                continue
            if self.plan.leaving in (BREAKS, DROPS, CLOSES) and count >= self.plan.after:
                self._leave()
                if self.plan.leaving == CLOSES:
                    stream.close()
                return
            if self.caller.reading == SLOW:
                await sleep(self._random.randint(1, 9))

    async def _close_later(self, stream: Stream) -> None:
        await sleep(self.plan.after)
        is_at_door = self._here and not self.cells
        if self._here:
            self._leave()
        stream.close()
        if is_at_door:
            await sleep(1)
            assert not self._here, "whoever was closed at the door still waits there"

    def _leave(self) -> None:
        self.left = True
        self.see(self.plan.leaving or "")
        if not self.cells:
            self.see("caller left at the door")

    def _take(self, output: RequestOutput) -> None:
        if output.prompt_logprobs is not None:
            self.answers[0].prompt_logprobs = _columns(output.prompt_logprobs[1:])
        for index, completion in enumerate(output.outputs):
            assert completion.index == index, f"answer {completion.index} in the place of {index}"
            self._take_one(self.answers[index], self.cells[index], completion)
        are_whole = len(output.outputs) == self.plan.n and all(answer.ended for answer in self.answers)
        assert output.finished == are_whole, "finished before all answers are, or not then"

    def _take_one(self, answer: Caller, cell: Cell, completion: CompletionOutput) -> None:
        if len(completion.token_ids) - len(answer.tokens) > 1:
            self.see("cell merged")
        answer.text += completion.delta
        answer.tokens = list(completion.token_ids)
        answer.logprobs = _columns(completion.logprobs or ())
        if self.plan.reads_whole and self.plan.leaving in (None, AT_A_STEP, AT_A_TICK):
            answer.text = completion.text
        assert completion.text == answer.text, "the deltas are not the text"
        answer.ended = completion.finish_reason is not None
        told = completion.finish_reason, completion.stop_reason
        assert not answer.ended or told == (cell.finish_reason, cell.stop_reason), f"told of {told}"

    # -- the end ----------------------------------------------------------------------------------

    def judge(
        self,
        scenario: Scenario,
        seeds: Mapping[int, int | None],
        excuses: Mapping[int, set[str]],
        *,
        was_closed: bool,
    ) -> None:
        """Raise AssertionError unless the caller got what it deserves, or a part of it if it may be owed.

        `seeds` that the Frontend gave, and `excuses` to fail, are by request.
        """
        assert not self.shut_out or was_closed, "shut out of an open engine"
        is_whole = not (self.left or self.shut_out or self.error is not None)
        if not self.cells:
            assert not is_whole, "never came in"
        assert not is_whole or len(self.cells) == self.plan.n, f"{len(self.cells)} of {self.plan.n} answers"
        if self.error is not None:
            faults = [cell.fault.message for cell in self.cells if cell.fault is not None]
            assert any(fault in str(self.error) for fault in faults), f"{self.error!r} out of nowhere"
        for answer, cell in zip(self.answers, self.cells, strict=False):
            answer.cell, answer.cancelled = cell, self.left or self.error is not None
            answer.seed, answer.excuses = seeds.get(cell.request), excuses.get(cell.request, set())
            try:
                self._judge_one(answer, is_whole, scenario)
            except AssertionError as error:
                raise AssertionError(f"request {cell.request}: {error}") from error
        if len(self.cells) > 1 and is_whole:
            self.see(SEVERAL)
        elif len(self.cells) > 1 and self.error is not None:
            self.see(ONE_FAILED)

    def _judge_one(self, answer: Caller, is_whole: bool, scenario: Scenario) -> None:
        cell = answer.cell
        if cell is not self.cells[0]:
            answer.prompt_logprobs = cell.prompt_logprobs
        assert cell.prompt in ([], self.cells[0].prompt), "another prompt than the first answer's"
        if not is_whole:
            answer.judge_beginning(scenario)
            return
        assert cell.finish_reason is not None, "the stream ended without an end"
        assert answer.ended, f"nobody told that it ended with {cell.finish_reason}"
        unread = [*cell.parts, *cell.tokens, *cell.logprobs]
        assert not unread, f"the stream ended with {unread} unread"
        answer.judge(scenario)


def _seeded(question: Question, seed: int) -> Question:
    return replace(question, sampling=replace(question.sampling, seed=seed))


def _reading(sampling: Sampling) -> Reading:
    """A stream's, for who asks for these log-probabilities or those of the prompt."""
    wants = sampling.logprobs is not None or bool(sampling.logprob_tokens)
    return Reading(
        pieces=PIECES if wants else None,
        prompt_pieces=None if sampling.prompt_logprobs is None else PIECES,
    )


def _columns(positions: Sequence[Position | None]) -> list[Logprobs]:
    """What was told of these tokens, as columns again."""
    if not positions:
        return []
    each = [position or {} for position in positions]
    found = [logprob for position in each for logprob in position.values()]
    return [
        Logprobs(
            pack(map(len, each)),
            pack(token for position in each for token in position),
            struct.pack(f"<{len(found)}f", *(logprob.logprob for logprob in found)),
            pack(logprob.rank for logprob in found),
        )
    ]


def _nth(caller: Caller, index: int) -> Caller:
    """What is owed to this caller as answer `index`: that of the seed so many further on, in an int64."""
    question = caller.question
    if question.sampling.seed is not None:
        question = _seeded(question, c_int64(question.sampling.seed + index).value)
    if index:
        question = replace(question, sampling=replace(question.sampling, prompt_logprobs=None))
    return Caller(question, bad=caller.bad, reading=caller.reading, patience=None)


class Entrance:
    """Stands before the door for one visitor, and remembers its cells."""

    def __init__(self, door: Door, visitor: Visitor) -> None:
        self._door = door
        self._visitor = visitor

    async def enter(self, question: Question, bell: Bell, since: float) -> Cell:
        """Wait for a seat, but not beyond a timeout."""
        came_at = tick()
        cell = await self._door.enter(question, bell, since)
        if tick() > came_at:
            self._visitor.see("no seat")
            self._judge_time(question.terms, since, ended=cell.finish_reason is not None)
        self._visitor.cells.append(cell)
        return cell

    def _judge_time(self, terms: Terms, since: float, *, ended: bool) -> None:
        times = (terms.queue_timeout, terms.ttft_timeout, terms.timeout)
        due = since + min((seconds for seconds in times if seconds is not None), default=NEVER)
        assert trio.current_time() <= due, "waited at the door beyond a timeout"
        if ended:
            assert trio.current_time() == due, "timed out at the door too early"
            self._visitor.see(LATE)

    def enter_nowait(self, question: Question, bell: Bell, since: float) -> Cell | None:
        """Take a seat if one is free."""
        cell = self._door.enter_nowait(question, bell, since)
        if cell is not None:
            self._visitor.cells.append(cell)
        elif self._door.closed is None:
            self._visitor.see(SHORT_OF_SEATS)
        return cell

    def abandon(self, request: int) -> None:
        """Nobody reads it any more."""
        self._door.abandon(request)

    def here(self, function: Callable[[], object]) -> None:
        """Run it in this thread, the only one."""
        function()
