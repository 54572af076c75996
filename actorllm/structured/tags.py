"""Structural tags: the formats that are enforced, with their schemas and patterns written as EBNF."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import InvalidRequest
from .ebnf import plain
from .limits import Size
from .patterns import PatternError, anchored, parse
from .schema import grammar_of_schema

Tag = dict[str, Any]

_FIELDS: dict[str, tuple[str, ...]] = {
    "const_string": ("value",),
    "json_schema": ("json_schema", "style"),
    "regex": ("pattern",),
    "grammar": ("grammar", "syntax"),
    "any_text": ("excludes", "max_chars"),
    "sequence": ("elements",),
    "or": ("elements",),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "repeat": ("min", "max", "content"),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", "at_least_one", "stop_after_first", "excludes"),
    "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
}
"""The types of format and their fields; all that speak of token ids or of XML are missing."""

_LOOPS = ("any_text", "optional", "plus", "star", "repeat", "triggered_tags", "tags_with_separator")


def grammar_of_regex(pattern: str, field: str) -> str:
    """EBNF text of texts that all match in full, as `re.fullmatch` has it. Raises InvalidRequest."""
    try:
        return f"root ::= {plain(anchored(parse(pattern)))}"
    except PatternError as error:
        raise InvalidRequest(f"{field} {error}", field) from error


def structural_tag(tag: Tag, field: str, size: Size, *, compact: bool = False, closed: bool = False) -> Tag:
    """The same tag as xgrammar reads it, its parts added to `size`. Raises InvalidRequest with the path of
    what is not enforced.
    """
    write = partial(grammar_of_schema, compact=compact, closed=closed)
    reader = _Reader(field, write, size)
    if tag.get("type", "structural_tag") != "structural_tag":
        raise reader.fail("$.type", 'must be "structural_tag"')
    if "structures" in tag:
        return {"type": "structural_tag", "format": reader.legacy(tag)}
    reader.only(tag, ("type", "format"), "$")
    return {"type": "structural_tag", "format": reader.format(tag.get("format"), "$.format")}


class _Reader:
    """Reads formats within each other; `schema` writes a schema, given the name of its place."""

    def __init__(self, field: str, schema: Callable[[Any, str], str], size: Size) -> None:
        self._field = field
        self._schema = schema
        self._size = size

    def fail(self, path: str, text: str) -> InvalidRequest:
        return InvalidRequest(f"{self._field} at {path[:300]}: {text}", self._field)

    def only(self, found: Tag, known: tuple[str, ...], path: str) -> None:
        for key in found:
            if key not in known:
                raise self.fail(f"{path}.{key}", f"is not possible; possible are {', '.join(known)}")

    def legacy(self, tag: Tag) -> Tag:
        self.only(tag, ("type", "structures", "triggers"), "$")
        tags = []
        for index, each in enumerate(self._list(tag["structures"], "$.structures")):
            path = f"$.structures[{index}]"
            if not isinstance(each, dict):
                raise self.fail(path, "must be an object")
            self.only(each, ("begin", "schema", "end"), path)
            content = {"type": "json_schema", "json_schema": each.get("schema", {})}
            tags.append(
                {"type": "tag", "begin": each.get("begin"), "content": content, "end": each.get("end")}
            )
        triggered = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}
        return self.format(triggered, "$")

    def format(self, given: Any, path: str, only: str | None = None) -> Tag:
        if not isinstance(given, dict) or (only or str(given.get("type"))) not in _FIELDS:
            kinds = ", ".join(_FIELDS)
            raise self.fail(path, f"must be an object with a type, one of {kinds}")
        kind = only or given["type"]
        if given.get("type", kind) != kind:
            raise self.fail(f"{path}.type", f"must be {kind!r}")
        self.only(given, ("type", *_FIELDS[kind]), path)
        where = f"{self._field} at {path}"
        add = self._size.add
        if kind in _LOOPS:
            self._size.add_tag()
        match kind:
            case "json_schema":
                self._is(given, "style", "json", path)
                return _grammar(add(self._schema(given.get("json_schema"), f"{where}.json_schema")))
            case "regex":
                return _grammar(add(grammar_of_regex(self._text(given, "pattern", path), f"{where}.pattern")))
            case "grammar":
                self._is(given, "syntax", "ebnf", path)
                return _grammar(add(self._text(given, "grammar", path), is_callers=True))
            case "tag":
                self._text(given, "begin", path)
                if not isinstance(given.get("end"), list):
                    self._text(given, "end", path)
        return {"type": kind, **{key: self._part(given[key], key, path) for key in given if key != "type"}}

    def _part(self, value: Any, key: str, path: str) -> Any:
        path = f"{path}.{key}"
        match key:
            case "content":
                return self.format(value, path)
            case "elements" | "tags":
                only = "tag" if key == "tags" else None
                parts = self._list(value, path)
                return [self.format(part, f"{path}[{index}]", only) for index, part in enumerate(parts)]
            case "triggers" | "excludes" | "end" if not isinstance(value, str):
                for index, text in enumerate(self._list(value, path)):
                    if not isinstance(text, str):
                        raise self.fail(f"{path}[{index}]", "must be a text")
        return value

    def _list(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(path, "must be a list")
        return value

    def _text(self, given: Tag, key: str, path: str) -> str:
        value = given.get(key)
        if not isinstance(value, str):
            raise self.fail(f"{path}.{key}", "must be a text")
        return value

    def _is(self, given: Tag, key: str, only: str, path: str) -> None:
        if given.get(key, only) != only:
            raise self.fail(f"{path}.{key}", f"must be {only!r}; others are not possible")


def _grammar(text: str) -> Tag:
    return {"type": "grammar", "grammar": text}
