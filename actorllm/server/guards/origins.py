"""Which web pages may ask: a browser sends what a page says, and the page's origin with it."""

from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import error_response

HARMLESS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing and cost nothing; their answers are kept from pages by the browser."""


class ForeignOrigin(HTTPException):
    """A page asks whose origin is not allowed."""

    def __init__(self, origin: str) -> None:
        text = f"pages of {origin[:200]!r} may not ask here; add their origin to allowed_origins"
        super().__init__(403, text)


METHODS = ("GET", "HEAD", "POST", "DELETE")
"""What pages of allowed origins may send."""


class RefusedPreflight(HTTPException):
    """A browser asks whether a page may ask, and it may not."""

    def __init__(self, origin: str, reason: str, headers: Mapping[str, str]) -> None:
        """`reason` is what of it is not allowed."""
        text = (
            f"the preflight of a page of {origin[:200]!r} is refused for its {reason}; "
            f"pages of allowed_origins may send {', '.join(METHODS)}"
        )
        super().__init__(400, text, headers)


class Preflights(CORSMiddleware):
    """Starlette's, which refuses in plain text; here that is an error like any other."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Whether the page may ask."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        reason = bytes(response.body).decode().removeprefix("Disallowed CORS ")
        told = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return error_response(RefusedPreflight(request_headers["origin"], reason, told))


class Origins:
    """Refuses what pages of other origins ask for, which a browser may send without asking whether it may.

    A page of the host that the request itself names is none of another origin, and what has no Origin is
    from a program.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self.app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "http" and scope["method"] not in HARMLESS and not self._may_ask(scope):
            await error_response(ForeignOrigin(Headers(scope=scope)["origin"]))(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _may_ask(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return True
        return bool(headers.get("host")) and origin.partition("://")[2] == headers["host"]


def allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages of these origins ask from a browser, with any header, and refuse those of any other."""
    app = Origins(app, origins)
    if not origins:
        return app
    return Preflights(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )
