"""How late an event loop hears: what a client's bytes wait for before anybody looks at them."""

import socket
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import anyio

PERIOD_SECONDS = 0.005


@asynccontextmanager
async def watch_lag() -> AsyncIterator[list[float]]:
    """Seconds between a byte at a socket and the task that reads it, one every few milliseconds.

    A thread sends the bytes; the list grows until the block ends.
    """
    lags: list[float] = []
    sent: deque[float] = deque()
    here, there = socket.socketpair()
    over = threading.Event()

    def knock() -> None:
        while not over.wait(PERIOD_SECONDS):
            sent.append(perf_counter())
            there.send(b"\0")

    async def listen() -> None:
        while True:
            await anyio.wait_readable(here)
            for _ in here.recv(4096):
                lags.append(perf_counter() - sent.popleft())

    knocking = threading.Thread(target=knock, name="actorllm-lag", daemon=True)
    with here, there:
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(listen)
            knocking.start()
            try:
                yield lags
            finally:
                over.set()
                knocking.join()  # it waits for nothing else
                nursery.cancel_scope.cancel()
