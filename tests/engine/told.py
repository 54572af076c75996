"""Requests, and all that is told of their answers."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from actorllm import Engine, EngineConfig, RequestOutput, SamplingParams

from .build import together


@dataclass(frozen=True)
class Asked:
    """One request."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Told:
    """All that is told of an answer; floats are compared as they are."""

    tokens: tuple[int, ...]
    logprobs: object
    prompt_logprobs: object


def told(output: RequestOutput) -> Told:
    (answer,) = output.outputs
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids) > 0
    return Told(answer.token_ids, answer.logprobs, output.prompt_logprobs)


async def ask_at_once(engine: Engine, asked: Sequence[Asked], besides: Sequence[Asked] = ()) -> list[Told]:
    """What each is told, while the engine is asked the rest too; in an order by chance."""
    every = [*asked, *besides]
    order = random.Random(7).sample(range(len(every)), len(every))
    streams = [engine.generate(every[index].prompt, every[index].params) for index in order]
    answers = dict(zip(order, await together(engine, streams), strict=True))
    return [told(answers[index]) for index in range(len(asked))]


async def ask_alone(config: EngineConfig, asked: Sequence[Asked]) -> list[Told]:
    async with Engine(config) as engine:
        return [told(await engine.generate(each.prompt, each.params)) for each in asked]


def answers(made: list[Told]) -> list[Told]:
    """Without what is told of the prompts."""
    return [replace(each, prompt_logprobs=None) for each in made]
