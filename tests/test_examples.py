"""Every example runs, and shows what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.slow
def test_stream() -> None:
    assert len(run(str(EXAMPLES / "stream.py"), "hash")) > 64


@pytest.mark.slow
def test_batch() -> None:
    assert [line.split(" -> ")[0] for line in run(str(EXAMPLES / "batch.py"), "hash").splitlines()] == [
        "'The sky is'",
        "'Two and two is'",
        "'A haiku about rain:'",
    ]


@pytest.mark.slow
def test_own_actor() -> None:
    output = run(str(EXAMPLES / "own_actor.py"), "hash")
    assert "['a', 'a prompt', 'a prompt that is rather long, longer than the others']" in output
    assert "'tokens': 800, 'busiest': 200" in output
    assert "'lost': 0" in output


@pytest.mark.slow
def test_structured() -> None:
    person, sure = run(str(EXAMPLES / "structured.py"), "smollm2-135m").splitlines()
    assert re.fullmatch(r"name=(['\"]).{0,30}\1 profession=(['\"]).{0,30}\2 is_alive=(True|False)", person)
    assert re.fullmatch(r"a token was drawn with a probability of \d+% on average", sure)


@pytest.mark.slow
def test_the_unit_test_of_the_scheduler() -> None:
    assert "1 passed" in run("-m", "pytest", "-q", str(EXAMPLES / "test_scheduler.py"))


def test_every_example_is_run_here() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    servers = {"mounted", "mounted_trio", "handler"}  # test_mounted.py runs them
    assert names == {"stream", "batch", "own_actor", "structured", "test_scheduler"} | servers
