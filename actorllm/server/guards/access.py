"""Who asked what, and what became of it: an id for each request, and a line in the log."""

import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .paths import begin_notes, is_health, is_metrics, notes

REQUEST_ID = "X-Request-Id"

LOGGER = logging.getLogger("actorllm.access")

CLIENT_GONE = 499
"""The status of a response that nobody reads, as nginx has it, and of one that there was not."""

MAX_PATH = 500
"""Characters of a path in the log."""


class RequestIds:
    """Notes the `request_id` of every request and tells it in the response.

    It is the client's X-Request-Id if that is printable ASCII of up to 128 characters, and a new one
    otherwise.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "lifespan":
            begin_notes(scope)
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        name = given if re.fullmatch(r"[ -~]{1,128}", given) and given.strip() else secrets.token_hex(16)
        notes(scope)["request_id"] = name

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = name
            await send(message)

        await self.app(scope, receive, send_named)


@dataclass(slots=True)
class Record:
    """What has been seen of a request and its response."""

    began: float
    status: int | None = None
    num_bytes: int = 0
    is_complete: bool = False
    has_failed: bool = False
    client_gone: bool = False

    def hear(self, message: Message) -> None:
        """A client that goes after the end has not gone."""
        if message["type"] == "http.disconnect" and not self.is_complete:
            self.client_gone = True

    def say(self, message: Message) -> None:
        """What the server has taken."""
        if message["type"] == "http.response.start":
            self.status = CLIENT_GONE if self.client_gone else message["status"]
        elif message["type"] == "http.response.body":
            self.num_bytes += len(message.get("body", b""))
            self.is_complete = not (self.client_gone or message.get("more_body", False))

    @property
    def told_status(self) -> int | None:
        """The status that the client saw, or would have seen; None when the server was stopped before it."""
        if self.status is not None:
            return self.status
        return CLIENT_GONE if self.client_gone else 500 if self.has_failed else None


class AccessLog:
    """A line of JSON on the logger `actorllm.access` when a response has ended, in whatever way.

    It has neither the query nor the body nor the key. What asks for health or metrics is of level DEBUG.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` tells seconds."""
        self.app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = Record(self._clock())

        async def receive_seen() -> Message:
            message = await receive()
            record.hear(message)
            return message

        async def send_seen(message: Message) -> None:
            try:
                await send(message)
            except OSError:
                record.client_gone = True
                raise
            record.say(message)

        try:
            await self.app(scope, receive_seen, send_seen)
        except Exception:
            record.has_failed = True
            raise
        finally:
            self._write(scope, record)

    def _write(self, scope: Scope, record: Record) -> None:
        level = logging.DEBUG if is_health(scope) or is_metrics(scope) else logging.INFO
        if not LOGGER.isEnabledFor(level):
            return
        known = notes(scope)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": scope["method"],
            "path": scope["path"][:MAX_PATH],
            "status": record.told_status,
            "tenant": known.get("tenant", ""),
            "request_id": known.get("request_id", ""),
            "seconds": round(self._clock() - record.began, 6),
            "bytes": record.num_bytes,
            "complete": record.is_complete,
            "client_gone": record.client_gone,
        }
        LOGGER.log(level, "%s", json.dumps(line))
