"""Numbers, texts and given values of a JSON Schema, as EBNF text."""

import json
import math
from decimal import Decimal
from typing import Any

from . import ebnf
from .charsets import ALL
from .formats import FORMATS, format_pattern
from .keywords import Fail, bound, counts, step, texts
from .patterns import Chars, Node, PatternError, Repeat, Sequence, anchored, anchors, lengths, parse
from .ranges import RangeError, integers, multiples, numbers

MAX_MULTIPLES = 1000

_ANY = Chars(ALL)


def integer(schema: dict[str, Any], path: str, fail: Fail) -> str:
    """An integer within its bounds."""
    low, over = _stricter(schema, "minimum", "exclusiveMinimum", max, path, fail)
    high, under = _stricter(schema, "maximum", "exclusiveMaximum", min, path, fail)
    least = None if low is None else math.floor(low) + 1 if over else math.ceil(low)
    most = None if high is None else math.ceil(high) - 1 if under else math.floor(high)
    step_by = bound(schema, "multipleOf", path, fail)
    try:
        if step_by is None or step_by == 1:
            return integers(least, most)
        if step_by <= 0 or step_by != int(step_by):
            raise fail(step(path, "multipleOf"), "must be a positive integer")
        found = multiples(int(step_by), least, most, MAX_MULTIPLES)
    except RangeError as error:
        raise fail(step(path, "multipleOf") if "multipleOf" in schema else path, str(error)) from error
    return " | ".join(ebnf.literal(str(value)) for value in found)


def number(schema: dict[str, Any], path: str, fail: Fail) -> str:
    """A number within its bounds; an integer where it must be a multiple of one."""
    if "multipleOf" in schema:
        step_by = bound(schema, "multipleOf", path, fail)
        if step_by != int(step_by or 0):
            text = "multiples of a fraction are not possible for numbers; use an integer"
            raise fail(step(path, "multipleOf"), text)
        return integer(schema, path, fail)
    low, over = _stricter(schema, "minimum", "exclusiveMinimum", max, path, fail)
    high, under = _stricter(schema, "maximum", "exclusiveMaximum", min, path, fail)
    try:
        return numbers(low, high, over, under)
    except RangeError as error:
        raise fail(path, str(error)) from error


def _stricter(
    schema: dict[str, Any], key: str, exclusive: str, choose: Any, path: str, fail: Fail
) -> tuple[Decimal | None, bool]:
    plain, strict = bound(schema, key, path, fail), bound(schema, exclusive, path, fail)
    if strict is None or plain is None:
        return (strict, True) if plain is None and strict is not None else (plain, False)
    return (strict, True) if choose(strict, plain) == strict else (plain, False)


def string(schema: dict[str, Any], path: str, fail: Fail) -> str:
    """A text with its quotes."""
    least, most = counts(schema, "minLength", "maxLength", path, fail)
    if "pattern" in schema and "format" in schema:
        raise fail(step(path, "pattern"), "pattern together with format is not possible; leave one out")
    if "pattern" in schema:
        return inside(pattern(schema["pattern"], step(path, "pattern"), fail, (least, most)))
    if "format" in schema:
        name = schema["format"]
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise fail(step(path, "format"), f"the format {name!r} is not enforced; known are {known}")
        node = format_pattern(name)
        _within(node, least, most, step(path, "format"), fail)
        return inside(node)
    if not least and most is None:
        return "string"
    if most is None:  # as `text` is written, its tokens are known beforehand
        return rf'"\"" {ebnf.quoted(Repeat(_ANY, least, least))} text'
    return inside(Repeat(_ANY, least, most))


def inside(node: Node) -> str:
    """A text with its quotes that matches."""
    return rf'"\"" {ebnf.quoted(node)} "\""'


def pattern(text: Any, path: str, fail: Fail, size: tuple[int, int | None] = (0, None)) -> Node:
    """What a text of this size has to match in full, so that the pattern is found in it.

    Of a pattern that has an anchor at one end only, the other end is open; one without anchors is the
    whole text.
    """
    if not isinstance(text, str):
        raise fail(path, "must be a text")
    try:
        node = parse(text)
        ends = anchors(node)
        node = anchored(node)
    except PatternError as error:
        raise fail(path, f"the pattern {error!s}") from error
    least, most = size
    if len(ends) == 1:
        used = lengths(node)[1]
        room = None if most is None or used is None else max(0, most - used)
        rest = Repeat(_ANY, max(0, least - lengths(node)[0]), room)
        if room is not None and rest.low > room:
            rest = Repeat(_ANY, 0, room)
        node = Sequence((node, rest) if True in ends else (rest, node))
    _within(node, least, most, path, fail)
    return node


def _within(node: Node, least: int, most: int | None, path: str, fail: Fail) -> None:
    shortest, longest = lengths(node)
    if shortest < least or (most is not None and (longest is None or longest > most)):
        limits = f"{least} to {'any number of' if most is None else most}"
        matches = f"{shortest} to {'any number of' if longest is None else longest}"
        text = f"matches texts of {matches} characters, beside lengths of {limits}; let one imply the other"
        raise fail(path, text)


def given(values: list[Any], types: Any, path: str, fail: Fail) -> str:
    """One of these values, of those that are of the types."""
    allowed = None if types is None else [types] if isinstance(types, str) else texts(types, path, fail)
    kept = [value for value in values if allowed is None or not type_names(value).isdisjoint(allowed)]
    if not kept:
        raise fail(path, f"no value is possible of type {types}" if values else "must have a value")
    written = (json.dumps(value, ensure_ascii=False, allow_nan=False) for value in kept)
    return " | ".join(ebnf.literal(text) for text in dict.fromkeys(written))


def type_names(value: Any) -> set[str]:
    """The types of JSON Schema that a value is of."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int() | float():
            return {"number", "integer"} if value == int(value) else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}
