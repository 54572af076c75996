"""Cache events for subscribers: what they do not read in time they lose, and are told how much."""

from contextlib import suppress
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ..errors import ActorLLMError, EngineDied, again
from ..messages import BlocksRemoved, BlocksStored, CacheCleared, CacheEvents

CacheEvent = BlocksStored | BlocksRemoved | CacheCleared


@dataclass(frozen=True, slots=True)
class CacheNews:
    """Events of the prefix cache, in their order.

    sequence  counts the news of the engine, from 0
    num_lost  how many news before this one came while the subscriber's buffer was full
    events    blocks stored, blocks removed, cache cleared; empty when the engine has ended, and all that is
              left to tell is num_lost
    """

    sequence: int
    num_lost: int
    events: tuple[CacheEvent, ...]


class Subscription:
    """Iterate it for news. It ends with the engine or its block; up to `capacity` news wait in it."""

    def __init__(self, capacity: int) -> None:
        self._port: MemoryObjectSendStream[CacheEvents]
        self._inbox: MemoryObjectReceiveStream[CacheEvents]
        self._port, self._inbox = anyio.create_memory_object_stream[CacheEvents](capacity)
        self._next = self._offered = 0
        self._error: ActorLLMError | None = None

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> CacheNews:
        """The next news. Raises EngineDied when the engine has died."""
        try:
            news = await self._inbox.receive()
        except anyio.ClosedResourceError:
            raise StopAsyncIteration from None
        except anyio.EndOfStream:
            if self._error is not None and self._offered > self._next:
                news = CacheEvents(self._offered, ())
            elif isinstance(self._error, EngineDied):
                raise again(self._error) from None
            else:
                raise StopAsyncIteration from None
        lost = news.sequence - self._next
        self._next = news.sequence + 1
        return CacheNews(news.sequence, lost, news.events)

    def offer(self, news: CacheEvents) -> None:
        """Put news into the buffer; they are lost if it is full, and the next ones tell."""
        if self._offered == 0:
            self._next = news.sequence
        self._offered = news.sequence + 1
        with suppress(anyio.WouldBlock):
            self._port.send_nowait(news)

    def end(self, error: ActorLLMError) -> None:
        """There will be no more news, since the engine has ended with this."""
        self._error = error
        self._port.close()

    def close(self) -> None:
        """Nobody reads it any more."""
        self._port.close()
        self._inbox.close()
