"""Chaos over HTTP: whatever other clients do, the honest ones get their answers, and nothing is left."""

import os
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from actorllm import Engine, EngineConfig
from actorllm.server.settings import ServerSettings

from .chaos import BROKEN, Deaf, broken, honest, hypercorn_of, resident, uvicorn_of, vanishing

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

VANISH, DEAF, HONEST = 200, 20, 50
ROUNDS = 6 if os.environ.get("ACTORLLM_SOAK") == "1" else 2
"""The first one fills caches and pools; the others must add nothing."""


async def storm(engine: Engine, port: int, seed: int) -> None:
    """All clients at once. Those that do not read stay until nothing is open."""
    draw, deaf = random.Random(seed), Deaf()
    calls: list[Callable[[], Coroutine[Any, Any, None]]] = [
        *(partial(vanishing, port, random.Random(draw.random())) for _ in range(VANISH)),
        *(partial(deaf.call, port, index) for index in range(DEAF)),
        *(partial(broken, port, index) for index in range(len(BROKEN))),
        *(partial(honest, port, index) for index in range(HONEST)),
    ]
    draw.shuffle(calls)
    try:
        async with anyio.create_task_group() as nursery:
            for call in calls:
                nursery.start_soon(call)
        await engine.check(60)
    finally:
        deaf.leave()


async def test_the_honest_ones_get_the_right_text_and_nothing_is_left(anyio_backend_name: str) -> None:
    config = EngineConfig(
        model="hash",
        num_gpu_blocks_override=256,
        max_model_len=512,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        seed=0,
        verify=True,
        enable_prefix_caching=False,
    )
    open_server = uvicorn_of if anyio_backend_name == "asyncio" else hypercorn_of
    async with Engine(config) as engine, open_server(engine, ServerSettings(unread_timeout=1)) as port:
        memory = []
        for seed in range(ROUNDS):
            await storm(engine, port, seed)
            memory.append(resident())
        statistics = await engine.statistics()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            ready = await client.get("/health/ready")
    assert ready.status_code == 200
    assert statistics["door"]["num_open"] == 0
    assert statistics["kvpool"]["num_free_blocks"] == statistics["kvpool"]["num_blocks"]
    assert memory[-1] <= 1.05 * memory[0], memory
