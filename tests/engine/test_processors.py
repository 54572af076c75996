"""Logits processors of one's own: batched, with a state that any schedule rebuilds."""

from typing import Any

import anyio
import pytest

from actorllm import ConfigError, Engine, EngineConfig, InvalidRequest, RequestFailed, SamplingParams

from .models import small_model

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NAME = "tests.engine.processors:InTurn"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("model")))


def config(model: str, **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {
        "model": model,
        "max_model_len": 128,
        "verify": True,
        "logits_processors": (NAME,),
    }
    return EngineConfig(**(fields | changes))


def params(**arguments: Any) -> SamplingParams:
    return SamplingParams(max_tokens=20, temperature=1.0, seed=1, extra_args=arguments)


@pytest.mark.parametrize(
    "mode", [{}, {"max_num_batched_tokens": 20}, {"num_gpu_blocks_override": 12, "max_num_seqs": 8}], ids=str
)
async def test_each_request_has_its_own_state_whatever_happens(mode: dict[str, Any], model: str) -> None:
    asked = {index: ([100 + index] * (30 + index), [40 + index, 60 + index]) for index in range(8)}
    answers: dict[int, tuple[int, ...]] = {}
    async with Engine(config(model, **mode)) as engine, anyio.create_task_group() as nursery:
        free = engine.generate([5, 6], SamplingParams(max_tokens=20, temperature=1.0, seed=1))

        async def ask(index: int) -> None:
            prompt, turns = asked[index]
            answers[index] = (await engine.generate(prompt, params(in_turn=turns))).token_ids

        for index in asked:
            nursery.start_soon(ask, index)
        assert len(set((await free).token_ids)) > 3
    for index, (prompt, turns) in asked.items():
        assert answers[index] == tuple(([*turns, prompt[0]] * 7)[:20])


async def test_arguments_that_cannot_be_are_refused_at_once(model: str) -> None:
    async with Engine(config(model)) as engine:
        with pytest.raises(InvalidRequest, match="in_turn must be token ids") as caught:
            engine.generate([5], params(in_turn=[10**6]))
    assert caught.value.param == "extra_args.in_turn"


async def test_arguments_for_no_processor_are_refused(model: str) -> None:
    async with Engine(config(model, logits_processors=())) as engine:
        with pytest.raises(InvalidRequest, match="extra_args needs custom processors") as caught:
            engine.generate([5], params(in_turn=[7]))
        await engine.generate([5], params())
    assert caught.value.param == "extra_args"


async def test_one_that_raises_fails_its_request_alone(model: str) -> None:
    async with Engine(config(model)) as engine:
        good = engine.generate([5, 6], params(in_turn=[7]))
        await good.accepted()
        with pytest.raises(RequestFailed, match="ZeroDivisionError: it was made to raise"):
            await engine.generate([5], params(in_turn=[8], raises=True))
        assert (await good).token_ids == (7, 5) * 10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nonsense", "must be named like package.module:Class"),
        ("tests.engine.nowhere:InTurn", "cannot be loaded"),
        ("tests.engine.processors:Nobody", "cannot be loaded"),
        ("tests.engine.processors:Lacking", "lacks one of check, open, advance and apply"),
    ],
)
async def test_what_cannot_be_loaded_is_named_at_the_start(name: str, reason: str, model: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' {reason}"):
        async with Engine(config(model, logits_processors=(name,))):
            pass
