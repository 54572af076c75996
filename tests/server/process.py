"""`actorllm serve` as a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Served:
    """A server that listens at `address`; `log` is where its stderr goes."""

    process: "subprocess.Popen[str]"
    address: str
    log: Path

    def kill(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ended(self) -> tuple[int, list[str]]:
        """Wait for its end: the exit code and the lines of the log. Asserts that no child of it is left."""
        code = self.process.wait(30)
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        return code, self.log.read_text().splitlines()


@contextmanager
def serving(place: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server of the HashModel, in a process group of its own; `place` is an empty folder for its log."""
    command = [sys.executable, "-m", "actorllm", "serve", "hash", "--port", "0", *options]
    log = place / "stderr.txt"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("hash is served at "), log.read_text()
            yield Served(process, line.split()[-1], log)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
