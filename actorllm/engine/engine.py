"""Engine: the facade. It lives inside the caller's async block, and leaves nothing behind."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import asdict, replace
from os import PathLike, fsdecode, fspath
from types import TracebackType
from typing import Any, Unpack

import anyio
import anyio.from_thread
import anyio.lowlevel

from ..actors.render import chat_text, prompt_tokens
from ..checkpoint import Checkpoint, Progress, Tokenizer, open_checkpoint
from ..checks import plain
from ..config import EngineConfig
from ..errors import ActorLLMError, EngineClosed, EngineDied, InvalidRequest, UsageError
from ..messages import Conversation, Question, TextPrompt, TokenPrompt, unpack
from ..params import SamplingParams
from ..processors import LogitsProcessor, load_processors
from ..service import Service, cache_key, terms
from .door import not_open
from .events import Subscription
from .metrics import Metrics, gather
from .outputs import Statistics
from .parts import Parts
from .prompts import ChatArguments, Prompt, Template, conversation_of, prompt_of, split, text_of
from .ring import Ring, open_ring
from .stream import Reading, Stream

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
        self._processors: tuple[LogitsProcessor, ...] = ()

    async def __aenter__(self) -> "Engine":
        """Raises ModelError, DownloadFailed or ConfigError when it cannot start."""
        if self._entered is not None:
            raise UsageError("this engine is open, or was; make another one")
        checkpoint = await anyio.to_thread.run_sync(self._open_checkpoint)
        seed = secrets.randbits(63) if self.config.seed is None else self.config.seed
        opening = open_ring(self.config, checkpoint, seed, self._parts, watches_lag=True)
        ring = await self._stack.enter_async_context(opening)
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
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        add_special_tokens: bool = True,
        **service: Unpack[Service],
    ) -> Stream:
        """Continue a prompt: text (tokenised with the special tokens that the model wants around one, unless
        `add_special_tokens` is False) or token ids.

        Keyword arguments say on whose behalf and how soon (`service.Service`); a request that misses a
        timeout ends with finish_reason `timeout`. Raises InvalidRequest for a prompt of another type; what
        only the tokens show comes from the stream.
        """
        return self._ask(prompt_of(prompt, add_special_tokens), params, service)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **asked: Unpack[ChatArguments],
    ) -> Stream:
        """Answer a conversation: messages with `role` and `content`, through the model's chat template.

        Without `params`, and for `max_tokens=None`, the answer may take the rest of the context. Keyword
        arguments are those of `generate`, and what else the template is to know (`prompts.Template`), such
        as `tools`.
        """
        template, service = split(asked)
        conversation = conversation_of(messages, template)
        return self._ask(conversation, params or SamplingParams(max_tokens=None), service)

    async def tokenize(self, prompt: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, as `generate` would compute it; made on a thread.

        Raises InvalidRequest for a text that the model could not take, as it is longer than its context.
        """
        return await self._tokens(prompt_of(prompt, add_special_tokens))

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, Any]], **template: Unpack[Template]
    ) -> list[int]:
        """The tokens of a conversation, as `chat` would compute it."""
        return await self._tokens(conversation_of(messages, template))

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **template: Unpack[Template]) -> str:
        """The text of a conversation's prompt, as `chat` would compute it; made on a thread."""
        conversation = conversation_of(messages, template)
        return await anyio.to_thread.run_sync(chat_text, self.tokenizer, conversation)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens that stand by themselves, special ones too; made on a thread.

        Raises InvalidRequest for a token that is not in the vocabulary.
        """
        return await anyio.to_thread.run_sync(text_of, self.tokenizer, tokens)

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self.config.served_model_name or self._checkpoint.name

    @property
    def tokenizer(self) -> Tokenizer:
        """What the model's tokens mean. Raises EngineClosed before the engine is entered."""
        return self._checkpoint.tokenizer()

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

    def metrics(self) -> Metrics:
        """What there is to be watched, at this moment; to be called in the engine's event loop."""
        return gather(self._ring, self.config, self.model_name, anyio.current_time())

    def _open_checkpoint(self) -> Checkpoint:
        """The checkpoint, with all of its tokenizer that the event loop reads, and the processors. Blocks."""
        checkpoint = open_checkpoint(self.config.model, progress=self._report)
        checkpoint.tokenizer().load()
        vocab_size = checkpoint.architecture.vocab_size
        self._processors = load_processors(self.config.logits_processors, vocab_size)
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

    async def _tokens(self, prompt: TextPrompt | TokenPrompt | Conversation) -> list[int]:
        tokenizer = self.tokenizer
        column = await anyio.to_thread.run_sync(prompt_tokens, tokenizer, prompt, self.max_model_len)
        return unpack(column)

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
        params.check_logprobs(self.config.max_logprobs)
        if params.extra_args and not self._processors:
            text = (
                "extra_args needs custom processors: the engine's EngineConfig.logits_processors names none"
            )
            raise InvalidRequest(text, "extra_args")
        for processor in self._processors:
            processor.check(params.extra_args or {})
        question = Question(
            prompt,
            params.sampling(self._checkpoint.sampling_defaults),
            params.limits(),
            params.text_rules(),
            terms(service),
            cache_key(service, skip_reading=params.skips_prefix_cache),
            tuple(params.bad_words),
            params.truncate_prompt_tokens,
        )
        # the first answer computes the whole prompt if that is to be told of, and the others share its KV
        key = cache_key(service, skip_reading=bool(params.skip_reading_prefix_cache))
        others = replace(question, key=key)
        self._ring.door.meter.ask(params.n)
        return Stream(self._ring.door, question, params.n, self._reading(params), others)

    def _reading(self, params: SamplingParams) -> Reading:
        tells = params.logprobs is not None or bool(params.logprob_token_ids)
        told = params.prompt_logprobs is not None
        pieces = self.tokenizer.pieces if tells or told else None
        return Reading(
            params.output_kind,
            params.stream_interval,
            pieces if tells else None,
            pieces if told else None,
        )


def as_config(config: EngineConfig | str | PathLike[str] | None) -> EngineConfig:
    """A configuration of what one may give for it. Raises ConfigError for anything else."""
    if config is None:
        return EngineConfig()
    if isinstance(config, EngineConfig):
        return config
    return EngineConfig(model=fspath(config) if isinstance(config, PathLike) else config)
