"""Every error in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from ..errors import ActorLLMError, EngineClosed, EngineDied, InvalidRequest, Overloaded, RequestFailed

MAX_COMPLAINTS = 10
"""Errors of one body that its message lists."""

MAX_COMPLAINT = 200
"""Characters of each of them, and of the path of a field."""

MAX_MESSAGE = 4000
"""Characters of any message: most of what is longer came from the client."""

RESTART_SECONDS = 5
"""When to come again to a server that is shutting down, or not open yet."""


class NoSuchModel(HTTPException):
    """The request names a model that is not served here."""

    param = "model"

    def __init__(self, name: str, served: str) -> None:
        super().__init__(404, f"there is no model {name[:200]!r} here; {served!r} is served")


class NoSuchPath(HTTPException):
    """Nothing is at the path of the request; `near` are paths that it may have meant."""

    def __init__(self, path: str, near: Sequence[str]) -> None:
        hint = f"did you mean {near[0][:MAX_COMPLAINT]!r}?" if near else "GET /docs shows all paths"
        super().__init__(404, f"there is nothing at {path[:MAX_COMPLAINT]!r} here; {hint}")


class NoSuchMethod(HTTPException):
    """The path of the request takes only other methods."""

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        only = ", ".join(allowed)
        super().__init__(405, f"this path does not take {method[:20]}, only {only}", {"Allow": only})


class Unauthorized(HTTPException):
    """The request brings no key that is known here."""

    def __init__(self, brings_one: bool) -> None:
        wrong = "the API key is not known here" if brings_one else "an API key is missing"
        text = f"{wrong}; send `Authorization: Bearer KEY` or `x-api-key: KEY`"
        super().__init__(401, text, {"www-authenticate": "Bearer"})


class BodyTooLarge(HTTPException):
    """The body has more bytes than the server takes."""

    def __init__(self, limit: int) -> None:
        text = f"the body is larger than the limit of {limit} bytes; send less, or raise max_body_bytes"
        super().__init__(413, text)


class BadHeader(HTTPException):
    """A header says what cannot be; `param` is its name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(400, f"{name} {message}")
        self.param = name


class BadBody(HTTPException):
    """What stands in the body can be no request, or is more than can be read."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


class Unavailable(HTTPException):
    """The server takes no requests, for now or for good."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, {"retry-after": str(RESTART_SECONDS)})


class TimedOut(RequestFailed):
    """The request has missed a timeout. Status 504: 408 would blame the client for sending slowly."""


def error_body(error: Exception) -> dict[str, dict[str, Any]]:
    """What a client reads of an error; its `code` is the HTTP status."""
    status, message, param = _explain(error)
    if param is not None:
        param = _cut(param, MAX_COMPLAINT)
    message = _cut(message, MAX_MESSAGE)
    return {"error": {"message": message, "type": _kind(status), "param": param, "code": status}}


def error_response(error: Exception) -> Response:
    """The same as a response. Also lone surrogates, echoed from a request, are written (escaped)."""
    body = error_body(error)
    return Response(
        json.dumps(body), body["error"]["code"], dict(_headers(error)), media_type="application/json"
    )


def why_unreadable(error: Exception) -> Exception | None:
    """What FastAPI met when it read a body as JSON, if this error says so; it was no JSONDecodeError."""
    cause = error.__cause__ if isinstance(error, HTTPException) and error.status_code == 400 else None
    return cause if isinstance(cause, ValueError | RecursionError) else None


def unreadable(cause: Exception, body: bytes) -> str:
    """Why a body is no JSON for Python, and where."""
    found = "there was an error parsing the body: it "
    if isinstance(cause, UnicodeDecodeError):
        return f"{found}is not {cause.encoding.upper()} at byte {cause.start} ({cause.reason})"
    found += "is nested too deep" if isinstance(cause, RecursionError) else "has a number of too many digits"
    try:
        from_json(body)
    except ValueError as error:
        place = re.search(r"line \d+ column \d+$", str(error))
        return f"{found} at {place[0]}" if place else found
    return found


def _headers(error: Exception) -> Mapping[str, str]:
    match error:
        case Overloaded():
            return {"retry-after": str(math.ceil(error.retry_after))}
        case TimedOut():
            return {"x-should-retry": "false"}  # or OpenAI's clients would ask all of it again
        case EngineClosed():
            return {"retry-after": str(RESTART_SECONDS)}
        case HTTPException():
            return error.headers or {}
    return {}


_KINDS = {413: "ContentTooLargeError", 499: "ClientClosedRequestError"}
"""Types of errors whose phrase Python's versions have differently, or not at all."""


def _kind(status: int) -> str:
    if status in _KINDS:
        return _KINDS[status]
    try:
        phrase = HTTPStatus(status).phrase.replace(" ", "")
    except ValueError:
        return "Error"
    return phrase if phrase.endswith("Error") else f"{phrase}Error"


def _explain(error: Exception) -> tuple[int, str, str | None]:
    """HTTP status, message, and the path of the field at fault."""
    match error:
        case InvalidRequest():
            return 400, str(error), error.param
        case Overloaded():
            return 429, str(error), None
        case TimedOut():
            return 504, str(error), None
        case EngineDied() | EngineClosed():
            return 503, str(error), None
        case ActorLLMError():
            return 500, str(error), None
        case RequestValidationError():
            return _explain_body(error.errors(), error.body)
        case HTTPException():
            return error.status_code, str(error.detail), getattr(error, "param", None)
        case RecursionError():
            return 400, "the body is nested too deep; flatten it", None
        case _:
            return 500, f"the server failed: {type(error).__name__}", None


def _explain_body(complaints: Sequence[Any], body: Any) -> tuple[int, str, str | None]:
    found = [_complaint(complaint, body) for complaint in complaints[:MAX_COMPLAINTS]]
    messages = [_cut(message, MAX_COMPLAINT) for message, _ in found]
    if len(complaints) > MAX_COMPLAINTS:
        messages.append("and more")
    return 400, "; ".join(messages), found[0][1]


def _complaint(complaint: dict[str, Any], body: Any) -> tuple[str, str | None]:
    """Message and path of one error that pydantic has found, or that reading the `body` has."""
    path = [str(part) for part in complaint["loc"][1:]]
    reason = complaint.get("ctx", {}).get("error")
    if complaint["type"] == "json_invalid":
        what = str(reason).removesuffix(" at")
        return f"the body is not JSON: {what} at {_place(body, complaint['loc'][-1])}", None
    if isinstance(reason, InvalidRequest) and reason.param is not None:
        return str(reason), ".".join([*path, reason.param])
    if not path:
        return "the body must be a JSON object, sent with content-type application/json", None
    return f"{'.'.join(path)}: {reason or complaint['msg']}", ".".join(path)


def _place(text: Any, position: int) -> str:
    """Where a character stands in a text, counted from 0, and from 1 in lines and columns."""
    if not isinstance(text, str):
        return f"character {position}"
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return f"character {position} (line {line}, column {column})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
