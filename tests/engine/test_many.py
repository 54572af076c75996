"""64 requests at once, half of them dropped at random moments: the others get exactly their tokens."""

import random

import anyio
import pytest

from actorllm import Engine, SamplingParams, Stream
from actorllm.checkpoint import open_checkpoint

from .build import config, expected

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PARAMS = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)


def texts(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choice("aeiou é😀\n") for _ in range(rng.randrange(1, 60))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
async def test_half_of_them_vanish_and_the_others_do_not_notice(seed: int) -> None:
    rng = random.Random(seed)
    asked = texts(rng, 64)
    moments = {index: rng.choice(["rendering", "break", "cancel", "close"]) for index in range(0, 64, 2)}
    answers: dict[int, list[int]] = {}

    async def honest(index: int, stream: Stream) -> None:
        answers[index] = list((await stream).token_ids)

    async def fickle(moment: str, tokens: int, stream: Stream) -> None:
        with anyio.CancelScope() as scope:
            if moment == "rendering":
                scope.deadline = anyio.current_time() + rng.random() / 1000
            async for output in stream:
                if len(output.token_ids) >= tokens:
                    if moment == "break":
                        break
                    if moment == "close":
                        stream.close()
                    if moment == "cancel":
                        scope.cancel()

    async with Engine(config(num_gpu_blocks_override=40, max_requests=28)) as engine:
        async with anyio.create_task_group() as nursery:
            for index, prompt in enumerate(asked):
                stream = engine.generate(prompt, PARAMS)
                if index in moments:
                    nursery.start_soon(fickle, moments[index], rng.randrange(40), stream)
                else:
                    nursery.start_soon(honest, index, stream)
                del stream
        await engine.check()
        statistics = await engine.statistics()
    tokenizer = open_checkpoint("hash").tokenizer()
    for index in range(1, 64, 2):
        assert answers[index] == expected(tokenizer.encode(asked[index]), PARAMS)
    assert dict(statistics["frontend"]["finished"])["length"] >= 32
    assert dict(statistics["frontend"]["finished"])["abort"] > 0
    assert statistics["kvpool"]["num_free_blocks"] == 40
    assert all(actor.get("mail", 0) == 0 for actor in statistics.values())
