"""What was said in a simulation: the last words in full, and a fingerprint of all."""

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from ..messages import unpack, unpack_ids

LAST = 30
"""Messages that a failure shows."""

LONGEST = 80
"""Characters of a value that is text."""

_IDS = frozenset({"requests", "rows", "finished", "preempted", "refused"})
_BYTES = frozenset({"samples"})


class Trace:
    """Hears every message; `write`, if there is one, gets each as a line. `unwritten` is what it raised."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write
        self._last: deque[tuple[int, str, str, Any]] = deque(maxlen=LAST)
        self._hash = hashlib.blake2b(digest_size=16)
        self.num_messages = 0
        self.unwritten: Exception | None = None

    def said(self, now: int, source: str, target: str, message: Any, data: bytes) -> None:
        """A message, encoded as `data`, was said."""
        self.num_messages += 1
        self._last.append((now, source, target, message))
        self._hash.update(target.encode())
        self._hash.update(data)
        self._show(now, source, target, message)

    def note(self, now: int, text: str) -> None:
        """Something happened that is no message."""
        self._last.append((now, "", "", text))
        self._hash.update(text.encode())
        self._show(now, "", "", text)

    def _show(self, *entry: Any) -> None:
        if self._write is None:
            return
        try:
            self._write(_line(*entry))
        except Exception as error:
            self.unwritten = self.unwritten or error
            raise

    @property
    def fingerprint(self) -> str:
        """The same for the same messages in the same order, in any process."""
        return self._hash.hexdigest()

    def last(self) -> str:
        """The last messages, a line each."""
        return "\n".join(_line(*entry) for entry in self._last)


def _line(now: int, source: str, target: str, message: Any) -> str:
    if isinstance(message, str):
        return f"{now:6}  -- {message}"
    return f"{now:6}  {source} -> {target}: {readable(message)}"


def printable(text: str) -> str:
    """A foreign text on one line, with whatever would do something to a terminal escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def readable(value: Any, name: str = "") -> str:
    """A message as text, with its columns as lists of numbers and without the fields that are empty."""
    if is_dataclass(value):
        shown = [(field.name, getattr(value, field.name)) for field in fields(value)]
        parts = (f"{key}={readable(item, key)}" for key, item in shown if item not in (b"", (), None))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, tuple):
        return f"[{', '.join(readable(item) for item in value)}]"
    if isinstance(value, bytes):
        return str(_column(value, name))
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _column(column: bytes, name: str) -> list[int]:
    if name in _BYTES or len(column) % 4:
        return list(column)
    return unpack_ids(column) if name in _IDS else unpack(column)
