"""Putting the ring together in this process: mailboxes, ports, and a task for each actor."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.abc

from ..actors.grammar import COMPILERS, work_on
from ..actors.jobs import Deliver, poster
from ..actors.render import render
from ..actors.serve import serve
from ..actors.worker import Device
from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..cores import Core
from ..cores.grammar import Grammars
from ..errors import ActorLLMError, EngineClosed, EngineDied
from ..messages import Compile, Job, JobDone, Message, ToCaller
from ..wire.mailbox import Mailbox, Port, Verified, open_mailbox
from .door import Door
from .parts import Parts, make_cores, max_model_len, policy_of
from .placement import INLINE, Placement, Spawn
from .record import Recorder, open_recorder, shared_objects
from .tap import LossyPort, Tap, TappedPort
from .topology import ACTORS, bounds, capacity, routes


@dataclass(slots=True)
class Ring:
    """A running ring. `ports` are the ways into the actors' inboxes, with all that is hung before them."""

    door: Door
    cores: dict[str, Core[Any, Any]]
    mailboxes: dict[str, Mailbox[Any]]
    ports: dict[str, Port[Any]]
    taps: list[LossyPort]
    max_model_len: int
    placement: Placement
    grammars: Grammars
    recorder: Recorder | None = None

    @property
    def idle(self) -> bool:
        """Whether no actor holds or owes anything and no mail is on its way."""
        mail = any(self.mail_waiting(actor) for actor in ACTORS) or self.placement.num_on_way > 0
        return not mail and self.door.num_open == 0 and all(self.cores[actor].idle for actor in ACTORS)

    def mail_waiting(self, actor: str) -> int:
        """Messages in the actor's inbox; the one that it is just waking up for counts too."""
        inbox = self.mailboxes[actor].inbox.statistics()
        return inbox.current_buffer_used + (inbox.tasks_waiting_receive == 0)

    def check(self) -> None:
        """Raise AssertionError when an invariant of an actor is broken."""
        for actor in ACTORS:
            self.cores[actor].check()

    def crash(self, actor: str, error: BaseException) -> None:
        """Tell everyone in the engine why it dies."""
        died: ActorLLMError = EngineDied(f"the {actor} crashed: {type(error).__name__}: {error}")
        died.__cause__ = error
        self.door.close(died)


@asynccontextmanager
async def open_ring(
    config: EngineConfig,
    checkpoint: Checkpoint,
    seed: int,
    parts: Parts,
    placement: Placement = INLINE,
    *,
    watches_lag: bool = False,
) -> AsyncIterator[Ring]:
    """The ring, ready for requests. On leaving, what is still open ends with EngineClosed.

    The tokenizer of the checkpoint should be loaded already: loading blocks. `watches_lag` measures how late
    the event loop is, which virtual time never is.
    """
    async with AsyncExitStack() as stack:
        opening = placement.open_device(checkpoint, config, parts.open_runner)
        device = await stack.enter_async_context(opening)
        ring = _wire(config, checkpoint, device, seed, parts, placement, stack)
        cores = {actor: ring.cores[actor] for actor in ACTORS}
        recording = open_recorder(config, cores, shared_objects(checkpoint.tokenizer(), ring.grammars))
        ring.recorder = await stack.enter_async_context(recording)
        raised: BaseException | None = None
        async with anyio.create_task_group() as nursery:
            await nursery.start(_run_actors, ring, config, checkpoint, device, parts)
            if watches_lag:
                nursery.start_soon(ring.door.meter.lag.watch)
            try:
                yield ring
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # the caller's own: it leaves as it is, in no group
                raised = error
            finally:
                ring.door.close(EngineClosed("the engine was closed before this request had ended"))
                nursery.cancel_scope.cancel()
        if raised is not None:
            raise raised


def _wire(
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    seed: int,
    parts: Parts,
    placement: Placement,
    stack: AsyncExitStack,
) -> Ring:
    """Mailboxes of the sizes that the topology says, closed with the stack; ports; cores; the door."""
    limits = bounds(config)
    grammars = parts.grammars(checkpoint)
    cores = make_cores(config, checkpoint, checkpoint.tokenizer(), device, seed, parts, grammars)
    sizes = {actor: capacity(actor, limits) for actor in ACTORS}
    for index, tap in enumerate(parts.taps):
        cores[f"tap-{index}"], sizes[f"tap-{index}"] = tap.core, tap.capacity
    mailboxes: dict[str, Mailbox[Any]] = {}
    plain: dict[str, Port[Any]] = {}
    for actor, size in sizes.items():
        mailboxes[actor] = open_mailbox(size)
        stack.callback(mailboxes[actor].port.close)
        stack.callback(mailboxes[actor].inbox.close)
        port = mailboxes[actor].port
        plain[actor] = Verified(port) if config.verify else port
    taps = [LossyPort(tap, plain[f"tap-{index}"]) for index, tap in enumerate(parts.taps)]
    ports = {actor: TappedPort(plain[actor], taps) if taps else plain[actor] for actor in ACTORS}
    door = Door(limits.requests, ports["frontend"], poster(), policy_of(config, parts))
    longest = max_model_len(config, checkpoint, device)
    return Ring(door, cores, mailboxes, ports, taps, longest, placement, grammars)


async def _run_actors(
    ring: Ring,
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    parts: Parts,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    """A nursery for the actors alone: their crash ends all of them, and not the caller's block."""
    async with anyio.create_task_group() as nursery:
        scope = nursery.cancel_scope
        start_job = _jobs(ring, config, checkpoint, device, nursery)

        def spawn(name: str, run: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(_guard, name, run, ring, scope)

        for actor in ACTORS:
            send = _sender(actor, ring, start_job.get(actor), spawn)
            core = ring.cores[actor] if ring.recorder is None else ring.recorder.listen(actor)
            metered = ring.door.meter.listen(actor, core)
            inbox = ring.mailboxes[actor].inbox
            check = core.check if config.verify else None
            spawn(actor, partial(ring.placement.serve, actor, metered, inbox, send, check))
        for index, tap in enumerate(parts.taps):
            nursery.start_soon(_run_tap, tap, ring.taps[index], ring.mailboxes[f"tap-{index}"])
        task_status.started()


def _jobs(
    ring: Ring, config: EngineConfig, checkpoint: Checkpoint, device: Device, nursery: anyio.abc.TaskGroup
) -> dict[str, Callable[[Job], None]]:
    """What starts the heavy work of the actors that have some."""
    start = ring.placement.start_jobs
    render_all = partial(render, checkpoint, config, ring.max_model_len)
    match_all = partial(work_on, ring.grammars)
    done = {actor: _deliver(ring, actor, nursery.cancel_scope) for actor in ("renderer", "grammar", "worker")}
    compiles = start(match_all, nursery, done["grammar"], COMPILERS)
    fills = start(match_all, nursery, done["grammar"], 1)
    return {
        "renderer": start(render_all, nursery, done["renderer"], config.renderer_num_workers),
        "grammar": lambda job: (compiles if isinstance(job.work, Compile) else fills)(job),
        "worker": lambda job: device.start(job, done["worker"]),
    }


def _deliver(ring: Ring, actor: str, scope: anyio.CancelScope) -> Deliver:
    """Puts results of jobs into the actor's inbox. What goes wrong there is a crash of the actor."""

    def deliver(done: JobDone) -> None:
        try:
            ring.ports[actor].send_nowait(done)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return  # the engine has been left
        except Exception as error:
            ring.crash(actor, error)
            scope.cancel()

    return deliver


def _sender(
    actor: str, ring: Ring, start_job: Callable[[Job], None] | None, spawn: Spawn
) -> Callable[[Any], None]:
    """What the actor sends with: looks the kind of message up in its routes."""
    kinds = routes(actor)
    ways: dict[str, Callable[[Any], None]] = {"caller": ring.door.deliver}
    for target in dict.fromkeys(target for targets in kinds.values() for target in targets):
        if target != "caller":
            ways[target] = ring.placement.port(actor, target, ring.ports[target], spawn).send_nowait
    ports: dict[type[Any], tuple[Callable[[Any], None], ...]] = {
        kind: tuple(ways[target] for target in targets) for kind, targets in kinds.items()
    }
    if start_job is not None:
        ports[Job] = (start_job,)

    def send(message: Message | ToCaller) -> None:
        for port in ports[type(message)]:
            port(message)

    return send


async def _guard(name: str, run: Callable[[], Awaitable[None]], ring: Ring, scope: anyio.CancelScope) -> None:
    """Run it; when it crashes, everyone in the engine is told why, and the ring stops."""
    try:
        await run()
    except Exception as error:
        ring.crash(name, error)
        scope.cancel()


async def _run_tap(tap: Tap, port: LossyPort, mailbox: Mailbox[Any]) -> None:
    """Serve a tap; when it crashes, it alone is gone."""
    try:
        await serve(tap.core, mailbox.inbox, tap.says)
    except Exception as error:
        port.died = f"{type(error).__name__}: {error}"
        port.hears = ()
