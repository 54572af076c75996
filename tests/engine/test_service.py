"""Policies, timeouts and admission limits, seen from a caller."""

from typing import Any

import anyio
import pytest

from actorllm import Engine, Overloaded, SamplingParams, Stream, UsageError

from .build import config, expected, prompts

pytestmark = pytest.mark.anyio

ASKED = prompts(12)
PARAMS = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=120, temperature=0, ignore_eos=True)


async def order(engine: Engine, streams: dict[str, Stream]) -> list[str]:
    """The names of the streams in the order in which they end, with one seat that is taken at first."""
    ended: list[str] = []

    async def read(name: str, stream: Stream) -> None:
        assert (await stream).finished
        ended.append(name)

    async with anyio.create_task_group() as nursery:
        first = engine.generate(ASKED[0], LONG)
        await anext(first)
        for name, stream in streams.items():
            await stream.accepted()
            nursery.start_soon(read, name, stream)
        await first
    return ended


@pytest.mark.parametrize(
    ("policy", "services", "expected_order"),
    [
        ("fcfs", [{"priority": 5}, {}, {"timeout": 60}], ["0", "1", "2"]),
        ("priority", [{"priority": 5}, {}, {"priority": -1}], ["2", "1", "0"]),
        ("deadline", [{}, {"timeout": 300}, {"timeout": 100}], ["2", "1", "0"]),
    ],
)
async def test_the_policy_is_the_order_of_service(
    policy: str, services: list[Any], expected_order: list[str]
) -> None:
    async with Engine(config(max_num_seqs=1, policy=policy)) as engine:
        asked = {
            str(index): engine.generate(ASKED[index], PARAMS, **service)
            for index, service in enumerate(services)
        }
        assert await order(engine, asked) == expected_order
        await engine.check()


async def test_with_fair_a_tenant_that_floods_the_queue_delays_no_other() -> None:
    first_token_at: dict[str, int] = {}
    async with Engine(config(max_num_seqs=2, policy="fair")) as engine:

        async def read(stream: Stream, name: str = "") -> None:
            async for output in stream:
                if name and output.token_ids:
                    statistics = await engine.statistics()
                    first_token_at.setdefault(name, statistics["scheduler"]["num_steps"])
            assert list(output.token_ids) == expected(list(output.prompt_token_ids), PARAMS)

        async with anyio.create_task_group() as nursery:
            for index in range(60):
                nursery.start_soon(read, engine.generate(ASKED[index % 12], PARAMS, tenant="flood"))
            busy = engine.generate(ASKED[0], PARAMS, tenant="flood")
            await busy.accepted()
            begun = (await engine.statistics())["scheduler"]["num_steps"]
            nursery.start_soon(read, engine.generate(ASKED[1], PARAMS, tenant="one"), "one")
            await busy
        await engine.check()
    remaining_prompts, own_prompt, pipeline = 2 * 2, 2, 2 * 2 + 1
    assert first_token_at["one"] - begun <= remaining_prompts + own_prompt + pipeline


class Text(str):
    """A str of a library of its own."""


async def test_texts_may_be_of_a_derived_class() -> None:
    async with Engine(config()) as engine:
        output = await engine.generate(Text("once"), PARAMS, tenant=Text("a"), cache_salt=Text("b"))
        assert output.text == (await engine.generate("once", PARAMS)).text
        with pytest.raises(UsageError, match="no kernels"):
            await engine.start_profile(Text("profile.json"))
        await engine.check()


async def test_a_request_that_waits_too_long_ends_with_timeout() -> None:
    async with Engine(config(max_num_seqs=1)) as engine:
        first = engine.generate(ASKED[0], LONG)
        await anext(first)
        late = await engine.generate(ASKED[1], PARAMS, queue_timeout=0)
        assert (late.finish_reason, late.token_ids) == ("timeout", ())
        assert list((await first).token_ids) == expected(ASKED[0], LONG)
        await engine.check()


async def test_a_timeout_keeps_what_has_come() -> None:
    params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    async with Engine(config(num_gpu_blocks_override=16)) as engine:
        output = await engine.generate(ASKED[1][:5], params, timeout=0.03)
        await engine.check()
    whole = expected(ASKED[1][:5], params)
    assert list(output.token_ids) == whole[: len(output.token_ids)]
    assert output.finish_reason == ("length" if len(output.token_ids) == 200 else "timeout")


async def test_an_idle_engine_serves_all_that_come_at_once_and_find_a_seat() -> None:
    several = SamplingParams(n=6, max_tokens=5, seed=1, ignore_eos=True)
    async with Engine(config(max_num_seqs=8, max_num_queued_reqs=2, max_num_queued_tokens=20)) as engine:
        async with anyio.create_task_group() as nursery:
            for prompt in ASKED[:6]:
                nursery.start_soon(engine.generate(prompt, PARAMS)._collect)
        output = await engine.generate(ASKED[0], several)
        assert [answer.finish_reason for answer in output.outputs] == ["length"] * 6
        await engine.check()


async def test_a_full_queue_refuses_with_a_hint() -> None:
    async with Engine(config(max_num_seqs=1, max_num_queued_reqs=1)) as engine:
        first = engine.generate(ASKED[0], LONG)
        await anext(first)
        second = engine.generate(ASKED[1], PARAMS)
        await second.accepted()
        with pytest.raises(Overloaded, match="1 requests wait already") as caught:
            await engine.generate(ASKED[2], PARAMS)
        assert caught.value.retry_after >= 1
        assert list((await second).token_ids) == expected(ASKED[1], PARAMS)
        assert (await first).finished
        await engine.check()
