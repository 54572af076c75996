"""stdout for the commands: an error of writing to it says that it is one."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from ..errors import MachineError


class Output:
    """A text stream that raises MachineError for what it cannot take; a closed pipe stays an OSError."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text."""
        with self._telling():
            return self._stream.write(text)

    def flush(self) -> None:
        """Hand on what is written."""
        with self._telling():
            self._stream.flush()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except UnicodeEncodeError as error:
            text = f"the output cannot be written in {error.encoding}; PYTHONIOENCODING=utf-8 changes that"
            raise MachineError(text) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            self.is_broken = True
            raise MachineError(f"the output cannot be written: {error.strerror or error}") from error


@contextmanager
def told_output() -> Iterator[None]:
    """In the block stdout is an Output, if there is one; whoever replaces it meanwhile is let be."""
    before, output = sys.stdout, Output(sys.stdout)
    if before is not None:
        sys.stdout = cast(TextIO, output)
    try:
        yield
    finally:
        if sys.stdout is output:
            sys.stdout = before
        if output.is_broken:
            with suppress(OSError):  # else the end of the process would try again, and tell again
                before.close()
