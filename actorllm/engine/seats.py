"""Seats: how many requests may be inside the engine, and who of those outside is let in next."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from ..cores.policy import Fcfs, Policy

RESERVE = 8
"""One in so many seats is kept from groups that hold that many already, where the policy shares seats."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who wants a seat, as a policy sees it: nothing is known of the prompt yet."""

    arrival: int
    priority: int = 0
    tenant: str = ""
    due: float = float("inf")
    num_prompt: int = 0
    num_output: int = 0


@dataclass(slots=True)
class _Waiter:
    event: anyio.Event = field(default_factory=anyio.Event)
    is_seated: bool = False
    is_gone: bool = False


@dataclass(slots=True)
class _Line:
    """Those of one group that wait, as a heap."""

    heap: list[tuple[tuple[float, ...], int, _Waiter]] = field(default_factory=list)
    num_gone: int = 0

    def tidy(self) -> None:
        """Let go of those that have left: the first ones at once, the others when they are most."""
        if self.num_gone > len(self.heap) // 2:
            self.heap = [entry for entry in self.heap if not entry[2].is_gone]
            heapify(self.heap)
            self.num_gone = 0
        while self.heap and self.heap[0][2].is_gone:
            heappop(self.heap)
            self.num_gone -= 1


class Seats:
    """A seat that is free goes to the waiting group that holds the fewest, and there to the first by its key.

    Groups and keys are the policy's, of which nothing else is asked. Where it shares seats, no group can take
    the last eighth from those that hold less: its requests wait outside while others find a free seat.
    """

    def __init__(self, count: int, policy: Policy | None = None) -> None:
        self._policy = policy or Fcfs()
        self.num_free = count
        self._reserve = count // RESERVE if self._policy.shares_seats else 0
        self._held: dict[str, int] = {}
        self._lines: dict[str, _Line] = {}
        self.num_waiting = 0

    def group(self, caller: Caller) -> str:
        """In whose name the caller has a seat."""
        return self._policy.group(caller)

    async def acquire(self, caller: Caller) -> None:
        """Wait for a seat. Who is cancelled has none."""
        await checkpoint_if_cancelled()
        if self.acquire_nowait(caller):
            await self._stay(self.group(caller))
            return
        group, waiter = self.group(caller), _Waiter()
        line = self._lines.setdefault(group, _Line())
        heappush(line.heap, (self._policy.key(caller), caller.arrival, waiter))
        self.num_waiting += 1
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.is_seated:
                self.release(group)
            else:
                self._leave(group, waiter)
            raise

    def acquire_nowait(self, caller: Caller) -> bool:
        """Take a seat, if there is one for this caller; nobody who waits could have it."""
        group = self.group(caller)
        if not self._may_take(group):
            return False
        self._take(group)
        return True

    def release(self, group: str) -> None:
        """Give a seat of the group back; the next one has it at once."""
        self.num_free += 1
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]
        while (found := self._next()) is not None:
            self._seat(found)

    def dismiss(self) -> None:
        """Let all in that wait, however few seats there are: nobody will be served."""
        while self._lines:
            self._seat(next(iter(self._lines)))

    async def _stay(self, group: str) -> None:
        try:
            await cancel_shielded_checkpoint()
        except BaseException:
            self.release(group)
            raise

    def _may_take(self, group: str) -> bool:
        """Whether there is a seat for one of this group."""
        return self.num_free > (self._reserve if self._held.get(group, 0) >= self._reserve else 0)

    def _take(self, group: str) -> None:
        self.num_free -= 1
        self._held[group] = self._held.get(group, 0) + 1

    def _next(self) -> str | None:
        """The group whose first caller is let in now."""
        may = [group for group in self._lines if self._may_take(group)]
        return min(may, key=self._rank, default=None)

    def _rank(self, group: str) -> tuple[int, tuple[float, ...], int]:
        key, arrival, _ = self._lines[group].heap[0]
        return self._held.get(group, 0), key, arrival

    def _seat(self, group: str) -> None:
        line = self._lines[group]
        _, _, waiter = heappop(line.heap)
        self.num_waiting -= 1
        self._tidy(group)
        self._take(group)
        waiter.is_seated = True
        waiter.event.set()

    def _leave(self, group: str, waiter: _Waiter) -> None:
        waiter.is_gone = True
        self._lines[group].num_gone += 1
        self.num_waiting -= 1
        self._tidy(group)

    def _tidy(self, group: str) -> None:
        self._lines[group].tidy()
        if not self._lines[group].heap:
            del self._lines[group]
