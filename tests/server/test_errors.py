"""Errors: where a body cannot be read, how much is said of it, and which status an exception has."""

import json
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from actorllm import EngineClosed, EngineDied, InvalidRequest, Overloaded, RequestFailed
from actorllm.server.errors import TimedOut, error_body, error_response

from .build import CHAT, COMPLETIONS, HELLO, error, served

JSON = {"content-type": "application/json"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"prompt":\n  "a",\n  x}',
            "the body is not JSON: Expecting property name enclosed in double quotes "
            "at character 20 (line 3, column 3)",
        ),
        (
            b'{"prompt": "a"',
            "the body is not JSON: Expecting ',' delimiter at character 14 (line 1, column 15)",
        ),
        (
            b'{"prompt": "a\x00b"}',
            "the body is not JSON: Invalid control character at character 13 (line 1, column 14)",
        ),
        (
            b'{"prompt": "a',
            "the body is not JSON: Unterminated string starting at character 11 (line 1, column 12)",
        ),
        (
            b'{"prompt": "a\xff"}',
            "there was an error parsing the body: it is not UTF-8 at byte 13 (invalid start byte)",
        ),
        (
            b'{"a":\n' + b"[" * 100_000,
            "there was an error parsing the body: it is nested too deep at line 2 column 201",
        ),
        (
            b'{"prompt": 1' + b"0" * 5000 + b"}",
            "there was an error parsing the body: it has a number of too many digits at line 1 column 4313",
        ),
    ],
)
async def test_what_cannot_be_read_is_said_with_its_place(content: bytes, message: str) -> None:
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, content=content, headers=JSON)
    assert response.status_code == 400
    assert error(response) == {"message": message, "type": "BadRequestError", "param": None, "code": 400}


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [300, 700, 900, 960, 1000, 5000])
@pytest.mark.parametrize("field", ["structured_outputs", "vllm_xargs", "tools", "logit_bias", "nothing"])
async def test_depth_is_never_the_servers_failure(field: str, depth: int) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    content = b'{"messages": %b, "%b": %b}' % (json.dumps(HELLO).encode(), field.encode(), nested)
    async with served() as (_, client):
        response = await client.post(CHAT, content=content, headers=JSON)
    assert response.status_code == 400
    assert len(response.content) < 1000


@pytest.mark.anyio
@pytest.mark.parametrize("field", ["temperature", "n", "max_tokens", "seed", "logprobs", "priority"])
async def test_an_integer_of_thousands_of_digits_is_a_bad_request(field: str) -> None:
    content = b'{"prompt": "a", "%b": %b}' % (field.encode(), b"9" * 4299)
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, content=content, headers=JSON)
    assert response.status_code == 400
    assert error(response)["param"] == field
    assert len(error(response)["message"]) <= 4000


def complaint(*path: str | int, text: str = "is wrong") -> dict[str, Any]:
    return {"type": "value_error", "loc": ("body", *path), "msg": text}


def test_ten_complaints_are_listed_and_each_is_short() -> None:
    many = RequestValidationError([complaint("messages", index, text="x" * 500) for index in range(1000)])
    found = error_body(many)["error"]
    complaints = found["message"].split("; ")
    assert complaints.pop() == "and more"
    assert len(complaints) == 10
    assert all(len(one) == 200 and one.endswith("x...") for one in complaints)
    assert complaints[9].startswith("messages.9: xxx")
    assert found["param"] == "messages.0"
    ten = RequestValidationError([complaint("n")] * 10)
    assert error_body(ten)["error"]["message"] == "; ".join(["n: is wrong"] * 10)


def test_what_a_client_sent_is_not_sent_back_in_full() -> None:
    found = error_body(InvalidRequest("x" * 100_000, "y" * 100_000))["error"]
    assert found["message"] == "x" * 3997 + "..."
    assert found["param"] == "y" * 197 + "..."


@pytest.mark.parametrize(
    ("raised", "status", "kind", "retry_after"),
    [
        (InvalidRequest("no", "n"), 400, "BadRequestError", None),
        (RecursionError(), 400, "BadRequestError", None),
        (Overloaded("full", 1.2), 429, "TooManyRequestsError", "2"),
        (RequestFailed("a NaN"), 500, "InternalServerError", None),
        (TimedOut("after 5 s"), 504, "GatewayTimeoutError", None),
        (EngineClosed("shutting down"), 503, "ServiceUnavailableError", "5"),
        (EngineDied("crashed"), 503, "ServiceUnavailableError", None),
        (HTTPException(499, "gone"), 499, "ClientClosedRequestError", None),
        (HTTPException(460, "odd"), 460, "Error", None),
        (KeyError("secret"), 500, "InternalServerError", None),
    ],
)
def test_every_exception_has_its_status(
    raised: Exception, status: int, kind: str, retry_after: str | None
) -> None:
    response = error_response(raised)
    found = json.loads(bytes(response.body))["error"]
    assert (response.status_code, found["code"], found["type"]) == (status, status, kind)
    assert response.headers.get("retry-after") == retry_after
    assert response.headers.get("x-should-retry") == ("false" if status == 504 else None)
    assert "secret" not in found["message"]
