"""Engines on the HashModel, and what they must answer."""

import random
from collections.abc import Sequence
from typing import Any

import anyio

from actorllm import Engine, EngineConfig, Parts, RequestOutput, SamplingParams
from actorllm.actors.worker import Runner
from actorllm.checkpoint import Checkpoint
from actorllm.cores.policy import Policy, Rankable
from actorllm.engine.stream import Stream
from actorllm.messages import RunStep, Sampled, Sampling, pack
from actorllm.model.hash import HashRunner, naive_tokens

END = frozenset({256})

POISON = 258
"""A token that the failing model cannot take at the start of a prompt."""


def config(**changes: Any) -> EngineConfig:
    """A small engine that checks itself after every turn."""
    fields: dict[str, Any] = {
        "model": "hash",
        "num_gpu_blocks_override": 64,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "seed": 0,
        "verify": True,
    }
    return EngineConfig(**(fields | changes))


def prompts(count: int, *, seed: int = 0, longest: int = 120) -> list[list[int]]:
    """Token prompts; every third shares a prefix with the others of its kind."""
    rng = random.Random(seed)
    shared = [rng.randrange(256) for _ in range(40)]
    made = []
    for index in range(count):
        own = [rng.randrange(256) for _ in range(rng.randrange(1, longest))]
        made.append((shared + own)[:longest] if index % 3 == 0 else own)
    return made


def expected(prompt: list[int], params: SamplingParams) -> list[int]:
    """The tokens that the HashModel owes."""
    sampling = params.sampling(Sampling())
    assert params.max_tokens is not None
    return list(naive_tokens(prompt, params.max_tokens, sampling, END, params.ignore_eos))


def text(tokens: list[int]) -> str:
    """The text of the HashModel's tokens, as it is shown."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


async def together(engine: Engine, streams: Sequence[Stream]) -> list[RequestOutput]:
    """The whole answers of requests that are all there before the first step is planned, and in this order.

    So how they meet in the pool does not depend on how fast the machine lets them come.
    """
    answers: dict[int, RequestOutput] = {}

    async def collect(index: int) -> None:
        answers[index] = await streams[index]

    await engine.pause()
    for stream in streams:
        await stream.accepted()
    await engine.resume()
    async with anyio.create_task_group() as nursery:
        for index in range(len(streams)):
            nursery.start_soon(collect, index)
    await engine.check()
    return [answers[index] for index in range(len(streams))]


class Fails(HashRunner):
    """A model that raises in the first steps of some numbers, and whenever it meets a poisoned token."""

    def __init__(self, config: EngineConfig, steps: frozenset[int], poison: int) -> None:
        super().__init__(config, 4096)
        self._steps = steps
        self._poison = pack([poison])

    def execute(self, step: RunStep) -> Sampled | None:
        poisoned = any(row.tokens.startswith(self._poison) for row in step.new)
        if step.step in self._steps or poisoned:
            raise FloatingPointError("the model met a NaN")
        return super().execute(step)


def failing(*steps: int) -> Parts:
    """Parts of an engine whose model raises in these steps, and for every prompt that begins with POISON."""

    def make(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
        return Fails(config, frozenset(steps), POISON)

    return Parts(open_runner=make)


class Crashing(Policy):
    """A policy with a bug: it takes the Scheduler with it, `after` so many tokens."""

    def __init__(self, after: int = 0) -> None:
        self._left = after

    def key(self, request: Rankable) -> tuple[float, ...]:
        return ()

    def serve(self, request: Rankable, num_tokens: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise ZeroDivisionError("no order")
