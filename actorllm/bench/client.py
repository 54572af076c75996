"""The client: any server that speaks OpenAI's API, asked over sockets that stay open."""

import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream

from ..errors import DecodeError, MachineError, RequestError, RequestFailed, UsageError
from .answer import Answer, message_of
from .load import Load, Sample
from .reply import Reply

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "world", "life", "hand", "part", "child")
"""Words that are a token in most vocabularies: chats are made of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask, and how. Raises UsageError for a URL that is none.

    url       where the server is; a path before /v1 belongs to it
    model     the name of the model; None: the first that the server lists
    api_key   sent as a bearer token
    endpoint  completions sends prompts of token ids, chat sends as many words
    timeout   seconds after which a request has failed
    """

    url: str = "http://127.0.0.1:8000"
    model: str | None = field(default=None, metadata={"flags": ("--model",)})
    api_key: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Raise UsageError."""
        try:
            parts = urlsplit(self.url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            raise UsageError(f"url must be like http://127.0.0.1:8000, not {self.url!r}")

    @property
    def path(self) -> str:
        """The path that is asked."""
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"


Take = Callable[[Reply, bytes, float], None]
"""Hears of what has come of a body, and when."""


class Client:
    """Sockets to a server. Leaving the block closes them."""

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        self._target = target
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._free: list[ByteStream] = []

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._free:
            await anyio.aclose_forcefully(self._free.pop())

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises MachineError when nobody answers, DecodeError when it is no HTTP."""
        body: list[bytes] = []
        try:
            with anyio.fail_after(self._target.timeout):
                reply = await self._exchange(self._head("GET", path), lambda _, data, __: body.append(data))
        except TimeoutError:
            text = f"{self._target.url} does not answer within {self._target.timeout:g} s"
            raise MachineError(text) from None
        return reply.status, b"".join(body)

    async def find_model(self) -> str:
        """The target's model, or the first that the server lists.

        Raises what `get` raises, and UsageError when none is named and the server lists none.
        """
        status, body = await self.get("/v1/models")
        if self._target.model is not None:
            return self._target.model
        try:
            name = json.loads(body)["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            name = None
        if status != 200 or not isinstance(name, str):
            text = f"GET /v1/models answers HTTP {status}: {message_of(body)}; name the model with --model"
            raise UsageError(text)
        return name

    def encode(self, model: str, load: Load, prompts: Sequence[Sequence[int]]) -> list[bytes]:
        """The requests, ready to be sent: the run has no time for it."""
        return [self._encode(model, load, prompt) for prompt in prompts]

    def _encode(self, model: str, load: Load, prompt: Sequence[int]) -> bytes:
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._target.endpoint == "chat":
            text = " ".join(WORDS[token % len(WORDS)] for token in prompt)
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = prompt
        data = json.dumps(body, separators=(",", ":")).encode()
        return self._head("POST", self._target.path, len(data)) + data

    def _head(self, method: str, path: str, length: int = 0) -> bytes:
        lines = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"host: {self._netloc}",
            "user-agent: actorllm-bench",
            "accept: */*",
            "content-type: application/json",
            f"content-length: {length}",
        ]
        if self._target.api_key:
            lines.append(f"authorization: Bearer {self._target.api_key}")
        return "\r\n".join([*lines, "", ""]).encode()

    async def ask(self, request: bytes, asked: int) -> Sample:
        """Send it, and read the stream to its end; `asked` tokens must come."""
        sample = Sample(perf_counter())
        answer = Answer(sample)
        wrong: list[bytes] = []

        def take(reply: Reply, data: bytes, now: float) -> None:
            if reply.status == 200:
                answer.feed(data, now)
            else:
                wrong.append(data)

        try:
            with anyio.fail_after(self._target.timeout):
                reply = await self._exchange(request, take)
            if reply.status != 200:
                raise RequestFailed(f"HTTP {reply.status}: {message_of(b''.join(wrong))}")
            answer.close(asked)
        except TimeoutError:
            sample.failure = f"no end within {self._target.timeout:g} s"
        except (RequestError, DecodeError, MachineError) as error:
            sample.failure = str(error)
        sample.ended = perf_counter()
        return sample

    async def _exchange(self, request: bytes, take: Take) -> Reply:
        """A request and its reply. A socket that the server has closed meanwhile is replaced once."""
        if self._free:
            reply = await self._talk(self._free.pop(), request, take, Reply())
            if reply.begun:
                return reply
        reply = await self._talk(await self._open(), request, take, Reply())
        if not reply.begun:
            raise DecodeError("the server closed the connection without an answer")
        return reply

    async def _talk(self, stream: ByteStream, request: bytes, take: Take, reply: Reply) -> Reply:
        """The same on one socket; a reply that has not begun when the server has hung up."""
        try:
            await stream.send(request)
            while not reply.done:
                data = await stream.receive()
                now = perf_counter()
                if body := reply.feed(data):
                    take(reply, body, now)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            if reply.begun:
                reply.end()
        finally:
            if reply.done and reply.keeps_open:
                self._free.append(stream)
            else:
                await anyio.aclose_forcefully(stream)
        return reply

    async def _open(self) -> ByteStream:
        try:
            if self._tls is None:
                return await anyio.connect_tcp(self._host, self._port)
            return await anyio.connect_tcp(
                self._host, self._port, ssl_context=self._tls, tls_standard_compatible=False
            )
        except ssl.SSLError as error:
            raise MachineError(f"no TLS with {self._target.url}: {error}") from error
        except OSError as error:
            reason = error.__cause__ or error
            raise MachineError(
                f"nobody listens at {self._target.url} ({reason}); start the server, or give its --url"
            ) from error
