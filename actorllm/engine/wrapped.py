"""A core within a core, as a place to listen from."""

from typing import Any

from ..cores import Core


class Wrapped:
    """Is what its core is. Who listens overrides `feed` and `poll`."""

    def __init__(self, actor: str, core: Core[Any, Any]) -> None:
        self.actor = actor
        self.core = core

    def feed(self, message: Any) -> None:
        """Feed the core."""
        self.core.feed(message)

    def poll(self, now: float) -> tuple[Any, ...]:
        """Poll the core."""
        said: tuple[Any, ...] = self.core.poll(now)
        return said

    @property
    def deadline(self) -> float:
        """The core's."""
        return self.core.deadline

    @property
    def idle(self) -> bool:
        """The core's."""
        return self.core.idle

    def check(self) -> None:
        """Check the core."""
        self.core.check()

    def statistics(self) -> Any:
        """The core's."""
        return self.core.statistics()
