"""The gate: one command at a time, and when steps may be planned."""

import pytest

from actorllm.cores.gate import Begun, Gate
from actorllm.messages import Command, CommandDone, Fault

FAULT = Fault("RequestFailed", "boom")


def run(gate: Gate, action: str, fault: Fault | None = None) -> CommandDone:
    """Give a command and let everyone answer it."""
    gate.feed(Command(1, action))
    assert not gate.is_open
    begun = gate.begin()
    assert begun is not None
    if begun.done is not None:
        return begun.done
    assert gate.begin() is None
    if fault is not None:
        return gate.finish(fault)
    done = None
    while done is None:
        assert gate.is_waiting
        done = gate.answered()
    return done


def test_a_pause_lasts_until_it_is_resumed() -> None:
    gate = Gate()
    assert (gate.is_open, gate.state, gate.begin()) == (True, "running", None)
    assert run(gate, "pause") == CommandDone(1)
    assert (gate.is_open, gate.state) == (False, "paused")
    assert run(gate, "reset_prefix_cache") == CommandDone(1)
    assert gate.state == "paused"
    assert run(gate, "resume") == CommandDone(1)
    assert (gate.is_open, gate.state) == (True, "running")


def test_a_sleep_lasts_until_it_is_woken() -> None:
    gate = Gate()
    assert run(gate, "sleep") == CommandDone(1)
    assert (gate.is_open, gate.state) == (False, "asleep")
    assert run(gate, "pause") == run(gate, "sleep") == CommandDone(1)
    assert run(gate, "wake_up", FAULT) == CommandDone(1, FAULT)
    assert gate.state == "asleep"
    run(gate, "wake_up")
    assert gate.state == "paused"


def test_after_a_sleep_that_failed_it_must_be_woken() -> None:
    gate = Gate()
    assert run(gate, "sleep", FAULT) == CommandDone(1, FAULT)
    assert gate.state == "asleep"


def test_asleep_there_is_nothing_to_profile() -> None:
    gate = Gate()
    assert run(gate, "start_profile") == CommandDone(1)
    run(gate, "sleep")
    fault = run(gate, "stop_profile").fault
    assert fault is not None
    assert (fault.kind, fault.message.startswith("stop_profile needs the device")) == ("UsageError", True)


@pytest.mark.parametrize(
    ("action", "ends_epoch", "resets_cache", "runs"),
    [
        ("sleep", True, False, True),
        ("reset_prefix_cache", False, True, False),
        ("start_profile", False, False, True),
    ],
)
def test_what_a_command_needs(action: str, ends_epoch: bool, resets_cache: bool, runs: bool) -> None:
    gate, command = Gate(), Command(7, action, "there")
    gate.feed(command)
    assert gate.begin() == Begun(command, ends_epoch, resets_cache, runs)
    assert not gate.idle
    with pytest.raises(AssertionError, match="command 8 while command"):
        gate.feed(Command(8, "pause"))
