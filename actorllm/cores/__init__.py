"""What each actor knows: classes without `async`, clock or randomness. Feed them, then poll them."""

from typing import Any, Protocol, TypeVar

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)

NEVER = float("inf")
"""The deadline of a core that waits for mail alone."""


class Core(Protocol[In, Out]):
    """The knowledge of one actor."""

    def feed(self, message: In, /) -> None:
        """Absorb a message. Never sends, never waits."""

    def poll(self, now: float, /) -> tuple[Out, ...]:
        """Decide: what to send, in order. `now` is in seconds of a monotonic clock."""

    @property
    def deadline(self) -> float:
        """When to poll again even without mail; `NEVER` for not at all."""

    @property
    def idle(self) -> bool:
        """Whether nothing is held, waited for or owed."""

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""

    def statistics(self) -> Any:
        """A frozen dataclass of counters and gauges."""
