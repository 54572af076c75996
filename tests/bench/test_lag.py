"""How late a loop hears is what keeps it."""

from time import perf_counter

import anyio
import pytest

from actorllm.bench.lag import PERIOD_SECONDS, watch_lag


@pytest.mark.anyio
async def test_a_loop_that_is_kept_hears_late() -> None:
    async with watch_lag() as lags:
        while len(lags) < 3:
            await anyio.lowlevel.checkpoint()
        begun, heard = perf_counter(), len(lags)
        while perf_counter() - begun < 10 * PERIOD_SECONDS:
            pass
        kept = perf_counter() - begun
        while len(lags) == heard:
            await anyio.lowlevel.checkpoint()
    assert min(lags) > 0
    assert kept / 2 < max(lags) < perf_counter() - begun
