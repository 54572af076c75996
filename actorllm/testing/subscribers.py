"""Subscribers to the news of the prefix cache: prompt and slow, some who leave, some who come too late."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import trio

from ..engine.door import Door
from ..engine.events import CacheNews
from ..errors import EngineDied
from ..messages import CacheEvents
from .scenarios import SECOND
from .steps import sleep, tick
from .tables import Mirror

ALL = 100_000
"""Room for all the news of a run."""

HEARD_ALL = "subscriber heard all"
LOST = "subscriber lost news"
LEFT = "subscriber left"
TOO_LATE = "subscribed too late"
SUBSCRIBING = (HEARD_ALL, LOST, LEFT, TOO_LATE)
"""What becomes of subscribers."""


@dataclass(slots=True)
class Chronicle:
    """What whoever subscribes must hear: all that the KVPool says before the door is closed."""

    door: Door | None = None
    said: list[CacheEvents] = field(default_factory=list)
    num_cached_blocks: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the door is."""
        return self.door is None or self.door.closed is None

    def say(self, news: CacheEvents) -> None:
        """The pool says this."""
        if self.is_open:
            self.said.append(news)

    def turned(self, num_cached_blocks: int) -> None:
        """The pool's turn is over; so many of its blocks can be found."""
        if self.is_open:
            self.num_cached_blocks = num_cached_blocks


@dataclass(frozen=True, slots=True)
class Booking:
    """What a subscriber will do.

    comes_at  a tick; None: some time after the door has been closed
    capacity  news that may wait
    nap       ticks that it sleeps after each at most
    leaves    ticks after which it leaves; None: it stays
    enough    news after which it breaks out; None: it never has enough
    """

    comes_at: int | None = 0
    capacity: int = ALL
    nap: int = 0
    leaves: int | None = None
    enough: int | None = None


def draw_bookings(random: Random, last: int) -> list[Booking]:
    """The subscribers of a run; most come before the tick `last`. There may be none."""
    mirrors = [Booking()] * random.choice((0, 1, 1))
    return mirrors + [_draw_booking(random, last) for _ in range(random.choice((0, 1, 3)))]


def _draw_booking(random: Random, last: int) -> Booking:
    return Booking(
        comes_at=None if random.random() < 0.2 else random.randint(0, last),
        capacity=random.choice((1, 2, 5, ALL)),
        nap=random.choice((0, 5, 60)),
        leaves=random.randint(0, random.choice((5, 60, 400))) if random.random() < 0.3 else None,
        enough=random.randint(1, random.choice((2, 30))) if random.random() < 0.3 else None,
    )


class Subscriber:
    """One of them. It raises AssertionError when it is told what it should not be, or not what it should."""

    def __init__(
        self, booking: Booking, random: Random, chronicle: Chronicle, see: Callable[[str], None]
    ) -> None:
        self._booking = booking
        self._random = random
        self._chronicle = chronicle
        self._see = see
        self.is_here = True
        self._mirror: Mirror | None = None
        self._next = 0

    async def visit(self, door: Door, block_size: int) -> None:
        """Come, subscribe, hear the news and leave, as booked."""
        booking = self._booking
        if booking.comes_at is None:
            await door.wait_closed()
            await sleep(self._random.randint(0, 3))
        elif booking.comes_at > 0:
            await sleep(booking.comes_at)
        patience = float("inf") if booking.leaves is None else booking.leaves / SECOND
        with trio.move_on_after(patience) as scope, suppress(EngineDied):  # its crash is told by others
            await self._listen(door, block_size)
        self.is_here = False
        if scope.cancelled_caught:
            self._see(LEFT)

    async def _listen(self, door: Door, block_size: int) -> None:
        came_at, came_too_late = tick(), door.closed is not None
        self._next = len(self._chronicle.said)
        if self._next == 0:
            self._mirror = Mirror(block_size)
        with door.subscribe(self._booking.capacity) as subscription:
            count = 0
            async for news in subscription:
                assert not came_too_late, f"news {news.sequence} after the end"
                self._hear(news)
                count += 1
                if count == self._booking.enough:
                    self._see(LEFT)
                    return
                await sleep(self._random.randint(0, self._booking.nap))
        assert door.closed is not None, "a subscription has ended before the engine"
        if came_too_late:
            assert tick() == came_at, "a subscription after the end has waited for news"
            self._see(TOO_LATE)
        else:
            self._judge()

    def _hear(self, news: CacheNews) -> None:
        first = news.sequence - news.num_lost
        assert first == self._next, f"{news.num_lost} news are lost before {news.sequence}, not from {first}"
        assert news.num_lost == 0 or self._booking.capacity < ALL, "news are lost although there was room"
        if news.events:
            said = self._chronicle.said[news.sequence].events
            assert news.events == said, f"news {news.sequence} is another"
        else:
            assert news.num_lost > 0, "news of nothing"
            assert news.sequence == len(self._chronicle.said), "a last loss that is not the last"
        self._next = news.sequence + 1
        if news.num_lost > 0:
            self._see(LOST)
            self._mirror = None
        if self._mirror is not None:
            self._mirror.hear(CacheEvents(news.sequence, news.events))

    def _judge(self) -> None:
        """It has been there to the end: it has heard of all, if only of their loss."""
        num_said = len(self._chronicle.said)
        assert self._next >= num_said, f"{num_said} news, but none after number {self._next}"
        if self._mirror is not None:
            known, cached = len(self._mirror.contents), self._chronicle.num_cached_blocks
            assert known == cached, f"{cached} blocks can be found, a subscriber knows {known}"
            if known > 0:
                self._see(HEARD_ALL)
