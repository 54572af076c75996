"""How large a grammar may be, so that xgrammar compiles it in some seconds: a compiler cannot be stopped.

What costs was measured with 49,000 tokens on one core. Loops in a row take cubic time: twenty of [^a] take
2 s and fifty 22 s, twenty of `.` or another text 40 s. Each different count of a class takes up to 2 s, from
200 on no more. A class takes a millisecond, except for digits and single characters. What callers write in
EBNF may hide more from these bounds; those who wait for it are told so when their time is over.
"""

import re

from ..errors import InvalidRequest

MAX_CHARS = 1_000_000
"""Characters of what is compiled: that of a schema or a regular expression is longer than itself."""

MAX_CALLER_RULES = 500
"""Rules of an EBNF that a caller has written; those of schemas are `rules.MAX_RULES`."""

MAX_CLASSES = 5000

MAX_LOOPS = 30
"""Of * and + in one pattern. Of several patterns the cubes are summed, up to that of this."""

MAX_CALLER_LOOPS = 100
MAX_CALLER_WIDE_LOOPS = 25
"""Of * + ? and "" in an EBNF that a caller has written, and of those of them that follow a class [^...]."""

MAX_TAG_LOOPS = 100
"""Formats of a structural tag that may be left out or repeat."""

MAX_COUNTED = 1000
"""The sum of all different counts of classes, where each is taken as MAX_COUNT at most."""

MAX_COUNT = 200

_TOKENS = re.compile(
    r"""
    "(?:[^"\\\n]|\\.|\\)*(?:"|$|(?=\n))     # a literal
    | \[(?:[^\]\\\n]|\\.|\\)*(?:\]|$|(?=\n))  # a class
    | \#[^\n]*
    """,
    re.VERBOSE,
)
_CHEAP = re.compile(r"\[(?:[0-9](?:-[0-9])?|\\u003[0-9]-\\u003[0-9]|[^\\^]|\\u.{4}|\\U.{8})\]")
_WIDE_LOOP = re.compile(r"\[-\d+\]\)?\s*[*+?]")
_QUOTE = r'"\""'
_COUNTED = re.compile(r"\[(-?\d+)\]\)?\s*\{\s*(\d{1,9})\s*,?\s*(\d{0,9})\s*\}(?! \")")


class Size:
    """What a grammar's parts have in all. Each method raises InvalidRequest for what is over a bound."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._num_chars = self._num_classes = self._cubes = self._rules = self._tags = 0
        self._loops = self._wide_loops = 0
        self._classes: dict[str, int] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, text: str, *, is_callers: bool = False) -> str:
        """The same text, once it is counted; a caller's own is one pattern, however many rules it has."""
        self._num_chars += len(text)
        self._bound(self._num_chars, MAX_CHARS, "characters as a grammar")
        bare = _TOKENS.sub(self._token, text)
        self._bound(self._num_classes, MAX_CLASSES, "classes of characters")
        if is_callers:
            self._rules += bare.count("::=")
            self._bound(self._rules, MAX_CALLER_RULES, "rules")
            self._loops += sum(map(bare.count, "*+?"))
            self._bound(self._loops, MAX_CALLER_LOOPS, 'of * + ? and ""')
            self._wide_loops += len(_WIDE_LOOP.findall(bare))
            self._bound(self._wide_loops, MAX_CALLER_WIDE_LOOPS, "of * + and ? that follow a class [^...]")
        else:
            for pattern in bare.split("\n"):
                self._loop(pattern.count("*"))
        for found in _COUNTED.finditer(bare):
            self._counts[found.groups()] = min(MAX_COUNT, max(int(each or 0) for each in found.groups()[1:]))
        self._bound(sum(self._counts.values()), MAX_COUNTED, "different counts of characters, in sum")
        return text

    def add_tag(self) -> None:
        """Count a format of a structural tag, which may be left out or repeated."""
        self._tags += 1
        self._bound(self._tags, MAX_TAG_LOOPS, "optional and repeated formats")

    def _loop(self, count: int) -> None:
        self._bound(count, MAX_LOOPS, "of * and +")
        self._cubes += count**3
        self._bound(self._cubes, MAX_LOOPS**3, "of * and +, as the sum of their cubes by patterns")

    def _token(self, found: "re.Match[str]") -> str:
        token = found.group()
        if token[0] != "[":
            return '"' if token == _QUOTE else "?" if token == '""' else "_"
        self._num_classes += not _CHEAP.fullmatch(token)
        number = self._classes.setdefault(token, len(self._classes))
        return f"[{'-' * token.startswith('[^')}{number}]"

    def _bound(self, found: int, most: int, what: str) -> None:
        if found > most:
            text = f"{self._field} is too large: it has more than {most} {what}; make it smaller"
            raise InvalidRequest(text, self._field)
