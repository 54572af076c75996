"""`actorllm bench scheduler`: the load is the one that was asked for, and what is printed of it. No times."""

import re

import pytest

from actorllm.cli import main
from actorllm.messages import unpack
from actorllm.testing.cycles import BLOCK_SIZE, CYCLES, PROMPT_BLOCKS, Cycles, Load, measure

LOADS = [
    Load(running=1),
    Load(running=7, waiting=20),
    Load(running=3, cached=1100),
    Load(running=40, waiting=1, cached=5),
]


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_every_cycle_is_a_step_of_all_that_run(load: Load) -> None:
    cycles = Cycles(load, 2 * CYCLES)
    before = cycles.scheduler.statistics()
    assert (before.num_running, before.num_waiting) == (load.running, load.waiting)
    for _ in range(2 * CYCLES):
        cycles.cycle()
        cycles.scheduler.check()
        assert not cycles.steps[-1].new
        assert unpack(cycles.steps[-1].num_tokens) == [1] * load.running
        assert len(cycles.steps) == 2
    cycles.pool.check()
    after = cycles.scheduler.statistics()
    assert after.num_steps - before.num_steps == 2 * CYCLES
    assert after.num_tokens_generated - before.num_tokens_generated == 2 * CYCLES * load.running
    assert (after.num_waiting, after.num_preemptions) == (load.waiting, 0)


@pytest.mark.parametrize("cached", [0, 1, 1100])
def test_cached_blocks_are_there_and_the_oldest_make_room(cached: int) -> None:
    cycles = Cycles(Load(running=2, cached=cached), CYCLES)
    begun = cycles.pool.statistics()
    of_prompts = 2 * PROMPT_BLOCKS
    assert begun.num_cached_blocks + begun.evictions - of_prompts == cached
    for _ in range(CYCLES):
        cycles.cycle()
    taken = 2 * CYCLES // BLOCK_SIZE
    assert cycles.pool.statistics().evictions - begun.evictions == (taken if cached == 1100 else 0)


def test_both_cores_take_time() -> None:
    cycles = Cycles(Load(running=2), CYCLES)
    seconds = dict(cycles.seconds)
    cycles.cycle()
    assert all(cycles.seconds[name] > seconds[name] for name in ("scheduler", "pool"))
    loads = [Load(running=2), Load(running=1, waiting=1)]
    measured = measure(loads, 3)
    assert [times.load for times in measured] == loads
    for times in measured:
        assert 0 < times.pool.least <= times.pool.median
        assert 0 < times.scheduler.least <= times.scheduler.median


def test_nothing_to_measure() -> None:
    with pytest.raises(ValueError, match="nothing runs"):
        measure([Load(running=1), Load(running=0)], 1)
    with pytest.raises(ValueError, match="nothing runs"):
        measure([Load(running=1)], 0)


def bench(*arguments: str) -> int:
    """The exit code of `actorllm bench scheduler`."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", "scheduler", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_load_and_the_growth(capsys: pytest.CaptureFixture[str]) -> None:
    running = ("--running", "1", "--running", "4", "--running", "8")
    assert bench(*running, "--waiting", "3", "--waiting", "5", "--cached", "9", "--repeats", "1") == 0
    told = capsys.readouterr()
    assert told.err == ""
    title, head, *lines = told.out.splitlines()
    assert "1 repeats" in title
    assert head.split() == ["running", "waiting", "cached"] + [
        word for name in ("KVPool", "Scheduler") for word in (name, "median", "/running")
    ]
    loads = [tuple(map(int, line.split()[:3])) for line in lines[:6]]
    assert loads == [(1, 0, 0), (4, 0, 0), (8, 0, 0), (32, 3, 0), (32, 5, 0), (32, 0, 9)]
    for line, (count, _, _) in zip(lines, loads, strict=False):
        pool, _, of_pool, scheduler, _, of_scheduler = map(float, line.split()[3:])
        assert of_pool == pytest.approx(pool / count, abs=0.06)
        assert of_scheduler == pytest.approx(scheduler / count, abs=0.06)
    factor = r"x \d+\.\d\d"
    assert re.fullmatch(
        rf"running 1 -> 4 -> 8: KVPool {factor}, {factor}; Scheduler {factor}, {factor}", lines[6]
    )
    assert re.fullmatch(rf"waiting 3 -> 5: KVPool {factor}; Scheduler {factor}", lines[7])
    assert lines[8:] == ["cached 9: KVPool x 1; Scheduler x 1"]


@pytest.mark.parametrize("wrong", [["--running", "0"], ["--waiting", "-1"], ["--repeats", "0"]])
def test_a_wrong_use(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*wrong) == 2
    assert capsys.readouterr().err
