"""Stream: the answer to one request, as it comes or as a whole."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType

import anyio.lowlevel

from ..errors import ActorLLMError, UsageError
from ..messages import Question
from .door import Cell, Door, again, unbox
from .outputs import CompletionOutput, RequestOutput


class Stream:
    """Iterate it for what is new, `await` it for the whole, or leave it by `async with`.

    It is no async generator: whoever drops it, breaks out of it, or is cancelled in it aborts the
    request in that very moment. The request starts with the first `await`.
    """

    def __init__(self, door: Door, question: Question) -> None:
        self._door = door
        self._question = question
        self._cell: Cell | None = None
        self._parts: list[str] = []
        self._tokens: list[int] = []
        self._finished = False
        self._reading = False

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> RequestOutput:
        """The next output: all that has come since the last one, merged.

        Raises InvalidRequest for what cannot be asked, RequestFailed when the engine could not finish,
        EngineClosed or EngineDied when there is no engine any more.
        """
        if self._finished:
            raise StopAsyncIteration
        cell = await self._entered(Cell.wait)
        if cell.error is not None:
            await anyio.lowlevel.checkpoint()  # if the reader is cancelled too, that is what it hears
        return self._take(cell)

    async def accepted(self) -> None:
        """Wait until the request has a seat and its prompt is found good; no token need have come.

        Raises what the first output would raise.
        """
        if not self._finished:
            cell = await self._entered(Cell.wait_accepted)
            error = _error(cell)
            if error is not None:
                self._finished = True
                raise error

    def __await__(self) -> Generator[object, object, RequestOutput]:
        """The whole answer, when it has ended."""
        return self._collect().__await__()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Abort the request, unless it has ended. Further iteration just ends."""
        if not self._finished:
            self._finished = True
            if self._cell is not None:
                self._door.abandon(self._cell.request)

    async def _entered(self, wait: Callable[[Cell], Awaitable[None]]) -> Cell:
        """The cell, once there is a seat and `wait` is over; whoever is cancelled here aborts the request."""
        if self._reading:
            raise UsageError("another task reads this stream; give each task a stream of its own")
        self._reading = True
        try:
            if self._cell is None:
                self._cell = await self._door.enter(self._question)
            if self._finished:  # it was closed while it waited for a seat
                self._door.abandon(self._cell.request)
                raise StopAsyncIteration
            await wait(self._cell)
        except BaseException:
            self.close()
            raise
        finally:
            self._reading = False
        return self._cell

    async def _collect(self) -> RequestOutput:
        last = None
        async for output in self:
            last = output
        if last is None:
            raise UsageError("the stream has been read already, or was closed")
        return last

    def _take(self, cell: Cell) -> RequestOutput:
        """Make an output of what is in the cell, and empty it."""
        if self._finished:
            raise StopAsyncIteration
        parts, cell.parts = cell.parts, []
        tokens, cell.tokens = cell.tokens, []
        self._parts += parts
        self._tokens += tokens
        self._finished = cell.finish_reason is not None or cell.error is not None
        error = _error(cell)
        if error is not None:
            raise error
        answer = CompletionOutput(
            0, self._parts, self._tokens, "".join(parts), cell.finish_reason, cell.stop_reason
        )
        return RequestOutput(f"req-{cell.request}", cell.prompt, (answer,), self._finished)


def _error(cell: Cell) -> ActorLLMError | None:
    if cell.fault is not None:
        return unbox(cell.fault)
    if cell.error is not None and cell.finish_reason is None:
        return again(cell.error)
    return None
