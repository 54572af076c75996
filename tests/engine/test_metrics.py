"""What an engine tells of itself agrees with what it was asked to do."""

import threading
from pathlib import Path

import anyio
import pytest
import trio

from actorllm import (
    Engine,
    EngineConfig,
    EngineDied,
    InvalidRequest,
    Overloaded,
    Parts,
    SamplingParams,
    Tap,
)
from actorllm.actors.worker import Runner
from actorllm.checkpoint import Checkpoint
from actorllm.engine.lag import PERIOD
from actorllm.engine.metrics import Metrics
from actorllm.messages import Release, Reserve, RunStep, Sampled, Tokens
from actorllm.model.hash import HashRunner

from .build import Crashing, config, expected, failing, prompts, text, together
from .test_tap import Ear

pytestmark = pytest.mark.anyio

ASKED = prompts(12)
PARAMS = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)

AT_REST = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_rendering",
    "num_requests_open",
    "num_callers_waiting",
    "num_requests_on_probation",
    "num_queued_tokens",
    "kv_cache_usage_perc",
    "steps_in_flight",
    "step_age_seconds",
    "output_backlog_tokens",
    "output_backlog_characters",
    "output_backlog_cells",
    "grammars_compiling",
    "grammar_matchers",
    "engine_paused",
)
"""The gauges that are 0 when nobody is there."""


def labelled(metrics: Metrics, name: str) -> dict[str, float]:
    """The values of a metric with one label, but for zeros."""
    (metric,) = (each for each in metrics.metrics if each.name == name)
    values = {of[0]: metrics.value(name, *of) for of in metric.values}
    return {label: value for label, value in values.items() if value}


def measured(metrics: Metrics, name: str) -> tuple[int, float]:
    """How many values a histogram has, and their sum."""
    found = metrics.distribution(name)
    return found.count, found.sum


async def rested(engine: Engine) -> Metrics:
    """The metrics when nobody is there, whose gauges are back at zero."""
    await engine.check()
    metrics = engine.metrics()
    assert {name: metrics.value(name) for name in AT_REST if metrics.value(name)} == {}
    assert labelled(metrics, "mailbox_depth") == {}
    return metrics


async def test_answers_are_counted_and_measured() -> None:
    async with Engine(config()) as engine:
        answers = await together(engine, [engine.generate(prompt, PARAMS) for prompt in ASKED])
        metrics = await rested(engine)
    num_prompt = sum(map(len, ASKED))
    assert all(len(answer.token_ids) == 30 for answer in answers)
    assert labelled(metrics, "request_success") == {"length": 12}
    assert labelled(metrics, "admission_rejections") == {}
    assert metrics.value("prompt_tokens") == num_prompt
    assert metrics.value("generation_tokens") == 12 * 30
    assert measured(metrics, "request_prompt_tokens") == (12, num_prompt)
    assert measured(metrics, "request_generation_tokens") == (12, 12 * 30)
    assert measured(metrics, "request_params_max_tokens") == (12, 12 * 30)
    assert measured(metrics, "request_params_n") == (12, 12)
    assert measured(metrics, "request_num_preemptions") == (12, 0)
    steps, tokens = measured(metrics, "iteration_tokens_total")
    assert tokens == num_prompt - metrics.value("prompt_tokens_cached") + 12 * 29
    assert 30 <= steps < metrics.value("steps")


async def test_times_are_measured_of_every_answer_and_add_up() -> None:
    async with Engine(config()) as engine:
        begun = anyio.current_time()
        for prompt in ASKED[:3]:
            await engine.generate(prompt, PARAMS)
        metrics = await rested(engine)
        spent = anyio.current_time() - begun
    assert metrics.distribution("time_to_first_token_seconds").count == 3
    assert metrics.distribution("inter_token_latency_seconds").count == 3 * 29
    assert metrics.distribution("request_time_per_output_token_seconds").count == 3
    e2e, first, between, queue, prefill, decode, inference = (
        metrics.distribution(name).sum
        for name in (
            "e2e_request_latency_seconds",
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_inference_time_seconds",
        )
    )
    assert e2e == pytest.approx(first + between)
    assert inference == pytest.approx(prefill + decode)
    assert 0 < queue + inference < e2e < spent


async def test_the_n_answers_to_a_prompt_are_requests_that_hit_the_cache() -> None:
    prompt = ASKED[0][:50]
    async with Engine(config()) as engine:
        await engine.generate(prompt, SamplingParams(max_tokens=8, n=3, seed=1, ignore_eos=True))
        metrics = await rested(engine)
    assert measured(metrics, "request_params_n") == (1, 3)
    assert labelled(metrics, "request_success") == {"length": 3}
    assert measured(metrics, "request_prompt_tokens") == (3, 150)
    assert metrics.value("prompt_tokens_cached") == metrics.value("prefix_cache_hits") == 2 * 48
    assert metrics.value("prompt_tokens") == metrics.value("prefix_cache_queries") == 150


async def test_who_leaves_is_an_abort_and_its_end_is_measured() -> None:
    async with Engine(config()) as engine:
        async for output in engine.generate(ASKED[0], LONG):
            if len(output.token_ids) >= 3:
                break
        metrics = await rested(engine)
    assert labelled(metrics, "request_success") == {"abort": 1}
    assert metrics.distribution("abort_latency_seconds").count == 1
    assert metrics.distribution("time_to_first_token_seconds").count == 1
    assert metrics.value("generation_tokens") == metrics.distribution("request_generation_tokens").sum >= 3


async def test_refusals_are_counted_by_their_reasons() -> None:
    async with Engine(config(max_num_seqs=1, max_num_queued_reqs=1)) as engine:
        first, second = engine.generate(ASKED[0], LONG), engine.generate(ASKED[1], PARAMS)
        await anext(first)
        await engine.pause()
        await second.accepted()
        with pytest.raises(Overloaded):
            await engine.generate(ASKED[2], PARAMS)
        with pytest.raises(InvalidRequest):
            await engine.generate([5000], PARAMS)
        await engine.resume()
        await second
        await first
        metrics = await rested(engine)
    assert labelled(metrics, "admission_rejections") == {"overloaded": 1, "invalid": 1}
    assert labelled(metrics, "request_success") == {"length": 2}
    assert metrics.distribution("e2e_request_latency_seconds").count == 2


async def test_timeouts_are_ends_inside_and_at_the_door() -> None:
    async with Engine(config(max_num_seqs=1, max_requests=2)) as engine:
        first = engine.generate(ASKED[0], LONG)
        await anext(first)
        await engine.pause()
        late = engine.generate(ASKED[1], PARAMS, queue_timeout=0.001)
        await late.accepted()
        await late
        waiting = engine.generate(ASKED[2], LONG)
        await waiting.accepted()
        await anyio.wait_all_tasks_blocked()
        assert engine.metrics().value("num_requests_waiting") == 1
        assert (await engine.generate(ASKED[3], PARAMS, timeout=0)).finish_reason == "timeout"
        await engine.resume()
        await first
        await waiting
        metrics = await rested(engine)
    assert labelled(metrics, "request_success") == {"length": 2, "timeout": 2}
    assert metrics.distribution("e2e_request_latency_seconds").count == 4
    assert metrics.distribution("request_queue_time_seconds").count == 2


@pytest.mark.slow
async def test_preemptions_are_counted_by_request() -> None:
    async with Engine(config(num_gpu_blocks_override=16)) as engine:
        answers = await together(engine, [engine.generate(prompt, LONG) for prompt in ASKED])
        metrics = await rested(engine)
    assert [list(answer.token_ids) for answer in answers] == [expected(prompt, LONG) for prompt in ASKED]
    preempted = metrics.value("num_preemptions")
    assert preempted > 0
    assert measured(metrics, "request_num_preemptions") == (12, preempted)
    assert metrics.distribution("request_queue_time_seconds").count == 12
    assert metrics.value("prompt_tokens") == sum(map(len, ASKED)) < metrics.value("prefix_cache_queries")


async def test_a_failed_step_is_counted_by_every_actor_that_saw_it() -> None:
    async with Engine(config(), parts=failing(4)) as engine:
        await engine.generate(ASKED[0], PARAMS)
        metrics = await rested(engine)
    assert labelled(metrics, "failed_steps") == {"scheduler": 1, "executor": 1, "worker": 1}
    assert metrics.value("epochs") == 1
    assert labelled(metrics, "request_success") == {"length": 1}
    assert measured(metrics, "request_num_preemptions") == (1, 0)


async def test_tokens_behind_a_stop_string_are_dropped() -> None:
    whole = text(expected(ASKED[0], LONG))
    stop = next(whole[i : i + 4] for i in range(20, 60) if "\ufffd" not in whole[i : i + 4])
    params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True, stop=stop)
    async with Engine(config()) as engine:
        output = await engine.generate(ASKED[0], params)
        metrics = await rested(engine)
        statistics = await engine.statistics()
    assert labelled(metrics, "request_success") == {"stop": 1}
    assert metrics.value("generation_tokens") == len(output.token_ids)
    generated = len(output.token_ids) + statistics["detokenizer"]["dropped"]
    assert generated == statistics["scheduler"]["num_tokens_generated"]
    dropped = labelled(metrics, "dropped_tokens")
    assert dropped.get("stop_string", 0) == statistics["detokenizer"]["dropped"]
    assert dropped.get("request_ended", 0) == statistics["scheduler"]["num_late_tokens"]


@pytest.mark.slow
async def test_grammars_are_counted() -> None:
    params = SamplingParams(max_tokens=8, temperature=0, structured_outputs={"regex": "[ab]{4}"})
    async with Engine(config(structured_outputs_timeout=60)) as engine:
        for _ in range(2):
            await engine.generate(ASKED[0], params)
        with pytest.raises(InvalidRequest):
            await engine.generate(ASKED[0], SamplingParams(structured_outputs={"regex": "(a"}))
        metrics = await rested(engine)
    assert labelled(metrics, "grammar_requests") == {"hit": 1, "miss": 2}
    assert labelled(metrics, "grammar_failures") == {"failed": 1}
    assert labelled(metrics, "admission_rejections") == {"invalid": 1}
    assert metrics.value("grammars_compiled") == 1
    assert 10 <= metrics.value("grammar_masks") <= 12


async def test_what_nobody_reads_is_a_backlog() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(ASKED[0], PARAMS)
        await stream.accepted()
        await engine.check()
        metrics = engine.metrics()
        assert metrics.value("output_backlog_cells") == 1
        assert metrics.value("output_backlog_tokens") == 30
        assert metrics.value("output_backlog_characters") == len(text(expected(ASKED[0], PARAMS)))
        await stream
        await rested(engine)


async def test_a_backlog_goes_with_who_holds_it() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(ASKED[0], PARAMS)
        await stream.accepted()
        await engine.check()
        del stream
        await rested(engine)


class Gated(HashRunner):
    """A model that stops in its second step until the gate is open."""

    def __init__(self, config: EngineConfig, gate: threading.Event) -> None:
        super().__init__(config, 4096)
        self._gate = gate

    def execute(self, step: RunStep) -> Sampled | None:
        if step.step > 1:
            self._gate.wait()
        return super().execute(step)


def gated(gate: threading.Event) -> Parts:
    def make(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
        return Gated(config, gate)

    return Parts(open_runner=make)


async def test_a_device_that_hangs_shows_in_the_age_of_its_step() -> None:
    gate = threading.Event()
    narrow = config(max_num_seqs=1, max_requests=2, max_num_batched_tokens=256)
    async with Engine(narrow, parts=gated(gate)) as engine:
        first, second, third = (engine.generate(prompt, PARAMS) for prompt in ASKED[:3])
        try:
            await anext(first)
            await second.accepted()
            async with anyio.create_task_group() as nursery:
                nursery.start_soon(third.accepted)
                await anyio.wait_all_tasks_blocked()
                ages, metrics = [engine.metrics().value("step_age_seconds")], engine.metrics()
                ages.append(engine.metrics().value("step_age_seconds"))
                nursery.cancel_scope.cancel()
        finally:
            gate.set()
        assert 0 < ages[0] < ages[1]
        assert metrics.value("steps_in_flight") == 2
        assert metrics.value("num_requests_running") == metrics.value("num_requests_waiting") == 1
        assert (metrics.value("num_callers_waiting"), metrics.value("num_requests_open")) == (1, 2)
        assert metrics.value("num_queued_tokens") == len(ASKED[1])
        assert 0 < metrics.value("kv_cache_usage_perc") < 1
        await first
        await second
        await rested(engine)


async def test_the_lag_is_looked_at_while_requests_are_open() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(ASKED[0], LONG)
        await engine.pause()
        await stream.accepted()
        with anyio.fail_after(10):
            while engine.metrics().distribution("event_loop_lag_seconds").count == 0:
                await anyio.lowlevel.checkpoint()
        await engine.resume()
        await stream
        metrics = await rested(engine)
    assert 0 <= metrics.value("event_loop_lag_max_seconds") < 10


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_closed_engine_wakes_for_nothing() -> None:
    async with Engine(config()) as engine:
        stream = engine.generate(ASKED[0], LONG)
        await engine.pause()
        await stream.accepted()
        await anyio.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline <= PERIOD
        engine.close()
        await anyio.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")


async def test_a_dead_engine_tells_what_it_held() -> None:
    with pytest.raises(EngineDied):
        async with Engine(config(), parts=Parts(policy=Crashing(after=50))) as engine:
            with pytest.raises(EngineDied):
                await engine.generate(ASKED[0], LONG)
            metrics = engine.metrics()
    assert (metrics.value("num_requests_open"), labelled(metrics, "request_success")) == (1, {})
    assert 0 < metrics.value("generation_tokens") < 100


async def test_states_are_told() -> None:
    async with Engine(config()) as engine:
        awake = labelled(engine.metrics(), "engine_sleep_state")
        await engine.pause()
        assert engine.metrics().value("engine_paused") == 1
        await engine.resume()
        await engine.sleep()
        asleep = labelled(engine.metrics(), "engine_sleep_state")
        await engine.wake_up()
        await rested(engine)
    assert (awake, asleep) == ({"awake": 1}, {"discard_all": 1})


async def test_mailboxes_hold_what_the_topology_says() -> None:
    async with Engine(config(max_requests=10)) as engine:
        capacities = labelled(engine.metrics(), "mailbox_capacity")
    assert (capacities["frontend"], capacities["executor"], len(capacities)) == (60, 9, 8)


async def test_what_a_tap_and_a_recording_lose_is_counted(tmp_path: Path) -> None:
    parts = Parts(taps=(Tap(Ear(), (Tokens, Release, Reserve, RunStep), capacity=1),))
    recorded = config(record=str(tmp_path / "turns"), record_max_bytes=1 << 17)
    async with Engine(recorded, parts=parts) as engine:
        await together(engine, [engine.generate(prompt, PARAMS) for prompt in ASKED])
        with pytest.raises(InvalidRequest):
            await engine.generate([1] * (1 << 16))  # no turn with it fits into the recording
        metrics, statistics = engine.metrics(), await engine.statistics()
    assert labelled(metrics, "tap_lost") == {"tap-0": statistics["tap-0"]["lost"]}
    assert metrics.value("record_lost") == statistics["record"]["num_lost"] > 0
    assert labelled(metrics, "mailbox_capacity")["tap-0"] == 1
