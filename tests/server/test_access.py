"""The id of a request, its line in the log, and its span."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from fastapi import FastAPI, Request
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from actorllm import Engine
from actorllm.messages import Abort, Tokens
from actorllm.server.app import create_app
from actorllm.server.guards.access import AccessLog
from actorllm.server.guards.paths import notes
from actorllm.server.settings import ServerSettings

from .build import CHAT, COMPLETIONS, CONFIG, HELLO, Caller, Held, client_of, error, served

pytestmark = pytest.mark.anyio

LONG = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged of requests."""
    with caplog.at_level(logging.INFO, "actorllm.access"):
        yield caplog


def lines(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.message) for record in log.records if record.name == "actorllm.access"]


def noting() -> FastAPI:
    """An app with a route that tells the id of its request."""
    app = create_app(Engine(CONFIG), ServerSettings(api_keys=("red=sk-red-1",), max_body_bytes=100))

    @app.get("/id")
    async def tell(request: Request) -> str:
        return str(notes(request.scope)["request_id"])

    @app.get("/bug")
    async def bug() -> None:
        raise KeyError("secret")

    return app


RED = {"x-api-key": "sk-red-1"}


@pytest.mark.parametrize("name", ["a", "trace/12 34~", "x" * 128])
async def test_a_sane_id_is_kept(name: str) -> None:
    async with client_of(noting()) as client:
        response = await client.get("/id", headers={"x-request-id": name, **RED})
    assert response.json() == name
    assert response.headers.get_list("x-request-id") == [name]


@pytest.mark.parametrize("name", ["", " ", "x" * 129, "a\xe9", "a\tb", "a\x00b"])
async def test_any_other_is_replaced(name: str) -> None:
    async with client_of(noting()) as client:
        headers = [(b"x-request-id", name.encode("latin-1")), (b"x-api-key", b"sk-red-1")]
        responses = [await client.get("/id", headers=headers) for _ in range(2)]
    names = [response.json() for response in responses]
    assert [response.headers["x-request-id"] for response in responses] == names
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/id", {}, 401),
        ("GET", "/nothing", RED, 404),
        ("GET", "/bug", RED, 500),
        ("GET", "/health", {}, 503),
        ("POST", "/id", {**RED, "content-length": "101"}, 413),
        ("GET", "/id", {**RED, "x-request-timeout": "no"}, 400),
    ],
)
async def test_every_response_has_the_id_and_is_logged(
    method: str, path: str, headers: dict[str, str], status: int, log: pytest.LogCaptureFixture
) -> None:
    log.set_level(logging.DEBUG, "actorllm.access")
    async with client_of(noting()) as client:
        response = await client.request(method, path, headers={"x-request-id": "mine", **headers})
    assert error(response)["code"] == status
    assert response.headers["x-request-id"] == "mine"
    (line,) = lines(log)
    assert (line["method"], line["path"], line["status"]) == (method, path, status)
    assert line["request_id"] == "mine"
    assert line["tenant"] == ("red" if RED.items() <= headers.items() else "")
    assert line["bytes"] == len(response.content)
    assert line["complete"]
    assert not line["client_gone"]


async def test_a_line_has_what_was_told_and_no_secret(log: pytest.LogCaptureFixture) -> None:
    async with Engine(CONFIG) as engine:
        app = create_app(engine, ServerSettings(api_keys=("red=sk-red-1",)))
        async with client_of(app) as client:
            body = {**LONG, "max_tokens": 8, "stream": True, "user": "body-secret"}
            response = await client.post(f"{CHAT}?token=query-secret", json=body, headers=RED)
    (line,) = lines(log)
    assert list(line) == [
        "time",
        "method",
        "path",
        "status",
        "tenant",
        "request_id",
        "seconds",
        "bytes",
        "complete",
        "client_gone",
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    assert (line["path"], line["status"], line["bytes"]) == (CHAT, 200, len(response.content))
    assert not {"secret", "sk-red-1", "hello"} & set(re.split(r"[^a-z0-9-]", log.text))


async def test_probes_are_logged_for_debugging_only(log: pytest.LogCaptureFixture) -> None:
    async with served() as (_, client):
        for path in ("/health", "/health/live", "/v1/models"):
            assert (await client.get(path)).status_code == 200
    assert [line["path"] for line in lines(log)] == ["/v1/models"]


async def test_seconds_are_until_the_response_has_ended(log: pytest.LogCaptureFixture) -> None:
    times = iter([10.0, 12.5])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body", "body": b"de"})

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        assert not lines(log), "the line is there before the end"

    scope = {"type": "http", "method": "GET", "path": "/" + "x" * 600}
    await AccessLog(app, lambda: next(times))(scope, receive, send)
    (line,) = lines(log)
    assert (line["seconds"], line["bytes"], len(line["path"])) == (2.5, 5, 500)


async def test_a_client_that_goes_while_it_waits_has_no_status(log: pytest.LogCaptureFixture) -> None:
    held = Held()
    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(CHAT, LONG)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(caller.call, create_app(engine))
            await held.wait(Tokens)
            caller.gone.set()
        await held.wait(Abort)
        held.gate.set()
    (line,) = lines(log)
    assert (line["status"], line["client_gone"]) == (499, True)


async def test_a_client_that_goes_in_its_body_has_no_status(log: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"unread"})

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    await AccessLog(app)({"type": "http", "method": "POST", "path": CHAT}, receive, send)
    (line,) = lines(log)
    assert (line["status"], line["client_gone"], line["complete"]) == (499, True, False)


async def test_a_client_that_goes_while_it_reads_is_told_of(log: pytest.LogCaptureFixture) -> None:
    held = Held()
    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(CHAT, {**LONG, "stream": True})
        caller.goes_after = 2
        await caller.call(create_app(engine))
        await held.wait(Abort)
        held.gate.set()
    (line,) = lines(log)
    assert (line["status"], line["client_gone"], line["complete"]) == (200, True, False)
    assert line["bytes"] == sum(len(message.get("body", b"")) for message in caller.sent) > 0


async def test_a_client_to_whom_nothing_can_be_sent_has_gone(log: pytest.LogCaptureFixture) -> None:
    held = Held(step=8)

    async def send(message: Any) -> None:
        if b"content" in message.get("body", b""):
            raise BrokenPipeError

    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(CHAT, {**LONG, "stream": True})
        await create_app(engine)(caller.scope, caller.receive, send)
        held.gate.set()
    (line,) = lines(log)
    assert (line["status"], line["client_gone"], line["complete"]) == (200, True, False)


async def test_a_request_that_is_cancelled_is_logged_and_the_cancellation_goes_on(
    log: pytest.LogCaptureFixture,
) -> None:
    held = Held()
    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(CHAT, LONG)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(caller.call, create_app(engine))
            await held.wait(Tokens)
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        await held.wait(Abort)
        held.gate.set()
        await engine.check()
    (line,) = lines(log)
    assert (line["status"], line["client_gone"], line["complete"]) == (None, False, False)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where a provider puts the spans; it is configured as a program does, and for this test alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


async def test_a_request_is_a_span_of_the_trace_that_it_comes_from(spans: InMemorySpanExporter) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with served() as (_, client):
        body = {"prompt": "a", "max_tokens": 4, "stream": True}
        await client.post(COMPLETIONS, json=body, headers={"traceparent": parent})
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == (f"POST {COMPLETIONS}", SpanKind.SERVER)
    assert span.context is not None
    assert trace.format_trace_id(span.context.trace_id) == "0af7651916cd43dd8448eb211c80319c"
    assert span.parent is not None
    assert trace.format_span_id(span.parent.span_id) == "b7ad6b7169203331"
    assert _attributes(span) == ("POST", COMPLETIONS, 200)
    assert span.status.status_code is StatusCode.UNSET


async def test_what_is_refused_has_a_span_too(spans: InMemorySpanExporter) -> None:
    async with client_of(noting()) as client:
        await client.get("/id")
        await client.get("/bug", headers=RED)
    refused, failed = spans.get_finished_spans()
    assert _attributes(refused)[2] == 401
    assert _attributes(failed)[2] == 500
    assert failed.status.status_code is StatusCode.ERROR
    assert "sk-red-1" not in refused.to_json() + failed.to_json()


def _attributes(span: ReadableSpan) -> tuple[Any, Any, Any]:
    found = span.attributes or {}
    return found["http.request.method"], found["url.path"], found["http.response.status_code"]
