"""What an output says of the prefix cache is what was found there."""

import pytest

from actorllm import Engine, SamplingParams

from .build import config

pytestmark = pytest.mark.anyio

PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPT = list(range(100, 133))
"""33 tokens: two whole blocks of 16, and one more."""


async def num_cached(engine: Engine, prompt: list[int], params: SamplingParams = PARAMS) -> int:
    return (await engine.generate(prompt, params)).num_cached_tokens


async def test_only_whole_blocks_that_were_computed_before_count() -> None:
    async with Engine(config()) as engine:
        assert await num_cached(engine, PROMPT) == 0
        assert await num_cached(engine, PROMPT) == 32
        assert await num_cached(engine, PROMPT[:32]) == 16  # the last token is always computed
        assert await num_cached(engine, [*PROMPT[:16], 7, *PROMPT[17:]]) == 16
        assert await num_cached(engine, [7, *PROMPT[1:]]) == 0


async def test_it_is_known_with_the_first_token_and_told_of_the_first_answer() -> None:
    several = SamplingParams(temperature=1, max_tokens=5, ignore_eos=True, n=3)
    async with Engine(config()) as engine:
        assert await num_cached(engine, PROMPT, several) == 0
        found = [output.num_cached_tokens async for output in engine.generate(PROMPT, several)]
    assert found == [32] * len(found)


async def test_a_stop_string_in_the_first_token_does_not_hide_it() -> None:
    async with Engine(config()) as engine:
        text = (await engine.generate(PROMPT, PARAMS)).text
        found = await engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=5, stop=[text[0]]))
    assert (len(found.token_ids), found.finish_reason, found.num_cached_tokens) == (1, "stop", 32)


async def test_without_a_prefix_cache_nothing_is_found() -> None:
    async with Engine(config(enable_prefix_caching=False)) as engine:
        assert [await num_cached(engine, PROMPT) for _ in range(2)] == [0, 0]
