"""In what order requests are served: each policy is a small pure class."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol


class Rankable(Protocol):
    """What a policy may look at."""

    @property
    def arrival(self) -> int:
        """How many requests came before this one."""

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt; 0 at the door, where nothing is known of it yet."""

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""

    @property
    def priority(self) -> int:
        """The caller's; a lower one is served sooner."""

    @property
    def tenant(self) -> str:
        """On whose behalf it runs."""

    @property
    def due(self) -> float:
        """When it is to be finished (seconds of the Scheduler's clock; inf: whenever)."""


class Policy(ABC):
    """The order of requests. Running ones and waiting ones are each served by (level, key), ascending; those
    outside come in by key, group by group (`engine/seats.py`, which asks for nothing but group and key).

    Requests of one group stand in a queue of their own, by `key`; between groups the lowest `level` goes
    first. Most policies have one group and only a key.
    """

    shares_seats = False
    """Whether a group without a running request may take a seat from a group that has several."""

    is_static = False
    """Whether there are no levels, so that the order never changes; then each token served is not told."""

    @abstractmethod
    def key(self, request: Rankable, /) -> tuple[float, ...]:
        """A smaller key is served first; the largest among the running is preempted first.

        Among equals the one that came first is. The key must not change while the request waits.
        """

    def group(self, request: Rankable, /) -> str:
        """The queue that the request stands in."""
        return ""

    def level(self, group: str, /) -> float:
        """How much the group has had."""
        return 0.0

    def cost(self, request: Rankable, num_tokens: int, /) -> float:
        """What so many tokens add to the level of the request's group."""
        return 0.0

    def arrive(self, request: Rankable, /) -> None:
        """A request has come."""

    def serve(self, request: Rankable, num_tokens: int, /) -> None:
        """The request has had so many tokens."""

    def leave(self, request: Rankable, /) -> None:
        """A request has ended."""


class Fcfs(Policy):
    """First come, first served."""

    is_static = True

    def key(self, request: Rankable) -> tuple[float, ...]:
        """All are equal."""
        return ()


class Priority(Policy):
    """Lower priorities first, then the order of arrival; the highest value is preempted first."""

    is_static = True

    def key(self, request: Rankable) -> tuple[float, ...]:
        """The caller's priority."""
        return (request.priority,)


class Deadline(Policy):
    """Earliest deadline first, then the order of arrival; requests without a timeout come last."""

    is_static = True

    def key(self, request: Rankable) -> tuple[float, ...]:
        """The time when it is due."""
        return (request.due,)


class Fair(Policy):
    """Between tenants by the tokens they have had, in proportion to their weights; within one, by arrival.

    A counter for each tenant, lifted to the lowest of the active ones when it comes back after a rest, as in
    the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
    A tenant with nothing running takes a seat from the tenant that has had most and holds several. So,
    however many requests another tenant has queued, a tenant's first request runs as soon as the prompts
    that have begun are computed, if its own then fits the free blocks. Those that decode take a token of a
    step each, so that at least max_num_batched_tokens - max_num_seqs are left to prompts. If that is
    positive, the request runs after at most ceil(remaining tokens of the prompts that have begun / that) +
    2 * steps_in_flight + 1 steps; if it is not, those that decode may fill every step, and nothing is
    promised. With a long_prefill_token_threshold it may run sooner: what a prompt must not take of a step
    is left to others.
    """

    shares_seats = True

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: a tenant with weight 2 gets twice as many tokens; 1 for those not named."""
        self._weights = dict(weights or {})
        self._levels: dict[str, float] = {}
        self._open: dict[str, int] = {}

    def key(self, request: Rankable) -> tuple[float, ...]:
        """All are equal."""
        return ()

    def group(self, request: Rankable) -> str:
        """The tenant."""
        return request.tenant

    def level(self, group: str) -> float:
        """Tokens by weight that the tenant has had."""
        return self._levels.get(group, 0.0)

    def cost(self, request: Rankable, num_tokens: int) -> float:
        """Tokens by the tenant's weight."""
        return num_tokens / self._weights.get(request.tenant, 1.0)

    def arrive(self, request: Rankable) -> None:
        """A tenant that had nothing open does not keep what it has not used."""
        tenant = request.tenant
        if tenant not in self._open:
            self._levels[tenant] = max(self.level(tenant), self._lowest())
        self._open[tenant] = self._open.get(tenant, 0) + 1

    def serve(self, request: Rankable, num_tokens: int) -> None:
        """Charge the tenant."""
        self._levels[request.tenant] = self.level(request.tenant) + self.cost(request, num_tokens)

    def leave(self, request: Rankable) -> None:
        """Forget the tenants that have nothing open and have had no more than those that have."""
        self._open[request.tenant] -= 1
        if not self._open[request.tenant]:
            del self._open[request.tenant]
            lowest = self._lowest() if self._open else float("inf")
            self._levels = {
                tenant: level
                for tenant, level in self._levels.items()
                if tenant in self._open or level > lowest
            }

    def _lowest(self) -> float:
        return min((self._levels[tenant] for tenant in self._open), default=0.0)


POLICIES: dict[str, type[Policy]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "fair": Fair,
    "deadline": Deadline,
}
