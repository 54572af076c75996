"""The text of an answer, read once from front to back while it comes."""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

Reading = Generator[None, None, T]
"""Reads on: yields when all text that has come is read and more is needed, and returns what it found."""

Write = Callable[[str], None]

_SPACES = re.compile(r"\s+")


def nowhere(text: str) -> None:
    """Let go of a text."""


class Source:
    """Text that is fed, and read by generators, each piece once.

    What is read goes also where `copy_to` or `hold` say; at first nowhere. Only the beginning of a marker
    is ever left unread while a reader waits, so that no text is looked at twice.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._copy: Write = nowhere
        self._held: list[str] = []

    def feed(self, text: str) -> None:
        """Add text, for the readers that wait."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def finish(self) -> None:
        """No more text will come."""
        self._ended = True

    def copy_to(self, write: Write) -> None:
        """From now on what is read goes there, too."""
        self._copy = write

    def hold(self) -> None:
        """From now on keep what is read, until `held`."""
        self._held.clear()
        self._copy = self._held.append

    def held(self) -> str:
        """What has been kept; nothing is from now on."""
        text = "".join(self._held)
        self._held.clear()
        self._copy = nowhere
        return text

    def peek(self) -> Reading[str]:
        """The next character, left unread; empty at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def take(self, count: int = 1) -> str:
        """Read so many characters, which must have come; fewer at the end."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        self._copy(text)
        return text

    def run(self, pattern: "re.Pattern[str]") -> str:
        """Read what matches here of the text that has come."""
        found = pattern.match(self._text, self._at)
        return self.take(found.end() - self._at) if found else ""

    def runs(self, pattern: "re.Pattern[str]", write: Write) -> Reading[None]:
        """Read all that matches from here on, and write it as it comes."""
        while True:
            if text := self.run(pattern):
                write(text)
            char = yield from self.peek()
            if not pattern.match(char):
                return

    def spaces(self) -> Reading[None]:
        """Read whitespace."""
        yield from self.runs(_SPACES, nowhere)

    def starts(self, marker: str) -> Reading[bool]:
        """Whether the text goes on with a marker, which is left unread."""
        while True:
            text = self._text[self._at : self._at + len(marker)]
            if text == marker:
                return True
            if self._ended or not marker.startswith(text):
                return False
            yield

    def until(self, marker: str, write: Write) -> Reading[bool]:
        """Read and write all before the next marker, which is left unread; all there is if it is empty.

        Returns whether there was one.
        """
        while True:
            found = self._text.find(marker, self._at) if marker else -1
            unsure = 0 if self._ended else self._beginning(marker)
            end = len(self._text) - unsure if found < 0 else found
            if end > self._at:
                write(self.take(end - self._at))
            if found >= 0 or self._ended:
                return found >= 0
            yield

    def _beginning(self, marker: str) -> int:
        """Length of the longest beginning of the marker that the text ends with."""
        most = min(len(marker) - 1, len(self._text) - self._at)
        return next((size for size in range(most, 0, -1) if self._text.endswith(marker[:size])), 0)
