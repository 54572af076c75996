"""Groups of layers with different windows share one pool: `hash:0,8` and the like."""

import anyio
import pytest

from actorllm import ConfigError, Engine, ModelNotFound, SamplingParams
from actorllm.checkpoint import open_checkpoint
from actorllm.messages import Sampling
from actorllm.model.hash import naive_tokens

from .build import END, config, prompts

pytestmark = pytest.mark.anyio

PROMPTS = prompts(12)
PARAMS = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)


def owed(prompt: list[int], windows: tuple[int, ...], params: SamplingParams = PARAMS) -> list[int]:
    assert params.max_tokens is not None
    sampling = Sampling(temperature=0.0)
    return naive_tokens(prompt, params.max_tokens, sampling, END, ignore_eos=True, windows=windows)


@pytest.mark.parametrize("num_blocks", [60, 600])
@pytest.mark.parametrize("windows", [(0, 9), (9,), (40, 0, 2)])
async def test_every_group_sees_what_its_window_shows(windows: tuple[int, ...], num_blocks: int) -> None:
    model = f"hash:{','.join(map(str, windows))}"
    small = config(model=model, block_size=4, num_gpu_blocks_override=num_blocks, max_model_len=None)
    async with Engine(small) as engine:
        assert engine.max_model_len > 150

        async def ask(prompt: list[int]) -> None:
            output = await engine.generate(prompt[:90], PARAMS)
            assert list(output.token_ids) == owed(prompt[:90], windows)

        for _ in range(2):
            async with anyio.create_task_group() as nursery:
                for prompt in PROMPTS:
                    nursery.start_soon(ask, prompt)
        await engine.check()
        statistics = await engine.statistics()
    assert statistics["kvpool"]["hit_tokens"] > 0
    if 0 in windows:
        assert (statistics["kvpool"]["preemptions"] > 0) == (num_blocks == 60)


async def test_windows_change_the_tokens() -> None:
    prompt = PROMPTS[2][:50]
    assert len({tuple(owed(prompt, windows)) for windows in ((0,), (9,), (8,), (0, 9), (9, 0))}) == 5


async def test_a_long_request_holds_no_more_than_its_window() -> None:
    params = SamplingParams(max_tokens=150, temperature=0, ignore_eos=True)
    async with Engine(config(model="hash:17", block_size=4, num_gpu_blocks_override=40)) as engine:
        stream = engine.generate(PROMPTS[0][:100], params)
        async for output in stream:
            ((_, held),) = (await engine.statistics())["kvpool"]["holders"] or ((0, 0),)
            if len(output.token_ids) > 20:
                assert held <= 17 // 4 + 2
    assert list(output.token_ids) == owed(PROMPTS[0][:100], (17,), params)


async def test_what_fell_out_of_a_window_is_not_needed_for_a_hit() -> None:
    prompt = PROMPTS[0][:80]
    async with Engine(config(model="hash:9", block_size=4, num_gpu_blocks_override=26)) as engine:
        await engine.generate(prompt, PARAMS)
        before = (await engine.statistics())["kvpool"]
        assert before["evictions"] > 0
        follow_up = [*prompt, *owed(prompt, (9,)), 7]
        output = await engine.generate(follow_up, PARAMS)
        after = (await engine.statistics())["kvpool"]
    assert list(output.token_ids) == owed(follow_up, (9,))
    assert after["hit_tokens"] == (len(follow_up) - 2) // 4 * 4


async def test_no_more_is_promised_than_the_pool_holds() -> None:
    with pytest.raises(ConfigError, match="the KV cache holds 68 tokens of one request"):
        async with Engine(
            config(model="hash:0,9", block_size=4, num_gpu_blocks_override=20, max_model_len=90)
        ):
            pass


@pytest.mark.parametrize("model", ["hash:", "hash:1", "hash:-2", "hash:0,x", "hash:0,,4"])
def test_what_is_no_list_of_windows_is_refused(model: str) -> None:
    with pytest.raises(ModelNotFound, match="after the colon come windows such as 0,8"):
        open_checkpoint(model)
