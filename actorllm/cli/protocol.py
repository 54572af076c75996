"""uvicorn's protocol, with bounds on what a client may keep that sends nothing."""

import asyncio
import logging
import math
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from .connections import Connections, num_open_files, raise_file_limit
from .listening import BACKLOG

SPARE_FILES = 64
"""Files that the process may open besides its connections, once it serves."""

SECONDS_BETWEEN_LINES = 60.0
"""How often the log tells that connections are not let in."""

LOGGER = logging.getLogger("actorllm.serve")


class Config(uvicorn.Config):
    """uvicorn's, with `Connections`: it raises the process's limit of files and stays below it."""

    def __init__(self, app: FastAPI, connections: Connections, **options: Any) -> None:
        files = raise_file_limit()
        backlog = BACKLOG if files is None else min(BACKLOG, max(1, files // 4))
        super().__init__(app, http=Connection, backlog=backlog, **options)
        self.timeout_keep_alive: float = connections.idle_timeout  # type: ignore[assignment]
        self.header_timeout = connections.header_timeout
        self.max_connections = connections.max_connections
        if files is not None:
            room = max(1, files - num_open_files() - backlog - SPARE_FILES)
            self.max_connections = min(room, self.max_connections or room)
        self.idle: dict[Connection, None] = {}
        self._said = -math.inf

    def say_full(self, now: float) -> None:
        """Write into the log that there are too many connections, unless that was written a moment ago."""
        if now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            LOGGER.warning(
                "%d connections are open: each new one costs the one that has been idle for longest, or is "
                "closed; raise --max-connections or the limit of open files (ulimit -n), or lower "
                "--header-timeout and --idle-timeout",
                self.max_connections,
            )


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, which of itself waits for ever and takes any number of connections.

    The idle ones, in the order in which they became so, wait for a request or for the rest of its head.
    """

    config: Config
    _giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for its first request, not too long; if there are too many, one must go."""
        super().connection_made(transport)
        most = self.config.max_connections
        if most is not None and len(self.connections) > most:
            self.config.say_full(self.loop.time())
            next(iter(self.config.idle), self).leave()
        if not transport.is_closing():
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait on while it is no whole head of a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._wait_no_more()

    def on_response_complete(self) -> None:
        """It is idle, unless the next request is there already; uvicorn ends that after `idle_timeout`."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self.config.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._wait_no_more()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Close it at once, whatever was to come."""
        self._wait_no_more()
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        self.config.idle.setdefault(self)
        if self._giving_up is None:
            self._giving_up = self.loop.call_later(self.config.header_timeout, self.leave)

    def _wait_no_more(self) -> None:
        self.config.idle.pop(self, None)
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
