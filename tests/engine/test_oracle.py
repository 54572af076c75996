"""The oracle: with the HashModel, no schedule may change a single token of any request."""

from typing import Any

import anyio
import pytest

from actorllm import Engine, RequestOutput, SamplingParams

from .build import config, expected, prompts, text

pytestmark = pytest.mark.anyio

CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"steps_in_flight": 1},
    {"max_num_batched_tokens": 16},
    {"max_num_batched_tokens": 1},
    {"long_prefill_token_threshold": 7},
    {"max_num_seqs": 1},
    {"max_num_seqs": 32, "num_gpu_blocks_override": 20},
    {"num_gpu_blocks_override": 16, "steps_in_flight": 1, "max_num_seqs": 16},
    {"block_size": 1, "num_gpu_blocks_override": 300},
    {"enable_prefix_caching": False, "num_gpu_blocks_override": 18},
    {"block_size": 32, "max_num_batched_tokens": 48, "num_gpu_blocks_override": 9, "watermark": 0.2},
]
TIGHT = ("num_gpu_blocks_override", 16), ("num_gpu_blocks_override", 20)


def params(index: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=20 + index * 7 % 60, temperature=index % 2, seed=index, ignore_eos=index % 4 != 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=str)
async def test_every_schedule_gives_the_same_tokens(changes: dict[str, Any]) -> None:
    asked = prompts(24)
    answers: dict[int, RequestOutput] = {}
    async with Engine(config(**changes)) as engine:

        async def ask(index: int) -> None:
            answers[index] = await engine.generate(asked[index], params(index))

        async with anyio.create_task_group() as nursery:
            for index in range(len(asked)):
                nursery.start_soon(ask, index)
        await engine.check()
        statistics = await engine.statistics()
    for index, prompt in enumerate(asked):
        tokens = expected(prompt, params(index))
        assert list(answers[index].token_ids) == tokens
        assert answers[index].text == text(tokens)
        ended = tokens[-1] == 256 and not params(index).ignore_eos
        assert answers[index].finish_reason == ("stop" if ended else "length")
    if any(item in changes.items() for item in TIGHT):
        assert statistics["kvpool"]["preemptions"] > 0
    assert statistics["kvpool"]["num_free_blocks"] == statistics["kvpool"]["num_blocks"]
