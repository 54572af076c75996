"""n answers to one prompt: ordinary requests with seeds of their own that share the prompt's KV."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from actorllm import Engine, InvalidRequest, RequestOutputKind, SamplingParams
from actorllm.messages import Sampling

from .build import config, expected, failing, prompts

pytestmark = pytest.mark.anyio

PROMPT = prompts(1)[0]
FIVE = SamplingParams(n=5, max_tokens=20, seed=2**63 - 3, ignore_eos=True)


def seeds(first: int, count: int) -> list[int]:
    """What `n` says: they count up, around the end of int64."""
    return [(first + index) if first + index < 2**63 else first + index - 2**64 for index in range(count)]


async def test_each_answer_is_that_of_its_own_seed() -> None:
    async with Engine(config()) as engine:
        output = await engine.generate(PROMPT, FIVE)
        await engine.check()
    assert [answer.index for answer in output.outputs] == [0, 1, 2, 3, 4]
    for answer, seed in zip(output.outputs, seeds(2**63 - 3, 5), strict=True):
        alone = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)
        assert list(answer.token_ids) == expected(PROMPT, alone)
        assert answer.finish_reason == "length"
    assert len({answer.token_ids for answer in output.outputs}) == 5
    assert list(output.prompt_token_ids) == PROMPT


async def test_the_prompt_is_computed_once() -> None:
    async with Engine(config()) as engine:
        await engine.generate(PROMPT, FIVE)
        statistics = await engine.statistics()
    full = (len(PROMPT) - 1) // 16 * 16
    assert statistics["kvpool"]["hit_tokens"] == 4 * full
    computed = len(PROMPT) + 4 * (len(PROMPT) - full) + 5 * 19
    assert statistics["scheduler"]["num_tokens_computed"] == computed


@pytest.mark.parametrize(("skip", "times"), [(None, 1), (True, 4)])
async def test_a_prompt_that_is_told_of_is_computed_once_unless_the_cache_is_not_to_be_read(
    skip: bool | None, times: int
) -> None:
    params = replace(FIVE, n=4, max_tokens=2, prompt_logprobs=1, skip_reading_prefix_cache=skip)
    prompt = [index % 256 for index in range(200)]
    async with Engine(config()) as engine:
        output = await engine.generate(prompt, params)
        statistics = await engine.statistics()
    assert len(output.prompt_logprobs or ()) == 200
    computed = times * 200 + (4 - times) * 8 + 4
    assert statistics["scheduler"]["num_tokens_computed"] == computed


async def test_deltas_of_each_answer_join_to_its_text() -> None:
    texts = [""] * 5
    async with Engine(config()) as engine:
        async for output in engine.generate("abc", FIVE):
            for answer in output.outputs:
                texts[answer.index] += answer.delta
                assert texts[answer.index] == answer.text
    assert output.finished
    assert all(texts)


async def test_without_a_seed_the_answers_differ_and_the_engine_seed_repeats_them() -> None:
    answers = []
    for _ in range(2):
        async with Engine(config(seed=4)) as engine:
            output = await engine.generate(PROMPT, SamplingParams(n=3, max_tokens=20, ignore_eos=True))
        answers.append([answer.token_ids for answer in output.outputs])
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == 3


async def test_more_answers_than_seats() -> None:
    params = SamplingParams(n=7, max_tokens=5, seed=1, ignore_eos=True)
    async with Engine(config(max_requests=2)) as engine:
        output = await engine.generate(PROMPT, params)
        assert (await engine.statistics())["door"]["num_open"] == 0
    assert [answer.num_tokens for answer in output.outputs] == [5] * 7


async def test_more_answers_than_seats_for_who_reads_only_the_end() -> None:
    final = RequestOutputKind.FINAL_ONLY
    params = SamplingParams(n=7, max_tokens=5, seed=1, ignore_eos=True, output_kind=final)
    async with Engine(config(max_requests=2)) as engine:
        with anyio.fail_after(10):
            outputs = [output async for output in engine.generate(PROMPT, params)]
        held = engine.generate(PROMPT, replace(params, max_tokens=100))
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(anext, held, None)
            await anyio.wait_all_tasks_blocked()
            held.close()
        await engine.check()
    (output,) = outputs
    assert [answer.num_tokens for answer in output.outputs] == [5] * 7


async def test_answers_that_end_at_different_times_are_all_whole() -> None:
    params = SamplingParams(n=6, max_tokens=120, seed=5)
    async with Engine(config()) as engine:
        output = await engine.generate(PROMPT, params)
    for answer, seed in zip(output.outputs, seeds(5, 6), strict=True):
        assert list(answer.token_ids) == expected(PROMPT, SamplingParams(max_tokens=120, seed=seed))


async def test_leaving_a_stream_aborts_all_its_answers() -> None:
    params = SamplingParams(n=4, max_tokens=150, seed=1, ignore_eos=True)
    async with Engine(config()) as engine:
        async for _ in engine.generate(PROMPT, params):
            break
        with anyio.move_on_after(0.02):
            await engine.generate(PROMPT, params)
        await engine.check()
        assert (await engine.statistics())["door"]["num_open"] == 0


async def test_a_bad_prompt_fails_once() -> None:
    async with Engine(config()) as engine:
        with pytest.raises(InvalidRequest, match="token id 999"):
            await engine.generate([1, 999], FIVE)
        statistics = await engine.statistics()
        assert statistics["renderer"]["num_refused"] == 1
        await engine.check()


async def test_steps_that_raise_do_not_change_the_answers() -> None:
    async with Engine(config(), parts=failing(12)) as engine:
        output = await engine.generate(PROMPT, FIVE)
    for answer, seed in zip(output.outputs, seeds(2**63 - 3, 5), strict=True):
        alone = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)
        assert list(answer.token_ids) == expected(PROMPT, alone)


async def test_what_has_a_seat_is_not_held_back_by_what_has_none() -> None:
    params = SamplingParams(n=3, max_tokens=60, seed=1, ignore_eos=True)
    async with Engine(config(max_requests=2)) as engine:
        other = engine.generate(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True))
        await anext(other)
        first = await anext(engine.generate(PROMPT, params))
        assert len(first.outputs) < 3
        assert first.outputs[0].num_tokens < 60


async def test_a_stream_closed_by_another_task_asks_for_no_more_answers() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate("abc", FIVE)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(stream.accepted)
            while (await engine.statistics())["door"]["num_open"] == 0:
                pass
            stream.close()
        assert [output async for output in stream] == []
        await engine.check()
        assert (await engine.statistics())["renderer"]["num_rendered"] <= 1


@pytest.mark.parametrize("wrong", [0, -1, 1025, 1.5, True, None, "2"])
def test_a_wrong_n_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^n must be"):
        SamplingParams(n=wrong)


def test_many_greedy_answers_would_be_equal() -> None:
    with pytest.raises(InvalidRequest, match="all 2 would be equal"):
        SamplingParams(n=2, temperature=0)
    assert SamplingParams(n=1, temperature=0).n == 1
    with pytest.raises(InvalidRequest, match="all 2 would be equal"):
        SamplingParams(n=2).sampling(Sampling(temperature=0.0))
