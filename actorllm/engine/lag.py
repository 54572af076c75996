"""How late the event loop is: what everyone in it waits for, the actors and the program around them."""

import anyio

from ..cores.histogram import Histogram

PERIOD = 0.1
"""Seconds between two looks."""


class Lag:
    """Looks now and then how late a timer wakes its task, while the engine has something to do.

    An engine that rests wakes for mail alone: then nobody looks.
    """

    def __init__(self, histogram: Histogram) -> None:
        """`histogram` gets the seconds of each look."""
        self.longest = 0.0
        self._histogram = histogram
        self._busy = anyio.Event()
        self._looking: anyio.CancelScope | None = None

    def begin(self) -> None:
        """There is something to do."""
        self._busy.set()

    def rest(self) -> None:
        """There is nothing more to do."""
        self._busy = anyio.Event()
        if self._looking is not None:
            self._looking.cancel()

    async def watch(self) -> None:
        """Look. Never returns."""
        while True:
            await self._busy.wait()
            with anyio.CancelScope() as self._looking:
                while self._busy.is_set():
                    await self._look()
            self._looking = None

    async def _look(self) -> None:
        due = anyio.current_time() + PERIOD
        await anyio.sleep_until(due)
        late = max(0.0, anyio.current_time() - due)
        self.longest = max(late, self.longest)
        self._histogram.observe(late)
