"""Servers to measure: the real one on a socket of its own, and one that says what it is told to say."""

import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio
import anyio.abc
import uvicorn
from anyio.from_thread import start_blocking_portal

from actorllm import Engine, EngineConfig
from actorllm.cli.serving import Server, listen
from actorllm.server.app import create_app

CONFIG = EngineConfig(
    model="hash", num_gpu_blocks_override=256, max_model_len=512, max_num_seqs=8, seed=0, verify=True
)
MODELS = b'{"data": [{"id": "canned"}]}'


@contextmanager
def serving() -> Iterator[str]:
    """The URL of the app on the HashModel, in an event loop of another thread. No request is left over."""
    with (
        listen("127.0.0.1", 0) as listener,
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(Engine(CONFIG)) as engine,
    ):
        settings = uvicorn.Config(create_app(engine), lifespan="off", log_level="warning")
        ready = threading.Event()
        server = Server(settings, ready.set)
        done = portal.start_task_soon(server.serve, [listener])
        assert ready.wait(20)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            portal.call(engine.check)
        finally:
            server.stop()
            done.result(20)


def sized(status: str, body: bytes, *headers: str) -> bytes:
    """A reply with a content-length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def event(value: Any) -> bytes:
    data = value if isinstance(value, str) else json.dumps(value)
    return f"data: {data}\n\n".encode()


def chunked(*parts: bytes, end: bool = True) -> bytes:
    """A stream of chunks; without the last one if it has no `end`."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + body + (b"0\r\n\r\n" if end else b"")


def text(said: str, finish_reason: str | None = None) -> bytes:
    """An event of a completion."""
    return event({"choices": [{"index": 0, "text": said, "finish_reason": finish_reason}]})


def usage(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


class Canned:
    """A server that gives each connection its replies in turn, and then closes it.

    `requests` are the heads and bodies it has read.
    """

    def __init__(self, connections: Sequence[Sequence[bytes]]) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        self._left = [list(replies) for replies in connections]

    async def answer(self, stream: anyio.abc.SocketStream) -> None:
        replies = self._left.pop(0)
        async with stream:
            for reply in replies:
                self.requests.append(await self._read(stream))
                await stream.send(reply)

    async def _read(self, stream: anyio.abc.SocketStream) -> bytes:
        request = b""
        while True:
            request += await stream.receive()
            head, found, body = request.partition(b"\r\n\r\n")
            if not request.startswith((b"GET ", b"POST ")):
                return request  # of one who speaks something else
            if found and len(body) == int(head.lower().partition(b"content-length: ")[2].split()[0]):
                return request


@asynccontextmanager
async def canned(*connections: Sequence[bytes]) -> AsyncIterator[Canned]:
    """A server for so many connections."""
    server = Canned(connections)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        server.url = f"http://127.0.0.1:{port}"
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(partial(listener.serve, server.answer))
            yield server
            nursery.cancel_scope.cancel()
