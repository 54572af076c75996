"""Callers who come in by the door: tasks that read a Stream, and leave it in every way that there is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import cast

import trio

from ..engine.cell import Bell, Cell
from ..engine.door import Door
from ..engine.outputs import RequestOutput
from ..engine.stream import Stream
from ..errors import EngineClosed, EngineDied, RequestError
from ..messages import Question
from .callers import SLOW, VANISHED, Caller
from .scenarios import Scenario
from .steps import Steps, sleep, tick
from .virtual import SECOND

AT_A_STEP = "caller cancelled at a step"
AT_A_TICK = "caller cancelled at a tick"
BREAKS = "caller broke out"
DROPS = "stream dropped"
CLOSES = "stream closed"
CLOSED = "stream closed by another task"
LEAVINGS = (AT_A_STEP, AT_A_TICK, BREAKS, DROPS, CLOSES, CLOSED)
"""How a caller leaves before its answer has ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """When a caller comes, how it leaves (None: not at all), and after how many steps, ticks or outputs."""

    comes_at: int
    leaving: str | None
    after: int
    reads_whole: bool


def draw_plan(random: Random, last: int, leaves: float) -> Plan:
    """The plan of a caller that comes before the tick `last` and leaves with this probability."""
    leaving = random.choice(LEAVINGS) if random.random() < leaves else None
    after = random.randint(1, random.choice((2, 6, 20, 60)))
    if leaving in (BREAKS, DROPS, CLOSES):
        after = random.randint(1, 4)
    return Plan(random.randint(0, last), leaving, after, random.random() < 0.3)


class Visitor:
    """A caller and what becomes of it. `see` counts what has happened.

    shut_out  the engine was closed to it before its answer had ended
    left      it went before that
    """

    def __init__(self, caller: Caller, plan: Plan, random: Random, see: Callable[[str], None]) -> None:
        self.caller = caller
        self.plan = plan
        self.error: RequestError | None = None
        self.shut_out = self.left = self.abandoned = False
        self.cell: Cell | None = None
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
        if self.left and self.cell is not None and self.cell.finish_reason is None and door.closed is None:
            assert self.abandoned, f"request {self.cell.request} was left, and the engine was not told"

    async def read_late(self) -> None:
        """One who has never read does so now, when all has come."""
        if self._kept is not None:
            await self._meet_errors(partial(self._iterate, self._kept))

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
        stream = Stream(cast(Door, Entrance(door, self)), self.caller.question)
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
        if self._here:
            self._leave()
        stream.close()

    def _leave(self) -> None:
        self.left = True
        self.see(self.plan.leaving or "")
        if self.cell is None:
            self.see("caller left at the door")

    def _take(self, output: RequestOutput) -> None:
        completion = output.outputs[0]
        if len(completion.token_ids) - len(self.caller.tokens) > 1:
            self.see("cell merged")
        self.caller.text += completion.delta
        self.caller.tokens = list(completion.token_ids)
        if self.plan.reads_whole and self.plan.leaving in (None, AT_A_STEP, AT_A_TICK):
            self.caller.text = completion.text
        assert completion.text == self.caller.text, "the deltas are not the text"

    # -- the end ----------------------------------------------------------------------------------

    def judge(self, scenario: Scenario, *, was_closed: bool) -> None:
        """Raise AssertionError unless the caller got what it deserves, or a part of it if it may be owed."""
        caller, cell = self.caller, self.cell
        assert not self.shut_out or was_closed, "shut out of an open engine"
        if cell is None:
            assert self.left or self.shut_out, "never came in"
            return
        caller.cell, caller.cancelled = cell, self.left
        if self.left or self.shut_out or self.error is not None:
            caller.judge_beginning(scenario)
        else:
            assert cell.finish_reason is not None, "the stream ended without an end"
            caller.judge(scenario)


class Entrance:
    """Stands before the door for one visitor: remembers its cell, and whether it has told that it left."""

    def __init__(self, door: Door, visitor: Visitor) -> None:
        self._door = door
        self._visitor = visitor

    async def enter(self, question: Question, bell: Bell | None = None) -> Cell:
        """Wait for a seat."""
        came_at = tick()
        self._visitor.cell = await self._door.enter(question, bell)
        if tick() > came_at:
            self._visitor.see("no seat")
        return self._visitor.cell

    def abandon(self, request: int) -> None:
        """Nobody reads it any more."""
        self._visitor.abandoned = True
        self._door.abandon(request)
