"""Commands: pause and resume, sleep and wake up, a reset of the prefix cache; and who hears of the cache."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorllm import CommandFailed, Engine, EngineClosed, Parts, SamplingParams, UsageError
from actorllm.actors.worker import Runner
from actorllm.checkpoint import Checkpoint
from actorllm.config import EngineConfig
from actorllm.engine.events import CacheNews, Subscription
from actorllm.messages import BlocksRemoved, BlocksStored, CacheCleared, unpack
from actorllm.model.hash import HashRunner

from .build import config, expected, prompts

pytestmark = pytest.mark.anyio

PROMPTS = prompts(8)
PARAMS = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=130, temperature=0, ignore_eos=True)


async def num_steps(engine: Engine) -> int:
    steps: int = (await engine.statistics())["scheduler"]["num_steps"]
    return steps


async def state(engine: Engine) -> Any:
    return (await engine.statistics())["scheduler"]["state"]


async def several_turns() -> None:
    """Let everyone in the ring do what there is to do, several times over."""
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


async def test_a_pause_keeps_the_requests_and_stops_the_steps() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(PROMPTS[1], LONG)
        first = await anext(stream)
        await engine.pause()
        assert await state(engine) == "paused"
        before = await num_steps(engine)
        late = engine.generate(PROMPTS[2], PARAMS)
        await late.accepted()
        await several_turns()
        assert await num_steps(engine) == before
        await engine.resume()
        tokens = list(first.token_ids)
        async for output in stream:
            tokens = list(output.token_ids)
        assert tokens == expected(PROMPTS[1], LONG)
        assert list((await late).token_ids) == expected(PROMPTS[2], PARAMS)
        assert await state(engine) == "running"
        await engine.check()


async def test_a_paused_engine_still_aborts_and_times_out_and_rests() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(PROMPTS[1], LONG)
        await anext(stream)
        await engine.pause()
        stream.close()
        late = await engine.generate(PROMPTS[2], PARAMS, timeout=0.01)
        assert late.finish_reason == "timeout"
        await engine.check()
        await engine.pause()
        await engine.resume()
        await engine.resume()
        assert list((await engine.generate(PROMPTS[2], PARAMS)).token_ids) == expected(PROMPTS[2], PARAMS)


async def test_asleep_nothing_is_held_and_awake_the_same_tokens_come() -> None:
    async with Engine(config()) as engine:
        streams = [engine.generate(prompt, LONG) for prompt in PROMPTS]
        for stream in streams:
            await anext(stream)
        await engine.sleep()
        await engine.sleep()
        statistics = await engine.statistics()
        assert statistics["scheduler"]["state"] == "asleep"
        assert statistics["kvpool"]["usage"] == statistics["kvpool"]["num_cached_blocks"] == 0
        before = await num_steps(engine)
        await several_turns()
        assert await num_steps(engine) == before
        await engine.wake_up()
        await engine.wake_up()
        for stream, prompt in zip(streams, PROMPTS, strict=True):
            assert list((await stream).token_ids) == expected(prompt, LONG)
        await engine.check()


async def test_a_pause_outlasts_a_sleep() -> None:
    async with Engine(config()) as engine:
        await engine.pause()
        await engine.sleep()
        await engine.wake_up()
        assert await state(engine) == "paused"
        await engine.resume()
        assert (await engine.generate(PROMPTS[0], PARAMS)).finished


class Sleepless(HashRunner):
    """A device that cannot be woken at first: its weights are not to be had."""

    failures = 2

    def command(self, action: str, argument: str) -> None:
        if action == "wake_up" and self.failures:
            self.failures -= 1
            raise FileNotFoundError("the weights are gone")
        super().command(action, argument)


def make_sleepless(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    return Sleepless(config, 4096)


async def test_who_cannot_wake_sleeps_on_and_may_try_again() -> None:
    async with Engine(config(), parts=Parts(open_runner=make_sleepless)) as engine:
        await engine.sleep()
        for _ in range(2):
            with pytest.raises(CommandFailed, match=r"wake_up: FileNotFoundError: the weights are gone"):
                await engine.wake_up()
            assert await state(engine) == "asleep"
        await engine.wake_up()
        assert list((await engine.generate(PROMPTS[0], PARAMS)).token_ids) == expected(PROMPTS[0], PARAMS)
        await engine.check()


class Stuck(HashRunner):
    """A device that cannot forget its rows when it is first asked to."""

    num_resets = 0

    def reset(self) -> None:
        self.num_resets += 1
        if self.num_resets == 2:  # the first one is in its construction
            raise RuntimeError("no answer from the device")
        super().reset()


async def test_a_sleep_whose_step_raises_has_failed_and_can_be_woken() -> None:
    parts = Parts(open_runner=lambda checkpoint, config: Stuck(config, 4096))
    async with Engine(config(), parts=parts) as engine:
        stream = engine.generate(PROMPTS[0], LONG)
        await anext(stream)
        with pytest.raises(CommandFailed, match="sleep: RuntimeError: no answer from the device"):
            await engine.sleep()
        assert await state(engine) == "asleep"
        await engine.wake_up()
        assert list((await stream).token_ids) == expected(PROMPTS[0], LONG)
        await engine.check()


async def test_a_profile_needs_a_device_that_is_awake_and_has_kernels() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(PROMPTS[0], LONG)
        await anext(stream)
        cached = (await engine.statistics())["kvpool"]["num_cached_blocks"]
        assert cached > 0
        with pytest.raises(UsageError, match="the hash model has no kernels"):
            await engine.start_profile(Path("profile.json"))
        statistics = await engine.statistics()
        assert statistics["kvpool"]["num_cached_blocks"] >= cached
        assert statistics["scheduler"]["num_failed_steps"] == 0
        assert list((await stream).token_ids) == expected(PROMPTS[0], LONG)
        await engine.sleep()
        with pytest.raises(UsageError, match="the engine is asleep; wake it up first"):
            await engine.stop_profile()


async def test_a_profile_needs_a_path() -> None:
    path: Any = 3
    async with Engine(config()) as engine:
        with pytest.raises(UsageError, match="the path of a profile must be a path, not 3"):
            await engine.start_profile(path)


async def test_after_a_reset_nothing_is_found_that_was_computed_before() -> None:
    async with Engine(config()) as engine:
        running = engine.generate(PROMPTS[1], LONG)
        await anext(running)
        await engine.generate(PROMPTS[0], PARAMS)
        await engine.reset_prefix_cache()
        before = (await engine.statistics())["kvpool"]["hit_tokens"]
        again = [await engine.generate(PROMPTS[index], PARAMS) for index in (0, 1)]
        assert (await engine.statistics())["kvpool"]["hit_tokens"] == before
        for index, output in enumerate(again):
            assert list(output.token_ids) == expected(PROMPTS[index], PARAMS)
        await engine.generate(PROMPTS[0], PARAMS)
        assert (await engine.statistics())["kvpool"]["hit_tokens"] > before
        assert list((await running).token_ids) == expected(PROMPTS[1], LONG)
        await engine.check()


async def test_commands_wait_for_each_other_and_a_cancelled_one_for_nobody() -> None:
    async with Engine(config()) as engine:
        with anyio.move_on_after(0):
            await engine.pause()
        assert await state(engine) == "running"
        async with anyio.create_task_group() as nursery:
            for _ in range(4):
                nursery.start_soon(engine.sleep)
                nursery.start_soon(engine.wake_up)
        await engine.resume()
        if await state(engine) == "asleep":
            await engine.wake_up()
        assert (await engine.generate(PROMPTS[0], PARAMS)).finished
        await engine.check()


async def test_a_command_that_was_given_is_carried_out_though_its_caller_is_cancelled() -> None:
    async with Engine(config()) as engine:
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(engine.pause)
            while (await engine.statistics())["frontend"]["mail"] == 0:
                pass
            nursery.cancel_scope.cancel()
        await engine.pause()
        assert await state(engine) == "paused"
        await engine.resume()
        assert (await engine.generate(PROMPTS[0], PARAMS)).finished


async def test_a_command_that_cannot_be_said_blocks_no_other() -> None:
    async with Engine(config()) as engine:
        with pytest.raises(TypeError):
            await engine._ring.door.command("pause", 5)  # type: ignore[arg-type]
        await engine.pause()
        await engine.resume()
        await engine.check()


async def test_a_command_ends_with_the_engine() -> None:
    engine = Engine(config())
    async with engine:
        engine.close()
        with pytest.raises(EngineClosed):
            await engine.pause()
    with pytest.raises(EngineClosed):
        await engine.resume()


# -- cache events ---------------------------------------------------------------------------------


async def test_a_subscriber_hears_what_is_stored_and_cleared() -> None:
    news: list[CacheNews] = []
    async with Engine(config(enable_kv_cache_events=True)) as engine:
        with engine.cache_events() as events:
            await engine.generate(PROMPTS[0], PARAMS)
            await engine.reset_prefix_cache()
            while not (news and CacheCleared() in news[-1].events):
                news.append(await anext(events))
    told = [event for each in news for event in each.events]
    stored = [event for event in told if isinstance(event, BlocksStored)]
    tokens = [token for event in stored for token in unpack(event.token_ids)]
    whole = PROMPTS[0] + expected(PROMPTS[0], PARAMS)
    assert tokens == whole[: (len(whole) - 1) // 16 * 16]
    assert [each.sequence for each in news] == list(range(len(news)))
    contents = b"".join(event.block_hashes for event in stored)
    assert len(contents) == len(tokens)
    assert stored[0].parent_block_hash == b""
    for before, after in pairwise(stored):
        assert after.parent_block_hash == before.block_hashes[-16:]


async def test_a_slow_subscriber_is_told_how_much_it_lost_and_stops_nobody() -> None:
    async with Engine(config(enable_kv_cache_events=True, num_gpu_blocks_override=16)) as engine:
        with engine.cache_events(capacity=2) as slow, engine.cache_events() as quick:
            for prompt in PROMPTS:
                output = await engine.generate(prompt, PARAMS)
                assert list(output.token_ids) == expected(prompt, PARAMS)
            await engine.reset_prefix_cache()
            everything = [await anext(quick)]
            while CacheCleared() not in everything[-1].events:
                everything.append(await anext(quick))
            first, second = await anext(slow), await anext(slow)
            await engine.generate(PROMPTS[0], PARAMS)
            third = await anext(slow)
    assert [first, second] == everything[:2]
    assert third.num_lost == len(everything) - 2 > 0
    assert third.sequence == len(everything)
    assert any(isinstance(event, BlocksRemoved) for each in everything for event in each.events)


async def test_news_end_with_the_engine() -> None:
    async with Engine(config(enable_kv_cache_events=True)) as engine:
        with engine.cache_events() as events:
            stream = engine.generate(PROMPTS[0], LONG)
            await anext(stream)
            engine.close()
            news = [each async for each in events]
            assert news
            with pytest.raises(EngineClosed):
                await anext(stream)
            await several_turns()
        with engine.cache_events() as late:
            assert [each async for each in late] == []
    with engine.cache_events() as later:
        assert [each async for each in later] == []


async def test_what_is_lost_at_the_end_is_told_at_the_end() -> None:
    async with Engine(config(enable_kv_cache_events=True)) as engine:
        with engine.cache_events(1) as slow, engine.cache_events() as quick:
            for prompt in PROMPTS:
                await engine.generate(prompt, PARAMS)
            engine.close()
            everything = [each async for each in quick]
            first, last = [each async for each in slow]
    assert first == everything[0]
    assert last == CacheNews(len(everything), len(everything) - 1, ())
    assert last.num_lost > 0


async def test_news_end_when_the_block_is_left() -> None:
    async with Engine(config(enable_kv_cache_events=True)) as engine, anyio.create_task_group() as nursery:
        heard: list[CacheNews] = []
        ended = anyio.Event()

        async def listen(news: Subscription) -> None:
            heard.extend([each async for each in news])
            ended.set()

        with engine.cache_events() as news:
            nursery.start_soon(listen, news)
            await several_turns()
        with anyio.fail_after(10):
            await ended.wait()
        assert [each async for each in news] == heard == []


@pytest.mark.parametrize("capacity", [-1, None, 1.5, "3", True])
async def test_a_capacity_is_a_whole_number(capacity: Any) -> None:
    async with Engine(config(enable_kv_cache_events=True)) as engine:
        with pytest.raises(UsageError, match=f"must be an integer of at least 0, not {capacity!r}"):
            engine.cache_events(capacity)


async def test_an_engine_that_tells_nothing_says_so() -> None:
    async with Engine(config()) as engine:
        with pytest.raises(UsageError, match="enable_kv_cache_events is False"):
            engine.cache_events()


async def test_requests_share_only_with_those_of_the_same_salt() -> None:
    async with Engine(config()) as engine:
        hits = []
        for salt in ("a", "b", "", "a", "b", ""):
            output = await engine.generate(PROMPTS[0], PARAMS, cache_salt=salt)
            assert list(output.token_ids) == expected(PROMPTS[0], PARAMS)
            hits.append((await engine.statistics())["kvpool"]["hit_tokens"])
    full = (len(PROMPTS[0]) - 1) // 16 * 16
    assert hits == [0, 0, 0, full, 2 * full, 3 * full]
