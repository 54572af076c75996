"""Commands in a simulation: who gives them one after the other, and takes no answer for granted."""

from collections import deque
from random import Random

from ..messages import Command, CommandDone
from .scenarios import Scenario

_ORDERS = (
    ("pause", "resume"),
    ("sleep", "wake_up"),
    ("reset_prefix_cache",),
    ("pause", "sleep", "pause", "reset_prefix_cache", "resume", "sleep", "wake_up", "wake_up"),
    ("start_profile",),
)


def draw_orders(random: Random, scenario: Scenario) -> list[str]:
    """The commands of a run, one after the other; at their end the engine runs."""
    orders: list[str] = []
    while len(orders) < scenario.commands:
        orders += random.choice(_ORDERS)
    return orders


def expect_failure(action: str, message: str) -> None:
    """Raise AssertionError unless this command may have failed with this message."""
    fine = action.endswith("profile") or "was made to raise" in message
    assert fine, f"{action} failed: {message}"


class Orders:
    """The commands of a run. One that must not fail is given again until it does not."""

    def __init__(self, actions: list[str]) -> None:
        self._actions = deque(actions)
        self._open: Command | None = None
        self._count = 0

    @property
    def ready(self) -> bool:
        """Whether there is a command to give, and none open."""
        return self._open is None and bool(self._actions)

    def give(self) -> Command:
        """The next command."""
        self._count += 1
        self._open = Command(self._count, self._actions.popleft(), "profile.json")
        return self._open

    def done(self, done: CommandDone) -> None:
        """The open command is done. Raises AssertionError when it is another, or must not have failed."""
        command, self._open = self._open, None
        assert command is not None, f"command {done.id} is done, but none is open"
        assert done.id == command.id, f"command {done.id} is done, but {command.id} is open"
        if done.fault is not None:
            expect_failure(command.action, done.fault.message)
            if command.action == "wake_up":
                self._actions.appendleft(command.action)
