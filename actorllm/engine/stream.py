"""Stream: the answer to one request, as it comes or as a whole."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import TracebackType

import anyio
import anyio.lowlevel

from ..errors import ActorLLMError, UsageError, again
from ..messages import Question, TokenPrompt, pack
from ..params import RequestOutputKind
from .cell import Bell, Cell
from .door import Door, unbox
from .outputs import START, CompletionOutput, Gathered, RequestOutput


@dataclass(frozen=True, slots=True)
class Reading:
    """How a stream is read: the kind of its outputs, the tokens that make one, and the bytes of each token id
    where log-probabilities of answers or of prompts are wanted.
    """

    kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    interval: int = 1
    pieces: Sequence[bytes] | None = None
    prompt_pieces: Sequence[bytes] | None = None


PLAIN = Reading()


class Choice:
    """One of the n answers: what was read of it, and the cell of the request that it is."""

    __slots__ = ("_gathered", "_reading", "cell", "is_done")

    def __init__(self, cell: Cell, reading: Reading) -> None:
        self.cell = cell
        self.is_done = False
        self._reading = reading
        self._gathered = Gathered(reading.pieces)

    @property
    def has_news(self) -> bool:
        """Whether there is something to read."""
        if self.is_done:
            return False
        if self._reads_the_end:
            return self.cell.has_news(inf)
        return self.cell.has_news(self._reading.interval if self._gathered.tokens else 1)

    @property
    def has_ended(self) -> bool:
        """Whether no more will come, well or not."""
        return self.cell.finish_reason is not None or self.cell.error is not None

    @property
    def is_over(self) -> bool:
        """Whether its reader waits for nothing of it: all is read, or will be with the others' ends."""
        return self.is_done or (self._reads_the_end and self.has_ended)

    @property
    def _reads_the_end(self) -> bool:
        return self._reading.kind is RequestOutputKind.FINAL_ONLY

    def take(self, index: int) -> CompletionOutput:
        """Make an output of what is in the cell, and empty it."""
        cell, gathered = self.cell, self._gathered
        begin = gathered.end if self._reading.kind is RequestOutputKind.DELTA else START
        parts, cell.parts = cell.parts, []
        tokens, cell.tokens = cell.tokens, []
        logprobs, cell.logprobs = cell.logprobs, []
        gathered.parts += parts
        gathered.tokens += tokens
        gathered.logprobs += logprobs
        self.is_done = cell.finish_reason is not None
        return CompletionOutput(index, gathered, "".join(parts), cell.finish_reason, cell.stop_reason, begin)


class Stream:
    """Iterate it for what is new, `await` it for the whole, or leave it by `async with`.

    It is no async generator: whoever drops it, breaks out of it, or is cancelled in it aborts the
    request in that very moment. The request starts with the first `await`, and so do the timeouts of all its
    answers. Each of n answers is a request of its own; those after the first ask with the tokens that its
    prompt became, and share their KV. When there are fewer seats than answers, the outputs have fewer answers
    at first.
    """

    def __init__(
        self,
        door: Door,
        question: Question,
        n: int = 1,
        reading: Reading = PLAIN,
        others: Question | None = None,
    ) -> None:
        """`others` is what the answers after the first ask; None: the same. They have the first one's prompt,
        seeds of their own, and tell nothing of the prompt.
        """
        self._door = door
        self._how = reading
        self._question = question
        self._others = others or question
        self._n = n
        self._begun = 0.0
        self._bell = Bell()
        self._choices: list[Choice] = []
        self._queue: anyio.CancelScope | None = None
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
        await self._read(self._enter_all, self._has_news)
        if any(choice.cell.error is not None for choice in self._choices):
            await anyio.lowlevel.checkpoint()  # if the reader is cancelled too, that is what it hears
        return self._take()

    async def accepted(self) -> None:
        """Wait until the request has a seat and its prompt is found good; no token need have come.

        Raises what the first output would raise.
        """
        if not self._finished:
            with suppress(StopAsyncIteration):  # it was closed meanwhile: iteration just ends
                await self._read(self._enter, self._is_accepted)
                self._raise_if_failed()

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
            if self._queue is not None:
                self._door.here(self._queue.cancel)
            for choice in self._choices:
                self._door.abandon(choice.cell.request)

    async def _read(self, enter: Callable[[], Awaitable[None]], is_there: Callable[[], bool]) -> None:
        """Come in, and wait until it is there; whoever is cancelled here aborts the request."""
        if self._reading:
            raise UsageError("another task reads this stream; give each task a stream of its own")
        self._reading = True
        try:
            await enter()
            await self._bell.wait(is_there)
        except BaseException:
            self.close()
            raise
        finally:
            self._reading = False

    async def _enter(self) -> None:
        """Ask for the first answer, if that has not been done."""
        if not self._choices:
            self._begun = anyio.current_time()
            await self._ask(self._question)

    async def _enter_all(self) -> None:
        """Ask for all answers: for the others when the first one's prompt is found good.

        While one that has a seat goes on, only free seats are taken: its news need not wait for the others.
        Who reads only the end has no news before, and waits here for the seat of one that ends.
        """
        await self._enter()
        if len(self._choices) < self._n:
            await self._bell.wait(self._is_accepted)
        while len(self._choices) < self._n and not self._finished and not self._has_failed():
            if all(choice.is_over for choice in self._choices):
                await self._ask(self._next_question())
                continue
            cell = self._door.enter_nowait(self._next_question(), self._bell, self._begun)
            if cell is not None:
                self._choices.append(Choice(cell, self._how))
            elif self._how.kind is RequestOutputKind.FINAL_ONLY:
                await self._bell.wait(partial(self._has_ended_more, self._num_ended()))
            else:
                break

    async def _ask(self, question: Question) -> None:
        """Wait for a seat. Ends the iteration when the stream is closed meanwhile."""
        try:
            with anyio.CancelScope() as self._queue:
                cell = await self._door.enter(question, self._bell, self._begun)
                self._choices.append(Choice(cell, self._how))
                if self._finished:
                    self._door.abandon(cell.request)
        finally:
            self._queue = None  # it may be of another event loop, which the door has turned away
        if self._finished:
            raise StopAsyncIteration

    def _next_question(self) -> Question:
        """The question for one more answer: the tokens of the prompt, and the next seed if there is one."""
        tokens = pack(self._choices[0].cell.prompt)
        sampling = replace(self._others.sampling, prompt_logprobs=None)
        question = replace(self._others, prompt=TokenPrompt(tokens), sampling=sampling)
        seed = question.sampling.seed
        if seed is None:
            return question
        return replace(question, sampling=replace(question.sampling, seed=nth_seed(seed, len(self._choices))))

    def _has_news(self) -> bool:
        if self._how.kind is RequestOutputKind.FINAL_ONLY:
            return self._is_over()
        return any(choice.has_news for choice in self._choices)

    def _is_over(self) -> bool:
        """Whether all answers are there, one has failed, or nobody wants them any more."""
        ended = len(self._choices) == self._n and self._num_ended() == self._n
        return ended or self._has_failed() or self._finished

    def _has_failed(self) -> bool:
        return any(_error(choice.cell) is not None for choice in self._choices)

    def _num_ended(self) -> int:
        return sum(choice.has_ended for choice in self._choices)

    def _has_ended_more(self, before: int) -> bool:
        return self._num_ended() > before

    def _is_accepted(self) -> bool:
        first = self._choices[0].cell
        return first.accepted or first.ready

    async def _collect(self) -> RequestOutput:
        last = None
        async for output in self:
            last = output
        if last is None:
            raise UsageError("the stream has been read already, or was closed")
        return last

    def _take(self) -> RequestOutput:
        """An output of all that has come, for every answer."""
        if self._finished:
            raise StopAsyncIteration
        answers = tuple(choice.take(index) for index, choice in enumerate(self._choices))
        self._raise_if_failed()
        are_done = [choice.is_done for choice in self._choices]
        self._finished = len(are_done) == self._n and all(are_done)
        first = self._choices[0].cell
        told = None
        if self._how.prompt_pieces is not None:
            told = Gathered(self._how.prompt_pieces, logprobs=first.prompt_logprobs)
        return RequestOutput(
            f"req-{first.request}", first.prompt, answers, self._finished, told, first.num_cached
        )

    def _raise_if_failed(self) -> None:
        """When one answer fails, all do: the others are aborted."""
        for choice in self._choices:
            error = _error(choice.cell)
            if error is not None:
                self.close()
                raise error


def nth_seed(seed: int, index: int) -> int:
    """The seed of answer `index`, where the first one has this seed: they count up, and wrap in int64."""
    return (seed + index + 2**63) % 2**64 - 2**63


def _error(cell: Cell) -> ActorLLMError | None:
    if cell.fault is not None:
        return unbox(cell.fault)
    if cell.error is not None and cell.finish_reason is None:
        return again(cell.error)
    return None
