"""Readiness: green while there is progress, red with the reason when there is none, and green again."""

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI

from actorllm import Engine, EngineConfig, EngineDied, Parts, SamplingParams
from actorllm.actors.worker import Runner
from actorllm.checkpoint import Checkpoint
from actorllm.server.app import create_app
from actorllm.server.guards.drain import Drain
from actorllm.server.guards.readiness import Readiness, health_routes, keep_looking
from actorllm.server.settings import ServerSettings

from ..engine.build import Crashing
from .build import COMPLETIONS, CONFIG, Gated, client_of, error, served

pytestmark = pytest.mark.anyio

IDLE: dict[str, dict[str, Any]] = {
    "scheduler": {
        "state": "running",
        "num_running": 0,
        "num_waiting": 0,
        "steps_in_flight": 0,
        "num_steps": 0,
    },
    "executor": {"steps_in_flight": 0, "num_done": 0, "num_failed": 0},
    "grammar": {"num_compiled": 0, "num_timeouts": 0, "num_failed": 0},
    "renderer": {"num_rendering": 0, "num_rendered": 0, "num_refused": 0},
    "door": {"num_waiting": 0},
}


def seen(**changes: Any) -> dict[str, dict[str, Any]]:
    """Statistics in which `actor__name` has changed."""
    statistics = deepcopy(IDLE)
    for path, value in changes.items():
        actor, name = path.split("__")
        statistics[actor][name] = value
    return statistics


def reason(*looks: tuple[float, dict[str, Any]]) -> str | None:
    """What the last look says, where a step may take 10 s and a queue stand still for 20 s."""
    readiness = Readiness(max_step_seconds=10, max_stall_seconds=20)
    for now, changes in looks:
        readiness.feed(now, seen(**changes))
    return readiness.verdict.reason


STEP = {"scheduler__num_running": 1, "scheduler__steps_in_flight": 1, "executor__steps_in_flight": 1}
QUEUE = {"scheduler__num_waiting": 3, "scheduler__num_steps": 7}


def test_an_idle_engine_is_ready_for_ever() -> None:
    assert reason((0, {}), (1e6, {})) is None


def test_a_step_may_take_its_time_and_no_more() -> None:
    assert reason((5, STEP), (15, STEP)) is None
    assert reason((5, STEP), (15.5, STEP)) == (
        "a step of the model has been on its way for 10.5 s; the limit is 10 s"
    )


def test_the_next_step_has_a_time_of_its_own() -> None:
    done = STEP | {"executor__num_done": 1}
    failed = done | {"executor__num_failed": 1}
    assert reason((0, STEP), (9, done), (18, failed), (28, failed)) is None
    assert reason((0, STEP), (9, done), (18, failed), (28.1, failed)) is not None


def test_it_is_green_again_when_the_step_has_ended() -> None:
    assert reason((0, STEP), (50, STEP), (51, {"executor__num_done": 1})) is None


def test_a_step_that_no_worker_has_yet_is_on_its_way_too() -> None:
    waiting = {"scheduler__num_running": 1, "scheduler__steps_in_flight": 1}
    assert reason((0, waiting), (11, waiting)) is not None


def test_a_queue_may_stand_still_for_its_time_and_no_more() -> None:
    assert reason((0, QUEUE), (20, QUEUE)) is None
    assert reason((0, QUEUE), (20.1, QUEUE)) == (
        "0 running and 3 waiting requests have seen nothing planned or finished for 20.1 s; the limit is 20 s"
    )


@pytest.mark.parametrize(
    "progress",
    [
        {"scheduler__num_steps": 8},
        {"executor__num_done": 1},
        {"grammar__num_compiled": 1},
        {"grammar__num_timeouts": 1},
        {"scheduler__num_waiting": 0},
    ],
)
def test_whatever_is_planned_or_finished_makes_it_green_again(progress: dict[str, int]) -> None:
    assert reason((0, QUEUE), (30, QUEUE)) is not None
    assert reason((0, QUEUE), (30, QUEUE), (31, QUEUE | progress)) is None
    assert reason((0, QUEUE), (30, QUEUE), (31, QUEUE | progress), (51, QUEUE | progress)) is None


def test_arrivals_are_no_progress() -> None:
    more = QUEUE | {"scheduler__num_waiting": 4, "renderer__num_rendered": 9, "renderer__num_refused": 2}
    assert reason((0, QUEUE), (21, more)) is not None


def test_callers_without_a_seat_wait_too() -> None:
    assert "2 waiting" in (reason((0, {"door__num_waiting": 2}), (21, {"door__num_waiting": 2})) or "")


def test_a_queue_before_a_step_on_its_way_does_not_stand_still() -> None:
    busy = QUEUE | STEP
    assert "a step of the model" in (reason((0, busy), (30, busy)) or "")
    assert reason((0, busy), (5, busy), (6, QUEUE), (25, QUEUE)) is None


def test_an_engine_that_is_paused_says_so() -> None:
    paused = QUEUE | {"scheduler__state": "paused"}
    assert (reason((0, paused), (21, paused)) or "").endswith("the limit is 20 s; the engine is paused")


def test_a_tokenizer_that_hangs_is_seen() -> None:
    hangs = {"renderer__num_rendering": 2}
    assert reason((0, hangs), (20, hangs)) is None
    assert reason((0, hangs), (21, hangs)) == (
        "2 prompts have been at the tokenizer, and none has left it, for 21.0 s; the limit is 20 s"
    )
    assert reason((0, hangs), (15, hangs | {"renderer__num_rendered": 1}), (25, hangs)) is None


class Stage:
    """An engine whose model stops before step 2 until `gate` is set, and a clock that stands at `now`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.now = 100.0
        self.drain = Drain()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Engine, httpx.AsyncClient]]:
        """The engine, and a client of its health."""

        def make(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
            return Gated(config, 2, self.gate)

        async with Engine(CONFIG, parts=Parts(open_runner=make)) as engine:
            app = FastAPI()
            readiness = Readiness(max_step_seconds=10, max_stall_seconds=20)
            app.include_router(health_routes(engine, readiness, self.drain, lambda: self.now))
            try:
                async with client_of(app) as client:
                    yield engine, client
            finally:
                self.gate.set()


@pytest.fixture
def stage() -> Iterator[Stage]:
    found = Stage()
    yield found
    found.gate.set()


async def test_a_step_that_hangs_turns_ready_red_and_its_end_green(stage: Stage) -> None:
    async with stage.opened() as (engine, client):
        assert (await client.get("/health/ready")).status_code == 200
        async with engine.generate("a", SamplingParams(max_tokens=9, ignore_eos=True)) as stream:
            await anext(stream)
            young = await client.get("/health/ready")
            stage.now += 10.5
            old = await client.get("/health/ready")
            live = await client.get("/health/live")
            stage.gate.set()
            async for output in stream:
                assert not output.finished or output.outputs[0].num_tokens == 9
        await engine.check()
        after = await client.get("/health/ready")
    assert (young.status_code, young.json()["num_running"]) == (200, 1)
    assert error(old)["message"] == "a step of the model has been on its way for 10.5 s; the limit is 10 s"
    assert (old.status_code, error(old)["type"]) == (503, "ServiceUnavailableError")
    assert int(old.headers["retry-after"]) > 0
    assert live.status_code == 200
    assert after.json() == {
        "status": "ok",
        "model": "hash",
        "step_seconds": 0.0,
        "stall_seconds": 0.0,
        "num_running": 0,
        "num_waiting": 0,
    }


async def test_a_server_looks_by_itself_and_logs_what_changes(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    readiness = Readiness(max_step_seconds=10, max_stall_seconds=20)
    verdicts: list[bool] = []

    async with stage.opened() as (engine, _):
        stream = engine.generate("a", SamplingParams(max_tokens=9, ignore_eos=True))
        await anext(stream)

        async def wait() -> None:
            verdicts.append(readiness.verdict.reason is None)
            stage.now += 6
            if len(verdicts) == 4:
                stage.gate.set()
                await stream
            if len(verdicts) == 6:
                engine.close()

        with caplog.at_level(logging.INFO, "actorllm.readiness"):
            await keep_looking(engine, readiness, clock=lambda: stage.now, wait=wait)
    assert verdicts == [True, True, False, False, True, True]
    assert [record.message for record in caplog.records if record.name == "actorllm.readiness"] == [
        "not ready: a step of the model has been on its way for 12.0 s; the limit is 10 s",
        "ready again",
    ]


async def test_requests_that_wait_at_a_paused_engine_turn_it_red_until_it_goes_on(stage: Stage) -> None:
    stage.gate.set()
    async with stage.opened() as (engine, client):
        await engine.pause()
        stage.now += 1000
        idle = await client.get("/health/ready")
        async with engine.generate("a", SamplingParams(max_tokens=4)) as stream:
            await stream.accepted()
            assert (await client.get("/health")).status_code == 200
            stage.now += 21
            red = await client.get("/health")
            await engine.resume()
            assert (await stream).finished
        green = await client.get("/health")
    assert (idle.status_code, green.status_code) == (200, 200)
    assert "1 waiting requests have seen nothing planned or finished for 21.0 s" in error(red)["message"]


async def test_a_server_that_shuts_down_is_not_ready(stage: Stage) -> None:
    async with stage.opened() as (_, client):
        with stage.drain.admitted():
            stage.drain.begin()
            for path in ("/health", "/health/ready"):
                red = await client.get(path)
                assert red.status_code == 503
                expected = "the server is shutting down; 1 admitted requests have not ended"
                assert error(red)["message"] == expected
        assert (await client.get("/health/live")).status_code == 200


async def test_an_engine_that_died_is_not_live() -> None:
    with pytest.raises(EngineDied, match="no order"):
        async with (
            Engine(CONFIG, parts=Parts(policy=Crashing())) as engine,
            client_of(create_app(engine)) as client,
        ):
            assert (await client.get("/health/live")).status_code == 200
            await client.post(COMPLETIONS, json={"prompt": "a"})
            for path in ("/health", "/health/ready", "/health/live"):
                response = await client.get(path)
                assert response.status_code == 503
                assert error(response)["message"] == "the scheduler crashed: ZeroDivisionError: no order"


async def test_an_engine_that_is_closed_is_live_and_not_ready() -> None:
    async with served() as (engine, client):
        engine.close()
        ready, live = await client.get("/health/ready"), await client.get("/health/live")
    assert (ready.status_code, live.status_code) == (503, 200)
    assert "shutting down" in error(ready)["message"]
    assert int(ready.headers["retry-after"]) > 0


def test_the_limits_are_the_settings() -> None:
    readiness = Readiness.of(ServerSettings(max_step_seconds=1, max_stall_seconds=2))
    for now in (0.0, 1.5):
        readiness.feed(now, seen(**STEP))
    assert (readiness.verdict.reason or "").endswith("the limit is 1 s")
    for now in (2.0, 4.5):
        readiness.feed(now, seen(**QUEUE))
    assert (readiness.verdict.reason or "").endswith("the limit is 2 s")


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/health/live"])
async def test_health_answers_head(path: str) -> None:
    async with served() as (engine, client):
        green = await client.head(path)
        engine.close()
        red = await client.head(path)
    assert (green.status_code, red.status_code) == (200, 200 if path == "/health/live" else 503)


async def test_whoever_drains_waits_for_the_admitted_and_admits_no_more() -> None:
    drain = Drain()
    async with Engine(CONFIG) as engine, client_of(create_app(engine, drain=drain)) as client:
        with anyio.fail_after(5):
            await drain.wait_empty()
        assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 2})).status_code == 200
        ended = False

        async def wait() -> None:
            nonlocal ended
            await drain.wait_empty()
            ended = True

        async with anyio.create_task_group() as nursery:
            with drain.admitted():
                with drain.admitted():
                    nursery.start_soon(wait)
                    await anyio.wait_all_tasks_blocked()
                    drain.begin()
                    refused = await client.post(COMPLETIONS, json={"prompt": "a"})
                await anyio.wait_all_tasks_blocked()
                assert not ended
        assert ended
    assert error(refused)["message"].startswith("the server is shutting down")
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)


async def test_any_number_may_wait_for_the_last_and_who_need_not_wait_still_lets_others_run() -> None:
    drain, ended = Drain(), 0

    async def wait() -> None:
        nonlocal ended
        await drain.wait_empty()
        ended += 1

    with anyio.fail_after(5):
        async with anyio.create_task_group() as nursery:
            with drain.admitted():
                for _ in range(2):
                    nursery.start_soon(wait)
                    await anyio.wait_all_tasks_blocked()
    assert ended == 2
    with anyio.move_on_after(0) as scope:
        await drain.wait_empty()
    assert scope.cancelled_caught
