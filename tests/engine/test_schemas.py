"""A model of random weights under random schemas, through all the actors: what ends by itself is valid."""

import anyio
import pytest

from actorllm import Engine, EngineConfig, RequestOutput, SamplingParams

from ..structured.test_random_schemas import check, drawn
from .models import small_model

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_answers_under_random_schemas_are_valid(
    anyio_backend_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schemas = drawn() if anyio_backend_name == "asyncio" else drawn()[:60]
    path = small_model(tmp_path_factory.mktemp("model"), context=1024)
    answers: dict[int, RequestOutput] = {}
    config = EngineConfig(model=str(path), max_num_seqs=32, num_gpu_blocks_override=70, max_model_len=1024)
    async with Engine(config) as engine:
        async with anyio.create_task_group() as nursery:

            async def ask(index: int, seats: anyio.Semaphore) -> None:
                async with seats:
                    params = SamplingParams(
                        temperature=1.0,
                        seed=index,
                        max_tokens=800,
                        structured_outputs={"json": schemas[index]},
                    )
                    answers[index] = await engine.generate("x", params)

            seats = anyio.Semaphore(32)
            for index in range(len(schemas)):
                nursery.start_soon(ask, index, seats)
        await engine.check()
    ended = {index: answer for index, answer in answers.items() if answer.finish_reason == "stop"}
    assert len(ended) >= 0.9 * len(schemas)
    for index, answer in ended.items():
        check(schemas[index], answer.text.encode())
