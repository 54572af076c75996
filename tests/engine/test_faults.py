"""Bad requests, failing steps, crashing actors, and an engine that is left: clear errors, nothing lost."""

from typing import Any

import anyio
import pytest

from actorllm import (
    ConfigError,
    Engine,
    EngineClosed,
    EngineDied,
    InvalidRequest,
    ModelNotFound,
    Parts,
    RequestFailed,
    SamplingParams,
    UnsupportedModel,
    UsageError,
)
from actorllm.messages import RunStep, Sampled
from actorllm.model.hash import HashRunner

from .build import POISON, Crashing, config, expected, failing, prompts

pytestmark = pytest.mark.anyio

GOOD = prompts(1)[0]
PARAMS = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)


@pytest.mark.parametrize(
    ("prompt", "param", "message"),
    [
        ("", "prompt", "the prompt is empty"),
        ([], "prompt", "the prompt is empty"),
        ([1] * 256, "prompt", "has 256 tokens; with max_model_len 256 it may have 255"),
        ([5, 99999], "prompt", "token id 99999 is outside the vocabulary"),
        ([5, -1], "prompt", "token id -1 is outside the vocabulary"),
        ([5, 2**40], "prompt", "outside the vocabulary"),
        ([5, "x"], "prompt", "a token id must be an integer, not 'x'"),
        ([True], "prompt", "a token id must be an integer, not True"),
        (7, "prompt", "must be a string or a list of token ids, not int"),
        (b"bytes", "prompt", "must be a string or a list of token ids, not bytes"),
        (None, "prompt", "not NoneType"),
        ("a\ud83d", "prompt", "not valid Unicode: there is a lone surrogate at position 1"),
    ],
)
async def test_a_bad_prompt_is_named_and_harms_nobody(prompt: Any, param: str, message: str) -> None:
    async with Engine(config()) as engine:
        good = engine.generate(GOOD, PARAMS)
        await anext(good)
        with pytest.raises(InvalidRequest, match=message) as caught:
            await engine.generate(prompt, PARAMS)
        assert caught.value.param == param
        answer = [output async for output in good][-1]
        assert list(answer.token_ids) == expected(GOOD, PARAMS)
        await engine.check()


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("hello", "must be a list"),
        ([{"content": "no role"}], r"messages\[0\] must be an object with a role"),
        ([{"role": "user", "content": 5}], r"content of messages\[0\] must be text"),
    ],
)
async def test_a_bad_conversation_is_named(messages: Any, message: str) -> None:
    async with Engine(config()) as engine:
        with pytest.raises(InvalidRequest, match=message) as caught:
            await engine.chat(messages)
        assert caught.value.param == "messages"


async def test_wrong_params_are_named() -> None:
    async with Engine(config()) as engine:
        with pytest.raises(InvalidRequest, match="params must be SamplingParams, not dict"):
            engine.generate(GOOD, {"max_tokens": 5})  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="stop_token_ids: token id 5000 is outside") as caught:
            await engine.generate(GOOD, SamplingParams(stop_token_ids=[5000]))
        assert caught.value.param == "stop_token_ids"


async def test_a_grammar_that_is_none_is_refused_by_its_actor() -> None:
    async with Engine(config()) as engine:
        with pytest.raises(InvalidRequest, match="regex") as caught:
            await engine.generate(GOOD, SamplingParams(structured_outputs={"regex": "(a"}))
        assert caught.value.param == "structured_outputs.regex"
        assert (await engine.statistics())["grammar"]["num_failed"] == 1
        await engine.check()


async def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ModelNotFound, match="no-such-model"):
        async with Engine("./no-such-model"):
            raise AssertionError("an engine without a model")


async def test_a_context_beyond_the_cache_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len is 2000, but the KV cache holds 64 tokens"):
        async with Engine(config(max_model_len=2000, num_gpu_blocks_override=4)):
            raise AssertionError("an engine without room")


async def test_more_than_the_memory_holds_is_refused_at_the_start() -> None:
    huge = config(max_num_seqs=2**31 - 1, block_size=1, num_gpu_blocks_override=4096, max_model_len=4096)
    with pytest.raises(
        ConfigError, match=r"needs more memory than there is .* max_num_batched_tokens or max_num_seqs$"
    ):
        async with Engine(huge):
            raise AssertionError("an engine without memory")


async def test_a_window_beyond_all_models_is_refused_at_the_start() -> None:
    with pytest.raises(UnsupportedModel, match="a window of 99999999999 tokens is more than any model has"):
        async with Engine(config(model="hash:0,99999999999")):
            raise AssertionError("an engine with such a window")


@pytest.mark.parametrize("timeout", [1e10, 2**62])
async def test_leaving_the_engine_may_take_ages(timeout: float) -> None:
    async with Engine(config(shutdown_timeout=timeout)) as engine:
        assert (await engine.generate([1, 2, 3])).finished


async def test_an_engine_that_is_not_open_says_so() -> None:
    engine = Engine(config())
    with pytest.raises(EngineClosed, match="async with"):
        engine.generate(GOOD)


async def test_leaving_the_engine_ends_open_streams() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(GOOD, PARAMS)
        await anext(stream)
    with pytest.raises(EngineClosed, match="before this request had ended"):
        async for _ in stream:
            pass
    with pytest.raises(EngineClosed):
        await engine.generate(GOOD, PARAMS)


async def test_the_callers_own_exception_leaves_the_block_as_it_is() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with Engine(config()) as engine:
            await anext(engine.generate(GOOD, PARAMS))
            raise error
    assert caught.value is error


@pytest.mark.parametrize(("step", "count"), [(2, 1), (2, 6), (4, 6), (9, 6)])
async def test_a_step_that_raises_once_costs_nobody_anything(step: int, count: int) -> None:
    async with Engine(config(max_num_seqs=2), parts=failing(step)) as engine:

        async def ask(prompt: list[int]) -> None:
            assert list((await engine.generate(prompt, PARAMS)).token_ids) == expected(prompt, PARAMS)

        async with anyio.create_task_group() as nursery:
            for prompt in prompts(count):
                nursery.start_soon(ask, prompt)
        await engine.check()
        assert (await engine.statistics())["scheduler"]["num_failed_steps"] == 1


@pytest.mark.parametrize("seats", [1, 2, 8])
async def test_a_request_whose_step_raises_fails_alone(seats: int) -> None:
    failures = []
    async with Engine(config(max_num_seqs=seats), parts=failing()) as engine:

        async def ask(prompt: list[int]) -> None:
            try:
                assert list((await engine.generate(prompt, PARAMS)).token_ids) == expected(prompt, PARAMS)
            except RequestFailed as error:
                failures.append((prompt[0], str(error)))

        async with anyio.create_task_group() as nursery:
            for prompt in [*prompts(5), [POISON, 1, 2], *prompts(4, seed=1)]:
                nursery.start_soon(ask, prompt)
        await engine.check()
        crashes = (await engine.statistics())["scheduler"]["num_failed_steps"]
    assert failures == [(POISON, "FloatingPointError: the model met a NaN")]
    assert 1 <= crashes <= 3


async def test_a_crashed_actor_ends_every_stream_with_its_reason() -> None:
    with pytest.raises(EngineDied, match="the scheduler crashed: ZeroDivisionError: no order"):
        async with Engine(config(), parts=Parts(policy=Crashing())) as engine:
            with pytest.raises(EngineDied) as caught:
                await engine.generate(GOOD, PARAMS)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            await engine.wait_closed()
            assert engine.died is not None
            with pytest.raises(EngineDied, match="no order"):
                await engine.generate(GOOD, PARAMS)


async def test_an_engine_is_entered_once() -> None:
    async with Engine(config()) as engine:
        with pytest.raises(UsageError, match="this engine is open"):
            await engine.__aenter__()
        assert (await engine.generate(GOOD, PARAMS)).finished


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_an_engine_is_asked_in_its_own_event_loop(other: str) -> None:
    async with Engine(config()) as engine:

        async def ask() -> None:
            await engine.generate(GOOD, PARAMS)

        with pytest.raises(UsageError, match="in the event loop in which it was opened"):
            await anyio.to_thread.run_sync(lambda: anyio.run(ask, backend=other))
        assert list((await engine.generate(GOOD, PARAMS)).token_ids) == expected(GOOD, PARAMS)


async def test_a_cancelled_reader_hears_of_the_cancellation_and_not_of_the_closed_engine() -> None:
    for moment in range(30):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as nursery, Engine(config(verify=False)) as engine:

                async def read(engine: Engine = engine) -> None:
                    await engine.generate(GOOD, SamplingParams(max_tokens=200, ignore_eos=True))

                for _ in range(3):
                    nursery.start_soon(read)
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught


class Panic(BaseException):
    """What some libraries raise beside Exception."""


class Panics(HashRunner):
    """A model whose library panics in every step but the first."""

    def execute(self, step: RunStep) -> Sampled | None:
        if step.step > 1:
            raise Panic("a library gave up")
        return super().execute(step)


async def test_even_a_panic_of_a_step_is_an_error_of_its_request() -> None:
    parts = Parts(open_runner=lambda checkpoint, config: Panics(config, 4096))
    async with Engine(config(), parts=parts) as engine:
        with pytest.raises(RequestFailed, match="Panic: a library gave up") as caught:
            await engine.generate(GOOD, PARAMS)
        assert "in execute" in caught.value.__notes__[0]
        await engine.check()
