"""The door: where callers come in, wait for a seat, and find what has come for them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf

import anyio
import anyio.lowlevel

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


@dataclass(slots=True)
class Reply:
    """What becomes of a command."""

    event: anyio.Event = field(default_factory=anyio.Event)
    done: CommandDone | None = None


class Door:
    """Seats are bounded; whoever finds none waits here, and nowhere else in the engine.

    `post` runs a function in the engine's event loop from any thread.
    """

    def __init__(
        self,
        seats: int,
        frontend: Port[Generate | Cancel | Command],
        post: Callable[[Callable[[], object]], None],
    ) -> None:
        self._seats = anyio.Semaphore(seats)
        self._frontend = frontend
        self._post = post
        self._thread = threading.get_ident()
        self._cells: dict[int, Cell] = {}
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
        return self._seats.statistics().tasks_waiting

    def statistics(self) -> dict[str, int]:
        """Callers now; since the start, those whose timeouts passed before they had a seat."""
        return {
            "num_open": self.num_open,
            "num_waiting": self.num_waiting,
            "num_timeouts": self._num_timeouts,
        }

    async def enter(self, question: Question, bell: Bell, since: float) -> Cell:
        """Wait for a seat, then ask; `bell` rings when something has come for the cell.

        The question's timeouts run from `since`. When one has passed here, the cell has ended with `timeout`,
        and the engine never hears of it. Raises EngineClosed, or EngineDied, when there will be no seat.
        """
        with anyio.CancelScope(deadline=since + _patience(question)) as scope:
            await self._pass(self._seats)
        if not scope.cancelled_caught:
            return self._ask(question, bell, since)
        await self._raise_if_closed()
        return self._late(bell)

    def enter_nowait(self, question: Question, bell: Bell, since: float) -> Cell | None:
        """The same without waiting; None when there is no free seat, or no engine any more."""
        if self._closed is not None:
            return None
        if anyio.current_time() >= since + _patience(question):
            return self._late(bell)
        try:
            self._seats.acquire_nowait()
        except anyio.WouldBlock:
            return None
        return self._ask(question, bell, since)

    def _ask(self, question: Question, bell: Bell, since: float) -> Cell:
        cell = self._new_cell(bell)
        try:
            left = _left(question, anyio.current_time() - since)
            self._frontend.send_nowait(Generate(cell.request, left))
        except BaseException:
            self._seats.release()
            raise
        self._cells[cell.request] = cell
        return cell

    def _late(self, bell: Bell) -> Cell:
        self._num_timeouts += 1
        cell = self._new_cell(bell)
        cell.put(Delta(cell.request, "", b"", "timeout"))
        return cell

    def _new_cell(self, bell: Bell) -> Cell:
        self._counter += 1
        return Cell(request_id(0, self._counter), bell)

    async def command(self, action: str, argument: str = "") -> None:
        """Let the engine do something to itself, and wait until it is done; one command at a time.

        Who is cancelled while he waits for his turn has given no command; after that it is carried out all
        the same. Raises UsageError for what makes no sense now, CommandFailed when it went wrong, and
        EngineClosed or EngineDied when there is no engine any more.
        """
        await self._pass(self._commanding)
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
            del self._cells[message.request]
            self._seats.release()

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
        for cell in self._cells.values():
            cell.error = error
            cell.bell.ring()
        for _ in range(self.num_waiting):
            self._seats.release()
        for reply in self._replies.values():
            reply.event.set()
        for _ in range(self._commanding.statistics().tasks_waiting):
            self._commanding.release()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.end(error)

    async def _pass(self, turnstile: anyio.Semaphore) -> None:
        """Wait for one's turn. Raises UsageError in another thread, and what the door was closed with."""
        self._check_thread()
        await self._raise_if_closed()
        await turnstile.acquire()
        if self._closed is not None:
            turnstile.release()
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
