"""In what order requests are served: each policy is a small pure class."""

from typing import Protocol


class Rankable(Protocol):
    """What a policy may look at."""

    @property
    def arrival(self) -> int:
        """How many requests came before this one."""

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""


class Policy(Protocol):
    """The order of requests: running ones and waiting ones are each served by ascending key."""

    def key(self, request: Rankable, /) -> tuple[float, ...]:
        """A smaller key is served first; the largest key among the running is preempted first.

        The key must not change while the request waits, and no two requests may have the same.
        """


class Fcfs:
    """First come, first served."""

    def key(self, request: Rankable) -> tuple[float, ...]:
        """The order of arrival."""
        return (request.arrival,)


POLICIES: dict[str, type[Policy]] = {"fcfs": Fcfs}
