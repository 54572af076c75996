"""What a recording costs the event loop: a snapshot of the Scheduler and the KVPool, and a turn of theirs.

The recorder is the production one; what it writes goes to the null device.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import thread_time

import anyio

from ..config import EngineConfig
from ..engine.record import beginning, open_recorder
from .cycles import CYCLES, Cycles, Load, Spread, no_collection

ROOM = 1 << 32
"""Bytes of the recording: no segment is full, and so no snapshot is among the turns."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """CPU seconds of a snapshot under this load, and the bytes that it takes."""

    load: Load
    size: int
    seconds: Spread


@dataclass(frozen=True, slots=True)
class Turns:
    """CPU seconds of a turn in which one message comes, without and with a recorder."""

    load: Load
    alone: Spread
    recorded: Spread


def measure_snapshots(loads: Sequence[Load], repeats: int) -> list[Snapshot]:
    """Time so many snapshots under each load; each is what a segment begins with."""
    found = []
    for load in loads:
        cycles = Cycles(load, 0)
        cores = {"scheduler": cycles.scheduler, "kvpool": cycles.pool}
        taken = []
        with no_collection():
            for _ in range(repeats):
                begun = thread_time()
                size = len(beginning(cores, (), {}))
                taken.append(thread_time() - begun)
        found.append(Snapshot(load, size, Spread(min(taken), median(taken))))
    return found


def measure_turns(load: Load, repeats: int) -> Turns:
    """Time so many repeats of `CYCLES` cycles without a recorder, and as many with one, by turns."""
    return anyio.run(_measure_turns, load, repeats)


async def _measure_turns(load: Load, repeats: int) -> Turns:
    alone, recorded = (Cycles(load, repeats * CYCLES) for _ in range(2))
    cores = {"scheduler": recorded.scheduler, "kvpool": recorded.pool}
    config = EngineConfig(model="hash", record=os.devnull, record_max_bytes=ROOM)
    taken: dict[Cycles, list[float]] = {alone: [], recorded: []}
    async with open_recorder(config, cores, ()) as recorder:
        assert recorder is not None
        recorded.scheduler, recorded.pool = map(recorder.listen, cores)
        for _ in range(repeats):
            with no_collection():
                for cycles, seconds in taken.items():
                    seconds.append(_seconds(cycles))
            while recorder.statistics()["pending_bytes"]:  # noqa: ASYNC110 (the writer is a thread)
                await anyio.sleep(0.01)
        counts = recorder.statistics()
    assert (counts["num_lost"], counts["num_segments"]) == (0, 1), "snapshots are among the turns"
    num_turns = counts["num_turns"] / repeats
    least, middle = (
        [measure(seconds) / num_turns for seconds in taken.values()] for measure in (min, median)
    )
    return Turns(load, *map(Spread, least, middle))


def _seconds(cycles: Cycles) -> float:
    before = sum(cycles.seconds.values())
    for _ in range(CYCLES):
        cycles.cycle()
    return sum(cycles.seconds.values()) - before
