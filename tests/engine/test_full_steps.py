"""Steps are full as long as there is something to compute, and what is equal is computed once."""

import random
import threading

import anyio
import pytest

from actorllm import Engine, EngineConfig, SamplingParams

from .build import config, expected
from .steps import Steps, gated

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COUNT = 16
LONG = 1088
"""Tokens of a prompt: 68 blocks of 16, of which at most 67 can be found in the cache."""

BUDGET = 512
PROMPT = [100 + 7 * place % 151 for place in range(LONG)]


async def sixteen_at_once(config: EngineConfig, params: SamplingParams) -> list[int]:
    """Sixteen equal requests arrive together: their tokens. What is computed for them is checked."""
    steps, answers = Steps(), []
    assert params.max_tokens is not None
    async with Engine(config, parts=steps.parts()) as engine:

        async def ask() -> None:
            answers.append(list((await engine.generate(PROMPT, params)).token_ids))

        async with anyio.create_task_group() as nursery:
            for _ in range(COUNT):
                nursery.start_soon(ask)
        await engine.check()
        statistics = await engine.statistics()
    last_block = 16
    prompts = LONG + (COUNT - 1) * last_block
    generated = COUNT * (params.max_tokens - 1)  # the last token of each is computed by nobody
    assert statistics["scheduler"]["num_tokens_computed"] == prompts + generated
    sizes = [step.size for step in steps.steps]
    assert sizes[:3] == [BUDGET, BUDGET, LONG - 2 * BUDGET]
    assert sum(sizes[3:]) == prompts - LONG + generated
    assert answers == [answers[0]] * COUNT
    tokens: list[int] = answers[0]
    return tokens


async def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    settings = config(
        max_num_batched_tokens=BUDGET, num_gpu_blocks_override=256, max_model_len=1200, max_num_seqs=COUNT
    )
    assert await sixteen_at_once(settings, params) == expected(PROMPT, params)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_equal_prompts_of_the_default_model_are_computed_once() -> None:
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    settings = EngineConfig(
        num_gpu_blocks_override=160,
        max_num_batched_tokens=BUDGET,
        max_num_seqs=COUNT,
        num_threads=1,
    )
    assert len(await sixteen_at_once(settings, params)) == 1


@pytest.mark.parametrize("steps_in_flight", [1, 2])
async def test_every_step_is_full_until_no_prompt_is_left(steps_in_flight: int) -> None:
    rng = random.Random(steps_in_flight)
    prompts = [rng.choices(range(256), k=rng.randrange(100, 240)) for _ in range(COUNT)]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    gate, steps = threading.Event(), Steps()
    settings = config(
        max_num_batched_tokens=BUDGET,
        num_gpu_blocks_override=400,
        max_num_seqs=COUNT,
        steps_in_flight=steps_in_flight,
    )
    async with Engine(settings, parts=steps.parts(gated(gate))) as engine:
        streams = [engine.generate(prompt, params) for prompt in prompts]
        for stream in streams:
            await stream.accepted()
        gate.set()
        for prompt, stream in zip(prompts, streams, strict=True):
            assert list((await stream).token_ids) == expected(prompt, params)
        await engine.check()
    prefill = [step.size for step in steps.steps if max(step.rows.values()) > 1]
    early = prefill[:steps_in_flight]  # planned before all had come
    assert prefill[len(early) : -1] == [BUDGET] * (len(prefill) - len(early) - 1)
    assert len(prefill) - len(early) > 3
