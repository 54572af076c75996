"""The HTTP server as a child of the engine's nursery."""

import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import anyio
import anyio.abc
import uvicorn
from fastapi import FastAPI

from ..checkpoint import Progress
from ..config import EngineConfig
from ..engine.engine import Engine
from ..server.app import create_app
from ..server.guards.drain import Drain
from ..server.guards.readiness import Readiness, keep_looking
from ..server.settings import ServerSettings
from .connections import Connections
from .listening import Tls, address_of, give_up_unread, listen
from .protocol import Config

__all__ = ["Server", "listen", "serve", "serve_engine"]

LAST_WORDS_SECONDS = 3
"""How long the server may take to tell the clients that their requests have ended."""


TICK_SECONDS = 1.0
"""How often an idle server wakes: the date in its headers has seconds."""

LOGGER = logging.getLogger("actorllm.serve")


class Server(uvicorn.Server):
    """uvicorn, without its signal handlers and its ten ticks a second; it calls `ready` when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopped = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()

    async def main_loop(self) -> None:
        """Wait until it is stopped."""
        while not await self.on_tick(0):
            with anyio.move_on_after(TICK_SECONDS):
                await self._stopped.wait()

    def stop(self) -> None:
        """Take no more requests, and end when the open ones have."""
        self.should_exit = True
        self._stopped.set()


async def serve(
    config: EngineConfig,
    listener: socket.socket,
    progress: Progress,
    say: Callable[[str], None],
    settings: ServerSettings | None = None,
    tls: Tls | None = None,
    connections: Connections | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises EngineDied when the engine dies. Needs asyncio, for uvicorn.

    The last line in the log says why it has ended.
    """
    async with Engine(config, progress=progress) as engine:
        ending = await serve_engine(engine, listener, say, settings, tls, connections)
    LOGGER.info("%s", ending)


async def serve_engine(
    engine: Engine,
    listener: socket.socket,
    say: Callable[[str], None],
    settings: ServerSettings | None = None,
    tls: Tls | None = None,
    connections: Connections | None = None,
) -> str:
    """Serve an open engine until a signal or its death. `say` takes the line that tells the address.

    After a signal no more requests are admitted, and the admitted ones have `settings.grace` seconds to end;
    then, or at a second signal, they end with the error that the engine is closed. Returns a sentence about
    the end.
    """
    settings = settings or ServerSettings()
    give_up_unread(listener, settings.unread_timeout)
    address = address_of(listener, has_tls=tls is not None)
    drain, readiness = Drain(), Readiness.of(settings)
    app = create_app(engine, settings, drain=drain, readiness=readiness)
    config = _uvicorn(app, tls, connections or Connections())
    server = Server(config, lambda: say(f"{engine.model_name} is served at {address}"))
    ending = Ending()
    try:
        async with anyio.create_task_group() as nursery:
            await nursery.start(_stop_on_signal, engine, server, drain, settings.grace, ending)
            nursery.start_soon(_stop_with_engine, engine, server)
            nursery.start_soon(keep_looking, engine, readiness)
            await server.serve([listener])
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    if engine.died is not None:
        LOGGER.error("stopped, for the engine has died: %s", engine.died)
    return ending.text


class Ending:
    """Why a server has ended."""

    text = "stopped, for the engine was closed"


def _uvicorn(app: FastAPI, tls: Tls | None, connections: Connections) -> uvicorn.Config:
    """The access log is the app's, and whoever runs the program says where logs go."""
    return Config(
        app,
        connections,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_WORDS_SECONDS,
        ssl_certfile=None if tls is None else tls.certfile,
        ssl_keyfile=None if tls is None else tls.keyfile,
    )


async def _stop_on_signal(
    engine: Engine,
    server: Server,
    drain: Drain,
    grace: float,
    ending: Ending,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        first = signal.Signals(await anext(signals)).name
        drain.begin()
        LOGGER.info(
            "%s: no more requests are admitted; %d are open and have %g s", first, drain.num_open, grace
        )
        second = await _wait_drained(drain, grace, signals)
        if second is not None:
            ending.text = f"stopped by {first} and {second}: {drain.num_open} requests were ended at once"
        elif drain.num_open:
            ending.text = f"stopped by {first}: {drain.num_open} requests had not ended within {grace:g} s"
        else:
            ending.text = f"stopped by {first}: every admitted request had ended"
        engine.close()
        server.stop()


async def _wait_drained(drain: Drain, grace: float, signals: AsyncIterator[signal.Signals]) -> str | None:
    """Wait until no request is open, for `grace` seconds, or for a signal, whose name is returned."""
    second: str | None = None

    async def wait_empty() -> None:
        await drain.wait_empty()
        nursery.cancel_scope.cancel()

    with anyio.move_on_after(grace):
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(wait_empty)
            second = signal.Signals(await anext(signals)).name
            nursery.cancel_scope.cancel()
    return second


async def _stop_with_engine(engine: Engine, server: Server) -> None:
    await engine.wait_closed()
    server.stop()
