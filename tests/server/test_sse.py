"""Streams that break, clients that go, and the same over a real network."""

import json
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import uvicorn

from actorllm import Engine, EngineDied, LinkLost, Parts, RequestOutput, SamplingParams
from actorllm.cli.serving import Server, listen
from actorllm.messages import Abort
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings
from actorllm.server.sse import EventStream, dumps, unnamed
from actorllm.server.wire import KEEP_ALIVE, gather, while_connected

from ..engine.build import Crashing, failing
from .build import (
    CHAT,
    COMPLETIONS,
    CONFIG,
    HELLO,
    HELLO_TOKENS,
    Caller,
    Held,
    answer,
    client_of,
    events,
    left_in_mid_answer,
    served,
)

pytestmark = pytest.mark.anyio

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}
MID_STREAM = range(200, 300)
"""Steps that fail: late enough that the second prompt is accepted and the first text has been read."""


def test_json_is_compact_utf_8() -> None:
    assert dumps({"a": ["é", None]}) == '{"a":["é",null]}'.encode()


async def test_a_step_that_fails_in_mid_stream_ends_it_with_an_error_event() -> None:
    async with served(failing(*MID_STREAM)) as (_, client):
        response = await client.post(CHAT, json={"messages": HELLO, **LONG, "stream": True})
    found = events(response)
    assert response.status_code == 200
    assert found.pop() == {
        "error": {
            "message": "FloatingPointError: the model met a NaN",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
    }
    text = "".join(event["choices"][0]["delta"]["content"] for event in found)
    assert text
    assert answer(HELLO_TOKENS, 400, temperature=0, ignore_eos=True).startswith(text)
    assert all(event["choices"][0]["finish_reason"] is None for event in found)


async def test_one_failing_choice_ends_the_stream_for_all() -> None:
    async with served(failing(*MID_STREAM)) as (_, client):
        request = {"prompt": ["abc", "xyz"], **LONG, "stream": True}
        found = events(await client.post(COMPLETIONS, json=request))
    assert found.pop()["error"]["code"] == 500
    assert found
    assert all("choices" in event for event in found)


async def test_an_engine_that_dies_in_mid_stream_is_an_error_event() -> None:
    parts = Parts(policy=Crashing(after=5))
    with pytest.raises(EngineDied, match="no order"):
        async with Engine(CONFIG, parts=parts) as engine, client_of(create_app(engine)) as client:
            request = {"prompt": "abc", **LONG, "stream": True}
            found = events(await client.post(COMPLETIONS, json=request))
            assert found.pop()["error"]["code"] == 503
            assert found
            assert "[DONE]" not in found


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        (CHAT, {"messages": HELLO, **LONG}),
        (COMPLETIONS, {"prompt": ["abc", "xyz", "uvw"], **LONG}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_aborts_its_requests(
    path: str, request_body: dict[str, Any], stream: bool
) -> None:
    assert b"[DONE]" not in await left_in_mid_answer(path, request_body | {"stream": stream})


async def test_a_client_that_goes_while_it_reads_aborts_its_request() -> None:
    held = Held(step=8)
    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(CHAT, {"messages": HELLO, **LONG, "stream": True})
        caller.goes_after = 3
        await caller.call(create_app(engine))
        await held.wait(Abort)
        held.gate.set()
        await engine.check()
    assert caller.sent[0]["type"] == "http.response.start"
    assert b"assistant" in caller.sent[1]["body"]
    assert not any(b"[DONE]" in message.get("body", b"") for message in caller.sent)


async def test_a_server_that_fails_to_send_aborts_the_request() -> None:
    held = Held(step=8)

    async def send(message: Any) -> None:
        if b"content" in message.get("body", b""):
            raise BrokenPipeError

    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(CHAT, {"messages": HELLO, **LONG, "stream": True})
        await create_app(engine)(caller.scope, caller.receive, send)
        await held.wait(Abort)
        held.gate.set()
        await engine.check()


@pytest.mark.parametrize("at", [b"[DONE]", KEEP_ALIVE])
async def test_a_server_that_fails_to_send_the_end_or_a_comment_says_nothing_else(at: bytes) -> None:
    held = Held(step=99 if at == b"[DONE]" else 3)
    failed = []

    async def send(message: Any) -> None:
        if at in message.get("body", b""):
            failed.append(at)
            raise BrokenPipeError

    settings = ServerSettings(keep_alive_interval=15 if at == b"[DONE]" else 0.01)
    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(CHAT, {"messages": HELLO, "max_tokens": 8, "ignore_eos": True, "stream": True})
        await create_app(engine, settings)(caller.scope, caller.receive, send)
        held.gate.set()
        await engine.check()
    assert failed == [at]


class Telling:
    """Events that are how many tokens came; one method raises an error."""

    done = b"data: [DONE]\n\n"

    def __init__(self, place: str, error: Exception) -> None:
        self._place, self._error = place, error

    def frame(self, chunk: dict[str, Any]) -> bytes:
        return unnamed(chunk)

    def chunks(self, place: int, output: RequestOutput) -> list[dict[str, Any]]:
        if self._place == "chunks" and output.finished:
            raise self._error
        return [{"tokens": len(output.outputs[0].token_ids)}]

    def closing(self, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        if self._place == "closing":
            raise self._error
        return []

    def failure(self, error: Exception) -> list[dict[str, Any]]:
        return [{"failed": str(error)}]

    def named(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize("place", ["chunks", "closing"])
@pytest.mark.parametrize("error", [LinkLost("the peer is gone"), OSError("the disk is full"), KeyError("a")])
async def test_what_fails_on_the_server_is_an_event_and_no_client_that_goes(
    place: str, error: Exception
) -> None:
    async with Engine(CONFIG) as engine:
        stream = engine.generate("abc", SamplingParams(max_tokens=200, ignore_eos=True))
        caller = Caller(CHAT, {})
        await caller.receive()
        expected = nullcontext() if isinstance(error, LinkLost) else pytest.raises(type(error))
        with expected:
            response = EventStream([stream], Telling(place, error), ServerSettings())
            await response(caller.scope, caller.receive, caller.send)
    assert caller.sent[-1]["body"] == unnamed({"failed": str(error)})
    assert not caller.sent[-1]["more_body"]


async def test_work_is_cancelled_when_the_client_goes() -> None:
    cancelled = []

    async def work() -> int:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise
        return 1

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    assert await while_connected(gone, work) is None
    assert cancelled == [True]


async def test_the_first_job_that_raises_cancels_the_others() -> None:
    async def fail() -> None:
        raise KeyError("first")

    with anyio.fail_after(5), pytest.raises(KeyError, match="first"):
        await gather([anyio.sleep_forever, fail])


async def test_results_stand_in_the_order_of_the_jobs() -> None:
    turn = anyio.Event()

    async def late() -> str:
        await turn.wait()
        return "late"

    async def early() -> str:
        turn.set()
        return "early"

    assert await gather([late, early]) == ["late", "early"]


class Network:
    """uvicorn on a free port of the loopback."""

    def __init__(self, engine: Engine) -> None:
        self.listener = listen("127.0.0.1", 0)
        self.ready = anyio.Event()
        settings = uvicorn.Config(create_app(engine), lifespan="off", log_config=None)
        self.server = Server(settings, self.ready.set)

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.slow
async def test_over_a_real_network_a_client_reads_or_goes() -> None:
    held = Held(step=40)
    async with Engine(CONFIG, parts=held.parts) as engine, anyio.create_task_group() as nursery:
        network = Network(engine)
        url = network.url
        nursery.start_soon(partial(network.server.serve, [network.listener]))
        await network.ready.wait()
        async with httpx.AsyncClient(base_url=url) as client:
            request = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            whole = (await client.post(COMPLETIONS, json=request)).json()["choices"][0]["text"]
            found = events(await client.post(COMPLETIONS, json={**request, "stream": True}))
            await _read_three_lines_and_go(client)
        await held.wait(Abort)
        held.gate.set()
        await engine.check()
        network.server.stop()
    assert whole == answer([*b"abc"], 8, temperature=0, ignore_eos=True)
    assert found.pop() == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in found) == whole
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))


async def _read_three_lines_and_go(client: httpx.AsyncClient) -> None:
    request = {"messages": HELLO, **LONG, "stream": True}
    async with client.stream("POST", CHAT, json=request) as response:
        lines = response.aiter_lines()
        first = [await anext(lines) for _ in range(3)]
    assert json.loads(first[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
