"""The same prompt and seed give the same tokens, whatever happens around them and to them."""

from typing import Any

import pytest

from actorllm import Engine, EngineConfig, Parts, SamplingParams
from actorllm.actors.worker import open_runner
from actorllm.checkpoint import Checkpoint
from actorllm.messages import RunStep, Sampled

from .build import together
from .models import small_model

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROMPT = [5, 80, 200, 90, 91, 92, 93, 94, 95, 96, 97, 98] * 3
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "filters": {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    "wishes": {"logit_bias": {7: 5.0}, "bad_words": ["the"], "min_tokens": 20, "logprobs": 1},
    "grammar": {"structured_outputs": {"regex": "[a-z]{30,60}"}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("model")))


def config(model: str, **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {"model": model, "max_num_seqs": 40, "max_model_len": 128, "seed": 0}
    return EngineConfig(**(fields | changes))


def params(kind: str, seed: int) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 40, "temperature": 1.0, "seed": seed} | ASKED[kind]))


async def alone(model: str, kind: str, seed: int) -> tuple[int, ...]:
    async with Engine(config(model)) as engine:
        return (await engine.generate(PROMPT, params(kind, seed))).token_ids


async def in_company(engine: Engine, kind: str, seed: int, others: int) -> tuple[int, ...]:
    """The same among others of another prompt and seed."""
    asked: list[tuple[list[int], SamplingParams]] = [
        ([100 + index, *PROMPT[index % 9 :]], params(kind, 1000 + index)) for index in range(others)
    ]
    asked[others // 2] = (PROMPT, params(kind, seed))
    answers = await together(engine, [engine.generate(*each) for each in asked])
    return answers[others // 2].token_ids


class Fails:
    """A runner that raises in some steps; each time all KV is lost, and everybody begins again."""

    def __init__(self, runner: Any, steps: frozenset[int]) -> None:
        self._runner = runner
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, step: RunStep) -> Sampled | None:
        if step.step in self._steps:
            raise FloatingPointError("the model met a NaN")
        done: Sampled | None = self._runner.execute(step)
        return done


MODES: dict[str, dict[str, Any]] = {
    "in a batch of 32": {},
    "in chunks": {"max_num_batched_tokens": 40, "long_prefill_token_threshold": 7},
    "preempted": {"num_gpu_blocks_override": 40},
    "one step in flight": {"steps_in_flight": 1},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ASKED)
async def test_what_else_runs_changes_nothing(kind: str, mode: str, model: str) -> None:
    wanted = await alone(model, kind, 7)
    async with Engine(config(model, **MODES[mode])) as engine:
        assert await in_company(engine, kind, 7, 32) == wanted
        preempted = (await engine.statistics())["kvpool"]["preemptions"]
    assert (preempted > 0) is (mode == "preempted")


@pytest.mark.parametrize("kind", ASKED)
async def test_a_restart_changes_nothing(kind: str, model: str) -> None:
    wanted = await alone(model, kind, 7)

    def make(checkpoint: Checkpoint, config: EngineConfig) -> Any:
        return Fails(open_runner(checkpoint, config), frozenset({9, 30}))

    async with Engine(config(model), parts=Parts(open_runner=make)) as engine:
        assert await in_company(engine, kind, 7, 3) == wanted
        assert (await engine.statistics())["scheduler"]["num_failed_steps"] == 2


@pytest.mark.parametrize("kind", ASKED)
async def test_different_seeds_differ(kind: str, model: str) -> None:
    found = [await alone(model, kind, seed) for seed in (1, 2, -1)]
    assert len(set(found)) == 3


async def test_seeds_of_several_answers_count_up(model: str) -> None:
    async with Engine(config(model)) as engine:
        many = await engine.generate(PROMPT, SamplingParams(max_tokens=20, temperature=1.0, seed=4, n=3))
        single = await engine.generate(PROMPT, SamplingParams(max_tokens=20, temperature=1.0, seed=6))
    assert many.outputs[2].token_ids == single.token_ids


async def test_without_a_seed_answers_differ_and_an_engine_with_a_seed_repeats_itself(model: str) -> None:
    async def twice() -> list[tuple[int, ...]]:
        async with Engine(config(model)) as engine:
            free = SamplingParams(max_tokens=20, temperature=1.0)
            return [(await engine.generate(PROMPT, free)).token_ids for _ in range(2)]

    first, second = await twice()
    assert first != second
    assert await twice() == [first, second]
