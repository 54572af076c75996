"""Every error in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import json
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from ..errors import ActorLLMError, EngineClosed, EngineDied, InvalidRequest, Overloaded

MAX_COMPLAINTS = 10
"""Errors of one body that its message lists."""


class NoSuchModel(HTTPException):
    """The request names a model that is not served here."""

    param = "model"

    def __init__(self, name: str, served: str) -> None:
        super().__init__(404, f"there is no model {name[:200]!r} here; {served!r} is served")


def error_body(error: Exception) -> dict[str, dict[str, Any]]:
    """What a client reads of an error; its `code` is the HTTP status."""
    status, message, param = _explain(error)
    phrase = HTTPStatus(status).phrase.replace(" ", "")
    kind = phrase if phrase.endswith("Error") else f"{phrase}Error"
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def error_response(error: Exception) -> Response:
    """The same as a response. Also lone surrogates, echoed from a request, are written (escaped)."""
    body = error_body(error)
    headers = error.headers if isinstance(error, HTTPException) else None
    if isinstance(error, Overloaded):
        headers = {"retry-after": str(math.ceil(error.retry_after))}
    return Response(json.dumps(body), body["error"]["code"], headers, media_type="application/json")


def _explain(error: Exception) -> tuple[int, str, str | None]:
    """HTTP status, message, and the path of the field at fault."""
    match error:
        case InvalidRequest():
            return 400, str(error), error.param
        case Overloaded():
            return 429, str(error), None
        case EngineDied() | EngineClosed():
            return 503, str(error), None
        case ActorLLMError():
            return 500, str(error), None
        case RequestValidationError():
            return _explain_body(error.errors())
        case HTTPException():
            return error.status_code, str(error.detail), getattr(error, "param", None)
        case _:
            return 500, f"the server failed: {type(error).__name__}", None


def _explain_body(complaints: Sequence[Any]) -> tuple[int, str, str | None]:
    found = [_complaint(complaint) for complaint in complaints[:MAX_COMPLAINTS]]
    return 400, "; ".join(message for message, _ in found), found[0][1]


def _complaint(complaint: dict[str, Any]) -> tuple[str, str | None]:
    """Message and path of one error that pydantic has found."""
    path = [str(part) for part in complaint["loc"][1:]]
    reason = complaint.get("ctx", {}).get("error")
    if complaint["type"] == "json_invalid":
        return f"the body is not JSON: {reason} at character {complaint['loc'][-1]}", None
    if isinstance(reason, InvalidRequest) and reason.param is not None:
        return str(reason), ".".join([*path, reason.param])
    if not path:
        return "the body must be a JSON object, sent with content-type application/json", None
    return f"{'.'.join(path)}: {reason or complaint['msg']}", ".".join(path)
