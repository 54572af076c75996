"""Clients on real sockets that behave in all the ways that clients do, and a server for them."""

import gc
import json
import random
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
import uvicorn

from actorllm import Engine, SamplingParams
from actorllm.cli.serving import Server, listen
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from ..engine.build import expected, prompts, text
from .build import CHAT, COMPLETIONS, events

TOKENS = 60
PROMPTS = [[32 + token % 90 for token in prompt] for prompt in prompts(50, longest=200)]
"""Whole characters, so that no answer begins within one."""


@asynccontextmanager
async def uvicorn_of(engine: Engine, settings: ServerSettings) -> AsyncIterator[int]:
    """The port of a server under asyncio."""
    listener, ready = listen("127.0.0.1", 0), anyio.Event()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    options = uvicorn.Config(create_app(engine, settings), log_config=None, timeout_graceful_shutdown=5)
    server = Server(options, ready.set)
    async with anyio.create_task_group() as nursery:
        nursery.start_soon(partial(server.serve, [listener]))
        await ready.wait()
        yield listener.getsockname()[1]
        server.stop()


@asynccontextmanager
async def hypercorn_of(engine: Engine, settings: ServerSettings) -> AsyncIterator[int]:
    """The port of a server under trio."""
    from hypercorn.config import Config
    from hypercorn.trio import serve

    listener = listen("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    listener.listen(400)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = None
    config.graceful_timeout = 5
    stopped = anyio.Event()
    app: Any = create_app(engine, settings)
    async with anyio.create_task_group() as nursery:
        task = partial(serve, app, config, shutdown_trigger=stopped.wait)
        (address,) = await nursery.start(task)
        yield int(address.rpartition(":")[2])
        stopped.set()


def request(index: int, **more: Any) -> tuple[str, dict[str, Any]]:
    """A path and a body whose answer is known."""
    body = {"prompt": PROMPTS[index % 50], "max_tokens": TOKENS, "seed": index, "ignore_eos": True}
    return COMPLETIONS, body | more


def owed(index: int) -> str:
    """The text of the answer."""
    params = SamplingParams(max_tokens=TOKENS, seed=index, ignore_eos=True)
    return text(expected(PROMPTS[index % 50], params))


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: test", "content-type: application/json", *more]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def encoded(path: str, body: Any) -> bytes:
    """A whole request."""
    data = json.dumps(body).encode()
    return head(path, len(data), "connection: close") + data


async def connect(port: int) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", port)


async def read_all(stream: anyio.abc.SocketStream) -> bytes:
    """What comes until the server closes."""
    data = bytearray()
    try:
        while True:
            data += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return bytes(data)


async def honest(port: int, index: int) -> None:
    """Asks, reads, and must be told the right text."""
    streams = index % 2 == 0
    path, body = request(index, stream=streams)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    if not streams:
        assert response.json()["choices"][0]["text"] == owed(index)
        return
    found = events(response)
    assert found.pop() == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in found) == owed(index)


async def vanishing(port: int, draw: random.Random) -> None:
    """Goes at some moment: before the body is whole, while it waits or is computed, in mid-stream, half."""
    path, body = request(draw.randrange(1000), stream=draw.random() < 0.7, max_tokens=200)
    if draw.random() < 0.3:
        path, body = (
            CHAT,
            {"messages": [{"role": "user", "content": "x" * 50}], "max_tokens": 200}
            | ({"stream": True} if draw.random() < 0.5 else {}),
        )
    data = json.dumps(body).encode()
    whole = head(path, len(data)) + data
    stream = await connect(port)
    how = draw.choice(["head", "body", "at once", "reset", "reading", "half", "half and reading"])
    match how:
        case "head":
            await stream.send(whole[: draw.randrange(1, len(whole) - len(data))])
        case "body":
            await stream.send(whole[: -draw.randrange(1, len(data))])
        case _:
            await stream.send(whole)
    if how.startswith("half"):
        await stream.send_eof()
    if how.endswith("reading"):
        for _ in range(draw.randrange(1, 5)):
            try:
                await stream.receive(draw.randrange(1, 2000))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                break
    if how == "reset":
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    await stream.aclose()


@dataclass
class Deaf:
    """Clients that ask and never read. Their sockets are bare, for a stream of anyio reads by itself."""

    sockets: list[socket.socket] = field(default_factory=list)

    async def call(self, port: int, index: int) -> None:
        """Ask for more than the buffers between can hold."""
        client = socket.socket()
        self.sockets.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect(("127.0.0.1", port))
        await anyio.wait_writable(client)
        client.send(encoded(*request(index, stream=True, logprobs=20, n=4, max_tokens=250)))

    def leave(self) -> None:
        """Go, without ever having read."""
        for client in self.sockets:
            client.close()


BROKEN = [
    b"\x00\xff\x13garbage\r\n\r\n",
    b"GET\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    head(COMPLETIONS, 9, "connection: close") + b'{"prompt"',
    head(COMPLETIONS, 4, "connection: close") + b"\xff\xfe{}",
    head(COMPLETIONS, 2, "connection: close") + b"[]",
    head(COMPLETIONS, 0, "connection: close"),
    head(CHAT, 20000, "connection: close") + b"[" * 20000,
    encoded(COMPLETIONS, {"prompt": [-1]}),
    encoded(COMPLETIONS, {"prompt": "a", "max_tokens": 10**400}),
    encoded(COMPLETIONS, {"prompt": "a", "logit_bias": {"5": "x"}}),
    encoded(COMPLETIONS, {"prompt": "a" * 5000}),
    encoded(CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}),
    encoded(CHAT, {"messages": 5}),
    encoded("/v1/nothing", {}),
    encoded(COMPLETIONS, {"prompt": "a", "response_format": {"type": "json_schema"}}),
    encoded(COMPLETIONS, {"prompt": "a", "structured_outputs": {"regex": "("}}),
    encoded(COMPLETIONS, {"prompt": "a", "model": "another"}),
    encoded(COMPLETIONS, {"prompt": "a", "stream": "yes"}),
]
"""Requests that are none, or that cannot be."""


async def broken(port: int, index: int) -> None:
    """Is refused, in words or by a closed connection, and never answered with 200 or 500."""
    async with await connect(port) as stream:
        await stream.send(BROKEN[index])
        if index < 4:
            await stream.send_eof()
        response = await read_all(stream)
    assert response == b"" or response.startswith(b"HTTP/1.1 4"), (BROKEN[index], response[:300])


def resident() -> int:
    """Bytes of memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
