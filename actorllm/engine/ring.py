"""Putting the ring together in this process: mailboxes, ports, and a task for each actor."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.abc

from ..actors.jobs import Deliver, PooledJobs, poster
from ..actors.render import render
from ..actors.serve import serve
from ..actors.worker import Device, open_device
from ..checkpoint import Checkpoint, Tokenizer
from ..config import EngineConfig
from ..cores import Core
from ..errors import ActorLLMError, EngineClosed, EngineDied
from ..messages import Job, JobDone, Message, ToCaller
from ..wire.mailbox import Mailbox, Port, Verified, open_mailbox
from .door import Door
from .parts import Parts, make_cores, max_model_len
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

    @property
    def idle(self) -> bool:
        """Whether no actor holds or owes anything and no mail is on its way."""
        mail = any(self.mail_waiting(actor) for actor in ACTORS)
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
    config: EngineConfig, checkpoint: Checkpoint, seed: int, parts: Parts
) -> AsyncIterator[Ring]:
    """The ring, ready for requests. On leaving, what is still open ends with EngineClosed."""
    async with AsyncExitStack() as stack:
        tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, checkpoint)
        device = await stack.enter_async_context(open_device(checkpoint, config, parts.open_runner))
        ring = _wire(config, checkpoint, tokenizer, device, seed, parts, stack)
        raised: BaseException | None = None
        async with anyio.create_task_group() as nursery:
            await nursery.start(_run_actors, ring, config, checkpoint, device, parts)
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


def _load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer with all that the event loop reads of it; what it lacks is an error of the start."""
    tokenizer = checkpoint.tokenizer()
    tokenizer.load()
    return tokenizer


def _wire(
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    device: Device,
    seed: int,
    parts: Parts,
    stack: AsyncExitStack,
) -> Ring:
    """Mailboxes of the sizes that the topology says, closed with the stack; ports; cores; the door."""
    limits = bounds(config)
    cores = make_cores(config, checkpoint, tokenizer, device, seed, parts)
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
    door = Door(limits.requests, ports["frontend"], poster())
    return Ring(door, cores, mailboxes, ports, taps, max_model_len(config, device))


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
        rendered = _deliver(ring, "renderer", scope)
        work = partial(render, checkpoint, ring.max_model_len)
        jobs = PooledJobs(work, nursery, rendered, config.renderer_num_workers)
        executed = _deliver(ring, "worker", scope)
        start_job: dict[str, Callable[[Job], None]] = {
            "renderer": jobs.start,
            "worker": lambda job: device.start(job, executed),
        }
        for actor in ACTORS:
            send = _sender(actor, ring, start_job.get(actor))
            nursery.start_soon(_run, actor, ring, send, config.verify, scope)
        for index, tap in enumerate(parts.taps):
            nursery.start_soon(_run_tap, tap, ring.taps[index], ring.mailboxes[f"tap-{index}"])
        task_status.started()


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


def _sender(actor: str, ring: Ring, start_job: Callable[[Job], None] | None) -> Callable[[Any], None]:
    """What the actor sends with: looks the kind of message up in its routes."""
    ports: dict[type[Any], tuple[Callable[[Any], None], ...]] = {}
    for kind, targets in routes(actor).items():
        ports[kind] = tuple(
            ring.door.deliver if target == "caller" else ring.ports[target].send_nowait for target in targets
        )
    if start_job is not None:
        ports[Job] = (start_job,)

    def send(message: Message | ToCaller) -> None:
        for port in ports[type(message)]:
            port(message)

    return send


async def _run(
    actor: str, ring: Ring, send: Callable[[Any], None], verify: bool, scope: anyio.CancelScope
) -> None:
    """Serve; when the actor crashes, everyone in the engine is told why, and the ring stops."""
    core = ring.cores[actor]
    try:
        await serve(core, ring.mailboxes[actor].inbox, send, after_turn=core.check if verify else None)
    except Exception as error:
        ring.crash(actor, error)
        scope.cancel()


async def _run_tap(tap: Tap, port: LossyPort, mailbox: Mailbox[Any]) -> None:
    """Serve a tap; when it crashes, it alone is gone."""
    try:
        await serve(tap.core, mailbox.inbox, tap.says)
    except Exception as error:
        port.died = f"{type(error).__name__}: {error}"
        port.hears = ()
