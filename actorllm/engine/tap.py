"""Taps: actors of your own that listen to the ring, and that it never waits for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from ..cores import Core
from ..errors import ConfigError
from ..wire.mailbox import Port
from .topology import EDGES


def discard(message: Any) -> None:
    """Where the words of an actor go that nobody listens to."""


@dataclass(frozen=True, slots=True)
class Tap:
    """An actor of your own: it hears a copy of every message of these kinds that is put into an inbox.

    core      what it knows; its `feed` gets the copies
    hears     classes of messages; one that goes through several inboxes (RunStep) is heard at each
    capacity  of its inbox; what finds it full is lost, and counted, for the ring waits for nobody
    says      takes what the core says

    When its core or `says` raises, it hears no more and its statistics tell why; the ring goes on.
    """

    core: Core[Any, Any]
    hears: tuple[type[Any], ...]
    capacity: int = 1024
    says: Callable[[Any], None] = discard

    def __post_init__(self) -> None:
        """Raise ConfigError for a kind that is never put into an inbox."""
        carried = {kind for edge in EDGES if edge.target != "caller" for kind in edge.messages}
        for kind in self.hears:
            if kind not in carried:
                raise ConfigError(f"a tap cannot hear {kind.__name__}: no actor gets it")


class LossyPort:
    """The port of a tap: a full inbox costs the tap a message, and nobody else anything."""

    def __init__(self, tap: Tap, port: Port[Any]) -> None:
        self.hears = tap.hears
        self.num_lost = 0
        self.died: str | None = None
        self._port = port

    def send_nowait(self, item: Any) -> None:
        """Put a copy into the tap's inbox, or count it as lost."""
        try:
            self._port.send_nowait(item)
        except anyio.WouldBlock:
            self.num_lost += 1


class TappedPort:
    """A port that taps hear."""

    def __init__(self, port: Port[Any], taps: Sequence[LossyPort]) -> None:
        self._port = port
        self._taps = taps

    def send_nowait(self, item: Any) -> None:
        """Send it, then give copies to those that hear this kind."""
        self._port.send_nowait(item)
        for tap in self._taps:
            if isinstance(item, tap.hears):
                tap.send_nowait(item)
