"""Policy, steps in flight, prefix cache, chunks, preemption: none of them may change a token of anybody."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

import anyio
import pytest
from filelock import FileLock

from actorllm import Engine, EngineConfig, Parts, SamplingParams
from actorllm.checkpoint import open_checkpoint
from actorllm.service import Service

from .build import config, expected
from .steps import Steps

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TIGHT, AMPLE = 12, 256
"""Blocks of 16 tokens: the longest request fits in the first, all of them in the second."""

FACTORS: dict[str, Sequence[Any]] = {
    "policy": ("fcfs", "priority", "fair", "deadline"),
    "steps_in_flight": (1, 2),
    "enable_prefix_caching": (False, True),
    "long_prefill_token_threshold": (16, 512),
    "num_gpu_blocks_override": (AMPLE, TIGHT),
}
PLAIN = {name: levels[0] for name, levels in FACTORS.items()} | {"long_prefill_token_threshold": 512}


def changes(levels: Sequence[int]) -> dict[str, Any]:
    """The level with this number of each factor."""
    return {name: FACTORS[name][level] for name, level in zip(FACTORS, levels, strict=True)}


ALL = list(product(*(range(len(levels)) for levels in FACTORS.values())))
COVERING = [(2 * a + b, c, a ^ c, b ^ c, a ^ b ^ c) for a, b, c in product((0, 1), repeat=3)]
"""Eight of the 64 that have every pair of levels of every two factors: an orthogonal array."""


def on_both_backends(cases: Sequence[Sequence[int]]) -> pytest.MarkDecorator:
    """Parameters of a test: each case on one backend, in turn over the levels of every factor."""
    values = [(("asyncio", "trio")[sum(levels) % 2], changes(levels)) for levels in cases]
    return pytest.mark.parametrize(
        ("anyio_backend", "chosen"),
        values,
        ids=[f"{backend}-{'-'.join(map(str, chosen.values()))}" for backend, chosen in values],
    )


@dataclass(frozen=True)
class Asked:
    """One request."""

    prompt: list[int]
    params: SamplingParams
    service: Service


@cache
def asked_of_hash() -> list[Asked]:
    """Sixteen requests of two families of prompts, with every kind of service; no timeout fires."""
    rng = random.Random(0)
    stems = [[rng.randrange(256) for _ in range(56)] for _ in range(2)]
    return [
        Asked(
            stems[index % 2][: 20 + 4 * index] + [rng.randrange(256) for _ in range(rng.randrange(1, 60))],
            SamplingParams(
                max_tokens=26 + index * 7 % 17, temperature=index % 2, seed=index, ignore_eos=index % 4 != 0
            ),
            service(index),
        )
        for index in range(16)
    ]


def service(index: int) -> Service:
    """Some of every priority and tenant, some with a timeout that is far away."""
    timeout = None if index % 4 == 0 else 600.0 - 30 * (index * 5 % 7)
    return {"priority": index * 3 % 4 - 1, "tenant": "abc"[index * 2 % 3], "timeout": timeout}


async def answers(
    config: EngineConfig, asked: Sequence[Asked], parts: Parts | None = None, *, alone: bool = False
) -> tuple[list[list[int]], dict[str, dict[str, Any]]]:
    """The tokens of each, asked all at once or one after the other, and the statistics."""
    made: dict[int, list[int]] = {}
    async with Engine(config, parts=parts) as engine:

        async def ask(index: int) -> None:
            each = asked[index]
            made[index] = list((await engine.generate(each.prompt, each.params, **each.service)).token_ids)

        async with anyio.create_task_group() as nursery:
            for index in range(len(asked)):
                if alone:
                    await ask(index)
                else:
                    nursery.start_soon(ask, index)
        await engine.check()
        statistics = await engine.statistics()
    return [made[index] for index in range(len(asked))], statistics


def check_what_happened(chosen: dict[str, Any], steps: Steps, statistics: dict[str, dict[str, Any]]) -> None:
    """The settings did what they are for: a case that is the same as another proves nothing."""
    pool, scheduler = statistics["kvpool"], statistics["scheduler"]
    tight = chosen["num_gpu_blocks_override"] == TIGHT
    assert (pool["preemptions"] > 0) == tight
    if not tight and chosen["policy"] != "fair":  # which takes seats away, too
        assert scheduler["num_preemptions"] == 0
    if not chosen["enable_prefix_caching"]:
        assert pool["hit_tokens"] == 0
    elif not tight:
        assert pool["hit_tokens"] > 0
    assert statistics["tap-0"]["lost"] == 0
    assert (steps.longest_chunk > 16) == (chosen["long_prefill_token_threshold"] > 16)
    assert pool["num_free_blocks"] == pool["num_blocks"]
    assert scheduler["num_timeouts"] == 0


def test_the_covering_cases_have_every_pair_of_levels() -> None:
    for one, other in combinations(range(len(FACTORS)), 2):
        pairs = {(levels[one], levels[other]) for levels in COVERING}
        assert pairs == {(levels[one], levels[other]) for levels in ALL}
    assert set(COVERING) <= set(ALL)


@on_both_backends(ALL)
async def test_every_engine_gives_the_naive_tokens(chosen: dict[str, Any]) -> None:
    steps = Steps()
    settings = config(max_num_seqs=6, max_num_batched_tokens=512, max_model_len=160, **chosen)
    made, statistics = await answers(settings, asked_of_hash(), steps.parts())
    assert made == [expected(each.prompt, each.params) for each in asked_of_hash()]
    check_what_happened(chosen, steps, statistics)


# -- the real model -------------------------------------------------------------------------------

STEM = "The lighthouse keeper wrote a letter every evening. In the first one he told his sister that"
TEXTS = [
    STEM + " the sea was calm,",
    STEM + " he had seen a ship with red sails, and that",
    STEM,
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven,",
    STEM + " nothing ever happens here. I",
    "Once",
]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def real_config(chosen: dict[str, Any]) -> EngineConfig:
    """Blocks of 4 tokens, so that a few tokens are enough to need another one."""
    tight = {"num_gpu_blocks_override": 14, "max_model_len": 56}
    fixed: dict[str, Any] = {
        "model": "smollm2-135m",
        "dtype": "float32",
        "num_threads": 1,
        "block_size": 4,
        "max_num_seqs": 4,
    }
    small = tight if chosen["num_gpu_blocks_override"] == TIGHT else {}
    return EngineConfig(**(fixed | chosen | small), verify=True)


@pytest.fixture(scope="session")
def asked_of_model() -> list[Asked]:
    """Six short requests; four of them begin alike."""
    tokenizer = open_checkpoint("smollm2-135m").tokenizer()
    return [Asked(tokenizer.encode(text), GREEDY, service(index)) for index, text in enumerate(TEXTS)]


@pytest.fixture(scope="session")
def plain_tokens(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str, asked_of_model: list[Asked]
) -> list[list[int]]:
    """What each request gets alone in the plainest engine; one process makes it for all."""
    own = tmp_path_factory.getbasetemp()
    kept = (own if worker_id == "master" else own.parent) / "equivalence-plain.json"

    async def make() -> list[list[int]]:
        return (await answers(real_config(PLAIN), asked_of_model, alone=True))[0]

    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            kept.write_text(json.dumps(anyio.run(make)))
    tokens: list[list[int]] = json.loads(kept.read_text())
    return tokens


@on_both_backends(COVERING)
async def test_the_default_model_gives_the_tokens_of_the_plainest_engine(
    chosen: dict[str, Any], asked_of_model: list[Asked], plain_tokens: list[list[int]]
) -> None:
    steps = Steps()
    made, statistics = await answers(real_config(chosen), asked_of_model, steps.parts())
    assert made == plain_tokens
    check_what_happened(chosen, steps, statistics)
