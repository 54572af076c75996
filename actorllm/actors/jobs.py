"""Heavy work on threads: what a core's Job becomes, and how its JobDone comes back."""

import threading
import traceback
import warnings
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import anyio
import anyio.abc
from anyio.lowlevel import current_token

from ..errors import InvalidRequest
from ..messages import Fault, Job, JobDone

Work = Callable[[Any], Any]
"""Does one job's work on a thread: takes `Job.work`, returns `JobDone.value`, or raises."""


Deliver = Callable[[JobDone], None]
"""Puts a job's result into the inbox of the core that asked; runs in the event loop, and never raises."""

ORIGIN_LIMIT = 4000
"""Characters of a traceback that travel with a fault."""


def box(error: BaseException) -> Fault:
    """An exception as a message, with its traceback."""
    param = error.param if isinstance(error, InvalidRequest) else None
    origin = "".join(traceback.format_exception(error))[-ORIGIN_LIMIT:]
    return Fault(type(error).__name__, str(error), param, origin=origin)


def do(work: Work, job: Job) -> JobDone:
    """Run the job here and now; whatever it raises becomes a fault, but for Ctrl-C."""
    try:
        return JobDone(job.id, work(job.work))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library must not take the thread with it
        return JobDone(job.id, fault=box(error))


class PooledJobs:
    """Independent jobs, up to `limit` at once, on anyio's worker threads; a cancelled one is abandoned."""

    def __init__(self, work: Work, nursery: anyio.abc.TaskGroup, deliver: Deliver, limit: int) -> None:
        self._work = work
        self._nursery = nursery
        self._deliver = deliver
        self._limiter = anyio.CapacityLimiter(limit)

    def start(self, job: Job) -> None:
        """Run the job as soon as a thread is free."""
        self._nursery.start_soon(self._run, job)

    async def _run(self, job: Job) -> None:
        done = await anyio.to_thread.run_sync(
            do, self._work, job, limiter=self._limiter, abandon_on_cancel=True
        )
        self._deliver(done)


class DeviceThread:
    """Jobs one after the other on one dedicated thread, which torch wants: its own pools are per thread.

    Use it as a context manager: the thread ends with the block, after the job that it is in.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._post = poster()
        self._closing = False

    def __enter__(self) -> "DeviceThread":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing = True
        self._queue.put(lambda: None)

    async def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the thread's end, even in a cancelled scope.

        Warns with ResourceWarning when its job is still not done: the thread ends after it.
        """
        longest = min(timeout, threading.TIMEOUT_MAX)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join, longest, limiter=anyio.CapacityLimiter(1))
        if self._thread.is_alive():
            text = f"{self._thread.name} is still at work {timeout:g} s after the engine was left"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the thread and return what it returns."""
        done = anyio.Event()
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.extend((True, function()))
            except BaseException as error:  # it goes to the caller, whatever it is
                outcome.extend((False, error))
            self._post(done.set)

        self._queue.put(run)
        await done.wait()
        if not outcome[0]:
            raise outcome[1]
        return outcome[1]

    def start(self, work: Work, job: Job, deliver: Deliver) -> None:
        """Queue the job; its JobDone is delivered from the event loop."""

        def run() -> None:
            done = do(work, job)
            self._post(lambda: deliver(done))

        self._queue.put(run)

    def _loop(self) -> None:
        while not self._closing:
            self._queue.get()()


def poster() -> Callable[[Callable[[], object]], None]:
    """A function that any thread may call: it runs its argument soon in this event loop.

    When the loop has ended, what is posted is dropped.
    """
    loop: Any = current_token().native_token
    post = loop.run_sync_soon if hasattr(loop, "run_sync_soon") else loop.call_soon_threadsafe

    def post_unless_gone(function: Callable[[], object]) -> None:
        try:
            post(function)
        except RuntimeError:  # asyncio's closed loop, and trio's RunFinishedError
            return

    return post_unless_gone
