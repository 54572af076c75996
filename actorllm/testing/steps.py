"""Trio, made to repeat itself: a seed orders the tasks, time is virtual, and every step is counted."""

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import trio
import trio.testing
from trio._core import _run as scheduler

from .scenarios import SECOND

MAX_STEPS = 100_000
"""A run that takes more steps of tasks is stuck in one moment: runs take some thousand."""


class Steps(trio.abc.Instrument):
    """Strikes tasks: calls a function when a task is about to take a certain step.

    What is cancelled then is heard by the task at the checkpoint that ends this step.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._struck: dict[trio.lowlevel.Task, tuple[int, Callable[[], None]]] = {}
        self._stop: Callable[[], None] | None = None

    def strike(self, after: int, blow: Callable[[], None]) -> None:
        """Call `blow` before the step number `after` of this task, counted from the next one."""
        self._struck[trio.lowlevel.current_task()] = (after, blow)

    def bound(self, stop: Callable[[], None]) -> None:
        """Call `stop` when there have been too many steps."""
        self._stop = stop

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Part of trio's interface."""
        self.num_steps += 1
        if self.num_steps == MAX_STEPS and self._stop is not None:
            self._stop()
        if task in self._struck:
            left, blow = self._struck.pop(task)
            if left > 1:
                self._struck[task] = (left - 1, blow)
            else:
                blow()


def run(seed: int, main: Callable[[], Awaitable[None]], steps: Steps) -> None:
    """Run it under trio in virtual time, which goes on when all tasks wait; the seed orders the tasks.

    Ctrl-C is heard by the main task where it waits: anywhere else it could leave a task half begun.
    """
    clock = trio.testing.MockClock(autojump_threshold=0)
    with _ordered_by(Random(seed)):
        trio.run(main, clock=clock, instruments=[steps], restrict_keyboard_interrupt_to_checkpoints=True)


@contextmanager
def _ordered_by(random: Random) -> Iterator[None]:
    """Tasks that could run in any order run in that which this generator draws."""
    names: dict[str, Any] = {"_ALLOW_DETERMINISTIC_SCHEDULING": True, "_r": random}
    before = {name: getattr(scheduler, name) for name in names}
    _set(names)
    try:
        yield
    finally:
        _set(before)


def _set(names: dict[str, Any]) -> None:
    for name, value in names.items():
        setattr(scheduler, name, value)


def tick() -> int:
    """The time, in ticks."""
    return math.floor(trio.current_time() * SECOND)


async def sleep(ticks: int) -> None:
    """Sleep for so many ticks."""
    await trio.sleep(ticks / SECOND)
