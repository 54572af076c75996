"""Python calls with literals as arguments, and the JSON text of these."""

import json
import re
from dataclasses import dataclass, field

from .source import Reading, Source

_NAME = re.compile(r"[-.\w]+")
_WORD = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)?(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)?)")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"} | {
    name: name for name in ("true", "false", "null")
}
_IN_STRING = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SHORT = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r",
    "t": "\t", "v": "\v",
}  # fmt: skip


@dataclass(slots=True)
class _Open:
    """A bracket that is open: the call's own, a list's or a dict's."""

    closer: str
    names: set[str] = field(default_factory=set)
    is_empty: bool = True
    wants_comma: bool = False


def call(source: Source) -> Reading[tuple[str, str] | None]:
    """Read a call; its name, and its arguments as JSON text, or None if it is none with only literals."""
    name: list[str] = []
    yield from source.runs(_NAME, name.append)
    yield from source.spaces()
    if not name or (yield from source.peek()) != "(":
        return None
    source.take()
    arguments = yield from _arguments(source)
    return None if arguments is None else ("".join(name), arguments)


def _arguments(source: Source) -> Reading[str | None]:
    """What is in the brackets of a call. No stack of calls grows with the nesting."""
    pieces = ["{"]
    brackets = [_Open(")")]
    while brackets:
        top = brackets[-1]
        yield from source.spaces()
        char = yield from source.peek()
        if char == top.closer:
            source.take()
            pieces.append("]" if char == "]" else "}")
            brackets.pop()
        elif top.wants_comma:
            if char != ",":
                return None
            source.take()
            top.wants_comma = False
        elif (begin := (yield from _item(source, top))) is None:
            return None
        else:
            pieces += ["" if top.is_empty else ", ", begin]
            top.is_empty, top.wants_comma = False, True
            if begin[-1] in "[{":
                brackets.append(_Open("]" if begin[-1] == "[" else "}"))
    return "".join(pieces)


def _item(source: Source, within: _Open) -> Reading[str | None]:
    """An argument, a member or an element, up to the bracket that its value begins with, if it does."""
    key = ""
    if within.closer != "]":
        found = yield from (_keyword(source, within) if within.closer == ")" else _key(source))
        if found is None:
            return None
        key = found
        yield from source.spaces()
    char = yield from source.peek()
    if char and char in "[{":
        source.take()
        return key + char
    scalar = yield from (_string(source) if char in _IN_STRING else _word(source))
    return None if scalar is None else key + scalar


def _keyword(source: Source, call: _Open) -> Reading[str | None]:
    name: list[str] = []
    yield from source.runs(_WORD, name.append)
    keyword = "".join(name)
    yield from source.spaces()
    if not keyword.isidentifier() or keyword in call.names or (yield from source.peek()) != "=":
        return None
    source.take()
    call.names.add(keyword)
    return f"{_quoted(keyword)}: "


def _key(source: Source) -> Reading[str | None]:
    if (yield from source.peek()) not in _IN_STRING:
        return None
    key = yield from _string(source)
    yield from source.spaces()
    if key is None or (yield from source.peek()) != ":":
        return None
    source.take()
    return f"{key}: "


def _word(source: Source) -> Reading[str | None]:
    pieces: list[str] = []
    yield from source.runs(_WORD, pieces.append)
    word = "".join(pieces)
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    found = _NUMBER.fullmatch(word)
    if not found or not (found[2] or found[3]):
        return None
    fraction = "" if found[3] is None else f".{found[3] or 0}"
    return f"{found[1]}{found[2] or 0}{fraction}{found[4]}"


def _string(source: Source) -> Reading[str | None]:
    """A string as JSON has it."""
    quote = source.take()
    pieces: list[str] = []
    while True:
        yield from source.runs(_IN_STRING[quote], pieces.append)
        char = yield from source.peek()
        if not char:
            return None
        source.take()
        if char == quote:
            break
        yield from source.peek()
        pieces += [char, source.take()]
    try:
        return _quoted(_ESCAPE.sub(_unescaped, "".join(pieces)))
    except (ValueError, OverflowError):  # no whole escape, or beyond the last character
        return None


def _unescaped(found: "re.Match[str]") -> str:
    octal, *hexadecimals, other = found.groups()
    if octal:
        return chr(int(octal, 8))
    if other is None:
        return chr(int(next(filter(None, hexadecimals)), 16))
    if other in "xuUN":
        raise ValueError(f"\\{other} is not a whole escape")
    return _SHORT.get(other, f"\\{other}")


def _quoted(text: str) -> str:
    """JSON that can be encoded: halves of surrogate pairs stay escapes."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in text))
