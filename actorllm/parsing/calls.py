"""Calls whose arguments are JSON: an object with a name and arguments, or a name before its arguments."""

import re
from collections.abc import Collection
from enum import Enum

from .output import Output
from .source import Reading, Source, Write, nowhere
from .values import text, value

ARGUMENTS = ("arguments", "parameters")

_MEMBERS = ("name", "type", "id", *ARGUMENTS)
_NAME = re.compile(r"[-.\w]+")


class Outcome(Enum):
    """What came of what might have been a call."""

    CALL = "a call, which has ended"
    CONTENT = "written like a call, of a tool that there is not: it has gone to the content"
    BROKEN = "no call, and not written like one: it has gone to the content"


class Call:
    """Reads one call. The source holds what belongs to it, from its marker on, and no longer when it is read.

    until   the marker that ends broken arguments; empty: the end of the answer
    strict  an object is no call when another member than usual comes before its name
    """

    def __init__(
        self, source: Source, output: Output, names: Collection[str], until: str, *, strict: bool = False
    ) -> None:
        self._source = source
        self._output = output
        self._names = names
        self._until = until
        self._strict = strict
        self._known: bool | None = None
        self._early: list[str] = []
        self._has_arguments = False

    def read_object(self) -> Reading[Outcome]:
        """An object; its first character has come."""
        whole = yield from self._members()
        if self._known and whole and not self._has_arguments:
            self._output.arguments("{}")
        return (yield from self._end(whole or self._has_arguments, whole))

    def read_infixed(self, infix: str) -> Reading[Outcome]:
        """A name and an object, with or without the infix between them."""
        name: list[str] = []
        yield from self._source.runs(_NAME, name.append)
        marked = bool(name) and (yield from self._source.starts(infix))
        if marked:
            self._source.take(len(infix))
            self._decide("".join(name))
            yield from self._source.spaces()
        whole = (yield from self._source.peek()) == "{" and bool(name)
        if whole:
            if not marked:
                self._decide("".join(name))
            whole = yield from value(self._source, self._writer())
        return (yield from self._end(whole, whole))

    def _decide(self, name: str) -> None:
        """The name is known: say so, with the arguments that have come already, or give all as content."""
        held = self._source.held()
        self._known = name in self._names
        if self._known:
            self._output.begin(name)
            self._output.arguments("".join(self._early))
        else:
            self._output.content(held)
            self._source.copy_to(self._output.content)

    def _writer(self) -> Write:
        """Where arguments go."""
        if self._known is None:
            return self._early.append
        return self._output.arguments if self._known else nowhere

    def _end(self, has_arguments: bool, whole: bool) -> Reading[Outcome]:
        """Broken arguments go on as such."""
        if self._known:
            if not has_arguments:
                yield from self._source.until(self._until, self._output.arguments)
            self._output.end()
            return Outcome.CALL
        self._output.content(self._source.held())
        return Outcome.CONTENT if whole and self._known is False else Outcome.BROKEN

    def _members(self) -> Reading[bool]:
        """Whether the object is whole."""
        source = self._source
        source.take()
        while True:
            yield from source.spaces()
            if (yield from source.peek()) == "}":
                source.take()
                return True
            if not (yield from self._member()):
                return False
            yield from source.spaces()
            char = yield from source.peek()
            if char == ",":
                source.take()
            elif char != "}":
                return False

    def _member(self) -> Reading[bool]:
        """Whether the member is whole; of two with the same name the first counts."""
        key = yield from text(self._source)
        if key is None or (self._strict and self._known is None and key not in _MEMBERS):
            return False
        yield from self._source.spaces()
        if (yield from self._source.peek()) != ":":
            return False
        self._source.take()
        yield from self._source.spaces()
        if key == "name" and self._known is None:
            name = yield from text(self._source)
            if name is not None:
                self._decide(name)
            return name is not None
        if key in ARGUMENTS and not self._has_arguments:
            self._has_arguments = yield from value(self._source, self._writer())
            return self._has_arguments
        return (yield from value(self._source, nowhere))
