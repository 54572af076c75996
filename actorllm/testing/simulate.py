"""A whole engine without an event loop: the production cores, moved by a seed.

Nothing runs by itself. In each move the seed chooses who acts: mail is delivered on one edge, an actor takes
a turn, a caller comes, reads or cancels, or time goes on. After each turn the core that moved is checked,
and at the end each caller must have what the HashModel owes to the question alone.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from random import Random
from typing import Any

from ..actors.worker import Device
from ..checkpoint import Checkpoint, open_checkpoint
from ..cores import NEVER, Core
from ..engine.parts import Parts, make_cores
from ..engine.topology import ACTORS, EDGES, Edge, bounds
from ..messages import (
    CacheEvents,
    Cancel,
    CommandDone,
    Generate,
    Job,
    JobDone,
    RankFailed,
    Render,
    StepFailed,
    ToCaller,
    request_id,
)
from ..wire.codec import decode, encode
from .callers import SLOW, VANISHED, Caller, draw_callers
from .grammars import LARGE, SimulatedGrammars
from .jobs import Jobs
from .laws import Laws
from .orders import Orders, draw_orders
from .report import Report, SimulationFailed
from .scenarios import SECOND, Scenario
from .sightings import Sightings
from .trace import Trace
from .virtual import (
    Actor,
    Clock,
    Lane,
    SimulatedRunner,
    VirtualThread,
    draw_weight,
    echo_lane,
    late_replies,
    open_lanes,
)

MAX_MOVES = 60_000
MAX_TICKS = 300_000
"""What takes longer is stuck: a run takes some thousand moves, and ticks pass while an actor is slow."""

SLEEPY = 0.001
"""The weight of an actor that takes a turn only when little else can happen."""

Change = Callable[[Core[Any, Any]], Core[Any, Any]]
"""Takes an actor's core and returns what is to stand in its place."""


def simulate(
    seed: int,
    scenario: Scenario,
    *,
    changes: Mapping[str, Change] | None = None,
    edges: Sequence[Edge] = EDGES,
    write: Callable[[str], None] | None = None,
) -> Report:
    """Run the scenario with this seed; `write` gets every message as a line of text.

    `changes` replace the cores of the actors that they name, `edges` the topology: to see what is noticed.
    Raises SimulationFailed for whatever is not as it must be, and what `write` raises. The same arguments
    give the same run.
    """
    return _Simulation(seed, scenario, changes or {}, edges, write).run()


class _Simulation:
    """One run."""

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        changes: Mapping[str, Change],
        edges: Sequence[Edge],
        write: Callable[[str], None] | None,
    ) -> None:
        self.seed = seed
        self.scenario = scenario
        self.random = random = Random(seed)
        self.clock = Clock()
        self.trace = Trace(write)
        limits = bounds(scenario.config)
        self.sightings = Sightings(limits.texts, limits.steps)
        self.laws = Laws(scenario, limits.texts)
        self.moves = 0
        self.checkpoint = _checkpoint(scenario.config.model)
        self.coming = deque(draw_callers(random, scenario))
        self.orders = Orders(draw_orders(random, scenario))
        self.asked: dict[int, Caller] = {}
        self.num_open = 0
        self.num_seats = limits.requests
        self.patience: list[tuple[int, int]] = []
        self.shutdown_at = random.randrange(2000) if random.random() < scenario.shutdown else None
        lanes = open_lanes(edges, limits, scenario.links, random)
        self.lanes = {(lane.edge.source, lane.edge.target): lane for lane in lanes}
        self.echoes = {actor: echo_lane(actor) for actor in ("executor", "scheduler")}
        self.runner = SimulatedRunner(scenario, random, self._blame)
        self.device = Device(VirtualThread(self.clock, random, scenario.longest_job), self.runner)
        self.grammars = SimulatedGrammars(LARGE)
        self.actors = self._make_actors(changes)
        self.jobs = self._make_jobs()
        self.deliveries = [(lane, partial(self._deliver, lane)) for lane in self.lanes.values() if lane.slow]
        self.turns = [(actor, partial(self._turn, actor)) for actor in self.actors.values()]
        self.enter_weight = random.choice((0.05, 0.3, 3.0))
        self.tick_weight = random.choice((0.1, 1.0, 1.0))
        self.order_weight = random.choice((0.002, 0.02, 0.2))

    def _make_actors(self, changes: Mapping[str, Change]) -> dict[str, Actor]:
        checkpoint = self.checkpoint
        tokenizer = checkpoint.tokenizer()
        config = self.scenario.config
        cores = make_cores(config, checkpoint, tokenizer, self.device, self.seed, Parts(), self.grammars)
        cores |= {name: change(cores[name]) for name, change in changes.items()}
        actors = {
            name: Actor(name, cores[name], draw_weight(self.random), self._ports(name)) for name in ACTORS
        }
        if self.random.random() < 0.4:
            actors[self.random.choice(ACTORS)].weight = SLEEPY
        return actors

    def _make_jobs(self) -> Jobs:
        return Jobs(
            self.scenario,
            self.random,
            self.clock,
            self.checkpoint,
            self.device,
            self.grammars,
            self._deliver_job,
            self._blame,
        )

    def _ports(self, name: str) -> dict[type[Any], list[Lane]]:
        ports: dict[type[Any], list[Lane]] = {}
        for lane in self.lanes.values():
            if lane.edge.source == name:
                for kind in lane.edge.messages:
                    ports.setdefault(kind, []).append(lane)
        return ports

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> Report:
        try:
            while self._move():
                pass
            self._judge()
        except Exception as error:
            if error is self.trace.unwritten:
                raise
            problem = f"{type(error).__name__}: {error}"
            raise SimulationFailed(self.seed, self.scenario, problem, self.trace.last()) from error
        self.sightings.ended({name: actor.core for name, actor in self.actors.items()})
        return Report(
            seed=self.seed,
            scenario=self.scenario,
            num_requests=len(self.asked),
            num_moves=self.moves,
            num_messages=self.trace.num_messages,
            num_steps=self.actors["scheduler"].core.statistics().num_steps,
            num_ticks=self.clock.now,
            fingerprint=self.trace.fingerprint,
            covered=self.sightings.covered,
        )

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.clock.now / SECOND

    def _move(self) -> bool:
        """One of all the things that can happen; False when nothing can."""
        self.moves += 1
        assert self.moves < MAX_MOVES, "still not idle"
        assert self.clock.now < MAX_TICKS, "still not idle"
        while self.patience and self.patience[0][0] <= self.moves:
            self._cancel(self.asked[self.patience.pop(0)[1]])
        if self.moves == self.shutdown_at:
            self._shut_down()
        options, weights = self._options()
        if not options:
            return False
        self.random.choices(options, weights)[0]()
        return True

    def _options(self) -> tuple[list[Callable[[], None]], list[float]]:
        """What can happen next, and how likely each is."""
        options: list[Callable[[], None]] = []
        weights: list[float] = []
        for lane, deliver in self.deliveries:
            if lane.queue:
                options.append(deliver)
                weights.append(lane.weight)
        now, next_deadline = self.now, NEVER
        for actor, turn in self.turns:
            if actor.inbox or actor.deadline <= now:
                options.append(turn)
                weights.append(actor.weight)
            if now < actor.deadline < next_deadline:
                next_deadline = actor.deadline
        if self.coming and self.num_open < self.num_seats:
            options.append(self._enter)
            weights.append(self.enter_weight)
        if self.orders.ready:
            options.append(self._order)
            weights.append(self.order_weight)
        due = self.clock.next
        if next_deadline < NEVER:
            wake = max(self.clock.now + 1, math.ceil(next_deadline * SECOND))
            due = wake if due is None else min(due, wake)
        if due is not None:
            options.append(partial(self._tick, due, not options))
            weights.append(self.tick_weight)
        return options, weights

    def _tick(self, due: int, all_wait: bool) -> None:
        """Time goes on: to the next thing that happens, or a little, while others could act."""
        self.clock.advance(due if all_wait else min(due, self.clock.now + self.random.randint(1, 3)))
        next_due = min(self.laws.next_due, self.laws.grammars.next_due)
        assert not all_wait or self.now <= next_due, "a timeout passes, and nobody wakes for it"
        if self.runner.broken is not None:
            raise AssertionError("a step broke the protocol") from self.runner.broken

    # -- mail -------------------------------------------------------------------------------------

    def _send(self, lane: Lane, message: Any) -> None:
        source, target = lane.edge.source, lane.edge.target
        data = encode(message)
        self.trace.said(self.clock.now, source, target, message, data)
        if self.random.random() < self.scenario.codec:
            message = decode(data)
        if target == "caller":
            self._give(message)
            return
        lane.enter()
        if lane.slow:
            lane.queue.append(message)
        else:
            self.actors[target].inbox.append((lane, message))

    def _deliver(self, lane: Lane) -> None:
        inbox = self.actors[lane.edge.target].inbox
        for _ in range(self.random.choice((1, len(lane.queue)))):
            inbox.append((lane, lane.queue.popleft()))

    def _turn(self, actor: Actor) -> None:
        """The actor hears its mail, or the first part of it, and says what it has to say."""
        count = len(actor.inbox)
        if count > 1 and self.random.random() < self.scenario.partial:
            count = self.random.randint(1, count - 1)
            self.sightings.see("part of the mail")
        for _ in range(count):
            lane, message = actor.inbox.popleft()
            lane.num_waiting -= 1
            self.sightings.heard(actor.name, message)
            self.laws.heard(actor.name, message)
            actor.core.feed(message)
            if isinstance(message, RankFailed | StepFailed) and lane.edge.source != "echo":
                self._echo(actor.name, message)
        for message in actor.core.poll(self.now):
            self.sightings.said(actor.name, message)
            self.laws.said(actor.name, message)
            if type(message) is Job:
                self.jobs.start(message)
            else:
                if type(message) is Render:
                    self.asked[message.request].seed = message.question.sampling.seed
                for lane in actor.ports[type(message)]:
                    self._send(lane, message)
        actor.core.check()
        actor.deadline = actor.core.deadline
        self._look_at(actor)

    def _look_at(self, actor: Actor) -> None:
        """After its turn: what the laws and sightings ask of its statistics."""
        if actor.name == "scheduler":
            num_suspects = actor.core.statistics().num_on_probation
            self.laws.turned(self.now, num_suspects)
            self.sightings.turned(num_suspects)
        elif actor.name == "grammar":
            self.laws.grammars.grammar_turned(self.now)
        elif actor.name == "kvpool":
            self.laws.pool_turned(actor.core.statistics().num_cached_blocks)
        elif actor.name == "detokenizer":
            self.sightings.see("tombstone", actor.core.statistics().tombstones)

    # -- jobs and faults --------------------------------------------------------------------------

    def _deliver_job(self, actor: str, done: JobDone) -> None:
        self._send(self.lanes[actor, actor], done)

    def _blame(self, requests: list[int], reason: str) -> None:
        for request in requests:
            self.asked[request].excuses.add(reason)

    def _echo(self, actor: str, failed: RankFailed | StepFailed) -> None:
        """Replies of an epoch that has failed come late: the failure once more, and a step that was done."""
        if self.random.random() >= self.scenario.echoes:
            return
        for late in late_replies(failed):
            due = self.clock.now + self.random.randint(1, 2 * self.scenario.longest_job)
            self.clock.at(due, partial(self._send, self.echoes[actor], late))

    # -- callers ----------------------------------------------------------------------------------

    def _enter(self) -> None:
        caller = self.coming.popleft()
        request = request_id(0, len(self.asked) + 1)
        self.asked[request] = caller
        self.num_open += 1
        caller.enter(request)
        if self.num_open == self.num_seats and self.coming:
            self.sightings.see("no seat")
        self._send(self.lanes["caller", "frontend"], Generate(request, caller.question))
        if caller.patience is not None:
            self.patience.append((self.moves + caller.patience, request))
            self.patience.sort()

    def _order(self) -> None:
        self._send(self.lanes["caller", "frontend"], self.orders.give())

    def _give(self, message: ToCaller) -> None:
        if isinstance(message, CacheEvents):
            return
        if isinstance(message, CommandDone):
            self.orders.done(message)
            return
        caller = self.asked[message.request]
        if caller.put(message):
            self.num_open -= 1
        if caller.reading == SLOW and self.random.random() < 0.2 and caller.read() > 1:
            self.sightings.see("cell merged")

    def _cancel(self, caller: Caller) -> None:
        if caller.is_open and not caller.cancelled:
            caller.cancelled = True
            self._send(self.lanes["caller", "frontend"], Cancel(caller.cell.request))

    def _shut_down(self) -> None:
        self.coming.clear()
        if self.num_open:
            self.sightings.see("shut down")
        for caller in self.asked.values():
            self._cancel(caller)

    # -- the end ----------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Nothing can move any more: everyone is served, and nobody holds anything."""
        for request, caller in self.asked.items():
            assert caller.ended, f"request {request} never ended"
            try:
                caller.judge(self.scenario)
            except AssertionError as error:
                raise AssertionError(f"request {request}: {error}") from error
        assert not self.coming, "a caller never found a seat"
        for name, actor in self.actors.items():
            assert actor.core.idle, f"the {name} is not idle: {actor.core.statistics()}"
        pool = self.actors["kvpool"].core.statistics()
        assert pool.num_free_blocks == pool.num_blocks, f"blocks are held by nobody: {pool}"
        self.laws.grammars.ended()
        num_kept, num_known = (
            len(self.grammars.compiled),
            self.actors["grammar"].core.statistics().num_compiled,
        )
        assert num_kept == num_known, f"{num_kept} grammars are kept, and {num_known} known"
        assert not self.grammars.rows, f"matchers are open: {sorted(self.grammars.rows)}"
        assert self.runner.num_rows == 0 or not self.runner.is_trusted, "the batch is not empty"
        self.sightings.see("step raised after its effect", self.runner.num_raised_late)
        self.sightings.see("never read", sum(each.reading == VANISHED for each in self.asked.values()))


@cache
def _checkpoint(model: str) -> Checkpoint:
    return open_checkpoint(model)
