"""An app on the HashModel, clients for it, and what its answers must be."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import httpx
from fastapi import FastAPI

from actorllm import Engine, EngineConfig, Parts, SamplingParams, Tap
from actorllm.actors.worker import Runner
from actorllm.checkpoint import Checkpoint
from actorllm.cores.inputs import StepInputs
from actorllm.messages import Abort, RunStep, Sampled, Tokens, pack
from actorllm.model.hash import HashRunner
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from ..engine.build import expected, text

CONFIG = EngineConfig(
    model="hash",
    num_gpu_blocks_override=64,
    max_model_len=512,
    max_num_seqs=8,
    seed=0,
    verify=True,
    enable_prefix_caching=False,  # so that who asks again is told the same usage
    structured_outputs_timeout=60,
)
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
HELLO_TOKENS = [257, *b"user\nhello", 258, *b"\n", 257, *b"assistant\n"]


@asynccontextmanager
async def served(
    parts: Parts | None = None, settings: ServerSettings | None = None, **changes: Any
) -> AsyncIterator[tuple[Engine, httpx.AsyncClient]]:
    """An open engine, and a client of its app. On success nothing must be left in the engine."""
    async with Engine(replace(CONFIG, **changes), parts=parts) as engine:
        async with client_of(create_app(engine, settings)) as client:
            yield engine, client
        await engine.check()


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client that calls the app without a network; it sees unexpected exceptions as a status 500."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def events(response: httpx.Response) -> list[Any]:
    """The events of a stream: JSON, or "[DONE]"."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def answer(prompt: list[int], max_tokens: int, **sampling: Any) -> str:
    """The text that the HashModel owes."""
    return text(expected(prompt, SamplingParams(max_tokens=max_tokens, **sampling)))


def error(response: httpx.Response) -> dict[str, Any]:
    """The error of a response that has nothing else, and whose status is the error's code."""
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["code"] == response.status_code
    found: dict[str, Any] = body["error"]
    return found


class Gated(HashRunner):
    """A model that stops before a step until its gate is open."""

    def __init__(self, config: EngineConfig, step: int, gate: threading.Event) -> None:
        super().__init__(config, 4096)
        self._step = step
        self._gate = gate

    def execute(self, step: RunStep) -> Sampled | None:
        if step.step >= self._step:
            self._gate.wait()
        return super().execute(step)


class Scripted(HashRunner):
    """A model whose every answer is the same text, token by token, and then the end."""

    def __init__(self, config: EngineConfig, script: str) -> None:
        super().__init__(config, 4096)
        self._script = [*script.encode(), 256]
        self._prompts: dict[int, int] = {}

    def execute(self, step: RunStep) -> Sampled | None:
        self._prompts |= {row.request: row.num_prompt for row in step.new}
        return super().execute(step)

    def _sampled(self, inputs: StepInputs, masks: Any) -> Sampled:
        places = zip(inputs.requests.tolist(), inputs.position.tolist(), strict=True)
        tokens = [self._script[position - self._prompts[request]] for request, position in places]
        self._batch.append(tokens)
        return Sampled(pack(tokens))


def scripted(script: str) -> Parts:
    """Parts of an engine whose every answer is this text."""
    return Parts(open_runner=lambda checkpoint, config: Scripted(config, script))


@dataclass(frozen=True, slots=True)
class Nothing:
    """No statistics."""


class Ear:
    """A tap that sets an event at the first message of a kind."""

    def __init__(self) -> None:
        self.events = {Tokens: anyio.Event(), Abort: anyio.Event()}
        self.deadline = float("inf")
        self.idle = True

    def feed(self, message: Any) -> None:
        self.events[type(message)].set()

    def poll(self, now: float) -> tuple[Any, ...]:
        return ()

    def check(self) -> None:
        pass

    def statistics(self) -> Nothing:
        return Nothing()


class Held:
    """Parts of an engine that stops in the middle of an answer, and tells when it hears of an abort."""

    def __init__(self, step: int = 4) -> None:
        self.gate = threading.Event()
        self.ear = Ear()

        def make(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
            return Gated(config, step, self.gate)

        self.parts = Parts(open_runner=make, taps=(Tap(self.ear, (Tokens, Abort)),))

    async def wait(self, kind: type[Any]) -> None:
        """Wait for the first message of this kind."""
        with anyio.fail_after(10):
            await self.ear.events[kind].wait()


class Caller:
    """A client as the ASGI app sees it. It goes when `gone` is set."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self.gone = anyio.Event()
        self.sent: list[Any] = []
        self.goes_after = 0
        self._body = [json.dumps(body).encode()]
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "server": ("test", 80),
            "client": ("test", 1),
        }

    async def call(self, app: FastAPI) -> None:
        """Send the request and take what comes."""
        await app(self.scope, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if len(self.sent) == self.goes_after:
            self.gone.set()


async def left_in_mid_answer(path: str, body: dict[str, Any]) -> bytes:
    """What is sent to a client that goes in the middle of its answer; its request has ended in the engine."""
    held = Held()
    async with Engine(CONFIG, parts=held.parts) as engine:
        caller = Caller(path, body)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(caller.call, create_app(engine))
            await held.wait(Tokens)
            caller.gone.set()
        await held.wait(Abort)
        held.gate.set()
        await engine.check()
        statistics = await engine.statistics()
    assert statistics["door"]["num_open"] == 0
    assert statistics["executor"]["num_done"] < 20
    return b"".join(message.get("body", b"") for message in caller.sent)
