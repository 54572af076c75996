"""`actorllm simulate`: what it writes, and its exit codes."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import typer

from actorllm.cli import main
from actorllm.cli.simulate import Tally, _run_all
from actorllm.model.hash import HashRunner
from actorllm.testing.schedules import FAULTS
from actorllm.testing.sightings import SIGHTINGS

from .planted_ring import DEVICE


def run(*arguments: str) -> int:
    """The exit code of `actorllm simulate`."""
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.slow
def test_seeds_over_two_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "actorllm", "simulate", "--seeds", "50", "--jobs", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    *counts, summary = done.stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in counts] == list(SIGHTINGS)
    assert summary.startswith("50 runs, ")
    assert "nothing found" in summary


def test_schedules_count_their_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--schedules", "--seeds", "2", "--jobs", "1", "--scenario", "calm") == 0
    *counts, summary = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in counts] == list(FAULTS)
    assert summary.startswith("2 runs, ")


def test_a_failed_schedule_tells_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = next(bug for bug in DEVICE if bug.name == "a slot is one too far")
    bug.plant(monkeypatch)
    assert run("--schedules", "--scenario", "calm", "--jobs", "1", "--start", "5") == 1
    told = capsys.readouterr().err
    assert " of calm: " in told
    assert "replay: actorllm simulate --schedules --scenario calm --seed " in told


def test_one_seed_with_every_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scenario", "calm", "--seed", "7", "--trace") == 0
    told = capsys.readouterr().out
    assert "caller -> frontend: Generate(" in told
    assert "1 runs, " in told


def test_the_first_failure_ends_it_with_its_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = next(bug for bug in DEVICE if bug.name == "a slot is one too far")
    bug.plant(monkeypatch)
    assert run("--scenario", "calm", "--jobs", "1", "--start", "5") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("seed 5 of calm: ")
    assert told.err.endswith("replay: actorllm simulate --scenario calm --seed 5 --trace\n")


@pytest.mark.parametrize("wrong", [["--scenario", "stormy"], ["--trace"], ["--seeds", "0"]])
def test_a_wrong_use(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*wrong) == 2
    assert capsys.readouterr().err


def interrupt(*_: object) -> bytes:
    signal.raise_signal(signal.SIGINT)
    return b""


@pytest.mark.parametrize("wherein", ["execute", "command"])
@pytest.mark.parametrize("kind", ["--scenario", "--schedules"])
def test_ctrl_c_is_no_bug(
    wherein: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashRunner, wherein, interrupt)
    assert run("--jobs", "1", *(["--scenario", "mixed"] if kind == "--scenario" else [kind])) == 130
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def interrupt_parent(process: int, seeds: list[int]) -> Tally:
    os.kill(process, signal.SIGINT)
    time.sleep(600)
    return Tally()


@pytest.mark.slow
def test_ctrl_c_ends_the_other_processes() -> None:
    with pytest.raises(KeyboardInterrupt):
        _run_all(range(1000), partial(interrupt_parent, os.getpid()), 2)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", ["--trace", "--schedules"])
def test_a_trace_that_cannot_be_written_is_no_bug(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(typer, "echo", broken)
    assert run("--scenario", "calm", "--seed", "7", "--trace", kind) == 1
    assert capsys.readouterr().err == ""
