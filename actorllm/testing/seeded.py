"""A placement that a seed moves: the production shells, with all that is outside them drawn.

Steps and renderings take whole ticks, without threads; some edges go by links over pipes that delay and cut;
some actors are slow, hear their mail in parts, or hear late replies among it.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import anyio.abc
import trio

from ..actors.jobs import Deliver, Work, do
from ..actors.serve import serve
from ..actors.worker import Device, OpenRunner
from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..cores import Core
from ..engine.placement import Spawn
from ..engine.topology import EDGES, Bounds, routes
from ..engine.wrapped import Wrapped
from ..errors import InvalidRequest
from ..messages import CacheEvents, Compile, Fill, Job, RankFailed, Render, Rendered, StepFailed
from ..wire.codec import encode
from ..wire.link import Link
from ..wire.mailbox import Inbox, Mailbox, Port, open_mailbox
from .laws import Laws
from .pipe import PipeEnd, open_pipe
from .scenarios import SECOND, Scenario
from .sightings import Sightings
from .steps import Steps, sleep, tick
from .subscribers import Chronicle
from .trace import Trace
from .virtual import LOCAL, late_replies

Blame = Callable[[list[int], str], None]
"""Is told which requests may fail, and why."""


class SeededThread:
    """The device's thread without a thread: jobs take a drawn number of ticks, one after the other.

    When it is closed the job that it is in is done and delivered, and those behind it are dropped.
    """

    def __init__(self, random: Random, longest: int) -> None:
        self._random = random
        self._longest = longest
        self._queue: deque[tuple[Work, Job, Deliver]] = deque()
        self._changed = trio.Event()
        self._closing = False
        self._ended = trio.Event()

    def start(self, work: Work, job: Job, deliver: Deliver, /) -> None:
        """Queue the job."""
        self._queue.append((work, job, deliver))
        self._changed.set()

    async def run(self) -> None:
        """Do what is queued, until it is closed."""
        try:
            while not self._closing:
                if self._queue:
                    work, job, deliver = self._queue.popleft()
                    await sleep(self._random.randint(1, self._longest))
                    deliver(do(work, job))
                else:
                    self._changed = trio.Event()
                    await self._changed.wait()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Wait for the job that it is in, even in a cancelled scope."""
        self._closing = True
        self._changed.set()
        with trio.CancelScope(shield=True):
            await self._ended.wait()


class SeededInbox:
    """An actor's inbox. Now and then the actor sleeps before a turn, or hears only a part of its mail.

    `echoes` is how often a failure is followed by late replies of its epoch; they come with later mail.
    """

    def __init__(
        self, inbox: Inbox[Any], random: Random, scenario: Scenario, see: Callable[[str], None]
    ) -> None:
        self._inbox = inbox
        self._random = random
        self._naps = random.choice((0.0, 0.0, 0.2, 1.0))
        self._longest_nap = random.choice((1, 2, 7))
        self._partial = scenario.partial
        self._echoes = scenario.echoes
        self._longest_echo = 2 * scenario.longest_job
        self._late: deque[tuple[int, Any]] = deque()
        self._see = see

    async def receive(self) -> Any:
        """The oldest message; waits for one."""
        if self._random.random() < self._naps:
            self._see("slow actor")
            await sleep(self._random.randint(1, self._longest_nap))
        return self._heard(await self._inbox.receive())

    def receive_nowait(self) -> Any:
        """The oldest message, or a late one. Raises anyio.WouldBlock when there seems to be none."""
        if self._late and self._late[0][0] <= tick():
            self._see("late reply")
            return self._late.popleft()[1]
        if self._random.random() < self._partial:
            raise anyio.WouldBlock
        return self._heard(self._inbox.receive_nowait())

    def _heard(self, message: Any) -> Any:
        if isinstance(message, RankFailed | StepFailed) and self._random.random() < self._echoes:
            due = tick()
            for late in late_replies(message):
                due += self._random.randint(1, self._longest_echo)
                self._late.append((due, late))
        return message


class Watched(Wrapped):
    """A core that is listened to: laws and sightings hear all that it hears and says.

    It also holds its shell to a law: from the first `feed` of a turn to its end there is no checkpoint,
    and so no step of a task.
    """

    def __init__(
        self, actor: str, core: Core[Any, Any], laws: Laws, sightings: Sightings, steps: Steps
    ) -> None:
        super().__init__(actor, core)
        self._laws = laws
        self._sightings = sightings
        self._steps = steps
        self._step: int | None = None

    def stay(self) -> None:
        """Raise AssertionError when there was a checkpoint since this was first called in the turn."""
        if self._step is None:
            self._step = self._steps.num_steps
        assert self._step == self._steps.num_steps, f"a checkpoint in a turn of the {self.actor}"

    def turned(self) -> None:
        """The turn is over."""
        self.stay()
        self._step = None
        self.check()

    def feed(self, message: Any) -> None:
        """Absorb a message."""
        self.stay()
        self._sightings.heard(self.actor, message)
        self._laws.heard(self.actor, message)
        super().feed(message)

    def poll(self, now: float) -> tuple[Any, ...]:
        """What the core says."""
        self.stay()
        said = super().poll(now)
        for message in said:
            self._sightings.said(self.actor, message)
            self._laws.said(self.actor, message)
        return said


class Seeded:
    """A placement (`engine.placement`) for one run. `crashes` are the errors that no shell may raise."""

    def __init__(
        self,
        random: Random,
        scenario: Scenario,
        limits: Bounds,
        trace: Trace,
        sightings: Sightings,
        blame: Blame,
        steps: Steps,
        nursery: trio.Nursery,
    ) -> None:
        """`nursery` outlives the ring; the device's thread runs there."""
        self._steps = steps
        self.laws = Laws(scenario, limits.texts)
        self.chronicle = Chronicle()
        self.crashes: list[BaseException] = []
        self.seeds: dict[int, int | None] = {}
        self.on_start: dict[str, Callable[[], None]] = {}
        self._random = random
        self._scenario = scenario
        self._limits = limits
        self._trace = trace
        self._sightings = sightings
        self._blame = blame
        self._nursery = nursery
        self._on_way = 0
        self._next_due = self._grammar_due = float("inf")
        self._longest_delay = random.choice((0, 1, 5))
        self._pipes: list[PipeEnd] = []
        self._closing = ExitStack()

    @property
    def num_on_way(self) -> int:
        """Messages in links."""
        return self._on_way

    # -- heavy work -------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_device(
        self, checkpoint: Checkpoint, config: EngineConfig, make: OpenRunner, /
    ) -> AsyncIterator[Device]:
        """A device in virtual time."""
        thread = SeededThread(self._random, self._scenario.longest_job)
        self._nursery.start_soon(thread.run)
        try:
            yield Device(thread, make(checkpoint, config))
        finally:
            self._closing.close()
            await thread.close()

    def start_jobs(
        self, work: Work, nursery: anyio.abc.TaskGroup, deliver: Deliver, limit: int, /
    ) -> Callable[[Job], None]:
        """Jobs in virtual time."""
        seats = anyio.Semaphore(limit)

        async def run(job: Job) -> None:
            async with seats:
                if isinstance(job.work, Compile):
                    await sleep(self._random.randint(1, self._scenario.longest_compile))
                    deliver(do(work, job))
                    return
                await sleep(self._random.randint(1, self._scenario.longest_job))
                if isinstance(job.work, Fill):
                    deliver(do(work, job))
                    return
                fails = self._random.random() < max(self._scenario.raises, 0.05)
                deliver(do(self._refuse if fails else work, job))

        def start(job: Job) -> None:
            nursery.start_soon(run, job)

        return start

    def _refuse(self, work: Render) -> Rendered:
        self._sightings.see("rendering raised")
        error = InvalidRequest("this prompt was made to fail", "prompt")
        self._blame([work.request], str(error))
        raise error

    # -- mail -------------------------------------------------------------------------------------

    def port(self, source: str, target: str, port: Port[Any], spawn: Spawn, /) -> Port[Any]:
        """The inbox's own port, or an outbox whose mail goes there by a link."""
        edge = next(edge for edge in EDGES if (edge.source, edge.target) == (source, target))
        if {source, target} <= LOCAL or self._random.random() >= self._scenario.links:
            return port
        outbox: Mailbox[Any] = open_mailbox(edge.window(self._limits))
        nothing: Mailbox[Any] = open_mailbox(1)
        for end in (*outbox, *nothing):
            self._closing.callback(end.close)
        near, far = open_pipe(self._random, self._longest_delay)
        self._pipes += (near, far)
        links = (
            Link(near, outbox.inbox, self._deliver_nothing),
            Link(far, nothing.inbox, self._arriving(port)),
        )
        for link in links:
            spawn(f"link from the {source} to the {target}", partial(self._watch, link.run))
        self._sightings.see("edge by link")
        return _Counted(outbox.port, self._leave)

    def _leave(self) -> None:
        self._on_way += 1

    def _arriving(self, port: Port[Any]) -> Callable[[Any], None]:
        def arrive(message: Any) -> None:
            self._on_way -= 1
            port.send_nowait(message)

        return arrive

    def _deliver_nothing(self, message: Any) -> None:
        raise AssertionError(f"{type(message).__name__} from where nobody speaks")

    # -- actors -----------------------------------------------------------------------------------

    async def serve(
        self,
        actor: str,
        core: Core[Any, Any],
        inbox: Inbox[Any],
        send: Callable[[Any], None],
        after_turn: Callable[[], None] | None,
        /,
    ) -> None:
        """Be the actor, listened to and checked after every turn."""
        if actor in self.on_start:
            self.on_start[actor]()
        watched = Watched(actor, core, self.laws, self._sightings, self._steps)
        seeded = SeededInbox(inbox, self._random, self._scenario, self._sightings.see)
        say, turned = self._saying(actor, watched, send), partial(self._turned, actor, watched)
        await self._watch(partial(serve, watched, seeded, say, after_turn=turned))

    async def _watch(self, run: Callable[[], Any]) -> None:
        """Remember how it crashes, even when nobody else can hear of it any more."""
        try:
            await run()
        except Exception as error:
            self.crashes.append(error)
            raise

    def _saying(self, actor: str, core: Watched, send: Callable[[Any], None]) -> Callable[[Any], None]:
        targets = {kind: ", ".join(names) for kind, names in routes(actor).items()}

        def say(message: Any) -> None:
            core.stay()
            if type(message) is Render:
                self.seeds[message.request] = message.question.sampling.seed
            if type(message) is CacheEvents:
                self.chronicle.say(message)
            if type(message) is not Job:
                self._trace.said(tick(), actor, targets[type(message)], message, encode(message))
            send(message)

        return say

    def _turned(self, actor: str, core: Watched) -> None:
        core.turned()
        if actor == "scheduler":
            now, num_suspects = trio.current_time(), core.statistics().num_on_probation
            assert now <= self._next_due, f"a timeout passed at {self._next_due * SECOND}; nobody woke for it"
            self.laws.turned(now, num_suspects)
            self._next_due = self.laws.next_due
            self._sightings.turned(num_suspects)
        elif actor == "grammar":
            now = trio.current_time()
            assert now <= self._grammar_due, "a grammar is late, and nobody woke for it"
            self.laws.grammars.grammar_turned(now)
            self._grammar_due = self.laws.grammars.next_due
        elif actor == "kvpool":
            num_cached_blocks = core.statistics().num_cached_blocks
            self.laws.pool_turned(num_cached_blocks)
            self.chronicle.turned(num_cached_blocks)
        elif actor == "detokenizer":
            self._sightings.see("tombstone", core.statistics().tombstones)

    @property
    def num_cuts(self) -> int:
        """Pieces of bytes that pipes have cut in two."""
        return sum(pipe.num_cuts for pipe in self._pipes)


class _Counted:
    """A port that tells of each message."""

    def __init__(self, port: Port[Any], tell: Callable[[], None]) -> None:
        self._port = port
        self._tell = tell

    def send_nowait(self, item: Any, /) -> None:
        """Send it on, and tell."""
        self._port.send_nowait(item)
        self._tell()
