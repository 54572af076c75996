"""The prompts are as asked, and never more requests under way than streams."""

from dataclasses import replace
from time import perf_counter

import anyio
import pytest

from actorllm import UsageError
from actorllm.bench.load import LOW_TOKEN, Load, Sample, draw, drive

LOAD = Load(prompt_tokens=5, shared_prefix_tokens=3, vocab_size=1000)


def test_prompts_share_their_prefix_and_no_more() -> None:
    prompts = draw(LOAD, 20, "run")
    assert {len(prompt) for prompt in prompts} == {8} == {LOAD.tokens_of_prompt}
    assert len({tuple(prompt[:3]) for prompt in prompts}) == 1
    assert len({tuple(prompt[3:]) for prompt in prompts}) == 20
    assert all(LOW_TOKEN <= token < 1000 for prompt in prompts for token in prompt)


def test_the_same_load_has_the_same_prompts_and_another_one_others() -> None:
    first = draw(LOAD, 2, "run")
    assert draw(LOAD, 2, "run") == first
    assert draw(replace(LOAD, seed=1), 2, "run") != first
    assert draw(replace(LOAD, concurrency=2), 2, "run") != first
    assert draw(LOAD, 2, "warm-up")[0][:3] != first[0][:3]


def test_a_small_vocabulary_is_enough() -> None:
    assert set(draw(replace(LOAD, vocab_size=2), 9, "run")[0]) <= {1}


@pytest.mark.parametrize(
    ("name", "least"),
    [("concurrency", 1), ("num_requests", 1), ("prompt_tokens", 1), ("warmup", 0), ("vocab_size", 2)],
)
def test_a_load_that_cannot_be_is_named(name: str, least: int) -> None:
    Load(**{name: least})
    with pytest.raises(UsageError, match=f"{name} must be at least {least}, not {least - 1}"):
        Load(**{name: least - 1})


@pytest.mark.anyio
@pytest.mark.parametrize(("streams", "most"), [(1, 1), (3, 3), (50, 7)])
async def test_each_request_is_asked_once_and_so_many_at_once(streams: int, most: int) -> None:
    asked: list[int] = []
    under_way = peak = 0

    async def ask(request: int) -> Sample:
        nonlocal under_way, peak
        asked.append(request)
        under_way += 1
        peak = max(peak, under_way)
        for _ in range(request % 3 + 1):
            await anyio.lowlevel.checkpoint()
        under_way -= 1
        return Sample(perf_counter())

    run = await drive(ask, range(7), streams)
    assert sorted(asked) == list(range(7))
    assert len(run.samples) == 7
    assert peak == most
    assert run.seconds > 0


@pytest.mark.anyio
async def test_what_ask_raises_ends_the_run_as_itself() -> None:
    async def ask(request: int) -> Sample:
        if request == 1:
            raise UsageError("no more")
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(UsageError, match="no more"):
        await drive(ask, range(3), 2)
