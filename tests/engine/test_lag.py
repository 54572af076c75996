"""The lag of an event loop, in virtual time."""

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actorllm.cores.histogram import Histogram
from actorllm.engine.lag import PERIOD, Lag


def run(test: Callable[[Lag, Histogram, MockClock], Awaitable[None]]) -> None:
    """Run it beside a watch, with a clock that moves by hand."""
    clock = MockClock()

    async def main() -> None:
        histogram = Histogram((0.0, 0.125, 1.0))
        lag = Lag(histogram)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lag.watch)
            await wait_all_tasks_blocked()
            await test(lag, histogram, clock)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


async def jump(clock: MockClock, seconds: float) -> None:
    await wait_all_tasks_blocked()
    clock.jump(seconds)
    await wait_all_tasks_blocked()


def test_a_timer_that_wakes_late_is_a_lag() -> None:
    async def test(lag: Lag, histogram: Histogram, clock: MockClock) -> None:
        lag.begin()
        await jump(clock, PERIOD + 0.75)
        await jump(clock, PERIOD + 0.25)
        found = histogram.read()
        assert (found.counts[1:], round(found.sum, 9), round(lag.longest, 9)) == ((0, 2, 0), 1.0, 0.75)

    run(test)


def test_an_engine_that_rests_is_not_looked_at() -> None:
    async def test(lag: Lag, histogram: Histogram, clock: MockClock) -> None:
        await jump(clock, 10 * PERIOD)
        assert histogram.read().count == 0
        lag.begin()
        await jump(clock, PERIOD / 2)
        lag.rest()
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
        await jump(clock, 10 * PERIOD)
        assert histogram.read().count == 0

    run(test)


def test_it_is_looked_at_again_when_there_is_something_to_do() -> None:
    async def test(lag: Lag, histogram: Histogram, clock: MockClock) -> None:
        for _ in range(3):
            lag.begin()
            await jump(clock, 2 * PERIOD)
            lag.rest()
            lag.begin()
            lag.rest()
            await jump(clock, 2 * PERIOD)
        assert histogram.read().count == 3

    run(test)


def test_what_is_over_before_the_watch_wakes_is_not_looked_at() -> None:
    async def test(lag: Lag, histogram: Histogram, clock: MockClock) -> None:
        lag.begin()
        lag.rest()
        await jump(clock, 10 * PERIOD)
        assert histogram.read().count == 0

    run(test)
