"""A whole engine in an event loop that a seed moves: the production shells, in virtual time.

Where `simulate` moves the cores by hand, this one runs what stands around them: the loop of each actor, the
door, streams, links and the opening and leaving of a ring. A seed orders the tasks, and cancels some of
them at any of their steps. At the end each caller must have what the HashModel owes, and nothing is left.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random

import trio

from ..checkpoint import Checkpoint, open_checkpoint
from ..config import EngineConfig
from ..cores import NEVER
from ..engine.parts import Parts
from ..engine.ring import Ring, open_ring
from ..engine.topology import ACTORS, bounds
from ..errors import ActorLLMError, EngineClosed, EngineDied
from .callers import draw_callers
from .grammars import LARGE, SimulatedGrammars
from .orders import draw_orders, expect_failure
from .report import SimulationFailed
from .scenarios import SECOND, Scenario
from .seeded import Seeded
from .sightings import FAULTS as COMMON
from .sightings import Sightings
from .steps import Steps, run, sleep, tick
from .subscribers import SUBSCRIBING, Subscriber, draw_bookings
from .trace import Trace
from .virtual import SimulatedRunner
from .visitors import ASKING, LATE, LEAVINGS, Visitor, draw_plan

MAX_TICKS = 60_000
"""What takes longer is stuck."""

LEFT = "engine left with callers inside"
RAISED = "engine left by an exception"
CLOSED = "engine closed before it was left"
STRUCK = "engine cancelled at a step of a task"
CANCELLED = "engine cancelled at a tick"
ENDINGS = (LEFT, RAISED, CLOSED, STRUCK, CANCELLED)
"""How an engine ends before its callers have."""

FAULTS = tuple(
    sorted(
        (
            *COMMON,
            *ASKING,
            *LEAVINGS,
            *ENDINGS,
            *SUBSCRIBING,
            "bytes cut",
            "caller left at the door",
            "command cancelled",
            "edge by link",
            "late reply",
            LATE,
            "rendering raised",
            "request met a closed engine",
            "slow actor",
        )
    )
)
"""Every name that is counted. Over some hundred seeds of all families none should stay at zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """What happened in a run that found nothing wrong.

    `fingerprint` is the same for the same seed, scenario and code; `covered` counts what went wrong on
    purpose (`FAULTS`) and the rare paths of the ring (`sightings.SIGHTINGS`).
    """

    seed: int
    scenario: Scenario
    num_requests: int
    num_messages: int
    num_steps: int
    num_task_steps: int
    num_ticks: int
    fingerprint: str
    covered: Counter[str]


class _OwnError(Exception):
    """What the program around the engine raises."""


def schedules(seed: int, scenario: Scenario, *, write: Callable[[str], None] | None = None) -> ScheduleReport:
    """Run the scenario under trio with this seed; `write` gets every message as a line of text.

    Raises SimulationFailed for whatever is not as it must be, and what `write` raises. The same arguments
    give the same run.
    """
    trace = Trace(write)
    try:
        schedule = _Schedule(seed, scenario, trace)
        run(seed, schedule.main, schedule.steps)
    except BaseException as raised:
        error = trace.unwritten or _first(raised)
        if error is trace.unwritten or not isinstance(error, Exception):
            raise error from None
        problem = f"{type(error).__name__}: {error}"
        raise SimulationFailed(seed, scenario, problem, trace.last()) from error
    return schedule.report()


def _first(error: BaseException) -> BaseException:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Schedule:
    """One run."""

    def __init__(self, seed: int, scenario: Scenario, trace: Trace) -> None:
        self.seed = seed
        self.scenario = scenario
        self.trace = trace
        self.random = random = Random(f"schedule {seed}")
        self.steps = Steps()
        self.limits = bounds(scenario.config)
        self.sightings = Sightings(self.limits.texts, self.limits.steps)
        self.excuses: dict[int, set[str]] = {}
        last = random.choice((0, 30, 200))
        leaves = max(scenario.aborts, 0.3)
        self.visitors = [
            Visitor(caller, draw_plan(random, caller, last, leaves), random, self.sightings.see)
            for caller in draw_callers(random, scenario)
        ]
        self.bookings = draw_bookings(random, last)
        self.subscribers: list[Subscriber] = []
        early = random.random() < max(scenario.shutdown, 0.3)
        self.ending = random.choice((*ENDINGS, STRUCK)) if early else None  # some of these steps never come
        busy = last if random.random() < 0.8 else 0
        self.ends_at = busy + random.randint(0, random.choice((10, 60, 300)))
        self.was_closed = False
        self.runner: SimulatedRunner | None = None
        self.grammars = SimulatedGrammars()
        self.num_here = len(self.visitors) + 1
        self.all_gone = trio.Event()
        self.num_ticks = 0
        self.num_steps = 0
        self.placement: Seeded | None = None
        self.ring: Ring | None = None

    async def main(self) -> None:
        """The engine, those who visit it, and the bound of it all."""
        with trio.CancelScope(deadline=MAX_TICKS / SECOND) as bound:
            self.steps.bound(bound.cancel)
            async with trio.open_nursery() as nursery:
                num_living = trio.lowlevel.current_statistics().tasks_living
                self.placement = self._place(nursery)
                await self._engine(self.placement, nursery)
                num_left = trio.lowlevel.current_statistics().tasks_living - len(nursery.child_tasks)
                assert num_left == num_living, f"{num_left - num_living} tasks outlive the engine"
                await self._wait_for_all()
        self._raise_crash()
        if bound.cancelled_caught:
            raise AssertionError(f"still not idle: {self._held()}")
        self._judge()
        self.num_ticks = tick()

    def _place(self, nursery: trio.Nursery) -> Seeded:
        return Seeded(
            self.random,
            self.scenario,
            self.limits,
            self.trace,
            self.sightings,
            self._blame,
            self.steps,
            nursery,
        )

    # -- the engine -------------------------------------------------------------------------------

    async def _engine(self, placement: Seeded, nursery: trio.Nursery) -> None:
        config = replace(self.scenario.config, verify=self.random.random() < self.scenario.codec)
        with trio.CancelScope() as scope:
            self._plan_ending(scope, placement)
            try:
                parts = Parts(open_runner=self._open_runner, grammars=self._open_grammars)
                async with open_ring(config, _checkpoint(config.model), self.seed, parts, placement) as ring:
                    self._open(ring, placement, nursery)
                    for number, visitor in enumerate(self.visitors):
                        nursery.start_soon(self._visit, number, visitor, ring, nursery)
                    nursery.start_soon(self._command, ring)
                    await self._inside(ring)
            except _OwnError:
                pass
        if scope.cancelled_caught:
            self._ended_early()
        self.trace.note(tick(), "the engine is left")

    def _open(self, ring: Ring, placement: Seeded, nursery: trio.Nursery) -> None:
        """The ring is there: those who hear the news of the cache come in, or will."""
        self.ring, placement.chronicle.door = ring, ring.door
        for booking in self.bookings:
            subscriber = Subscriber(booking, self.random, placement.chronicle, self.sightings.see)
            self.subscribers.append(subscriber)
            nursery.start_soon(subscriber.visit, ring.door, self.scenario.block_size)

    def _plan_ending(self, scope: trio.CancelScope, placement: Seeded) -> None:
        if self.ending == CANCELLED:
            scope.deadline = self.ends_at / SECOND
        elif self.ending == STRUCK:
            after = self.random.randint(1, self.random.choice((6, 40, 250)))
            actor = self.random.choice((None, *ACTORS))
            if actor is None:
                self.steps.strike(after, scope.cancel)
            else:
                placement.on_start[actor] = partial(self.steps.strike, after, scope.cancel)

    async def _inside(self, ring: Ring) -> None:
        """The block of the engine."""
        if self.ending in (LEFT, RAISED, CLOSED):
            with trio.CancelScope(deadline=self.ends_at / SECOND) as scope:
                await self.all_gone.wait()
            if scope.cancelled_caught:
                self._ended_early()
                await self._leave(ring)
                return
        await self.all_gone.wait()
        await self._rest(ring)

    async def _leave(self, ring: Ring) -> None:
        if self.ending == RAISED:
            raise _OwnError
        if self.ending == CLOSED:
            ring.door.close(EngineClosed("closed"))
            await sleep(self.random.randint(1, 20))

    def _ended_early(self) -> None:
        self.was_closed = True
        self.sightings.see(self.ending or "")

    async def _rest(self, ring: Ring) -> None:
        """Everyone has gone. Those who never read do so now, and may ask for further answers."""
        await self._come_to_rest(ring)
        for visitor in self.visitors:
            await visitor.read_late()
        await self._come_to_rest(ring)
        assert self.placement is not None
        for visitor in self.visitors:
            untold = visitor.dropped - self.placement.laws.cancelled
            assert not untold, f"requests {sorted(untold)} were left, and the engine was not told"

    async def _come_to_rest(self, ring: Ring) -> None:
        """Nobody asks for anything: the ring must become idle, and hold nothing."""
        while not ring.idle and not self._crashes:
            await sleep(1)
        self._raise_crash()
        ring.check()
        pool = ring.cores["kvpool"].statistics()
        assert pool.num_free_blocks == pool.num_blocks, f"blocks are held by nobody: {pool}"
        assert self.runner is not None
        assert self.runner.num_rows == 0 or not self.runner.is_trusted, "the batch is not empty"
        assert self.placement is not None
        self.placement.laws.grammars.ended()
        num_kept, num_known = len(self.grammars.compiled), ring.cores["grammar"].statistics().num_compiled
        assert num_kept == num_known, f"{num_kept} grammars are kept, and {num_known} known"
        assert not self.grammars.rows, f"matchers are open: {sorted(self.grammars.rows)}"
        assert ring.door.num_open == ring.door.num_waiting == 0, "somebody is still at the door"
        num_lost = self.limits.requests - ring.door._seats.num_free
        assert num_lost == 0, f"{num_lost} seats are lost"

    def _open_runner(self, checkpoint: Checkpoint, config: EngineConfig) -> SimulatedRunner:
        self.runner = SimulatedRunner(self.scenario, self.random, self._blame)
        return self.runner

    def _open_grammars(self, checkpoint: Checkpoint) -> SimulatedGrammars:
        self.grammars = SimulatedGrammars(LARGE)
        return self.grammars

    def _blame(self, requests: list[int], reason: str) -> None:
        for request in requests:
            self.excuses.setdefault(request, set()).add(reason)

    # -- callers ----------------------------------------------------------------------------------

    async def _visit(self, number: int, visitor: Visitor, ring: Ring, nursery: trio.Nursery) -> None:
        await visitor.visit(ring.door, self.steps, nursery)
        self._gone(f"caller {number}")

    async def _command(self, ring: Ring) -> None:
        """One who gives commands; whoever gives one may be cancelled, unless the engine would stand still."""
        orders = deque(draw_orders(self.random, self.scenario))
        while orders and ring.door.closed is None:
            await sleep(self.random.randint(0, 60))
            action = orders.popleft()
            patience = self.random.choice((NEVER, 3.0)) if action in ("pause", "sleep") else NEVER
            try:
                with trio.CancelScope(deadline=trio.current_time() + patience / SECOND) as scope:
                    await ring.door.command(action, "profile.json")
                if scope.cancelled_caught:
                    self.sightings.see("command cancelled")
            except (EngineClosed, EngineDied):
                break
            except ActorLLMError as error:
                expect_failure(action, str(error))
                if action == "wake_up":
                    orders.appendleft(action)
        self._gone("who commands")

    def _gone(self, who: str) -> None:
        self.trace.note(tick(), f"{who} is gone")
        self.num_here -= 1
        if self.num_here == 0:
            self.all_gone.set()

    async def _wait_for_all(self) -> None:
        """Those who were inside when the engine was left, and those who came too late."""
        if self.ring is not None:
            await self.all_gone.wait()
            for visitor in self.visitors:
                await visitor.read_late()

    # -- the end ----------------------------------------------------------------------------------

    @property
    def _crashes(self) -> list[BaseException]:
        return self.placement.crashes if self.placement is not None else []

    def _raise_crash(self) -> None:
        if self.runner is not None and self.runner.broken is not None:
            raise AssertionError("a step broke the protocol") from self.runner.broken
        for error in self._crashes:
            raise error

    def _held(self) -> str:
        if self.ring is None:
            return "the engine does not open"
        busy = {name: core.statistics() for name, core in self.ring.cores.items() if not core.idle}
        mail = {name: self.ring.mail_waiting(name) for name in ACTORS if self.ring.mail_waiting(name)}
        who = f"{self.num_here} callers, {sum(each.is_here for each in self.subscribers)} subscribers"
        return f"{who}, {self.ring.placement.num_on_way} messages in links, {mail}, {busy}"

    def _judge(self) -> None:
        """Everyone is served or was shut out, and nobody holds anything."""
        if self.ring is None or self.placement is None:
            return
        for visitor in self.visitors:
            visitor.judge(self.scenario, self.placement.seeds, self.excuses, was_closed=self.was_closed)
        assert not self.ring.door._subscriptions, "a subscription is still open"
        for name, mailbox in self.ring.mailboxes.items():
            ends = mailbox.inbox.statistics()
            open_ends = ends.open_send_streams + ends.open_receive_streams
            assert open_ends == 0, f"the mailbox of the {name} is still open"
        self.sightings.ended(self.ring.cores)
        self.num_steps = self.ring.cores["scheduler"].statistics().num_steps
        self.sightings.see("bytes cut", self.placement.num_cuts)
        if self.runner is not None:
            self.sightings.see("step raised after its effect", self.runner.num_raised_late)

    def report(self) -> ScheduleReport:
        """What happened."""
        self.trace.note(self.num_ticks, f"{self.steps.num_steps} steps of tasks")
        return ScheduleReport(
            seed=self.seed,
            scenario=self.scenario,
            num_requests=sum(len(visitor.cells) for visitor in self.visitors),
            num_messages=self.trace.num_messages,
            num_steps=self.num_steps,
            num_task_steps=self.steps.num_steps,
            num_ticks=self.num_ticks,
            fingerprint=self.trace.fingerprint,
            covered=self.sightings.covered,
        )


@cache
def _checkpoint(model: str) -> Checkpoint:
    """The HashModel's, with its tokenizer."""
    checkpoint = open_checkpoint(model)
    checkpoint.tokenizer().load()
    return checkpoint
