"""A server in a process of its own."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import anyio

from ..errors import MachineError

ADDRESS = re.compile(r"served at (https?://[^\s/]+)")

POLL_SECONDS = 0.01
"""Between two looks at a server that is not ready: how exact it is known when it was."""

END_SECONDS = 15.0
"""How long a server may take to end."""

MAX_LOG = 1 << 20
"""Bytes of a server's output that are looked at."""


@contextmanager
def program(
    arguments: Sequence[str], variables: dict[str, str] | None = None
) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], str]]]:
    """`python -m actorllm`, and what reads all that it has written up to now. A file never blocks it."""
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "actorllm", *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables
        ) as process:
            try:
                yield process, lambda: os.pread(log.fileno(), MAX_LOG, 0).decode(errors="replace").strip()
            finally:
                process.kill()


async def address(process: "subprocess.Popen[bytes]", read: Callable[[], str]) -> str:
    """Where the server says that it listens. Raises MachineError when it has ended instead."""
    while (found := ADDRESS.search(read())) is None:
        if process.poll() is not None:
            said = read()[-500:] or "nothing"
            raise MachineError(f"the server ended with code {process.returncode}; it says: {said}")
        await anyio.sleep(POLL_SECONDS)
    return found[1]


async def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, and wait for it; what is left after a while is killed."""
    with suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(END_SECONDS, shield=True):
        while process.poll() is None:  # noqa: ASYNC110 (a process tells nobody that it has ended)
            await anyio.sleep(POLL_SECONDS)
