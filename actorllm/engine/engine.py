"""Engine: the facade. It lives inside the caller's async block, and leaves nothing behind."""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import asdict
from os import PathLike, fsdecode, fspath
from types import TracebackType
from typing import Any, Unpack

import anyio
import anyio.from_thread
import anyio.lowlevel

from ..checkpoint import Checkpoint, Progress, open_checkpoint
from ..config import EngineConfig
from ..errors import ActorLLMError, EngineClosed, EngineDied, InvalidRequest, UsageError
from ..messages import Conversation, Question, TextPrompt, TokenPrompt, pack
from ..params import SamplingParams, Service, cache_key, plain, terms
from .door import not_open
from .events import Subscription
from .outputs import Statistics
from .parts import Parts
from .ring import Ring, open_ring
from .stream import Stream

Prompt = str | Sequence[int]
"""Text, or token ids."""

IDLE_POLL = 0.001
"""Seconds between two looks of `Engine.check` at the ring."""


class Engine:
    """An LLM inference engine inside an async program, under asyncio or trio.

    ```python
    async with Engine("smollm2-135m") as engine:
        async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=64)):
            print(output.delta, end="")
    ```

    Entering fetches and loads the model on threads; leaving aborts what is still open. When an actor
    crashes, every open stream raises EngineDied, and so does leaving the block.
    """

    def __init__(
        self,
        config: EngineConfig | str | PathLike[str] | None = None,
        *,
        progress: Progress | None = None,
        parts: Parts | None = None,
    ) -> None:
        """`config` is a configuration, or a model's name or path; `progress` hears of a download."""
        self.config = as_config(config)
        self._progress = progress
        self._parts = parts or Parts()
        self._stack = AsyncExitStack()
        self._entered: tuple[Ring, Checkpoint] | None = None

    async def __aenter__(self) -> "Engine":
        """Raises ModelError, DownloadFailed or ConfigError when it cannot start."""
        if self._entered is not None:
            raise UsageError("this engine is open, or was; make another one")
        checkpoint = await anyio.to_thread.run_sync(self._open_checkpoint)
        seed = secrets.randbits(63) if self.config.seed is None else self.config.seed
        ring = await self._stack.enter_async_context(open_ring(self.config, checkpoint, seed, self._parts))
        self._entered = (ring, checkpoint)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        died = self.died
        await self._stack.__aexit__(exc_type, exc, traceback)
        if exc is None and died is not None:
            raise died

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **service: Unpack[Service]
    ) -> Stream:
        """Continue a prompt: text (tokenised with the model's special tokens) or token ids.

        Keyword arguments say on whose behalf and how soon (`params.Service`); a request that misses a
        timeout ends with finish_reason `timeout`. Raises InvalidRequest for a prompt of another type; what
        only the tokens show comes from the stream.
        """
        if isinstance(prompt, str):
            return self._ask(TextPrompt(_text(prompt)), params, service)
        return self._ask(TokenPrompt(_column(prompt)), params, service)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **service: Unpack[Service],
    ) -> Stream:
        """Answer a conversation: messages with `role` and `content`, through the model's chat template.

        Without `params`, and for `max_tokens=None`, the answer may take the rest of the context. Keyword
        arguments are those of `generate`.
        """
        conversation = Conversation(_conversation(messages))
        return self._ask(conversation, params or SamplingParams(max_tokens=None), service)

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self.config.served_model_name or self._checkpoint.name

    @property
    def max_model_len(self) -> int:
        """Tokens that a request may have, prompt and answer together."""
        return self._ring.max_model_len

    @property
    def died(self) -> EngineDied | None:
        """Why the engine has died; None while it lives."""
        if self._entered is None or not isinstance(self._ring.door.closed, EngineDied):
            return None
        return self._ring.door.closed

    @property
    def closed(self) -> ActorLLMError | None:
        """Why no request is taken: not entered yet, left, or died; None while the engine is open."""
        return not_open() if self._entered is None else self._ring.door.closed

    def close(self) -> None:
        """Take no more requests, and end the open ones with EngineClosed; the block can be left later."""
        self._ring.door.close(EngineClosed("the engine is shutting down; this request was not finished"))

    async def wait_closed(self) -> None:
        """Wait until the engine is left, or dies (see `died`)."""
        await self._ring.door.wait_closed()

    async def pause(self) -> None:
        """Plan no more steps; returns when none is on its way. Requests stay, and their timeouts go on.

        As all commands are, it is carried out even if its caller is cancelled while he waits for its end.
        """
        await self._ring.door.command("pause")

    async def resume(self) -> None:
        """Go on after a pause."""
        await self._ring.door.command("resume")

    async def reset_prefix_cache(self) -> None:
        """Nothing that was computed up to now is ever reused by a request that has not begun."""
        await self._ring.door.command("reset_prefix_cache")

    async def sleep(self) -> None:
        """Drop the weights and the KV cache. Requests stay, and are computed again after `wake_up`."""
        await self._ring.door.command("sleep")

    async def wake_up(self) -> None:
        """Load the weights again after `sleep`. Raises CommandFailed, and then sleeps on."""
        await self._ring.door.command("wake_up")

    async def start_profile(self, path: str | PathLike[str]) -> None:
        """Profile the device's kernels until `stop_profile`.

        Raises UsageError while it sleeps, and CommandFailed when the path cannot be written.
        """
        if not isinstance(path, str | bytes | PathLike):
            raise UsageError(f"the path of a profile must be a path, not {path!r}")
        await self._ring.door.command("start_profile", plain(fsdecode(path)))

    async def stop_profile(self) -> None:
        """Write the profile to its path, as a trace for chrome://tracing or Perfetto."""
        await self._ring.door.command("stop_profile")

    def cache_events(self, capacity: int = 1024) -> AbstractContextManager[Subscription]:
        """Subscribe to what the prefix cache holds: `with engine.cache_events() as news: async for ...`.

        Up to `capacity` news wait for the reader; what comes then is lost, and the next ones count it. They
        begin now, and nothing tells what the cache holds already: with `reset_prefix_cache` both sides begin
        empty. The iteration ends with the engine, and when the block is left.

        Raises UsageError for another capacity than a whole number, and unless the engine was configured with
        `enable_kv_cache_events`.
        """
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 0:
            raise UsageError(f"the capacity must be an integer of at least 0, not {capacity!r}")
        if not self.config.enable_kv_cache_events:
            raise UsageError("no cache events: the engine's enable_kv_cache_events is False")
        return self._ring.door.subscribe(capacity)

    async def check(self, timeout: float = 10.0) -> None:
        """Wait until every request that was dropped has ended; raise if anything is held after all.

        Raises AssertionError, naming what is held, when the ring is not idle within `timeout` seconds,
        or when an invariant of an actor is broken. To be called when no stream is open.
        """
        ring = self._ring
        with anyio.move_on_after(timeout):
            while not ring.idle:  # noqa: ASYNC110 (no actor knows when all of them rest)
                await anyio.sleep(IDLE_POLL)
        ring.check()
        if not ring.idle:
            raise AssertionError(f"the engine still holds something: {await self.statistics()}")

    async def statistics(self) -> Statistics:
        """Every actor's statistics by its name, with `mail` that waits for it; the door's; the `record`'s."""
        ring = self._ring
        gathered: Statistics = {
            name: {**asdict(core.statistics()), "mail": ring.mail_waiting(name)}
            for name, core in ring.cores.items()
        }
        for index, port in enumerate(ring.taps):
            gathered[f"tap-{index}"] |= {"lost": port.num_lost, "died": port.died}
        gathered["door"] = ring.door.statistics()
        if ring.recorder is not None:
            gathered["record"] = ring.recorder.statistics()
        await anyio.lowlevel.checkpoint()
        return gathered

    def _open_checkpoint(self) -> Checkpoint:
        """The checkpoint, with all of its tokenizer that the event loop reads. Blocks."""
        checkpoint = open_checkpoint(self.config.model, progress=self._report)
        checkpoint.tokenizer().load()
        return checkpoint

    def _report(self, what: str, done: int, total: int) -> None:
        """Pass the progress of a download on; from its thread, so that a cancellation ends it."""
        anyio.from_thread.check_cancelled()
        if self._progress is not None:
            self._progress(what, done, total)

    @property
    def _ring(self) -> Ring:
        if self._entered is None:
            raise not_open()
        return self._entered[0]

    @property
    def _checkpoint(self) -> Checkpoint:
        if self._entered is None:
            raise not_open()
        return self._entered[1]

    def _ask(
        self,
        prompt: TextPrompt | TokenPrompt | Conversation,
        params: SamplingParams | None,
        service: Service,
    ) -> Stream:
        if params is None:
            params = SamplingParams()
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}", "params")
        sampling = params.sampling(self._checkpoint.sampling_defaults)
        question = Question(
            prompt, sampling, params.limits(), params.text_rules(), terms(service), cache_key(service)
        )
        return Stream(self._ring.door, question, params.n)


def as_config(config: EngineConfig | str | PathLike[str] | None) -> EngineConfig:
    """A configuration of what one may give for it. Raises ConfigError for anything else."""
    if config is None:
        return EngineConfig()
    if isinstance(config, EngineConfig):
        return config
    return EngineConfig(model=fspath(config) if isinstance(config, PathLike) else config)


def _text(prompt: str, param: str = "prompt") -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        text = f"{param} is not valid Unicode: there is a lone surrogate at position {error.start}"
        raise InvalidRequest(text, param) from error
    return plain(prompt)


def _column(prompt: Any) -> bytes:
    """Token ids as a column; arrays of NumPy and tensors of torch are lists too."""
    if hasattr(prompt, "tolist") and not isinstance(prompt, memoryview):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        text = f"the prompt must be a string or a list of token ids, not {type(prompt).__name__}"
        raise InvalidRequest(text, "prompt")
    return pack(_token(token) for token in prompt)


def _token(token: Any) -> int:
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise InvalidRequest(f"a token id must be an integer, not {token!r}", "prompt")
    number: int = token.__index__()
    if not 0 <= number < 2**31:
        raise InvalidRequest(f"token id {number} is outside the vocabulary", "prompt")
    return number


def _conversation(messages: Any) -> str:
    """Check the shape that every chat template relies on. Raises InvalidRequest."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            text = f"messages[{index}] must be an object with a role, not {message!r}"
            raise InvalidRequest(text, "messages")
        if not isinstance(message.get("content"), str | None):
            text = f"the content of messages[{index}] must be text, not {message.get('content')!r}"
            raise InvalidRequest(text, "messages")
    try:
        return _text(json.dumps([dict(message) for message in messages], ensure_ascii=False), "messages")
    except TypeError as error:
        raise InvalidRequest(f"messages must be JSON: {error}", "messages") from error
