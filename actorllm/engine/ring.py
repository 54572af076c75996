"""Putting the ring together in this process: cores, mailboxes, ports, and a task for each actor."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.abc

from ..actors.jobs import PooledJobs, Work, poster
from ..actors.render import render
from ..actors.serve import serve
from ..actors.worker import Device, OpenRunner, open_device, open_runner
from ..checkpoint import Checkpoint, Tokenizer
from ..config import EngineConfig
from ..cores import Core
from ..cores.detokenizer import Detokenizer
from ..cores.executor import Executor
from ..cores.frontend import Frontend
from ..cores.grammar import Grammar
from ..cores.kvpool import KVPool
from ..cores.policy import POLICIES, Policy
from ..cores.renderer import Renderer
from ..cores.scheduler import Scheduler
from ..cores.worker import Worker
from ..errors import ActorLLMError, ConfigError, EngineClosed, EngineDied
from ..messages import Job, Message, ToCaller
from ..wire.mailbox import Mailbox, Port, Verified, open_mailbox
from .door import Door
from .topology import ACTORS, Bounds, bounds, capacity, routes


def discard(message: Any) -> None:
    """Where the words of an actor go that nobody listens to."""


@dataclass(frozen=True, slots=True)
class Tap:
    """An actor of your own: it hears a copy of every message of these kinds, wherever it goes.

    core      what it knows; its `feed` gets the copies
    hears     classes of messages
    capacity  of its inbox; what finds it full is lost, and counted, for the ring waits for nobody
    says      takes what the core says
    """

    core: Core[Any, Any]
    hears: tuple[type[Any], ...]
    capacity: int = 1024
    says: Callable[[Any], None] = discard


class LossyPort:
    """The port of a tap: a full inbox costs the tap a message, and nobody else anything."""

    def __init__(self, port: Port[Any]) -> None:
        self.num_lost = 0
        self._port = port

    def send_nowait(self, item: Any) -> None:
        """Put a copy into the tap's inbox, or count it as lost."""
        try:
            self._port.send_nowait(item)
        except anyio.WouldBlock:
            self.num_lost += 1


@dataclass(frozen=True, slots=True)
class Parts:
    """What can be put in place of the engine's own parts.

    policy       the order of requests, instead of the one that the configuration names
    open_runner  makes the runner of the worker's device
    taps         actors that listen
    """

    policy: Policy | None = None
    open_runner: OpenRunner = open_runner
    taps: tuple[Tap, ...] = ()


@dataclass(slots=True)
class Ring:
    """A running ring."""

    door: Door
    cores: dict[str, Core[Any, Any]]
    mailboxes: dict[str, Mailbox[Any]]
    max_model_len: int
    taps: list[LossyPort]

    @property
    def idle(self) -> bool:
        """Whether nobody holds or owes anything and no mail is on its way."""
        mail = any(self.mail_waiting(actor) for actor in self.mailboxes)
        return not mail and self.door.num_open == 0 and all(core.idle for core in self.cores.values())

    def mail_waiting(self, actor: str) -> int:
        """Messages in the actor's inbox; the one that it is just waking up for counts too."""
        inbox = self.mailboxes[actor].inbox.statistics()
        return inbox.current_buffer_used + (inbox.tasks_waiting_receive == 0)

    def check(self) -> None:
        """Raise AssertionError when an invariant of a core is broken."""
        for core in self.cores.values():
            core.check()


@asynccontextmanager
async def open_ring(
    config: EngineConfig, checkpoint: Checkpoint, seed: int, parts: Parts
) -> AsyncIterator[Ring]:
    """The ring, ready for requests. On leaving, what is still open ends with EngineClosed."""
    async with AsyncExitStack() as stack:
        vocabulary = await anyio.to_thread.run_sync(_vocabulary, checkpoint)
        device = await stack.enter_async_context(open_device(checkpoint, config, parts.open_runner))
        limits = bounds(config)
        mailboxes = _open_mailboxes(limits, parts.taps, stack)
        door = Door(limits.requests, _port(mailboxes["frontend"], config), poster())
        max_model_len = _max_model_len(config, device)
        cores = _cores(config, checkpoint, vocabulary, device, max_model_len, limits, seed, parts)
        taps = [LossyPort(_port(mailboxes[name], config)) for name in mailboxes if name not in ACTORS]
        ring = Ring(door, cores, mailboxes, max_model_len, taps)
        raised: BaseException | None = None
        async with anyio.create_task_group() as nursery:
            await nursery.start(_run_actors, ring, config, partial(render, checkpoint), device, parts)
            try:
                yield ring
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # the caller's own: it leaves as it is, in no group
                raised = error
            finally:
                door.close(EngineClosed("the engine was closed before this request had ended"))
                nursery.cancel_scope.cancel()
        if raised is not None:
            raise raised


async def _run_actors(
    ring: Ring,
    config: EngineConfig,
    work: Work,
    device: Device,
    parts: Parts,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    """A nursery for the actors alone: their crash ends all of them, and not the caller's block."""
    async with anyio.create_task_group() as nursery:
        inbox = _port(ring.mailboxes["renderer"], config)
        jobs = PooledJobs(work, nursery, inbox, config.renderer_num_workers)
        steps = _port(ring.mailboxes["worker"], config)
        start_job: dict[str, Callable[[Job], None]] = {
            "renderer": jobs.start,
            "worker": lambda job: device.start(job, steps),
        }
        for name in ACTORS:
            send = _sender(name, ring, config, parts.taps, start_job.get(name))
            nursery.start_soon(_run, name, ring, send, config.verify, nursery.cancel_scope)
        for index, tap in enumerate(parts.taps):
            nursery.start_soon(_run, f"tap-{index}", ring, tap.says, config.verify, nursery.cancel_scope)
        task_status.started()


def _vocabulary(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer with all that is read of it later; what it lacks is an error of the start."""
    tokenizer = checkpoint.tokenizer()
    assert len(tokenizer.pieces) >= tokenizer.vocab_size
    assert checkpoint.eos_token_ids is not None
    return tokenizer


def _open_mailboxes(limits: Bounds, taps: tuple[Tap, ...], stack: AsyncExitStack) -> dict[str, Mailbox[Any]]:
    sizes = {actor: capacity(actor, limits) for actor in ACTORS}
    sizes |= {f"tap-{index}": tap.capacity for index, tap in enumerate(taps)}
    mailboxes: dict[str, Mailbox[Any]] = {}
    for actor, size in sizes.items():
        mailboxes[actor] = open_mailbox(size)
        stack.callback(mailboxes[actor].port.close)
        stack.callback(mailboxes[actor].inbox.close)
    return mailboxes


def _port(mailbox: Mailbox[Any], config: EngineConfig) -> Port[Any]:
    return Verified(mailbox.port) if config.verify else mailbox.port


def _max_model_len(config: EngineConfig, device: Device) -> int:
    """What one request may have: no more than the pool holds, so that each can run to its end."""
    room = device.num_blocks * config.block_size
    if config.max_model_len is not None and config.max_model_len > room:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but the KV cache holds {room} tokens "
            f"({device.num_blocks} blocks of {config.block_size}); lower max_model_len, or raise "
            "num_gpu_blocks_override or kv_cache_memory_bytes"
        )
    return min(device.max_model_len, room)


def _cores(
    config: EngineConfig,
    checkpoint: Checkpoint,
    vocabulary: Tokenizer,
    device: Device,
    max_model_len: int,
    limits: Bounds,
    seed: int,
    parts: Parts,
) -> dict[str, Core[Any, Any]]:
    """One core for each actor: all that the engine knows."""
    cores: dict[str, Core[Any, Any]] = {
        "frontend": Frontend(seed),
        "renderer": Renderer(vocab_size=checkpoint.architecture.vocab_size, max_model_len=max_model_len),
        "detokenizer": Detokenizer(vocabulary),
        "scheduler": Scheduler(
            policy=parts.policy or POLICIES[config.policy](),
            eos_token_ids=checkpoint.eos_token_ids,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            steps_in_flight=config.steps_in_flight,
            step_window=limits.texts,
            max_chunk=config.long_prefill_token_threshold,
            max_num_queued_reqs=config.max_num_queued_reqs,
            max_num_queued_tokens=config.max_num_queued_tokens,
        ),
        "kvpool": KVPool(
            device.num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            watermark=config.watermark,
            max_chunk=config.long_prefill_token_threshold,
        ),
        "grammar": Grammar(),
        "executor": Executor(num_ranks=1),
        "worker": Worker(rank=0),
    }
    return cores | {f"tap-{index}": tap.core for index, tap in enumerate(parts.taps)}


def _sender(
    name: str,
    ring: Ring,
    config: EngineConfig,
    taps: tuple[Tap, ...],
    start_job: Callable[[Job], None] | None,
) -> Callable[[Any], None]:
    """What the actor sends with: looks the kind of message up in its routes."""
    ports: dict[type[Any], tuple[Callable[[Any], None], ...]] = {}
    for kind, targets in routes(name).items():
        ports[kind] = tuple(
            ring.door.deliver if target == "caller" else _port(ring.mailboxes[target], config).send_nowait
            for target in targets
        )
    if start_job is not None:
        ports[Job] = (start_job,)
    for index, tap in enumerate(taps):
        for kind in tap.hears:
            if kind in ports:
                ports[kind] = (*ports[kind], ring.taps[index].send_nowait)

    def send(message: Message | ToCaller) -> None:
        for port in ports[type(message)]:
            port(message)

    return send


async def _run(
    name: str, ring: Ring, send: Callable[[Any], None], verify: bool, scope: anyio.CancelScope
) -> None:
    """Serve; when the actor crashes, everyone in the engine is told why, and the ring stops."""
    core = ring.cores[name]
    try:
        await serve(core, ring.mailboxes[name].inbox, send, after_turn=core.check if verify else None)
    except Exception as error:
        died: ActorLLMError = EngineDied(f"the {name} crashed: {type(error).__name__}: {error}")
        died.__cause__ = error
        ring.door.close(died)
        scope.cancel()
