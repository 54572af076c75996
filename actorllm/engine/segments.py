"""The files of a recording, written on a thread of their own: whoever has something to write never waits."""

import logging
import os
import stat
import threading
from collections import deque

import anyio

from ..errors import ConfigError
from ..wire.recording import MARK

OLDER = ".1"
"""What is put after the path of the segment before the last."""

GATHER = 0.05
"""Seconds in which more is gathered before it is written."""

HASTE = 1 << 20
"""Bytes that are written without gathering more."""

PATIENCE = 10.0
"""Seconds that the end waits for the disk."""

logger = logging.getLogger("actorllm")


class SegmentWriter:
    """Appends to the file at `path`; a new segment first moves the one before it to `path` + OLDER.

    Whatever goes wrong ends it: `error` tells why, which is logged once, and what is put is dropped. A
    relative path is from where the process is when it is opened, wherever it goes later.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.error: str | None = None
        self._queue: deque[tuple[bool, bytes]] = deque()
        self._put = self._taken = 0
        self._news, self._haste = threading.Event(), threading.Event()
        self._closing = False
        self._file: int | None = None
        self._thread = threading.Thread(target=self._run, name="actorllm-record", daemon=True)

    @property
    def num_pending(self) -> int:
        """Bytes that are not written yet."""
        return self._put - self._taken

    def open(self) -> None:
        """Make the file, and start. Blocks. Raises ConfigError where no file can be, or a foreign one is."""
        try:
            self.path = os.path.abspath(self.path)
            for path in (self.path, self.path + OLDER):
                _check_ours(path)
            self._file = _begin(self.path)
        except OSError as error:
            raise ConfigError(f"record: {self.path} cannot be written: {error.strerror}") from error
        self._thread.start()

    def put(self, data: bytes, *, begins: bool = False) -> None:
        """Have it written, at the beginning of a new segment or at the end of this one."""
        if self.error is not None:
            return
        self._put += len(data)
        self._queue.append((begins, data))
        self._news.set()
        if self.num_pending > HASTE:
            self._haste.set()

    def fail(self, reason: str) -> None:
        """Write no more, for this reason."""
        self.error = self.error or reason
        self.close()

    def close(self) -> None:
        """Write what was put, and end."""
        self._closing = True
        self._haste.set()
        self._news.set()

    async def join(self) -> None:
        """Wait until all is written, even in a cancelled scope; for PATIENCE seconds at most."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join, PATIENCE, limiter=anyio.CapacityLimiter(1))
        if self._thread.is_alive():
            logger.warning("the recording in %s is not whole: the disk takes too long", self.path)

    def _run(self) -> None:
        try:
            try:
                while self._turn():
                    pass
            finally:
                self._close_file()
        except OSError as error:
            self.error = f"{self.path} cannot be written: {error.strerror}"
        except Exception as error:  # a thread that ends unheard would let the queue grow
            self.error = f"{self.path} cannot be written: {type(error).__name__}: {error}"
        self._queue.clear()
        self._taken = self._put
        if self.error is not None:
            logger.warning("the recording has ended: %s", self.error)

    def _turn(self) -> bool:
        """Wait for news, gather, and write; False when it was the last time."""
        self._news.wait()
        self._haste.wait(GATHER)
        self._news.clear()
        self._haste.clear()
        last = self._closing  # read before the queue is: what was put before `close` is in it
        waiting: list[bytes] = []
        while self._queue:
            begins, data = self._queue.popleft()
            if begins:
                self._write(waiting)
                self._close_file()
                self._file = _begin(self.path)
            waiting.append(data)
        self._write(waiting)
        return not last

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _write(self, waiting: list[bytes]) -> None:
        assert self._file is not None
        rest = memoryview(b"".join(waiting))
        self._taken += len(rest)
        waiting.clear()
        while rest:
            rest = rest[os.write(self._file, rest) :]


def _check_ours(path: str) -> None:
    """Raise ConfigError for a file that would be lost and is no recording, and for a link to any."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise ConfigError(f"record: {path} is a symbolic link; name the file that is meant")
    if stat.S_ISREG(mode):
        with open(path, "rb") as file:
            if file.read(len(MARK)) not in (MARK, b""):
                raise ConfigError(f"record: {path} is there already and is no recording; move it away")
    elif not stat.S_ISCHR(mode):
        raise ConfigError(f"record: {path} is no file")


def _begin(path: str) -> int:
    """A new file that only its owner reads; a file that is there becomes the older one."""
    if os.path.lexists(path):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):  # a device such as /dev/null has no older one; a link is not followed
            return os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        os.chmod(path, 0o600)
        os.replace(path, path + OLDER)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
