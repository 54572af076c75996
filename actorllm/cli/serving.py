"""The HTTP server as a child of the engine's nursery."""

import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import anyio.abc
import uvicorn

from ..checkpoint import Progress
from ..config import EngineConfig
from ..engine.engine import Engine
from ..errors import MachineError
from ..server.app import create_app

GRACE_SECONDS = 5.0
"""How long open requests may go on after a signal; a second signal ends them at once."""

LAST_WORDS_SECONDS = 3
"""How long the server may take to tell the clients that their requests have ended."""


TICK_SECONDS = 1.0
"""How often an idle server wakes: the date in its headers has seconds."""


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


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet. Raises MachineError when the address is not free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise MachineError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    return listener


async def serve(
    config: EngineConfig, listener: socket.socket, progress: Progress, say: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM. Raises EngineDied when the engine dies. Needs asyncio, for uvicorn."""
    async with Engine(config, progress=progress) as engine:
        await serve_engine(engine, listener, say)


async def serve_engine(
    engine: Engine, listener: socket.socket, say: Callable[[str], None], grace: float = GRACE_SECONDS
) -> None:
    """Serve an open engine until a signal or its death. `say` takes the line that tells the address.

    After a signal, open requests have `grace` seconds to end; then, or at a second signal, they end with
    the error that the engine is closed.
    """
    host, port = listener.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    settings = uvicorn.Config(
        create_app(engine),
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(grace) + LAST_WORDS_SECONDS,
        server_header=False,
    )
    server = Server(settings, lambda: say(f"{engine.model_name} is served at http://{address}/v1"))
    try:
        async with anyio.create_task_group() as nursery:
            await nursery.start(_stop_on_signal, engine, server, grace)
            nursery.start_soon(_stop_with_engine, engine, server)
            await server.serve([listener])
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _stop_on_signal(
    engine: Engine, server: Server, grace: float, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        await anext(signals)
        server.stop()
        with anyio.move_on_after(grace):
            await anext(signals)
        engine.close()


async def _stop_with_engine(engine: Engine, server: Server) -> None:
    await engine.wait_closed()
    server.stop()
