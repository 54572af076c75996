"""Whether a pattern is found in a text: in steps as many as its states times the characters, at most.

After Thompson, "Regular expression search algorithm" (1968): all ways to go on are followed at once, so that
none is ever tried again.
"""

from bisect import bisect_right
from dataclasses import dataclass

from .charsets import LAST, Charset
from .patterns import Anchor, Chars, Choice, Node, Repeat, Sequence

MAX_STATES = 20_000
MAX_STEPS = 500_000
"""In all texts together: less than a second."""


class TooLong(ValueError):
    """More than MAX_STATES or MAX_STEPS."""


@dataclass(slots=True)
class _State:
    """Goes on to each of `ahead`: with a character of `charset`, or for nothing, where `anchor` lets it."""

    ahead: tuple[int, ...]
    charset: Charset | None = None
    anchor: bool | None = None


class Automaton:
    """A pattern, for texts of up to `longest` characters."""

    def __init__(self, node: Node, longest: int) -> None:
        """Raises TooLong."""
        self._longest = longest
        self._states: list[_State] = [_State(())]
        self._start = self._build(node, 0)
        self._left = MAX_STEPS

    def found(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text, by some reading: `$` also before a last line
        break, and what stands for one character for NUL, too. Raises TooLong.
        """
        active: set[int] = set()
        for at in range(len(text) + 1):
            active.add(self._start)
            active = self._closure(active, text, at)
            if 0 in active:
                return True
            if at < len(text):
                active = {
                    state.ahead[0]
                    for state in map(self._states.__getitem__, active)
                    if state.charset is not None and _has(state.charset, text[at])
                }
        return False

    def _closure(self, reached: set[int], text: str, at: int) -> set[int]:
        """All states that are reached with no further character."""
        ahead = list(reached)
        while ahead:
            self._left -= 1
            if self._left < 0:
                raise TooLong(
                    f"takes more than {MAX_STEPS} steps to compare with the names of the properties"
                )
            state = self._states[ahead.pop()]
            if state.charset is None and (state.anchor is None or _holds(state.anchor, text, at)):
                new = [each for each in state.ahead if each not in reached]
                reached.update(new)
                ahead += new
        return reached

    def _build(self, node: Node, ahead: int) -> int:
        """The state where a node begins that goes on at `ahead`."""
        match node:
            case Chars(charset):
                return self._add(_State((ahead,), charset))
            case Anchor(start):
                return self._add(_State((ahead,), anchor=start))
            case Sequence(parts):
                for part in reversed(parts):
                    ahead = self._build(part, ahead)
                return ahead
            case Choice(parts):
                return self._add(_State(tuple(self._build(part, ahead) for part in parts)))
            case Repeat(part, low, high):
                return self._repeat(part, low, high, ahead)

    def _repeat(self, part: Node, low: int, high: int | None, ahead: int) -> int:
        """Beyond the length of a text, more of the same make no difference: they match nothing, or never."""
        end = ahead
        if high is None or high - low >= self._longest:
            loop = self._add(_State((end,)))
            self._states[loop].ahead = (end, self._build(part, loop))
            ahead = loop
        else:
            for _ in range(high - low):
                ahead = self._add(_State((end, self._build(part, ahead))))
        for _ in range(min(low, self._longest + 1)):
            ahead = self._build(part, ahead)
        return ahead

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise TooLong(f"has more than {MAX_STATES} parts, with all that it counts")
        self._states.append(state)
        return len(self._states) - 1


def _has(charset: Charset, char: str) -> bool:
    index = bisect_right(charset, (ord(char), LAST)) - 1
    return char == "\0" or (index >= 0 and charset[index][1] >= ord(char))


def _holds(start: bool, text: str, at: int) -> bool:
    return at == 0 if start else at == len(text) or text[at:] == "\n"
