"""What a request must pass before the app reads it: its key, and how long it may take."""

import hmac
import re
from collections.abc import Sequence
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ...service import MAX_TIMEOUT
from ..errors import BadHeader, Unauthorized, error_response
from .paths import is_health, is_metrics, notes

TIMEOUT_HEADER = "X-Request-Timeout"


class ApiKeys:
    """Lets in who brings a key, and notes its `tenant`; without any keys, everyone, whose tenant is empty.

    A key comes as `Authorization: Bearer` or as `x-api-key`. Nobody needs one for /health, and for /metrics
    only if it is guarded.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[tuple[str, str]], *, guards_metrics: bool) -> None:
        """`keys` are (tenant, key)."""
        self.app = app
        self._keys = [(tenant, _digest(key.encode())) for tenant, key in keys]
        self._guards_metrics = guards_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        brought = _brought(scope)
        tenant = self._tenant(brought)
        notes(scope)["tenant"] = tenant or ""
        if tenant is not None or not self._keys or self._is_open(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "an API key is missing or wrong"})
        else:
            await error_response(Unauthorized(bool(brought)))(scope, receive, send)

    def _tenant(self, brought: Sequence[bytes]) -> str | None:
        """Whose key it is. The time that this takes tells nothing of the keys but how many there are."""
        found: str | None = None
        for digest in map(_digest, brought):
            for tenant, known in self._keys:
                if hmac.compare_digest(known, digest):
                    found = tenant
        return found

    def _is_open(self, scope: Scope) -> bool:
        return is_health(scope) or (is_metrics(scope) and not self._guards_metrics)


def _digest(key: bytes) -> bytes:
    """Of one length, for whoever compares texts of different lengths tells which one it is."""
    return sha256(key).digest()


def _brought(scope: Scope) -> list[bytes]:
    """The keys that a request brings: two at most."""
    headers = Headers(scope=scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token if scheme.lower() == "bearer" else ""
    given = [bearer.strip(), headers.get("x-api-key", "").strip()]
    return [key.encode("latin-1") for key in given if key]


class Timeouts:
    """Notes the `timeout` of a request in seconds: what X-Request-Timeout says, and never more than `most`.

    Without either it is None.
    """

    def __init__(self, app: ASGIApp, most: float | None) -> None:
        self.app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        text = Headers(scope=scope).get(TIMEOUT_HEADER)
        try:
            wanted = None if text is None else _seconds(text)
        except BadHeader as error:
            await error_response(error)(scope, receive, send)
            return
        limits = [seconds for seconds in (wanted, self._most) if seconds is not None]
        notes(scope)["timeout"] = min(limits, default=None)
        await self.app(scope, receive, send)


def _seconds(text: str) -> float:
    if re.fullmatch(r"\d{1,20}(\.\d{0,20})?|\.\d{1,20}", text, re.ASCII) and 0 < float(text) <= MAX_TIMEOUT:
        return float(text)
    raise BadHeader(TIMEOUT_HEADER, f"must be a number of seconds above 0, such as 30; not {text[:40]!r}")
