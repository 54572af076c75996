"""A signal under load: open requests get their time, and then an error that says why."""

import json
import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from actorllm import Engine, EngineDied, Parts
from actorllm.cli.serving import listen, serve_engine
from actorllm.messages import Tokens
from actorllm.server.settings import ServerSettings

from ..engine.build import Crashing
from .build import CONFIG, Held
from .process import Served, serving

LAST = "actorllm.serve"


class Streams:
    """Clients that read streams of a server to their ends; `bodies` are what has come."""

    def __init__(self, served: Served, prompts: list[str], max_tokens: int) -> None:
        self.bodies: list[str] = []
        self.all_began = anyio.Event()
        self._url = f"{served.address}/completions"
        self._body = {"prompt": prompts, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        self._left = 0

    async def read(self, count: int) -> None:
        """Read so many at once."""
        self._left = count
        async with anyio.create_task_group() as nursery:
            for _ in range(count):
                nursery.start_soon(self._read)

    async def _read(self) -> None:
        parts: list[str] = []
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", self._url, json=self._body) as response,
        ):
            async for part in response.aiter_text():
                if not parts:
                    self._left -= 1
                    if not self._left:
                        self.all_began.set()
                parts.append(part)
        self.bodies.append("".join(parts))


def last_event(body: str) -> Any:
    data = body.strip().split("data: ")[-1]
    return data if data == "[DONE]" else json.loads(data)


@pytest.mark.slow
def test_sigterm_lets_admitted_requests_end(tmp_path: Path) -> None:
    with serving(tmp_path, "--grace", "60") as served:

        async def live() -> list[str]:
            streams = Streams(served, ["a", "b"], 1000)
            async with anyio.create_task_group() as nursery:
                nursery.start_soon(streams.read, 3)
                await streams.all_began.wait()
                served.kill(signal.SIGTERM)
            return streams.bodies

        bodies = anyio.run(live)
        code, log = served.ended()
    assert [last_event(body) for body in bodies] == ["[DONE]"] * 3
    assert code == 0
    assert log[-1].endswith("stopped by SIGTERM: every admitted request had ended")
    assert not any("Traceback" in line for line in log)


@pytest.mark.slow
def test_a_second_signal_ends_them_at_once_and_new_ones_are_refused_meanwhile(tmp_path: Path) -> None:
    with serving(tmp_path, "--grace", "600") as served:
        health = served.address.removesuffix("/v1") + "/health"

        async def live() -> tuple[list[str], httpx.Response, httpx.Response]:
            streams = Streams(served, [*"abcdefgh"], 4000)
            async with anyio.create_task_group() as nursery, httpx.AsyncClient(timeout=60) as client:
                nursery.start_soon(streams.read, 4)
                await streams.all_began.wait()
                served.kill(signal.SIGTERM)
                while (ready := await client.get(f"{health}/ready")).status_code == 200:
                    pass
                refused = await client.post(f"{served.address}/completions", json={"prompt": "a"})
                served.kill(signal.SIGINT)
            return streams.bodies, ready, refused

        bodies, ready, refused = anyio.run(live)
        code, log = served.ended()
    assert "the server is shutting down; 4 admitted requests have not ended" in ready.text
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    for body in bodies:
        assert last_event(body)["error"]["code"] == 503
        assert "shutting down" in last_event(body)["error"]["message"]
    assert code == 0
    assert log[-1].endswith("stopped by SIGTERM and SIGINT: 4 requests were ended at once")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_requests_that_do_not_end_in_time_are_told(stream: bool) -> None:
    said: list[str] = []
    bodies: list[httpx.Response] = []
    endings: list[str] = []

    async def live() -> None:
        ready = anyio.Event()
        held = Held(step=4)

        def say(line: str) -> None:
            said.append(line)
            ready.set()

        async with Engine(CONFIG, parts=held.parts) as engine, anyio.create_task_group() as nursery:

            async def serve() -> None:
                settings = ServerSettings(grace=0.1)
                endings.append(await serve_engine(engine, listen("127.0.0.1", 0), say, settings))

            async def ask() -> None:
                url = said[0].removeprefix("hash is served at ") + "/completions"
                request = {"prompt": "a", "max_tokens": 99, "ignore_eos": True, "stream": stream}
                async with httpx.AsyncClient(timeout=30) as client:
                    bodies.append(await client.post(url, json=request))

            nursery.start_soon(serve)
            await ready.wait()
            nursery.start_soon(ask)
            await held.wait(Tokens)
            os.kill(os.getpid(), signal.SIGTERM)
            await engine.wait_closed()
            held.gate.set()

    anyio.run(live)
    (body,) = bodies
    error = last_event(body.text) if stream else body.json()
    assert error["error"]["code"] == 503
    assert "shutting down" in error["error"]["message"]
    assert "[DONE]" not in body.text
    assert endings == ["stopped by SIGTERM: 1 requests had not ended within 0.1 s"]


@pytest.mark.slow
def test_an_engine_that_dies_ends_the_server_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> None:
        async with Engine(CONFIG, parts=Parts(policy=Crashing())) as engine:
            addresses: list[str] = []
            ready = anyio.Event()

            def say(line: str) -> None:
                addresses.append(line.split()[-1])
                ready.set()

            async with anyio.create_task_group() as nursery:
                nursery.start_soon(partial(serve_engine, engine, listen("127.0.0.1", 0), say))
                await ready.wait()
                async with httpx.AsyncClient() as client:
                    await client.post(f"{addresses[0]}/completions", json={"prompt": "a"})

    with pytest.raises(EngineDied, match="no order"):
        anyio.run(live)
    name, level, text = [each for each in caplog.record_tuples if each[0] == LAST][-1]
    assert (name, level) == (LAST, logging.ERROR)
    assert text == "stopped, for the engine has died: the scheduler crashed: ZeroDivisionError: no order"
