"""Readiness is progress: whether steps end, and whether somebody waits while nothing happens."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from fastapi import APIRouter
from fastapi.responses import Response

from ...engine.engine import Engine
from ..errors import Unavailable, error_response
from ..settings import ServerSettings
from ..sse import dumps
from .drain import Drain
from .opened import why_closed

LOOK_SECONDS = 1.0
"""How often a server looks at its engine. Who only asks now and then hears of a standstill later."""

LOGGER = logging.getLogger("actorllm.readiness")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the engine makes progress; if it does not, `reason` says so in words and numbers.

    Seconds are since the first look that saw it: the oldest step on its way, and requests that wait while
    nothing happens. Counts are requests.
    """

    reason: str | None
    step_seconds: float
    stall_seconds: float
    num_running: int
    num_waiting: int


class Standstill:
    """For how many `seconds` somebody has waited while a count of what has been done stood still."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None
        self._done: object = None

    def feed(self, now: float, is_waiting: bool, done: object) -> None:
        """What was seen at a look."""
        if not is_waiting:
            self._since = None
        elif self._since is None or done != self._done:
            self._since = now
        self._done = done
        self.seconds = 0.0 if self._since is None else now - self._since


class Readiness:
    """What looks at an engine's statistics add up to. Knows no clock: `feed` is told the time, in seconds."""

    def __init__(self, max_step_seconds: float, max_stall_seconds: float) -> None:
        self._max_step = max_step_seconds
        self._max_stall = max_stall_seconds
        self._step, self._queue, self._rendering = Standstill(), Standstill(), Standstill()
        self._num_running = self._num_waiting = self._num_rendering = 0
        self._state = "running"

    @classmethod
    def of(cls, settings: ServerSettings) -> "Readiness":
        """With the limits of the settings."""
        return cls(settings.max_step_seconds, settings.max_stall_seconds)

    def feed(self, now: float, statistics: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in what `Engine.statistics` tells.

        Arrivals are no progress, else a stream of new requests would hide that none is ever served.
        """
        scheduler, executor = statistics["scheduler"], statistics["executor"]
        grammar, renderer = statistics["grammar"], statistics["renderer"]
        ended = executor["num_done"] + executor["num_failed"]
        in_flight = max(scheduler["steps_in_flight"], executor["steps_in_flight"])
        compiled = [grammar[name] for name in ("num_compiled", "num_timeouts", "num_failed")]
        self._state = scheduler["state"]
        self._num_running = scheduler["num_running"]
        self._num_rendering = renderer["num_rendering"]
        self._num_waiting = scheduler["num_waiting"] + statistics["door"]["num_waiting"]
        waits = in_flight == 0 and self._num_running + self._num_waiting > 0
        rendered = renderer["num_rendered"] + renderer["num_refused"]
        self._step.feed(now, in_flight > 0, ended)
        self._queue.feed(now, waits, (scheduler["num_steps"], ended, compiled))
        self._rendering.feed(now, self._num_rendering > 0, rendered)

    @property
    def verdict(self) -> Verdict:
        """What the last look said."""
        stall = max(self._queue.seconds, self._rendering.seconds)
        return Verdict(self._reason(), self._step.seconds, stall, self._num_running, self._num_waiting)

    def _reason(self) -> str | None:
        limit = f"the limit is {self._max_stall:g} s"
        if self._step.seconds > self._max_step:
            return (
                f"a step of the model has been on its way for {self._step.seconds:.1f} s; "
                f"the limit is {self._max_step:g} s"
            )
        if self._queue.seconds > self._max_stall:
            why = "" if self._state == "running" else f"; the engine is {self._state}"
            return (
                f"{self._num_running} running and {self._num_waiting} waiting requests have seen nothing "
                f"planned or finished for {self._queue.seconds:.1f} s; {limit}{why}"
            )
        if self._rendering.seconds > self._max_stall:
            return (
                f"{self._num_rendering} prompts have been at the tokenizer, and none has left it, "
                f"for {self._rendering.seconds:.1f} s; {limit}"
            )
        return None


async def look(engine: Engine, readiness: Readiness, clock: Callable[[], float]) -> Verdict:
    """Look once at an engine that has been entered."""
    readiness.feed(clock(), await engine.statistics())
    return readiness.verdict


async def _until_next_look() -> None:
    await anyio.sleep(LOOK_SECONDS)


async def keep_looking(
    engine: Engine,
    readiness: Readiness,
    *,
    clock: Callable[[], float] = anyio.current_time,
    wait: Callable[[], Awaitable[None]] = _until_next_look,
) -> None:
    """Look again and again while the engine is open, and write to the log when the verdict changes."""
    was_ready = True
    while engine.closed is None:
        verdict = await look(engine, readiness, clock)
        if was_ready != (verdict.reason is None):
            was_ready = not was_ready
            level = logging.INFO if was_ready else logging.ERROR
            LOGGER.log(level, "%s", "ready again" if was_ready else f"not ready: {verdict.reason}")
        await wait()


def health_routes(
    engine: Engine, readiness: Readiness, drain: Drain, clock: Callable[[], float] = anyio.current_time
) -> APIRouter:
    """/health/live: whether the process answers, and its engine has not died. /health/ready and /health:
    whether requests should be sent here. `clock` tells seconds.
    """
    router = APIRouter(redirect_slashes=False)

    async def live() -> Response:
        """200 until the engine has died."""
        return _json({"status": "ok"}) if engine.died is None else error_response(engine.died)

    async def ready() -> Response:
        """200 while the engine makes progress or has nothing to do, and takes requests."""
        if engine.died is None and drain.is_draining:
            text = f"the server is shutting down; {drain.num_open} admitted requests have not ended"
            return error_response(Unavailable(text))
        closed = why_closed(engine)
        if closed is not None:
            return error_response(closed)
        verdict = await look(engine, readiness, clock)
        if verdict.reason is not None:
            return error_response(Unavailable(verdict.reason))
        told = {
            "step_seconds": round(verdict.step_seconds, 3),
            "stall_seconds": round(verdict.stall_seconds, 3),
            "num_running": verdict.num_running,
            "num_waiting": verdict.num_waiting,
        }
        return _json({"status": "ok", "model": engine.model_name, **told})

    paths: dict[str, Callable[[], Awaitable[Response]]] = {
        "/health": ready,
        "/health/ready": ready,
        "/health/live": live,
    }
    for path, answer in paths.items():
        router.add_api_route(path, answer, methods=["GET"], response_model=None)
        router.add_api_route(path, answer, methods=["HEAD"], response_model=None, include_in_schema=False)
    return router


def _json(value: object) -> Response:
    return Response(dumps(value), media_type="application/json")
