"""A signal under load: open requests get their time, and then an error that says why."""

import json
import os
import signal
from functools import partial

import anyio
import httpx
import pytest

from actorllm import Engine
from actorllm.cli.serving import listen, serve_engine
from actorllm.messages import Tokens

from .build import CONFIG, Held


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_requests_that_do_not_end_in_time_are_told(stream: bool) -> None:
    said: list[str] = []
    bodies: list[httpx.Response] = []

    async def live() -> None:
        ready = anyio.Event()
        held = Held(step=4)

        def say(line: str) -> None:
            said.append(line)
            ready.set()

        async with Engine(CONFIG, parts=held.parts) as engine, anyio.create_task_group() as nursery:

            async def ask() -> None:
                url = said[0].removeprefix("hash is served at ") + "/completions"
                request = {"prompt": "a", "max_tokens": 99, "ignore_eos": True, "stream": stream}
                async with httpx.AsyncClient(timeout=30) as client:
                    bodies.append(await client.post(url, json=request))

            nursery.start_soon(partial(serve_engine, engine, listen("127.0.0.1", 0), say, grace=0.1))
            await ready.wait()
            nursery.start_soon(ask)
            await held.wait(Tokens)
            os.kill(os.getpid(), signal.SIGTERM)
            await engine.wait_closed()
            held.gate.set()

    anyio.run(live)
    (body,) = bodies
    last = body.text.strip().removeprefix("data: ").split("data: ")[-1] if stream else body.text
    assert json.loads(last)["error"]["code"] == 503
    assert "shutting down" in json.loads(last)["error"]["message"]
    assert "[DONE]" not in body.text
