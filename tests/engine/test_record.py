"""Recordings of real engines: run again they say the same, and what goes wrong with them harms no stream."""

import logging
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorllm import (
    ConfigError,
    Engine,
    EngineConfig,
    EngineDied,
    Parts,
    RequestFailed,
    SamplingParams,
    Stream,
)
from actorllm.checkpoint import open_checkpoint
from actorllm.cores.kvpool import KVPool
from actorllm.cores.scheduler import Scheduler
from actorllm.engine import record
from actorllm.engine.record import open_recorder, shared_objects
from actorllm.engine.segments import OLDER
from actorllm.engine.snapshot import load
from actorllm.messages import Rendered, Reserved, ResetPool
from actorllm.testing.grammars import SimulatedGrammars
from actorllm.testing.replay import Report, replay
from actorllm.wire.recording import RecordingReader

from .build import POISON, Crashing, config, expected, failing, prompts

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PARAMS = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
SMALL = 1 << 17


async def storm(engine: Engine, count: int = 24) -> None:
    """Requests of every fate, all there before the first step; what ends by itself has its tokens."""

    def ask(index: int, prompt: list[int]) -> Stream:
        if index % 6 == 1:
            text = bytes(token % 128 for token in prompt).decode()
            return engine.generate(text, PARAMS, tenant="text")
        if index % 6 == 3:
            return engine.generate(prompt, PARAMS, queue_timeout=0.002, priority=index)
        if index % 6 == 4:
            return engine.generate(prompt, SamplingParams(max_tokens=30, seed=index, stop=["e", "é"]))
        return engine.generate(prompt, PARAMS)

    async def read(index: int, prompt: list[int], stream: Stream) -> None:
        if index % 6 == 2:
            await anext(stream)
            stream.close()
        elif index % 6 in (0, 5):
            assert list((await stream).token_ids) == expected(prompt, PARAMS)
        else:
            await stream

    asked = [(index, prompt, ask(index, prompt)) for index, prompt in enumerate(prompts(count))]
    await engine.pause()
    for _, _, stream in asked:
        await stream.accepted()
    await engine.resume()
    async with anyio.create_task_group() as nursery:
        for each in asked:
            nursery.start_soon(read, *each)
    await engine.check()


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def again(path: Path | str) -> Report:
    """What a replay says, without blocking the event loop."""
    return await anyio.to_thread.run_sync(partial(replay, path))


def recorded(path: Path, **changes: Any) -> EngineConfig:
    return config(record=str(path), num_gpu_blocks_override=24, max_num_seqs=5, **changes)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline"])
async def test_a_replay_finds_no_difference(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "turns"
    async with Engine(recorded(path, policy=policy, verify=False), parts=failing(3, 9)) as engine:
        await storm(engine)
        with pytest.raises(RequestFailed):
            await engine.generate([POISON, 1, 2], PARAMS)
        await engine.pause()
        assert (await engine.generate([1, 2], PARAMS, timeout=0.05)).finish_reason == "timeout"
        await engine.resume()
        await engine.check()
        statistics = await engine.statistics()
    assert statistics["scheduler"]["num_failed_steps"] >= 3
    assert statistics["scheduler"]["num_timeouts"] > 0
    assert statistics["kvpool"]["preemptions"] > 0
    assert statistics["record"]["num_lost"] == 0
    report = await again(path)
    assert report.difference is None
    assert report.num_turns >= statistics["record"]["num_turns"] > 100
    assert report.num_messages > report.num_turns
    assert not report.cut
    assert report.crash is None


async def test_a_change_of_a_core_shows_in_the_first_turn_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "turns"
    async with Engine(recorded(path)) as engine:
        await storm(engine)
    poll = KVPool.poll

    def forgetful(pool: KVPool, now: float) -> tuple[Any, ...]:
        said = poll(pool, now)
        return tuple(
            replace(each, num_cached=bytes(len(each.num_cached))) if isinstance(each, Reserved) else each
            for each in said
        )

    monkeypatch.setattr(KVPool, "poll", forgetful)
    difference = (await again(path)).difference
    assert difference is not None
    assert difference.actor == "kvpool"
    told = str(difference)
    assert told.startswith(f"turn {difference.turn}, ")
    assert "s after the first: the kvpool says something else\n  fed:\n" in told
    assert "    Reserve(step=" in told
    assert "  said then:\n    Reserved(step=" in told
    assert "  says now:\n    Reserved(step=" in told
    assert "\n  first at [0].num_cached: [" in told


async def test_the_oldest_turns_make_room_and_each_file_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    async with Engine(recorded(path, record_max_bytes=SMALL)) as engine:
        while (statistics := (await engine.statistics())["record"])["num_segments"] < 4:
            await storm(engine, 12)
    assert statistics["died"] is None
    files = files_in(tmp_path)
    assert files == [path, Path(f"{path}{OLDER}")]
    assert all(file.stat().st_size <= SMALL // 2 for file in files)
    reports = [await again(file) for file in files]
    assert [report.difference for report in reports] == [None, None]
    assert [report.cut for report in reports] == [False, False]
    assert reports[1].num_turns > 20


async def test_a_segment_can_begin_in_the_middle_of_answers_under_grammars(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    asked = [
        SamplingParams(
            max_tokens=60, seed=index, logprobs=2, structured_outputs={"regex": f"[a-z]{{{size}}}"}
        )
        for index, size in enumerate([40, 50, 50, 50, 60, 60])
    ]
    async with Engine(recorded(path, record_max_bytes=SMALL)) as engine:

        async def ask(params: SamplingParams) -> None:
            while (await engine.statistics())["record"]["num_segments"] < 4:
                answer = await engine.generate([1, 2, 3], params)
                assert len(answer.outputs[0].logprobs or ()) == len(answer.token_ids)

        async with anyio.create_task_group() as nursery:
            for params in asked:
                nursery.start_soon(ask, params)
        statistics = (await engine.statistics())["record"]
        await engine.check()
    assert statistics["died"] is None
    assert max(map(num_open, files_in(tmp_path))) > 0
    for file in files_in(tmp_path):
        report = await again(file)
        assert report.difference is None, str(report.difference)


def num_open(path: Path) -> int:
    """The matchers that are open where the recording begins."""
    reader = RecordingReader()
    reader.feed(path.read_bytes())
    header, snapshots = reader.poll_header(), reader.poll_snapshots()
    assert header is not None
    assert snapshots is not None
    tokenizer = open_checkpoint("hash").tokenizer()
    grammar: Any = load(snapshots["grammar"], shared_objects(tokenizer, SimulatedGrammars()))
    num_matchers: int = grammar.statistics().num_matchers
    return num_matchers


async def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    for _ in range(3):
        async with Engine(recorded(path)) as engine:
            await engine.generate("hello", PARAMS)
        assert {stat.S_IMODE(file.stat().st_mode) for file in files_in(tmp_path)} == {0o600}
        path.chmod(0o644)
    assert len(files_in(tmp_path)) == 2


async def test_a_new_engine_keeps_the_recording_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    async with Engine(recorded(path)) as engine:
        await storm(engine, 2)
    first = path.read_bytes()
    async with Engine(recorded(path)) as engine:
        await storm(engine, 1)
    assert files_in(tmp_path)[1].read_bytes() == first


@pytest.mark.parametrize("name", ["turns", "turns" + OLDER])
async def test_a_file_that_is_no_recording_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a diary")
    with pytest.raises(ConfigError, match=f"record: {tmp_path / name} is there already and is no recording"):
        async with Engine(recorded(tmp_path / "turns")):
            raise AssertionError("an engine that took a diary for its own")
    assert (tmp_path / name).read_text() == "a diary"


@pytest.mark.parametrize(
    ("path", "reason"), [(".", "is no file"), ("missing/turns", "cannot be written: No such file")]
)
async def test_a_path_that_cannot_be_a_file_is_refused(path: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"record: .*{reason}"):
        async with Engine(recorded(tmp_path / path)):
            raise AssertionError("an engine without its recording")


async def test_a_policy_of_ones_own_cannot_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record: the scheduler .*build\.Crashing, which no recording may"):
        async with Engine(recorded(tmp_path / "turns"), parts=Parts(policy=Crashing())):
            raise AssertionError("an engine whose recording cannot be read")
    assert files_in(tmp_path) == []


async def test_too_little_room_for_a_snapshot_is_refused(tmp_path: Path) -> None:
    small = config(record=str(tmp_path / "turns"), num_gpu_blocks_override=20_000, record_max_bytes=1 << 16)
    with pytest.raises(ConfigError, match=r"record_max_bytes must be at least \d+: a snapshot takes"):
        async with Engine(small):
            raise AssertionError("an engine whose recording has no room")


async def test_without_a_recording_nothing_is_done_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(record, "Recorder")
    monkeypatch.delattr(record, "Listened")
    async with Engine(config()) as engine:
        await engine.generate("hello", PARAMS)
        assert "record" not in await engine.statistics()
        assert "actorllm-record" not in {thread.name for thread in threading.enumerate()}
    assert files_in(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
async def test_a_full_disk_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "actorllm"):
        async with Engine(recorded(Path("/dev/full"))) as engine:
            while (await engine.statistics())["record"]["died"] is None:
                await storm(engine, 6)
            await storm(engine)
            died = (await engine.statistics())["record"]["died"]
    assert died == "/dev/full cannot be written: No space left on device"
    assert [entry.getMessage() for entry in caplog.records] == [f"the recording has ended: {died}"]


async def test_a_slow_disk_costs_turns_and_the_rest_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "QUEUE", 1 << 10)  # less than a long turn: any disk is too slow for it
    path = tmp_path / "turns"
    async with Engine(recorded(path)) as engine:
        while (statistics := (await engine.statistics())["record"])["num_segments"] < 3:
            await storm(engine)
    assert statistics["num_lost"] > 0
    assert statistics["died"] is None
    for file in (path, f"{path}{OLDER}"):
        assert (await again(file)).difference is None


@pytest.mark.parametrize(
    ("spoil", "word", "reason"),
    [
        (lambda core: None, object(), "TypeError: object is not a message"),
        (lambda core: setattr(core, "lock", threading.Lock()), ResetPool(1), "record: the kvpool cannot be"),
    ],
)
async def test_what_cannot_be_written_ends_the_recording_and_is_not_raised(
    spoil: Callable[[KVPool], None], word: Any, reason: str, tmp_path: Path
) -> None:
    core = KVPool(16, 16)
    async with open_recorder(
        recorded(tmp_path / "turns", record_max_bytes=1 << 16), {"kvpool": core}, ()
    ) as recorder:
        assert recorder is not None
        spoil(core)
        for _ in range(2000):
            recorder.record("kvpool", 0.0, [word], ())
        died = recorder.statistics()["died"]
    assert reason in died


async def test_a_turn_too_long_for_a_segment_is_lost_and_the_next_are_not(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    async with open_recorder(
        recorded(path, record_max_bytes=1 << 16), {"kvpool": KVPool(16, 16)}, ()
    ) as recorder:
        assert recorder is not None
        listened = recorder.listen("kvpool")
        recorder.record("kvpool", 0.0, [Rendered(1, bytes(1 << 16))], ())
        listened.feed(ResetPool(1))
        listened.poll(1.0)
        assert recorder.statistics()["num_lost"] == 1
    report = await again(path)
    assert (report.num_turns, report.num_messages, report.difference) == (1, 1, None)


async def test_a_snapshot_too_large_for_its_segment_leaves_a_gap_until_the_cores_are_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, core, word = tmp_path / "turns", KVPool(16, 16), [ResetPool(1)]
    async with open_recorder(recorded(path, record_max_bytes=1 << 16), {"kvpool": core}, ()) as recorder:
        assert recorder is not None

        def record_a_turn(content: bytes, is_idle: bool, fed: list[Any]) -> tuple[int, int, Any]:
            monkeypatch.setattr(KVPool, "idle", is_idle)
            core.content = content  # type: ignore[attr-defined]
            recorder.record("kvpool", None, fed, ())
            counts = recorder.statistics()
            return counts["num_segments"], counts["num_lost"], counts["died"]

        huge, large = [Rendered(1, bytes(1 << 16))], bytes(1 << 15)
        assert record_a_turn(large, False, huge) == (1, 1, None)
        assert record_a_turn(large, False, word) == (1, 2, None)
        assert record_a_turn(b"", False, word) == (1, 3, None)
        assert record_a_turn(b"", True, word) == (2, 4, None)
        assert record_a_turn(b"", True, word) == (2, 4, None)
        assert "record_max_bytes must be at least" in record_a_turn(large, True, huge)[2]
    report = await again(path)
    assert (report.num_turns, report.num_lost, report.difference) == (1, 4, None)


async def test_a_burst_leaves_a_gap_and_what_comes_later_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    async with Engine(recorded(path, record_max_bytes=SMALL, verify=False)) as engine:
        async with anyio.create_task_group() as nursery:
            for prompt in prompts(200):
                nursery.start_soon(engine.generate(prompt, SamplingParams(max_tokens=10))._collect)
        await engine.check()
        lost = (await engine.statistics())["record"]["num_lost"]
        await engine.generate("hello", SamplingParams(max_tokens=3))
        await engine.check()
        statistics = (await engine.statistics())["record"]
    assert statistics["died"] is None
    assert statistics["num_lost"] == lost > 100
    reports = [await again(file) for file in files_in(tmp_path)]
    assert [report.difference for report in reports] == [None, None]
    assert max(report.num_lost for report in reports) > 100


async def test_the_turn_in_which_a_core_crashes_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "turns"
    for method in ("poll", "feed"):

        def crash(*_: Any) -> Any:
            raise ZeroDivisionError("no order")

        with monkeypatch.context() as patched, pytest.raises(EngineDied, match="no order"):
            patched.setattr(Scheduler, method, crash)
            async with Engine(recorded(path)) as engine:
                with pytest.raises(EngineDied):
                    await engine.generate("hello", PARAMS)
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, method, crash)
            report = await again(path)
        assert report.difference is None
        assert report.crash == "the scheduler raised ZeroDivisionError: no order"
        difference = (await again(path)).difference
        assert difference is not None
        assert "  said then:\n    raised ZeroDivisionError: no order\n  says now:\n" in str(difference)
