"""What the commands share: the engine on a thread of its own, answers as they come, a progress bar."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType

from anyio.from_thread import BlockingPortal, start_blocking_portal
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from ..config import EngineConfig
from ..engine.engine import Engine
from ..engine.outputs import RequestOutput
from ..engine.stream import Stream


class DownloadBar:
    """A progress bar on stderr that appears with the first news of a download. Any thread may bring them."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> "DownloadBar":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are there."""
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)
        self._bar.update(self._task, description=what, completed=done, total=total)


@dataclass(slots=True)
class Tally:
    """How fast an answer came. Times are seconds since the question."""

    begun: float = field(default_factory=perf_counter)
    output: RequestOutput | None = None
    num_first: int = 0
    num_tokens: int = 0
    first: float = 0.0
    last: float = 0.0

    def add(self, output: RequestOutput) -> None:
        """Count an output."""
        self.output = output
        self.num_tokens = output.outputs[0].num_tokens
        self.last = perf_counter() - self.begun
        if not self.num_first:
            self.num_first, self.first = self.num_tokens, self.last

    @property
    def text(self) -> str:
        """What has come."""
        return "" if self.output is None else self.output.text

    @property
    def rate(self) -> float:
        """Tokens per second after the first; of an answer that came at once, over all of its time."""
        after = self.num_tokens - self.num_first
        count, seconds = (after, self.last - self.first) if after else (self.num_tokens, self.last)
        return count / seconds if seconds else 0.0

    def __str__(self) -> str:
        return f"{self.num_tokens} tokens, the first after {self.first:.2f} s, {self.rate:.1f} tokens/s"


class Session:
    """An engine whose event loop is another thread's: Ctrl-C interrupts the reader, never the loop."""

    def __init__(self, portal: BlockingPortal, engine: Engine, console: Console) -> None:
        self.engine = engine
        self.console = console
        self._portal = portal

    def show(self, stream: Stream, tally: Tally) -> None:
        """Write an answer as it comes. A KeyboardInterrupt aborts the request."""
        done: SimpleQueue[Future[RequestOutput | None] | None] = SimpleQueue()
        try:
            with _interrupts(lambda: done.put(None)):
                while (output := self._next(stream, done)) is not None:
                    self.console.out(output.delta, end="", highlight=False)
                    tally.add(output)
        finally:
            stream.close()
            self.console.out("")

    def _next(
        self, stream: Stream, done: "SimpleQueue[Future[RequestOutput | None] | None]"
    ) -> RequestOutput | None:
        future = self._portal.start_task_soon(_next, stream)
        future.add_done_callback(done.put)
        if done.get() is None:
            future.cancel()
            raise KeyboardInterrupt
        return future.result()


@contextmanager
def _interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `tell` instead of raising wherever the main thread is: a lock would be left half taken."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: tell())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def open_session(config: EngineConfig) -> Iterator[Session]:
    """An engine, loaded (and fetched) with a progress bar."""
    with start_blocking_portal("asyncio", name="actorllm") as portal, ExitStack() as stack:
        with DownloadBar() as bar:
            opening = portal.wrap_async_context_manager(Engine(config, progress=bar))
            engine = stack.enter_context(opening)
        yield Session(portal, engine, Console())


async def _next(stream: Stream) -> RequestOutput | None:
    return await anext(stream, None)
