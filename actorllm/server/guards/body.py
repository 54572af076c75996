"""How large a body may be, and how long it may take to come."""

import re
from math import inf

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import BodyTooLarge, error_response


class BodyTimedOut(HTTPException):
    """The client has taken too long to send the body."""

    def __init__(self, seconds: float) -> None:
        text = f"the body had not come within {seconds:g} s; send it faster, or raise body_timeout"
        super().__init__(408, text, {"connection": "close"})


class BodyLimit:
    """Refuses bodies that are too large: at once by their content-length, or as soon as too much has come;
    and those of which not all has come in time.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        """`most` is in bytes, and `seconds` are from the beginning of the request."""
        self.app = app
        self._most = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if re.fullmatch(r"\d{1,30}", length, re.ASCII) and int(length) > self._most:
            await error_response(BodyTooLarge(self._most))(scope, receive, send)
            return
        total = 0
        deadline = anyio.current_time() + self._seconds

        async def receive_counted() -> Message:
            nonlocal total, deadline
            message: Message | None = None
            with anyio.CancelScope(deadline=deadline):
                message = await receive()
            if message is None:
                raise BodyTimedOut(self._seconds)
            total += len(message.get("body", b""))
            if total > self._most:
                raise BodyTooLarge(self._most)
            if not message.get("more_body", False):
                deadline = inf  # what is received from now on is that the client goes
            return message

        await self.app(scope, receive_counted, send)
