"""LLM: the engine for programs that are not async. Works in scripts and in notebooks."""

import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack

import anyio
from anyio.from_thread import start_blocking_portal

from ..checkpoint import Progress
from ..config import EngineConfig
from ..errors import EngineClosed, InvalidRequest, UsageError
from ..params import SamplingParams
from .engine import Engine
from .outputs import RequestOutput
from .prompts import Prompt, Template
from .stream import Stream

T = TypeVar("T")


class LLM:
    """A synchronous engine: it runs in an event loop on a thread of its own.

    Close it with `close()` or a `with` block; otherwise it ends with the interpreter.
    """

    def __init__(
        self,
        config: EngineConfig | str | None = None,
        *,
        backend: str = "asyncio",
        progress: Progress | None = None,
    ) -> None:
        """Start the engine; raises what `Engine.__aenter__` raises. `backend`: asyncio or trio."""
        if backend not in anyio.get_all_backends():
            listed = ", ".join(anyio.get_all_backends())
            raise UsageError(f"backend must be one of {listed}, not {backend!r}")
        self._closed = False
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal(backend, name="actorllm"))
        self._finalizer = weakref.finalize(self, self._stack.close)
        try:
            entered = self._portal.wrap_async_context_manager(Engine(config, progress=progress))
            self.engine = self._stack.enter_context(entered)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine and its thread. A second call does nothing."""
        self._closed = True
        self._finalizer()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one prompt or many (all at once); the outputs stand in the order of the prompts.

        `params` is for all, or a list with one for each. Raises InvalidRequest before anything runs when
        a prompt or the number of params is wrong; the first error of a request otherwise. Ctrl-C aborts
        all of them.
        """
        many = _many(prompts, lambda first: hasattr(first, "__index__"), "prompts")
        each = _for_each(params, len(many))
        streams = [self.engine.generate(prompt, own) for prompt, own in zip(many, each, strict=True)]
        return self._wait(streams)

    def chat(
        self,
        conversations: Sequence[Any],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template: Unpack[Template],
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or a list of conversations; `template` is for all."""
        many = _many(conversations, lambda first: isinstance(first, Mapping), "conversations")
        each = _for_each(params, len(many))
        streams = [
            self.engine.chat(messages, own, **template) for messages, own in zip(many, each, strict=True)
        ]
        return self._wait(streams)

    def reset_prefix_cache(self) -> None:
        """Reuse nothing that was computed up to now."""
        self._run(self.engine.reset_prefix_cache)

    def sleep(self) -> None:
        """Drop the weights and the KV cache until `wake_up`."""
        self._run(self.engine.sleep)

    def wake_up(self) -> None:
        """Load the weights again after `sleep`."""
        self._run(self.engine.wake_up)

    def start_profile(self, path: str | PathLike[str]) -> None:
        """Profile the device's kernels until `stop_profile`."""
        self._run(self.engine.start_profile, path)

    def stop_profile(self) -> None:
        """Write the profile to its path."""
        self._run(self.engine.stop_profile)

    def _wait(self, streams: list[Stream]) -> list[RequestOutput]:
        """The answers; whatever interrupts this thread aborts the requests."""
        return self._run(_collect, streams)

    def _run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """What the function returns in the engine's event loop; an interrupt here cancels it there."""
        if self._closed:
            raise EngineClosed("this LLM was closed; make another one")
        call = _Call(partial(function, *args))
        try:
            return self._portal.start_task_soon(call.run).result()
        except BaseException:
            if not call.over:
                self._portal.start_task_soon(call.take_back)
            raise


class _Call(Generic[T]):
    """A call into the event loop, which can be taken back whether it is known there yet or not.

    The portal's own future is not enough: an interrupt can come before the portal has given it.
    """

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self.over = False
        self._function = function
        self._scope: anyio.CancelScope | None = None
        self._taken_back = False

    async def run(self) -> T:
        """What the function returns. Raises EngineClosed when it was taken back."""
        try:
            with anyio.CancelScope() as self._scope:
                if self._taken_back:
                    self._scope.cancel()
                return await self._function()
        finally:
            self.over = True
        raise EngineClosed("the call was interrupted")

    def take_back(self) -> None:
        """Cancel it, now or when it begins; to be called in the event loop."""
        self._taken_back = True
        if self._scope is not None:
            self._scope.cancel()


def _many(given: Any, is_part: Callable[[Any], bool], name: str) -> Sequence[Any]:
    """A list of what was given, which may be one alone: a text, or a list of parts."""
    if isinstance(given, str):
        return [given]
    if hasattr(given, "tolist"):
        given = given.tolist()
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray | memoryview):
        raise InvalidRequest(f"{name} must be a list, not {type(given).__name__}", name)
    return [given] if given and is_part(given[0]) else given


def _for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or len(params) != count:
        given = f"{len(params)} params" if isinstance(params, Sequence) else type(params).__name__
        raise InvalidRequest(f"there are {count} prompts, but {given}", "params")
    return params


async def _collect(streams: list[Stream]) -> list[RequestOutput]:
    """All answers, in order. When one fails, the others are aborted."""
    answers: dict[int, RequestOutput] = {}

    async def collect(index: int) -> None:
        answers[index] = await streams[index]

    try:
        async with anyio.create_task_group() as nursery:
            for index in range(len(streams)):
                nursery.start_soon(collect, index)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [answers[index] for index in range(len(streams))]
