"""EBNF text as xgrammar reads it: literals, classes, and patterns, of plain text and inside JSON strings."""

import json

from .charsets import ALL, Charset, charset, minus, of
from .patterns import Anchor, Chars, Choice, Node, Repeat, Sequence

PLAIN = minus(ALL, charset((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
"""The characters that stand for themselves in a JSON string."""

_SHORT = of('"\\\n\t\r\b\f')


def literal(text: str) -> str:
    """A string literal of exactly this text."""
    return '"' + "".join(_char(char) for char in text) + '"'


def one_of(inner: Charset) -> str:
    """A class of exactly these characters; there must be some."""
    return "[" + "".join(_range(low, high) for low, high in inner) + "]"


def none_of(outer: Charset) -> str:
    """A class of all characters that are not these; never NUL or a surrogate."""
    left_out = "".join(_range(low, high) for low, high in outer)
    return f"[^\\u0000\\ud800-\\udfff{left_out}]"


def plain(node: Node) -> str:
    """The texts that match, for a pattern without anchors."""
    return _node(node, False)


def quoted(node: Node) -> str:
    """The insides of JSON strings whose values match, for a pattern without anchors."""
    return _node(node, True)


def _node(node: Node, in_json: bool) -> str:
    match node:
        case Chars(inner):
            return _json_chars(inner) if in_json else one_of(inner)
        case Repeat(part, low, high):
            if high == 0:
                return '""'
            return _repeat(part, low, high, in_json)
        case Choice(parts):
            return "(" + " | ".join(_node(part, in_json) for part in parts) + ")"
        case Sequence(parts):
            return "(" + " ".join(_node(part, in_json) for part in parts) + ")" if parts else '""'
        case Anchor():
            raise AssertionError("anchors are stripped before")


def _repeat(part: Node, low: int, high: int | None, in_json: bool) -> str:
    """A class is written as what is not in it, since xgrammar counts only these in next to no time. For that
    some characters are left out inside JSON where they would need an escape: only when they are counted.
    """
    if not isinstance(part, Chars):
        return f"({_node(part, in_json)}){{{low},{'' if high is None else high}}}"
    free = f"({_node(part, in_json)})*"
    counted = _both(part.charset, PLAIN) if in_json else part.charset
    if low == 0 and high is None:
        return free
    if not counted:
        return f"({_node(part, in_json)}){{{low},{'' if high is None else high}}}"
    if high is not None:
        return f"{none_of(minus(ALL, counted))}{{{low},{high}}}"
    return f"({none_of(minus(ALL, counted))}{{{low},{low}}} {free})"


def _json_chars(inner: Charset) -> str:
    """Where there are others, too, control characters without a short escape are left out."""
    plain_chars = _both(inner, PLAIN)
    choices = [one_of(plain_chars)] if plain_chars else []
    escaped = _both(inner, _SHORT) if plain_chars or _both(inner, _SHORT) else minus(inner, PLAIN)
    for low, high in escaped:
        choices += [literal(json.dumps(chr(code))[1:-1]) for code in range(low, high + 1)]
    return choices[0] if len(choices) == 1 else "(" + " | ".join(choices) + ")"


def _both(left: Charset, right: Charset) -> Charset:
    return minus(left, minus(ALL, right))


def _range(low: int, high: int) -> str:
    first, last = _code(low), _code(high)
    return first if low == high else f"{first}-{last}"


def _char(char: str) -> str:
    return char if (char.isalnum() and char.isascii()) or char == " " else _code(ord(char))


def _code(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
