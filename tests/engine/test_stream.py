"""Streams: iterated, awaited, left early, and never leaking a request."""

import gc
import threading
from typing import Any

import anyio
import numpy as np
import pytest
import torch
import trio

from actorllm import Engine, InvalidRequest, SamplingParams, Stream, UsageError

from .build import config, expected, prompts, text

pytestmark = pytest.mark.anyio

PROMPT = prompts(1)[0]
LONG = SamplingParams(max_tokens=100, ignore_eos=True, seed=3)


async def test_iterating_gives_deltas_that_join_to_the_text() -> None:
    async with Engine(config()) as engine:
        outputs = [output async for output in engine.generate(PROMPT, LONG)]
    tokens = expected(PROMPT, LONG)
    assert "".join(output.delta for output in outputs) == outputs[-1].text == text(tokens)
    assert list(outputs[-1].token_ids) == tokens
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + ["length"]
    for output in outputs:
        assert list(output.prompt_token_ids) == PROMPT
        assert list(output.token_ids) == tokens[: len(output.token_ids)]
        assert text(tokens).startswith(output.text)


async def test_awaiting_collects_the_answer() -> None:
    async with Engine(config()) as engine:
        output = await engine.generate(PROMPT, LONG)
    assert output.finished
    assert list(output.token_ids) == expected(PROMPT, LONG)
    assert (output.outputs[0].index, output.outputs[0].stop_reason) == (0, None)


async def test_the_same_seed_repeats_itself_and_another_does_not() -> None:
    params = [SamplingParams(max_tokens=30, seed=seed, ignore_eos=True) for seed in (5, 5, 6)]
    async with Engine(config()) as engine:
        first, second, third = [(await engine.generate(PROMPT, each)).token_ids for each in params]
    assert first == second != third


async def test_the_engine_seed_makes_seedless_requests_repeat() -> None:
    answers = []
    for _ in range(2):
        async with Engine(config(seed=9)) as engine:
            answers.append((await engine.generate(PROMPT, SamplingParams(max_tokens=30))).token_ids)
    assert answers[0] == answers[1]


async def test_a_break_aborts_in_the_same_turn() -> None:
    async with Engine(config()) as engine:
        async for output in engine.generate(PROMPT, LONG):
            if len(output.token_ids) >= 3:
                break
        assert (await engine.statistics())["frontend"]["mail"] > 0
        await engine.check()
        statistics = await engine.statistics()
    assert statistics["frontend"]["finished"] == (("abort", 1),)
    assert statistics["scheduler"]["num_tokens_generated"] < 100


async def test_leaving_the_stream_block_aborts() -> None:
    async with Engine(config()) as engine:
        async with engine.generate(PROMPT, LONG) as stream:
            await anext(stream)
        await engine.check()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert (await engine.statistics())["frontend"]["finished"] == (("abort", 1),)


async def test_a_timeout_around_it_aborts() -> None:
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    async with Engine(config()) as engine:
        with anyio.CancelScope() as scope:
            async for _ in engine.generate(PROMPT[:3], params):
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        await engine.check()
        assert (await engine.statistics())["frontend"]["finished"] == (("abort", 1),)


async def test_a_stream_that_another_thread_drops_is_aborted() -> None:
    async with Engine(config()) as engine:
        streams = [engine.generate(PROMPT, LONG)]
        await anext(streams[0])

        def drop() -> None:
            streams.clear()
            gc.collect()

        thread = threading.Thread(target=drop)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        await engine.check()
        assert (await engine.statistics())["frontend"]["finished"] == (("abort", 1),)


async def test_a_stream_that_nobody_reads_holds_nothing() -> None:
    async with Engine(config()) as engine:
        engine.generate(PROMPT, LONG)
        await engine.check()
        assert (await engine.statistics())["frontend"]["finished"] == ()


async def test_a_stream_cannot_be_collected_twice() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(PROMPT, LONG)
        await stream
        with pytest.raises(UsageError, match="read already"):
            await stream


async def test_two_tasks_cannot_read_one_stream() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(PROMPT, LONG)
        answers = []
        reading = anyio.Event()

        async def read() -> None:
            reading.set()
            answers.append(await stream)

        async with anyio.create_task_group() as nursery:
            nursery.start_soon(read)
            await reading.wait()
            with pytest.raises(UsageError, match="another task reads this stream"):
                await anext(stream)
        assert list(answers[0].token_ids) == expected(PROMPT, LONG)
        await engine.check()


async def test_a_slow_reader_gets_everything_in_one_output_and_stops_nobody() -> None:
    async with Engine(config()) as engine:
        slow = engine.generate(PROMPT, LONG)
        first = await anext(slow)
        quick = await engine.generate(PROMPT, LONG)
        rest = [output async for output in slow]
    assert list(quick.token_ids) == expected(PROMPT, LONG)
    assert first.delta + "".join(output.delta for output in rest) == quick.text
    assert len(rest) < len(quick.token_ids) / 2


async def test_stop_strings_end_the_text_before_them() -> None:
    whole = text(expected(PROMPT, LONG))
    stop = next(whole[i : i + 4] for i in range(20, 60) if "\ufffd" not in whole[i : i + 4])
    params = SamplingParams(max_tokens=100, ignore_eos=True, seed=3, stop=stop)
    async with Engine(config()) as engine:
        outputs = [output async for output in engine.generate(PROMPT, params)]
        await engine.check()
    assert outputs[-1].text == whole[: whole.index(stop)]
    assert (outputs[-1].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", stop)
    assert all(whole[: whole.index(stop)].startswith(output.text) for output in outputs)


async def test_stop_tokens_end_the_answer_and_are_named() -> None:
    token = expected(PROMPT, LONG)[10]
    params = SamplingParams(max_tokens=100, ignore_eos=True, seed=3, stop_token_ids=[token])
    async with Engine(config()) as engine:
        output = await engine.generate(PROMPT, params)
    tokens = expected(PROMPT, LONG)
    assert list(output.token_ids) == tokens[: tokens.index(token) + 1]
    assert (output.finish_reason, output.outputs[0].stop_reason) == ("stop", token)
    assert output.text == text(tokens[: tokens.index(token)])


async def test_callers_without_a_seat_wait_and_are_served_in_turn() -> None:
    params = SamplingParams(max_tokens=10, seed=1)
    answers: dict[int, tuple[int, ...]] = {}
    asked = prompts(12)
    async with Engine(config(max_num_seqs=2, max_requests=3)) as engine:

        async def ask(index: int, stream: Stream) -> None:
            answers[index] = (await stream).token_ids

        async with anyio.create_task_group() as nursery:
            for index, prompt in enumerate(asked):
                nursery.start_soon(ask, index, engine.generate(prompt, params))
            await anyio.wait_all_tasks_blocked()
            door = (await engine.statistics())["door"]
            assert door["num_open"] <= 3
        await engine.check()
    assert [list(answers[index]) for index in range(12)] == [expected(each, params) for each in asked]


async def test_a_conversation_goes_through_the_chat_template() -> None:
    async with Engine(config()) as engine:
        output = await engine.chat([{"role": "user", "content": "héllo"}], SamplingParams(max_tokens=5))
    prompt = bytes(token for token in output.prompt_token_ids if token < 256).decode()
    assert "user\nhéllo" in prompt
    assert prompt.endswith("assistant\n")


async def test_a_prompt_is_accepted_before_its_first_token() -> None:
    async with Engine(config(max_num_seqs=1)) as engine:
        first = engine.generate(PROMPT, LONG)
        await anext(first)
        second = engine.generate(PROMPT, LONG)
        await second.accepted()
        assert (await engine.statistics())["scheduler"]["num_waiting"] <= 1
        await first
        assert list((await second).token_ids) == expected(PROMPT, LONG)
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            await engine.generate([], LONG).accepted()
        await engine.check()


async def test_a_stream_closed_while_it_waits_for_a_seat_takes_none() -> None:
    async with Engine(config(max_requests=1)) as engine:
        first = engine.generate(PROMPT, LONG)
        await anext(first)
        second = engine.generate(PROMPT, LONG)
        outputs = []

        async def read() -> None:
            outputs.extend([output async for output in second])

        async with anyio.create_task_group() as nursery:
            nursery.start_soon(read)
            while (await engine.statistics())["door"]["num_waiting"] == 0:
                await anyio.lowlevel.checkpoint()
            second.close()
            await first
        assert outputs == []
        await engine.check()


async def test_a_prompt_that_no_context_holds_is_refused_before_it_is_tokenised() -> None:
    async with Engine(config()) as engine:
        with pytest.raises(
            InvalidRequest, match="has 1000000 characters, more than max_model_len 256 tokens"
        ):
            await engine.generate("x" * 1_000_000, LONG)
        with pytest.raises(InvalidRequest, match="more than max_model_len 256 tokens"):
            await engine.chat([{"role": "user", "content": "x" * 1_000_000}])


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple])
async def test_arrays_and_tensors_are_token_prompts(kind: Any) -> None:
    async with Engine(config()) as engine:
        output = await engine.generate(kind(PROMPT), LONG)
        assert list(output.token_ids) == expected(PROMPT, LONG)
        numbers: list[Any] = [np.int64(5)]
        assert (await engine.generate(numbers, SamplingParams(max_tokens=1))).prompt_token_ids == [5]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_idle_engine_wakes_for_mail_alone() -> None:
    async with Engine(config()) as engine:
        await engine.generate(PROMPT, LONG)
        await engine.check()
        await anyio.wait_all_tasks_blocked()
        statistics = trio.lowlevel.current_statistics()
        assert (statistics.tasks_runnable, statistics.seconds_to_next_deadline) == (0, float("inf"))


async def test_a_stream_that_is_closed_while_it_waits_for_a_seat_just_ends() -> None:
    async with Engine(config(max_requests=1)) as engine:
        first, second = engine.generate(PROMPT, LONG), engine.generate(PROMPT, LONG)
        await anext(first)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(second.accepted)
            while (await engine.statistics())["door"]["num_waiting"] == 0:
                await anyio.lowlevel.checkpoint()
            second.close()
            first.close()
        assert [output async for output in second] == []
        await engine.check()


@pytest.mark.parametrize("by", ["a task", "a thread"])
async def test_closing_a_stream_wakes_its_reader_who_waits_for_a_seat(by: str) -> None:
    async with Engine(config(max_requests=1)) as engine:
        first, second = engine.generate(PROMPT, LONG), engine.generate(PROMPT, LONG)
        await anext(first)
        await engine.pause()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as nursery:
                nursery.start_soon(second.accepted)
                while (await engine.statistics())["door"]["num_waiting"] == 0:
                    await anyio.lowlevel.checkpoint()
                await (anyio.to_thread.run_sync(second.close) if by == "a thread" else closed(second))
        assert (await engine.statistics())["door"] == {"num_open": 1, "num_waiting": 0, "num_timeouts": 0}
        await engine.resume()
        await first
        await engine.check()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # where those who are woken come in their order
async def test_a_stream_that_is_closed_when_it_has_just_been_given_a_seat_is_aborted() -> None:
    async with Engine(config(max_requests=1)) as engine:
        first, second = engine.generate(PROMPT, LONG), engine.generate(PROMPT, LONG)
        await anext(first)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(second.accepted)
            await first
            assert engine._ring.door.num_open == engine._ring.door.num_waiting == 0
            second.close()
        await engine.check()
        assert dict((await engine.statistics())["frontend"]["finished"]) == {"length": 1, "abort": 1}


async def closed(stream: Stream) -> None:
    stream.close()
