"""JSON values as models write them: where they end, and nothing more."""

import json
import re

from .source import Reading, Source, Write

_IN_STRING = re.compile(r'[^"\\]+')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_BETWEEN = re.compile(r"[-+.0-9A-Za-z,:\s]+")
_CLOSERS = {"{": "}", "[": "]"}


def value(source: Source, write: Write) -> Reading[bool]:
    """Read a value and write it as it comes. False: it breaks off, before what cannot belong to it.

    Strings and brackets are followed, and characters that never stand outside of strings found; what is
    between them is not looked at. No stack of calls grows with the nesting.
    """
    first = yield from source.peek()
    if first == '"':
        return (yield from string(source, write))
    if first not in ("{", "["):
        yield from source.runs(_SCALAR, write)
        return bool(_SCALAR.match(first))
    closers: list[str] = []
    while True:
        yield from source.runs(_BETWEEN, write)
        char = yield from source.peek()
        if char == '"':
            if not (yield from string(source, write)):
                return False
            continue
        if char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif char != closers[-1]:
            return False
        else:
            closers.pop()
        write(source.take())
        if not closers:
            return True


def string(source: Source, write: Write) -> Reading[bool]:
    """Read a string with its quotes, and write it as it comes. False: it does not end."""
    write(source.take())
    while True:
        yield from source.runs(_IN_STRING, write)
        char = yield from source.peek()
        if not char:
            return False
        write(source.take())
        if char == '"':
            return True
        if (yield from source.peek()):  # whatever is behind a backslash
            write(source.take())


def text(source: Source) -> Reading[str | None]:
    """Read a string; the text that it means, or None if there is none or it is broken."""
    pieces: list[str] = []
    if (yield from source.peek()) != '"' or not (yield from string(source, pieces.append)):
        return None
    try:
        return str(json.loads("".join(pieces), strict=False))
    except ValueError:
        return None
