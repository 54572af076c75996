"""stdout that cannot be written to: one line says so, and the exit code is not 0."""

import errno
import io
import sys

import pytest

from actorllm import MachineError
from actorllm.cli import main
from actorllm.cli.output import Output

ANSWER = ["generate", "hash", "-p", "abc", "--max-tokens", "40", "--ignore-eos", "--seed", "5"]
SMALL = ["--num-gpu-blocks-override", "64", "--max-model-len", "256"]


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


class Broken(io.StringIO):
    """Raises this error when it is written to."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("command", [["fetch", "hash"], ["--help"], [*ANSWER, *SMALL]])
def test_a_full_disk_is_told_in_one_line(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(*command) == 1
        assert full.closed, "the end of the process would try to write what is left"
    assert capsys.readouterr().err == ("actorllm: the output cannot be written: No space left on device\n")


def test_a_text_that_the_terminal_has_no_letters_for_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert run(*ANSWER, *SMALL) == 1
    told = capsys.readouterr().err
    assert told == "actorllm: the output cannot be written in ascii; PYTHONIOENCODING=utf-8 changes that\n"


def test_whoever_reads_no_more_is_told_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert run("fetch", "hash") == 1
    assert capsys.readouterr().err == ""


def test_an_output_is_the_stream_but_for_its_errors() -> None:
    stream = io.StringIO()
    output = Output(stream)
    output.write("fine")
    output.flush()
    assert output.getvalue() == "fine"
    assert not output.is_broken
    broken = Output(Broken(OSError(errno.EIO, "Input/output error")))
    for _ in range(2):
        with pytest.raises(MachineError, match="the output cannot be written: Input/output error"):
            broken.write("lost")
    assert broken.is_broken
