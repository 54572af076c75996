"""A load: what is asked, in how many streams at once, and when the answers came."""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import TypeVar

import anyio

from ..errors import UsageError

T = TypeVar("T")

LOW_TOKEN = 100
"""Token ids of prompts begin here where the vocabulary allows it: special tokens are mostly below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked for. Raises UsageError for what cannot be.

    concurrency            requests under way at once: a closed loop of so many streams
    num_requests           requests in all
    prompt_tokens          tokens of a prompt, besides the shared prefix
    output_tokens          tokens of an answer
    shared_prefix_tokens   tokens with which all prompts begin
    warmup                 requests before the measured ones, with prompts of their own
    vocab_size             the token ids of prompts are below this
    seed                   the same load with the same seed has the same prompts, which a server may have
                           cached from the run before
    """

    concurrency: int = field(default=32, metadata={"flags": ("-c", "--concurrency")})
    num_requests: int = field(default=64, metadata={"flags": ("-n", "--num-requests")})
    prompt_tokens: int = 128
    output_tokens: int = 128
    shared_prefix_tokens: int = 0
    warmup: int = 1
    vocab_size: int = 32_000
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError for the first number that is too small."""
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")

    def __str__(self) -> str:
        shared = f"{self.shared_prefix_tokens} shared + " if self.shared_prefix_tokens else ""
        return f"c={self.concurrency}, {shared}{self.prompt_tokens} in / {self.output_tokens} out"

    @property
    def tokens_of_prompt(self) -> int:
        """Tokens of a prompt in all."""
        return self.shared_prefix_tokens + self.prompt_tokens


_LEAST = {
    "concurrency": 1,
    "num_requests": 1,
    "prompt_tokens": 1,
    "output_tokens": 1,
    "shared_prefix_tokens": 0,
    "warmup": 0,
    "vocab_size": 2,
}


def draw(load: Load, count: int, purpose: str) -> list[list[int]]:
    """So many prompts of random token ids. Another load, or another purpose, has other ones."""
    dice = random.Random(f"{purpose} {load!r}")
    ids = range(min(LOW_TOKEN, load.vocab_size // 2), load.vocab_size)
    shared = dice.choices(ids, k=load.shared_prefix_tokens)
    return [shared + dice.choices(ids, k=load.prompt_tokens) for _ in range(count)]


@dataclass(slots=True)
class Sample:
    """One request and what came of it. Times are seconds of `perf_counter`.

    begun          when it was sent
    arrivals       when news with tokens came, each of one token or of several
    ended          when the answer was over
    prompt_tokens  as the server counts them; None: it does not tell
    output_tokens  the same of the answer
    failure        why it failed; None: it did not
    """

    begun: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The samples of a load; its wall-clock time and the CPU time of this process, in seconds."""

    samples: Sequence[Sample]
    seconds: float
    cpu_seconds: float


async def drive(ask: Callable[[T], Awaitable[Sample]], requests: Sequence[T], concurrency: int) -> Run:
    """Ask them all, in so many streams: each asks the next one when its answer has ended.

    What `ask` raises ends the run; a request that fails is a sample with a failure.
    """
    samples: list[Sample] = []
    waiting = iter(requests)

    async def stream(waiting: Iterator[T]) -> None:
        for request in waiting:
            samples.append(await ask(request))

    begun, cpu_begun = perf_counter(), process_time()
    try:
        async with anyio.create_task_group() as nursery:
            for _ in range(min(concurrency, len(requests))):
                nursery.start_soon(stream, waiting)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return Run(samples, perf_counter() - begun, process_time() - cpu_begun)
