"""Placement: where the actors of a ring and their heavy work live."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio.abc

from ..actors.jobs import Deliver, PooledJobs, Work
from ..actors.serve import serve
from ..actors.worker import Device, OpenRunner, open_device
from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..cores import Core
from ..messages import Job
from ..wire.mailbox import Inbox, Port

Spawn = Callable[[str, Callable[[], Awaitable[None]]], None]
"""Runs a function, under this name, beside the actors and no longer than they; it crashes as they do."""


class Placement(Protocol):
    """All of a ring that depends on where its actors live."""

    def open_device(
        self, checkpoint: Checkpoint, config: EngineConfig, make: OpenRunner, /
    ) -> AbstractAsyncContextManager[Device]:
        """The worker's device, ready for steps; `make` makes its runner."""

    def start_jobs(
        self, work: Work, nursery: anyio.abc.TaskGroup, deliver: Deliver, limit: int, /
    ) -> Callable[[Job], None]:
        """What starts the Renderer's jobs, of which up to `limit` run at once."""

    def port(self, source: str, target: str, port: Port[Any], spawn: Spawn, /) -> Port[Any]:
        """The way from one actor to another, whose inbox is behind `port`."""

    async def serve(
        self,
        actor: str,
        core: Core[Any, Any],
        inbox: Inbox[Any],
        send: Callable[[Any], None],
        after_turn: Callable[[], None] | None,
        /,
    ) -> None:
        """Be the actor, until its inbox is closed."""

    @property
    def num_on_way(self) -> int:
        """Messages that an actor has sent and that are in no inbox yet."""


@dataclass(frozen=True, slots=True)
class Inline:
    """All in the caller's event loop: heavy work on threads, mail straight into the inboxes."""

    def open_device(
        self, checkpoint: Checkpoint, config: EngineConfig, make: OpenRunner, /
    ) -> AbstractAsyncContextManager[Device]:
        """A device with a thread of its own."""
        return open_device(checkpoint, config, make)

    def start_jobs(
        self, work: Work, nursery: anyio.abc.TaskGroup, deliver: Deliver, limit: int, /
    ) -> Callable[[Job], None]:
        """Jobs on anyio's threads."""
        return PooledJobs(work, nursery, deliver, limit).start

    def port(self, source: str, target: str, port: Port[Any], spawn: Spawn, /) -> Port[Any]:
        """The inbox's own port."""
        return port

    async def serve(
        self,
        actor: str,
        core: Core[Any, Any],
        inbox: Inbox[Any],
        send: Callable[[Any], None],
        after_turn: Callable[[], None] | None,
        /,
    ) -> None:
        """The loop of every actor, as it is."""
        await serve(core, inbox, send, after_turn=after_turn)

    @property
    def num_on_way(self) -> int:
        """None: what is sent is in the inbox at once."""
        return 0


INLINE = Inline()
