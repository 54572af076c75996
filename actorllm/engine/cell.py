"""Cells: where the answer to a request gathers until somebody reads it."""

from collections.abc import Callable
from typing import assert_never

import anyio

from ..errors import ActorLLMError
from ..messages import Delta, Failed, Fault, Logprobs, Rendered, ToCell, unpack


class Bell:
    """Wakes the reader of some cells."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        """Let the reader look."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Look at each ring, until the condition is true."""
        while not condition():
            self._event = self._event or anyio.Event()
            await self._event.wait()


class Cell:
    """What has come for one request and was not read yet: it grows by at most the answer.

    `group` is in whose name it has its seat.
    """

    __slots__ = (
        "__weakref__",
        "accepted",
        "bell",
        "error",
        "fault",
        "finish_reason",
        "group",
        "logprobs",
        "num_cached",
        "parts",
        "prompt",
        "prompt_logprobs",
        "request",
        "stop_reason",
        "tokens",
    )

    def __init__(self, request: int, bell: Bell | None = None, group: str = "") -> None:
        self.request = request
        self.group = group
        self.bell = bell or Bell()
        self.prompt: list[int] = []
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.prompt_logprobs: list[Logprobs] = []
        self.num_cached = 0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.fault: Fault | None = None
        self.error: ActorLLMError | None = None
        self.accepted = False

    @property
    def ready(self) -> bool:
        """Whether there is something to read."""
        return bool(self.parts or self.tokens or self.finish_reason or self.error)

    def has_news(self, interval: float) -> bool:
        """Whether there is something to read for who wants to hear of so many tokens at once."""
        return bool(self.finish_reason or self.error) or (self.ready and len(self.tokens) >= interval)

    def put(self, message: ToCell) -> bool:
        """Take in what has come; True when it was the last of the request."""
        match message:
            case Rendered(_, tokens):
                self.prompt = unpack(tokens)
                self.accepted = True
            case Failed(_, reason, fault):
                self.finish_reason, self.fault = reason, fault
            case Delta():
                if message.text:
                    self.parts.append(message.text)
                self.tokens += unpack(message.tokens)
                self.prompt_logprobs += message.prompt_logprobs
                self.num_cached += message.num_cached
                if message.logprobs is not None:
                    self.logprobs.append(message.logprobs)
                self.finish_reason, self.stop_reason = message.finish_reason, message.stop_reason
                self.fault = message.fault
            case _:
                assert_never(message)
        self.bell.ring()
        return self.finish_reason is not None
