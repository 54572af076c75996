"""What a request must pass: keys, timeouts, the size of its body; wherever the app is mounted."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
import trio.testing
from fastapi import FastAPI, Request

from actorllm import ConfigError, Engine
from actorllm.server.app import create_app
from actorllm.server.guards import paths
from actorllm.server.guards.body import BodyLimit
from actorllm.server.guards.drain import Drain
from actorllm.server.settings import ServerSettings

from .build import COMPLETIONS, CONFIG, client_of, error

pytestmark = pytest.mark.anyio

KEYS = ("sk-alone", "red=sk-red-1", "red=sk-red-2", "=with=sign")


def noting(settings: ServerSettings, drain: Drain | None = None) -> FastAPI:
    """An app around an engine that is not open, with a route that tells what was noted of a request."""
    app = create_app(Engine(CONFIG), settings, drain=drain)

    @app.post("/notes")
    async def notes(request: Request) -> dict[str, Any]:
        size = len(await request.body())
        return {"size": size, **paths.notes(request.scope)}

    return app


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(noting(ServerSettings(**settings))) as client:
        yield client


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"authorization": "Bearer sk-alone"}, ""),
        ({"authorization": "bearer   sk-red-1 "}, "red"),
        ({"x-api-key": "sk-red-2"}, "red"),
        ({"x-api-key": "with=sign"}, ""),
        ({"authorization": "Basic abc", "x-api-key": "sk-red-1"}, "red"),
        ({"authorization": "Bearer wrong", "x-api-key": "sk-red-1"}, "red"),
    ],
)
async def test_a_known_key_is_let_in_as_its_tenant(headers: dict[str, str], tenant: str) -> None:
    async with guarded(api_keys=KEYS) as client:
        response = await client.post("/notes", headers=headers)
    assert response.status_code == 200
    assert response.json()["tenant"] == tenant


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "an API key is missing; send `Authorization: Bearer KEY` or `x-api-key: KEY`"),
        ({"authorization": "Bearer"}, "an API key is missing"),
        ({"authorization": "Basic sk-alone"}, "an API key is missing"),
        ({"authorization": "Bearer sk-alon"}, "the API key is not known here"),
        ({"authorization": "Bearer sk-alonee"}, "the API key is not known here"),
        ({"authorization": "Bearer red=sk-red-1"}, "the API key is not known here"),
        ({"x-api-key": "sk-\xe9"}, "the API key is not known here"),
    ],
)
@pytest.mark.parametrize("path", ["/notes", COMPLETIONS, "/v1/models", "/nothing", "/healthy", "/docs"])
async def test_without_a_known_key_nothing_is_told(path: str, headers: dict[str, str], message: str) -> None:
    async with guarded(api_keys=KEYS) as client:
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        response = await client.post(path, headers=encoded)
    found = error(response)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert found["message"].startswith(message)
    assert found["type"] == "UnauthorizedError"
    assert "sk-" not in response.text


@pytest.mark.parametrize("needs_key", [False, True])
async def test_health_is_open_and_metrics_may_be(needs_key: bool) -> None:
    async with guarded(api_keys=KEYS, metrics_need_key=needs_key) as client:
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/metrics")).status_code == (401 if needs_key else 503)


async def test_without_keys_everyone_is_let_in() -> None:
    async with guarded() as client:
        response = await client.post("/notes", headers={"authorization": "Bearer whatever"})
    assert response.json()["tenant"] == ""


async def test_a_mounted_app_guards_its_own_paths() -> None:
    outer = FastAPI()
    for place in ("/llm", "/health"):
        outer.mount(place, noting(ServerSettings(api_keys=KEYS)))
    async with client_of(outer) as client:
        for place in ("/llm", "/health"):
            assert (await client.post(f"{place}/notes")).status_code == 401
            known = await client.post(f"{place}/notes", headers={"x-api-key": "sk-red-1"})
            assert known.json()["tenant"] == "red"
            assert (await client.get(f"{place}/health/live")).status_code == 200


async def test_a_mounted_app_leaves_the_state_of_its_host_alone() -> None:
    seen: list[dict[str, Any]] = []
    outer = FastAPI()
    outer.mount("/llm", noting(ServerSettings(request_timeout=5)))
    host = {"tenant": "host", "timeout": "late", "request_id": "1", "actorllm": {"tenant": "red", "old": 1}}

    async def with_state(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = dict(host)
        await outer(scope, receive, send)
        seen.append(scope["state"])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(with_state), base_url="http://test") as client:
        told = (await client.post("/llm/notes")).json()
    own = seen[0].pop("actorllm")
    assert seen == [{name: value for name, value in host.items() if name != "actorllm"}]
    assert (own["tenant"], own["timeout"], sorted(own)) == ("", 5, ["request_id", "tenant", "timeout"])
    assert told == {"size": 0, **own}


async def test_a_websocket_needs_a_key_too() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/notes", "root_path": "", "headers": []}
    await noting(ServerSettings(api_keys=KEYS))(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def sent_in(chunks: list[bytes], path: str = "/notes", **headers: str) -> tuple[int, Any]:
    """Status and JSON of the answer to a body that comes in chunks, where 100 bytes are taken."""
    sent: list[Any] = []
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        assert left, "more was read than the body has"
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    await noting(ServerSettings(max_body_bytes=100))(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


@pytest.mark.parametrize("path", ["/notes", COMPLETIONS])
@pytest.mark.parametrize("chunks", [[b"x" * 101], [b"x" * 60, b"x" * 40, b"x", b"unread"]])
async def test_a_body_that_is_too_large_is_refused_with_the_limit(path: str, chunks: list[bytes]) -> None:
    status, body = await sent_in(chunks, path)
    assert status == body["error"]["code"] == 413
    assert body["error"]["type"] == "ContentTooLargeError"
    assert "limit of 100 bytes" in body["error"]["message"]


async def test_a_body_of_just_the_limit_is_taken() -> None:
    assert (await sent_in([b"x" * 60, b"x" * 40]))[1]["size"] == 100
    assert (await sent_in([b"x" * 100], content_length="100"))[1]["size"] == 100


async def test_a_body_that_is_announced_too_large_is_not_read() -> None:
    status, body = await sent_in([], content_length="101")
    assert status == 413
    assert "limit of 100 bytes" in body["error"]["message"]


@pytest.mark.parametrize("length", ["5", "-5", "x", "9" * 5000])
async def test_a_length_that_is_a_lie_does_not_count(length: str) -> None:
    assert (await sent_in([b"x" * 101], content_length=length))[0] == 413
    assert (await sent_in([b"x" * 100], content_length=length))[1]["size"] == 100


@pytest.mark.parametrize(
    ("header", "setting", "timeout"),
    [
        (None, None, None),
        ("2.5", None, 2.5),
        ("30", 10.0, 10.0),
        ("5", 10.0, 5.0),
        (None, 10.0, 10.0),
        (".5", None, 0.5),
    ],
)
async def test_a_timeout_is_the_least_that_is_asked_for(
    header: str | None, setting: float | None, timeout: float | None
) -> None:
    headers = {} if header is None else {"x-request-timeout": header}
    async with guarded(request_timeout=setting) as client:
        response = await client.post("/notes", headers=headers)
    assert response.json()["timeout"] == timeout


@pytest.mark.parametrize("value", ["", "0", "0.0", "-1", "nan", "inf", "1e3", "1_0", "five", "9" * 5000])
async def test_a_timeout_that_is_none_is_named(value: str) -> None:
    async with guarded() as client:
        response = await client.post("/notes", headers={"x-request-timeout": value})
    found = error(response)
    assert response.status_code == 400
    assert found["param"] == "X-Request-Timeout"
    assert found["message"].startswith("X-Request-Timeout must be a number of seconds above 0")
    assert len(found["message"]) < 150


async def test_a_page_of_an_allowed_origin_may_ask() -> None:
    page = "https://chat.example.com"
    asks = {
        "origin": page,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-os",
    }
    async with guarded(allowed_origins=(page,), api_keys=KEYS) as client:
        before = await client.options(COMPLETIONS, headers=asks)
        without_key = await client.post("/notes", headers={"origin": page})
        good = await client.post("/notes", headers={"origin": page, "x-api-key": "sk-alone"})
        foreign = await client.options(COMPLETIONS, headers={**asks, "origin": "https://evil.example.com"})
    assert before.status_code == 200
    assert before.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    for response in (before, without_key, good):
        assert response.headers["access-control-allow-origin"] == page
    assert (without_key.status_code, good.status_code, foreign.status_code) == (401, 200, 400)
    assert "access-control-allow-origin" not in foreign.headers
    assert good.headers["access-control-expose-headers"] == "x-request-id, retry-after"


@pytest.mark.parametrize(
    ("origin", "method", "reason"),
    [
        ("https://evil.example.com", "POST", "origin"),
        ("https://evil.example.com", "PUT", "origin, method"),
        ("https://chat.example.com", "PUT", "method"),
    ],
)
async def test_a_preflight_that_is_refused_is_an_error_like_any_other(
    origin: str, method: str, reason: str
) -> None:
    asks = {"origin": origin, "access-control-request-method": method}
    async with guarded(allowed_origins=("https://chat.example.com",)) as client:
        response = await client.options(COMPLETIONS, headers=asks)
        messages = await client.options("/v1/messages", headers=asks)
    assert error(response) == {
        "message": f"the preflight of a page of {origin!r} is refused for its {reason}; "
        "pages of allowed_origins may send GET, HEAD, POST, DELETE",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    assert response.headers["access-control-allow-methods"] == "GET, HEAD, POST, DELETE"
    assert "Origin" in response.headers["vary"]
    assert ("access-control-allow-origin" in response.headers) == (reason == "method")
    assert messages.json()["error"]["type"] == "invalid_request_error"


async def test_without_origins_no_page_may() -> None:
    async with guarded() as client:
        response = await client.post("/notes", headers={"origin": "https://chat.example.com"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert response.status_code == 403


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("origin", ["https://evil.example.com", "http://test:8000", "http://tes", "null", ""])
@pytest.mark.parametrize("allowed", [(), ("https://chat.example.com",)])
async def test_what_a_page_of_another_origin_asks_without_a_preflight_is_refused(
    method: str, origin: str, allowed: tuple[str, ...]
) -> None:
    async with guarded(allowed_origins=allowed) as client:
        response = await client.request(method, COMPLETIONS, content=b"{}", headers={"origin": origin})
    assert (response.status_code, error(response)["type"]) == (403, "ForbiddenError")
    assert error(response)["message"].startswith(f"pages of {origin!r} may not ask here; add their origin")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, ()),
        ({"origin": "http://test"}, ()),
        ({"origin": "https://chat.example.com:8", "host": "chat.example.com:8"}, ()),
        ({"origin": "https://any.example.com"}, ("*",)),
        ({"origin": "null"}, ("*",)),
    ],
)
async def test_programs_and_pages_of_the_host_itself_may_ask(
    headers: dict[str, str], allowed: tuple[str, ...]
) -> None:
    async with guarded(allowed_origins=allowed) as client:
        assert (await client.post("/notes", headers=headers)).status_code == 200


async def test_a_page_without_a_host_to_compare_is_foreign() -> None:
    assert (await sent_in([b""], origin="null", host=""))[0] == 403
    assert (await sent_in([b""], origin="http://test"))[0] == 403


@pytest.mark.parametrize("path", ["/notes", COMPLETIONS])
@pytest.mark.parametrize("chunks", [[], [b"{", b"}"]])
async def test_a_body_that_does_not_come_in_time_is_given_up(path: str, chunks: list[bytes]) -> None:
    sent: list[Any] = []
    left, drain = list(chunks), Drain()

    async def receive() -> dict[str, Any]:
        if not left:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    with anyio.fail_after(5):
        await noting(ServerSettings(body_timeout=0.01), drain)(scope, receive, send)
    found = json.loads(sent[1]["body"])["error"]
    assert sent[0]["status"] == found["code"] == 408
    assert found["message"].startswith("the body had not come within 0.01 s; send it faster")
    assert drain.num_open == 0


@pytest.mark.parametrize(
    "anyio_backend",
    [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
    ids=["virtual clock"],
)
async def test_when_the_body_has_come_its_time_is_over() -> None:
    messages = [{"type": "http.request", "body": b"a", "more_body": False}, {"type": "http.disconnect"}]
    heard: list[Any] = []

    async def receive() -> Any:
        await anyio.sleep(50)
        return messages[len(heard)]

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in messages:
            heard.append(await receive())

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await BodyLimit(app, most=9, seconds=60)(scope, receive, send)
    assert heard == messages


def test_a_time_that_no_body_can_keep_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="body_timeout must be finite and above 0 seconds"):
        ServerSettings(body_timeout=0)
