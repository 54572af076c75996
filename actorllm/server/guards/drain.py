"""The end of admission: who is in may end, and nobody comes in any more."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import Unavailable, error_response
from .paths import is_health, is_metrics


class Drain:
    """Counts the requests that were admitted, and tells when the last one has ended."""

    def __init__(self) -> None:
        self.is_draining = False
        self.num_open = 0
        self._empty: anyio.Event | None = None

    def begin(self) -> None:
        """Admit no more requests."""
        self.is_draining = True

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A block in which one more request is open."""
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open and self._empty is not None:
                self._empty.set()
                self._empty = None

    async def wait_empty(self) -> None:
        """Wait until no request is open. Any number of tasks may."""
        await anyio.lowlevel.checkpoint()
        while self.num_open:
            if self._empty is None:
                self._empty = anyio.Event()
            await self._empty.wait()


class Drained:
    """Refuses requests once the drain has begun; health and metrics are told to the end."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http" or is_health(scope) or is_metrics(scope):
            await self.app(scope, receive, send)
        elif self._drain.is_draining:
            error = Unavailable("the server is shutting down and takes no more requests; ask another one")
            await error_response(error)(scope, receive, send)
        else:
            with self._drain.admitted():
                await self.app(scope, receive, send)
