"""`actorllm bench record`: what is measured is what was asked for, and what is printed of it. No times."""

import pytest

from actorllm.cli import main
from actorllm.testing.cycles import Load
from actorllm.testing.recorded import measure_snapshots, measure_turns


def test_a_snapshot_is_of_the_load() -> None:
    loads = [Load(running=2), Load(running=2, cached=1000)]
    small, large = measure_snapshots(loads, 3)
    assert [small.load, large.load] == loads
    assert large.size - small.size > 16 * 1000
    for each in (small, large):
        assert 0 < each.seconds.least <= each.seconds.median


def test_turns_are_timed_with_and_without_a_recorder() -> None:
    turns = measure_turns(Load(running=3), 2)
    assert turns.load == Load(running=3)
    for spread in (turns.alone, turns.recorded):
        assert 0 < spread.least <= spread.median


def bench(*arguments: str) -> int:
    """The exit code of `actorllm bench record`."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", "record", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_load(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--cached", "10", "--cached", "2000", "--running", "1", "--running", "4", "--repeats", "2")
    assert bench(*asked) == 0
    told = capsys.readouterr()
    assert told.err == ""
    lines = [line.split() for line in told.out.splitlines()]
    assert "2 repeats" in told.out
    assert lines[1] == ["cached", "MB", "snapshot", "median"]
    assert [line[0] for line in lines[2:4]] == ["10", "2000"]
    assert [line[3::2] for line in lines[2:4]] == [["ms", "ms"]] * 2
    assert lines[4] == ["running", "turn", "median", "recorded", "median"]
    assert [line[0] for line in lines[5:]] == ["1", "4"]
    assert [line[2::2] for line in lines[5:]] == [["us"] * 4] * 2


@pytest.mark.parametrize("wrong", [["--running", "0"], ["--cached", "-1"], ["--repeats", "0"]])
def test_a_wrong_use(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*wrong) == 2
    assert capsys.readouterr().err
