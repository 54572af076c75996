"""`fair`, one tenant with 200 requests that wait and one with a single one: it has its token soon."""

import random
import threading
from typing import Any

import pytest

from actorllm import Engine, EngineConfig, SamplingParams

from .build import config, expected
from .steps import First, Promise, Steps, first, gated

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FLOOD = 200
BUDGET, SEATS = 64, 8
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


async def after_the_flood(
    config: EngineConfig, seed: int, params: SamplingParams = PARAMS
) -> tuple[First, list[int], list[int]]:
    """When the one is served that comes after 200 of another tenant; its prompt and its tokens.

    Nothing is computed before all have come. When it has its answer, the others leave.
    """
    rng = random.Random(seed)
    prompts = [rng.choices(range(256), k=rng.randrange(1, 60)) for _ in range(FLOOD + 1)]
    gate, steps = threading.Event(), Steps()
    async with Engine(config, parts=steps.parts(gated(gate))) as engine:
        flood = [engine.generate(prompt, PARAMS, tenant="flood") for prompt in prompts[:FLOOD]]
        for stream in flood:
            await stream.accepted()
        one = engine.generate(prompts[FLOOD], params, tenant="one")
        await one.accepted()
        gate.set()
        tokens = list((await one).token_ids)
        waiting = (await engine.statistics())["scheduler"]["num_waiting"]
        for stream in flood:
            stream.close()
        await engine.check()
    when = first(steps.events, "one")
    assert config.policy != "fair" or waiting > FLOOD / 2
    return when, prompts[FLOOD], tokens


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(3))
async def test_its_first_token_comes_within_the_bound(seed: int, steps_in_flight: int) -> None:
    shape: dict[str, Any] = {"num_gpu_blocks_override": 128, "steps_in_flight": steps_in_flight}
    when, prompt, tokens = await after_the_flood(config(policy="fair", **shape), seed)
    assert tokens == expected(prompt, PARAMS)
    promise = Promise(BUDGET, SEATS, steps_in_flight)
    assert when.runs <= promise.runs(when)
    assert when.speaks <= promise.speaks(when)


@pytest.mark.parametrize("seed", range(2))
async def test_the_bound_holds_when_those_that_decode_take_most_of_a_step(seed: int) -> None:
    small: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 12, "num_gpu_blocks_override": 128}
    when, prompt, tokens = await after_the_flood(config(policy="fair", **small), seed)
    assert tokens == expected(prompt, PARAMS)
    promise = Promise(12, 8, 2)
    assert when.runs <= promise.runs(when)
    assert when.speaks <= promise.speaks(when)


async def test_first_come_first_served_exceeds_the_bound() -> None:
    when, prompt, tokens = await after_the_flood(config(policy="fcfs", num_gpu_blocks_override=128), 0)
    assert tokens == expected(prompt, PARAMS)
    assert when.runs > 10 * Promise(BUDGET, SEATS, 2).runs(when)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_default_model_keeps_the_bound() -> None:
    settings = EngineConfig(
        dtype="float32",
        num_threads=1,
        policy="fair",
        max_num_seqs=4,
        max_num_batched_tokens=BUDGET,
        num_gpu_blocks_override=64,
        max_model_len=256,
    )
    when, _, tokens = await after_the_flood(settings, 0, SamplingParams(temperature=0, max_tokens=1))
    assert len(tokens) == 1
    promise = Promise(BUDGET, settings.max_num_seqs, settings.steps_in_flight)
    assert when.runs <= promise.runs(when)
    assert when.speaks <= promise.speaks(when)
