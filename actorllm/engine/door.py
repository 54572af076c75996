"""The door: where callers come in, wait for a seat, and find what has come for them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from weakref import WeakSet

import anyio
import anyio.lowlevel

from ..cores.policy import Policy
from ..errors import (
    ActorLLMError,
    CommandFailed,
    EngineClosed,
    RequestError,
    UsageError,
    again,
    rebuild,
)
from ..messages import (
    CacheEvents,
    Cancel,
    Command,
    CommandDone,
    Delta,
    Fault,
    Generate,
    Question,
    ToCaller,
    request_id,
)
from ..wire.mailbox import Port
from .cell import Bell, Cell
from .events import Subscription
from .meter import Meter
from .seats import Caller, Seats


@dataclass(slots=True)
class Reply:
    """What becomes of a command."""

    event: anyio.Event = field(default_factory=anyio.Event)
    done: CommandDone | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What has come for callers and was not read yet: in how many cells, and how much."""

    cells: int
    tokens: int
    characters: int


class Door:
    """Seats are bounded; whoever finds none waits here, and nowhere else in the engine.

    The policy says who of those that wait is let in first (see `Seats`). `post` runs a function in the
    engine's event loop from any thread.
    """

    def __init__(
        self,
        seats: int,
        frontend: Port[Generate | Cancel | Command],
        post: Callable[[Callable[[], object]], None],
        policy: Policy | None = None,
    ) -> None:
        self.meter = Meter()
        self._seats = Seats(seats, policy)
        self._arrivals = 0
        self._frontend = frontend
        self._post = post
        self._thread = threading.get_ident()
        self._cells: dict[int, Cell] = {}
        self._living: WeakSet[Cell] = WeakSet()
        self._replies: dict[int, Reply] = {}
        self._commanding = anyio.Semaphore(1)
        self._subscriptions: list[Subscription] = []
        self._counter = 0
        self._num_timeouts = 0
        self._closed: ActorLLMError | None = None
        self._is_closed = anyio.Event()

    @property
    def closed(self) -> ActorLLMError | None:
        """Why nobody comes in any more; None while the door is open."""
        return self._closed

    async def wait_closed(self) -> None:
        """Wait until nobody comes in any more."""
        await self._is_closed.wait()

    @property
    def num_open(self) -> int:
        """Requests that have a seat."""
        return len(self._cells)

    @property
    def num_waiting(self) -> int:
        """Callers that wait for a seat."""
        return self._seats.num_waiting

    def statistics(self) -> dict[str, int]:
        """Callers now; since the start, those whose timeouts passed before they had a seat."""
        return {
            "num_open": self.num_open,
            "num_waiting": self.num_waiting,
            "num_timeouts": self._num_timeouts,
        }

    @property
    def backlog(self) -> Backlog:
        """All that could be read now, for as long as somebody holds it."""
        unread = [cell for cell in self._living if cell.parts or cell.tokens]
        tokens = sum(len(cell.tokens) for cell in unread)
        return Backlog(len(unread), tokens, sum(len(part) for cell in unread for part in cell.parts))

    async def enter(self, question: Question, bell: Bell, since: float) -> Cell:
        """Wait for a seat, then ask; `bell` rings when something has come for the cell.

        The question's timeouts run from `since`. When one has passed here, the cell has ended with `timeout`,
        and the engine never hears of it. Raises EngineClosed, or EngineDied, when there will be no seat.
        """
        caller = self._caller(question, since)
        with anyio.CancelScope(deadline=since + _patience(question)) as scope:
            await self._take_seat(caller)
        if not scope.cancelled_caught:
            return self._ask(question, bell, since, self._seats.group(caller))
        await self._raise_if_closed()
        return self._late(bell, since)

    def enter_nowait(self, question: Question, bell: Bell, since: float) -> Cell | None:
        """The same without waiting; None when there is no free seat, or no engine any more."""
        if self._closed is not None:
            return None
        if anyio.current_time() >= since + _patience(question):
            return self._late(bell, since)
        caller = self._caller(question, since)
        if not self._seats.acquire_nowait(caller):
            return None
        return self._ask(question, bell, since, self._seats.group(caller))

    def _caller(self, question: Question, since: float) -> Caller:
        terms = question.terms
        due = inf if terms.timeout is None else since + terms.timeout
        self._arrivals += 1
        return Caller(self._arrivals, terms.priority, terms.tenant, due)

    async def _take_seat(self, caller: Caller) -> None:
        """Wait for one. Raises UsageError in another thread, and what the door was closed with."""
        self._check_thread()
        await self._raise_if_closed()
        await self._seats.acquire(caller)
        if self._closed is not None:
            self._seats.release(self._seats.group(caller))
        await self._raise_if_closed()

    def _ask(self, question: Question, bell: Bell, since: float, group: str) -> Cell:
        cell = self._new_cell(bell, group)
        try:
            left = _left(question, anyio.current_time() - since)
            self._frontend.send_nowait(Generate(cell.request, left))
        except BaseException:
            self._seats.release(group)
            raise
        self._cells[cell.request] = cell
        self.meter.enter(cell.request, since)
        return cell

    def _late(self, bell: Bell, since: float) -> Cell:
        self._num_timeouts += 1
        self.meter.time_out(anyio.current_time() - since)
        cell = self._new_cell(bell)
        cell.put(Delta(cell.request, "", b"", "timeout"))
        return cell

    def _new_cell(self, bell: Bell, group: str = "") -> Cell:
        self._counter += 1
        cell = Cell(request_id(0, self._counter), bell, group)
        self._living.add(cell)
        return cell

    async def command(self, action: str, argument: str = "") -> None:
        """Let the engine do something to itself, and wait until it is done; one command at a time.

        Who is cancelled while he waits for his turn has given no command; after that it is carried out all
        the same. Raises UsageError for what makes no sense now, CommandFailed when it went wrong, and
        EngineClosed or EngineDied when there is no engine any more.
        """
        await self._take_turn()
        self._counter += 1
        reply = Reply()
        try:
            self._frontend.send_nowait(Command(self._counter, action, argument))
        except BaseException:
            self._commanding.release()
            raise
        self._replies[self._counter] = reply
        await reply.event.wait()
        if reply.done is None:
            await self._raise_if_closed()
        elif reply.done.fault is not None:
            error = unbox(reply.done.fault)
            if isinstance(error, RequestError):  # of another kind than any of ours
                raise CommandFailed(f"{action}: {error}") from error
            raise error

    @contextmanager
    def subscribe(self, capacity: int) -> Iterator[Subscription]:
        """Hear what becomes of the prefix cache. Raises UsageError in another thread than the engine's."""
        self._check_thread()
        subscription = Subscription(capacity)
        if self._closed is not None:
            subscription.end(self._closed)
        else:
            self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            subscription.close()

    def deliver(self, message: ToCaller) -> None:
        """The actors' way to the callers."""
        if isinstance(message, CacheEvents):
            for subscription in self._subscriptions:
                subscription.offer(message)
        elif isinstance(message, CommandDone):
            reply = self._replies.pop(message.id)
            reply.done = message
            reply.event.set()
            self._commanding.release()
        elif self._cells[message.request].put(message):
            self._seats.release(self._cells.pop(message.request).group)

    def abandon(self, request: int) -> None:
        """Nobody reads this request any more. May be called from any thread, as a finaliser does."""
        self.here(lambda: self._abandon(request))

    def _abandon(self, request: int) -> None:
        if request in self._cells and self._closed is None:
            self._frontend.send_nowait(Cancel(request))

    def here(self, function: Callable[[], object]) -> None:
        """Run it in the engine's thread: at once, or soon if this is another one."""
        if threading.get_ident() == self._thread:
            function()
        else:
            self._post(function)

    def close(self, error: ActorLLMError) -> None:
        """Let nobody in any more, and give `error` to everyone inside and in the queue."""
        if self._closed is not None:
            return
        self._closed = error
        self._is_closed.set()
        self.meter.lag.rest()
        for cell in self._cells.values():
            cell.error = error
            cell.bell.ring()
        self._seats.dismiss()
        for reply in self._replies.values():
            reply.event.set()
        for _ in range(self._commanding.statistics().tasks_waiting):
            self._commanding.release()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.end(error)

    async def _take_turn(self) -> None:
        """Wait until no command is open. Raises as `_take_seat` does."""
        self._check_thread()
        await self._raise_if_closed()
        await self._commanding.acquire()
        if self._closed is not None:
            self._commanding.release()
        await self._raise_if_closed()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise UsageError("an engine can only be asked in the event loop in which it was opened")

    async def _raise_if_closed(self) -> None:
        if self._closed is not None:
            await anyio.lowlevel.checkpoint()  # if the caller is cancelled too, that is what it hears
            raise again(self._closed)


def _patience(question: Question) -> float:
    """Seconds after which one that has not run has missed a timeout; inf without any."""
    terms = question.terms
    times = (terms.queue_timeout, terms.ttft_timeout, terms.timeout)
    return min((seconds for seconds in times if seconds is not None), default=inf)


def _left(question: Question, waited: float) -> Question:
    """The question when so many seconds of its timeouts have passed."""
    if _patience(question) == inf:
        return question

    def left(seconds: float | None) -> float | None:
        return None if seconds is None else max(0.0, seconds - waited)

    terms = question.terms
    terms = replace(
        terms,
        queue_timeout=left(terms.queue_timeout),
        ttft_timeout=left(terms.ttft_timeout),
        timeout=left(terms.timeout),
    )
    return replace(question, terms=terms)


def unbox(fault: Fault) -> ActorLLMError:
    """The error that a fault was, with the traceback from where it was raised as a note."""
    error = rebuild(fault.kind, fault.message, fault.param, fault.retry_after)
    if fault.origin:
        error.add_note(fault.origin)
    return error


def not_open() -> EngineClosed:
    """What is raised by an engine that was not entered."""
    return EngineClosed("the engine is not open: use it inside `async with Engine(...) as engine:`")
