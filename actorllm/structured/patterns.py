"""Regular expressions, read into trees. What is not known to mean the same everywhere is refused."""

import re
from dataclasses import dataclass
from functools import cache
from string import hexdigits
from typing import NamedTuple

from .charsets import (
    ALL,
    DIGITS,
    LAST,
    LINES,
    SPACES,
    WORDS,
    Charset,
    charset,
    minus,
    of,
    unicode_class,
    union,
)

MAX_COUNT = 10_000
"""The highest count in braces."""

MAX_NESTING = 50
"""Groups within each other."""

MAX_PATTERN = 10_000
"""Characters of a pattern."""


MAX_RUN = 8
"""Parts in a row that repeat without end and may be left out, which xgrammar takes cubic time for."""


class PatternError(ValueError):
    """Not a pattern, or one with something that is refused; the text says what and where."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    charset: Charset


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; the empty text when there are none."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of them."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times; without end when that is None."""

    part: "Node"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start of the text, or its end; at `position` of the pattern."""

    start: bool
    position: int


Node = Chars | Sequence | Choice | Repeat | Anchor

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_CLASSES = {"d": DIGITS, "w": WORDS, "s": SPACES}
_HEX = {"x": 2, "u": 4, "U": 8}
_GROUPS = (
    ("(?=", "a lookahead"),
    ("(?!", "a lookahead"),
    ("(?<=", "a lookbehind"),
    ("(?<!", "a lookbehind"),
    ("(?P=", "a backreference"),
    ("(?P", "a group whose name is not of ASCII letters and digits"),
    ("(?<", "a group that is not named as in (?P<name>...)"),
    ("(?#", "a comment"),
    ("(?>", "an atomic group"),
    ("(?(", "a condition"),
    ("(?", "a flag"),
)


_COUNTS = re.compile(r"[*+?]|\{([0-9]*)(,?)([0-9]*)\}")
_NAME = re.compile(r"\?P<([A-Za-z_][A-Za-z0-9_]*)>")


def parse(pattern: str, *, wide: bool = False) -> Node:
    r"""The tree of a pattern, of which each full match is one in Python's `re` and in JavaScript.

    Classes such as \d match ASCII only, and their opposites nothing that is in the class by any
    reading; no character is NUL. A `wide` tree matches all that matches by some reading. Raises PatternError.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"has {len(pattern)} characters; at most {MAX_PATTERN} are possible")
    reader = _Reader(pattern, wide)
    node = reader.choice(0)
    if reader.at < len(pattern):
        raise PatternError(f"has a ) at {reader.at}, which closes nothing; write \\)")
    if _run(node).longest > MAX_RUN:
        text = f"has more than {MAX_RUN} parts in a row that may be left out and repeat without end"
        raise PatternError(f"{text}; put something between them")
    return node


class _Reader:
    """Reads a pattern, from `at` on."""

    def __init__(self, pattern: str, wide: bool) -> None:
        self.pattern = pattern
        self.at = 0
        self._wide = wide
        self._names: set[str] = set()

    def choice(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise PatternError(f"has more than {MAX_NESTING} groups within each other at {self.at}")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            start = self.at
            parts.append(self._repeated(self._atom(depth), start))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self, depth: int) -> Node:
        start = self.at
        char = self._next(start)
        match char:
            case "(":
                return self._group(depth, start)
            case "[":
                return self._class(start)
            case ".":
                return Chars(minus(ALL, of("\n")) if self._wide else LINES)
            case "^" | "$":
                return Anchor(char == "^", start)
            case "\\":
                return self._escape(start)
            case "{":
                raise self._refuse("a { that counts nothing", start, "write \\{")
            case "*" | "+" | "?":
                raise self._refuse(f"a {char} that repeats nothing", start, f"write \\{char}")
        return self._chars(of(char), start)

    def _group(self, depth: int, start: int) -> Node:
        if not self._take("?:") and (name := _NAME.match(self.pattern, self.at)):
            if name[1] in self._names:
                raise self._refuse("a name of two groups", start)
            self._names.add(name[1])
            self.at = name.end()
        elif self.pattern.startswith("?", self.at) and self.pattern[self.at - 1] == "(":
            what = next(what for opening, what in _GROUPS if self.pattern.startswith(opening, start))
            raise self._refuse(what, start)
        node = self.choice(depth + 1)
        self._next(start)
        return node

    def _repeated(self, node: Node, start: int) -> Node:
        counts = _COUNTS.match(self.pattern, self.at)
        if counts is None:
            return node
        if isinstance(node, Anchor):
            raise self._refuse("a repeated anchor", start)
        match counts.group():
            case "*":
                low, high = 0, None
            case "+":
                low, high = 1, None
            case "?":
                low, high = 0, 1
            case _:
                low, high = self._counts(counts)
        self.at = counts.end()
        if self._take("+"):
            raise self._refuse("a possessive count", counts.start())
        self._take("?")  # to prefer few makes no difference to what fully matches
        if _COUNTS.match(self.pattern, self.at):
            raise self._refuse("a count of a count", self.at)
        return Repeat(node, low, high)

    def _counts(self, counts: "re.Match[str]") -> tuple[int, int | None]:
        low, comma, high = counts.groups()
        if not low:
            raise self._refuse("a count without a lowest number", counts.start(), "write {0,...}")
        if any(len(each.lstrip("0")) > 9 or int(each or 0) > MAX_COUNT for each in (low, high)):
            raise self._refuse(f"a count beyond {MAX_COUNT}", counts.start())
        if high and int(low) > int(high):
            raise self._refuse("a count whose lowest number is above its highest", counts.start())
        return int(low), int(low) if not comma else int(high) if high else None

    def _escape(self, start: int) -> Node:
        char = self._next(start)
        if char in "AZ":
            return Anchor(char == "A", start)
        if char in "bB":
            raise self._refuse("a word boundary", start)
        if char in "123456789":
            raise self._refuse("a backreference", start)
        narrow, wide = self._escaped(char, start)
        return self._chars(wide if self._wide else narrow, start)

    def _escaped(self, char: str, start: int) -> tuple[Charset, Charset]:
        """What an escape surely matches, and what it may match by some reading."""
        lower = char.lower()
        if lower in _CLASSES:
            return _classes(char)
        if char in _HEX:
            digits = self.pattern[self.at : self.at + _HEX[char]]
            self.at += len(digits)
            if len(digits) < _HEX[char] or not set(digits) <= set(hexdigits):
                raise self._refuse(f"an escape \\{char} without its {_HEX[char]} digits", start)
            code = int(digits, 16)
            if code > LAST:
                raise self._refuse("the number of no character", start)
            return charset((code, code)), charset((code, code))
        if char in _ESCAPES or not char.isalnum():
            single = of(_ESCAPES.get(char, char))
            return single, single
        raise self._refuse(f"the escape \\{char}", start)

    def _class(self, start: int) -> Node:
        if self.pattern.startswith("[", self.at):
            raise self._refuse("[[, which is ambiguous,", start, "put a backslash before the second")
        negated = self._take("^")
        narrow: list[Charset] = []
        wide: list[Charset] = []
        if self.pattern.startswith("]", self.at):
            raise self._refuse("a ] at the start of a class", self.at, "write \\]")
        while not self._take("]"):
            least, most = self._member(start)
            if self.pattern.startswith("-", self.at) and not self.pattern.startswith("]", self.at + 1):
                if self.pattern.startswith("--", self.at):
                    raise self._doubled("-", self.at)
                self.at += 1
                least = most = self._range(least, self._member(start)[0], start)
            narrow.append(least)
            wide.append(most)
        inner = union(*(wide if self._wide != negated else narrow))
        return self._chars(minus(ALL, inner) if negated else inner, start)

    def _range(self, first: Charset, last: Charset, start: int) -> Charset:
        if not _is_one(first) or not _is_one(last):
            raise self._refuse("a range that begins or ends with no character of a text", start)
        if first > last:
            raise self._refuse("a range whose first character is after its last", start)
        return charset((first[0][0], last[0][0]))

    def _member(self, opening: int) -> tuple[Charset, Charset]:
        start = self.at
        char = self._next(opening)
        if char in "-&~|" and self.pattern.startswith(char, self.at):
            raise self._doubled(char, start)
        if char != "\\":
            return of(char), of(char)
        char = self._next(opening)
        return (of("\b"), of("\b")) if char == "b" else self._escaped(char, start)

    def _chars(self, inner: Charset, start: int) -> Node:
        if not inner:
            raise self._refuse("a set of no characters (NUL and surrogates do not count)", start)
        return Chars(inner)

    def _doubled(self, char: str, position: int) -> PatternError:
        remedy = "put a backslash before each"
        return self._refuse(f"{char * 2} in a class, which is ambiguous,", position, remedy)

    def _next(self, start: int) -> str:
        if self.at == len(self.pattern):
            raise PatternError(f"has a {self.pattern[start]} at {start} that is not complete")
        char = self.pattern[self.at]
        self.at += 1
        return char

    def _take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _refuse(self, what: str, position: int, remedy: str = "write it in another way") -> PatternError:
        return PatternError(f"has {what} at {position}, which is not possible; {remedy}")


@cache
def _classes(char: str) -> tuple[Charset, Charset]:
    r"""What an escape such as \d surely matches, and what it may match."""
    narrow, wide = _CLASSES[char.lower()], unicode_class(char.lower())
    return (narrow, wide) if char.islower() else (minus(ALL, wide), minus(ALL, narrow))


def _is_one(inner: Charset) -> bool:
    return len(inner) == 1 and inner[0][0] == inner[0][1]


def anchored(node: Node) -> Node:
    """The same without anchors, for the whole text. Raises PatternError for one that is not at an end."""
    return _strip(node, True, True)


def anchors(node: Node) -> set[bool]:
    """Whether it has anchors to the start (True) and to the end (False)."""
    match node:
        case Anchor(start):
            return {start}
        case Repeat(part):
            return anchors(part)
        case Sequence(parts) | Choice(parts):
            return set[bool]().union(*map(anchors, parts))
    return set()


def lengths(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters of a text that matches; None is without end."""
    match node:
        case Chars():
            return 1, 1
        case Anchor():
            return 0, 0
        case Repeat(part, low, high):
            least, most = lengths(part)
            if most == 0 or high == 0:
                return 0, 0
            return least * low, None if most is None or high is None else most * high
        case Choice(parts):
            each = [lengths(part) for part in parts]
            ends = [most for _, most in each if most is not None]
            return min(least for least, _ in each), max(ends) if len(ends) == len(each) else None
        case Sequence(parts):
            each = [lengths(part) for part in parts]
            ends = [most for _, most in each if most is not None]
            return sum(least for least, _ in each), sum(ends) if len(ends) == len(each) else None


class _Run(NamedTuple):
    """Loops in a row: at the start, at the end, and most; `is_open` is whether all may be left out."""

    first: int
    last: int
    longest: int
    is_open: bool


def _run(node: Node) -> _Run:
    match node:
        case Chars():
            return _Run(0, 0, 0, False)
        case Anchor():
            return _Run(0, 0, 0, True)
        case Repeat(part, low, high):
            inner = _run(part)
            loop = int(high is None and (low == 0 or inner.is_open))
            first, last = inner.first + loop, inner.last + loop
            longest = max(inner.longest, loop + (inner.last + inner.first if high != 1 else 0))
            return _Run(first, last, longest, low == 0 or inner.is_open)
        case Choice(parts):
            each = [_run(part) for part in parts]
            first, last, longest = (max(run[field] for run in each) for field in range(3))
            return _Run(first, last, longest, any(run.is_open for run in each))
        case Sequence(parts):
            return _joined([_run(part) for part in parts])


def _joined(runs: list[_Run]) -> _Run:
    first = last = longest = 0
    is_open = True
    for run in runs:
        longest = max(longest, run.longest, last + run.first)
        first += run.first if is_open else 0
        last = last + run.last if run.is_open else run.last
        is_open = is_open and run.is_open
    return _Run(first, last, max(longest, first, last), is_open)


def _strip(node: Node, first: bool, last: bool) -> Node:
    match node:
        case Anchor(start, position):
            if not (first if start else last):
                name, end = ("^", "start") if start else ("$", "end")
                text = f"has {name} at {position}, which is not its {end}; leave it out, or put it there"
                raise PatternError(text)
            return Sequence(())
        case Chars():
            return node
        case Repeat(part, low, high):
            return Repeat(_strip(part, False, False), low, high)
        case Choice(parts):
            return Choice(tuple(_strip(part, first, last) for part in parts))
        case Sequence(parts):
            head, tail = _num_anchors(parts, True), len(parts) - _num_anchors(parts[::-1], False)
            return Sequence(
                tuple(
                    _strip(part, first and index <= head, last and index >= tail - 1)
                    for index, part in enumerate(parts)
                )
            )


def _num_anchors(parts: tuple[Node, ...], start: bool) -> int:
    """How many anchors to the start, or to the end, they begin with."""
    others = (
        index for index, part in enumerate(parts) if not isinstance(part, Anchor) or part.start != start
    )
    return next(others, len(parts))
