"""JSON Schema to EBNF: every keyword is enforced, or has no effect by the standard, or is refused by name."""

from collections import deque
from typing import Any

from ..errors import InvalidRequest
from . import references
from .containers import array, obj
from .exclusive import TooMany, overlap
from .keywords import ANNOTATIONS, BY_TYPE, COMBINERS, MAX_REFERENCES, Fail, check_known, step
from .rules import Rules, TooLarge
from .scalars import given, integer, number, string


def grammar_of_schema(
    schema: Any, field: str = "structured_outputs.json", *, compact: bool = False, closed: bool = False
) -> str:
    """EBNF text, with a rule `root`, of JSON texts that are all valid by the schema (Draft 2020-12).

    Not all that is valid can be written: properties come in the order of the schema, and others only where
    it says so; numbers and white space are bounded; strings have no halves of surrogate pairs, and those of
    a bounded length nothing that needs an escape (a quote, a line break). `compact` is
    without line breaks, `closed` keeps properties from objects of which the schema says nothing. Raises
    InvalidRequest.
    """

    def fail(path: str, text: str) -> InvalidRequest:
        return InvalidRequest(f"{field} at {path[:300]}: {text}", field)

    writer = _Writer(schema, Rules(compact), closed, fail)
    try:
        return writer.text()
    except TooLarge as error:
        raise fail("$", f"the schema {error}; make it smaller") from error


class _Writer:
    """Writes the rules of one schema. What is referred to waits in a queue, so that it may be recursive."""

    def __init__(self, schema: Any, rules: Rules, closed: bool, fail: Fail) -> None:
        self._schema = schema
        self._rules = rules
        self._closed = closed
        self._fail = fail
        self._names: dict[str, str] = {}
        self._queue: deque[str] = deque()
        self._exclusive: list[tuple[list[Any], str]] = []

    def text(self) -> str:
        root = self._write(self._schema, "$")
        while self._queue:
            reference = self._queue.popleft()
            target, path = references.resolve(self._schema, reference, "$", self._fail)
            self._rules.define(self._names[reference], self._write(target, path))
        for schemas, path in self._exclusive:  # now that all that they refer to is known to be right
            self._check_exclusive(schemas, path)
        references.check(self._schema, list(self._names), self._fail)
        return self._rules.text(root)

    def _write(self, schema: Any, path: str) -> str:
        """The name of a rule for the values of a schema."""
        if isinstance(schema, bool):
            if not schema:
                raise self._fail(path, "false accepts no value; leave it out")
            return "value"
        if not isinstance(schema, dict):
            raise self._fail(path, "a schema must be an object or a boolean")
        check_known(schema, path, self._fail)
        if "$id" in schema and path != "$":
            raise self._fail(
                step(path, "$id"), "within a schema it changes what references mean; leave it out"
            )
        said = {key: value for key, value in schema.items() if not _is_annotation(key)}
        combiner = next((key for key in COMBINERS if key in said), None)
        if combiner is None:
            return self._types(said, path)
        rest = [key for key in said if key != combiner]
        if combiner in ("const", "enum"):
            return self._given(said, combiner, [key for key in rest if key != "type"], path)
        self._alone(combiner, rest, path)
        return self._combined(said[combiner], combiner, path)

    def _alone(self, keyword: str, rest: list[str], path: str) -> None:
        if rest:
            text = f"{rest[0]} beside {keyword} is not enforced; move it into the schemas of {keyword}"
            raise self._fail(step(path, rest[0]), text)

    def _given(self, said: dict[str, Any], keyword: str, rest: list[str], path: str) -> str:
        if rest:
            text = f"{rest[0]} beside {keyword} is not enforced; leave it out"
            raise self._fail(step(path, rest[0]), text)
        values = [said["const"]] if keyword == "const" else said["enum"]
        if not isinstance(values, list):
            raise self._fail(step(path, keyword), "must be a list")
        return self._rules.add(given(values, said.get("type"), step(path, keyword), self._fail))

    def _combined(self, value: Any, keyword: str, path: str) -> str:
        where = step(path, keyword)
        if keyword == "$ref":
            return self._refer(value, where)
        if not isinstance(value, list) or not value:
            raise self._fail(where, "must be a list of at least one schema")
        if keyword == "allOf" and len(value) > 1:
            raise self._fail(where, "allOf of several schemas is not enforced; write them as one")
        names = [self._write(each, f"{where}[{index}]") for index, each in enumerate(value)]
        if keyword == "oneOf":
            self._exclusive.append((value, where))
        return self._rules.add(" | ".join(dict.fromkeys(names)))

    def _check_exclusive(self, schemas: list[Any], path: str) -> None:
        try:
            pair = overlap([references.follow(self._schema, each, path, self._fail) for each in schemas])
        except TooMany as error:
            text = f"{error} are too many for oneOf where no required property has a const in each; use anyOf"
            raise self._fail(path, text) from error
        if pair:
            text = (
                f"the schemas {pair[0]} and {pair[1]} may both accept a value, which oneOf forbids; use"
                " anyOf, or give them different types or a required property with a const that differs"
            )
            raise self._fail(path, text)

    def _refer(self, reference: Any, path: str) -> str:
        references.resolve(self._schema, reference, path, self._fail)
        name = self._names.get(reference)
        if name is None:
            if len(self._names) >= MAX_REFERENCES:
                raise self._fail(path, f"more than {MAX_REFERENCES} definitions are referred to")
            name = self._names[reference] = self._rules.reserve()
            self._queue.append(reference)
        return name

    def _types(self, said: dict[str, Any], path: str) -> str:
        keywords = [key for key in said if key != "type"]
        if "type" not in said:
            types = [name for name in BY_TYPE if name != "integer" and not BY_TYPE[name].isdisjoint(keywords)]
            if not types:
                return "value"
        else:
            types = [said["type"]] if isinstance(said["type"], str) else said["type"]
        if not isinstance(types, list) or not types or not all(isinstance(each, str) for each in types):
            raise self._fail(step(path, "type"), "must be a type or a list of types")
        for name in types:
            if name not in BY_TYPE:
                raise self._fail(step(path, "type"), f"unknown type {name!r}; known are {', '.join(BY_TYPE)}")
        for key in keywords:
            if not any(key in BY_TYPE[name] for name in types):
                text = f"{key} says nothing about {' or '.join(types)}; leave it out"
                raise self._fail(step(path, key), text)
        names = [self._typed(name, said, path) for name in dict.fromkeys(types)]
        return names[0] if len(names) == 1 else self._rules.add(" | ".join(names))

    def _typed(self, name: str, said: dict[str, Any], path: str) -> str:
        said = {key: value for key, value in said.items() if key in BY_TYPE[name]}
        rules, fail = self._rules, self._fail
        match name:
            case "integer":
                body = integer(said, path, fail)
            case "number":
                body = number(said, path, fail)
            case "string":
                body = string(said, path, fail)
            case "array":
                body = array(said, path, rules, self._write, fail) if said else "array"
            case "object":
                bare = not said and not self._closed
                body = "object" if bare else obj(said, self._closed, path, rules, self._write, fail)
            case _:
                body = name
        return body if body.isidentifier() else rules.add(body)


def _is_annotation(key: str) -> bool:
    return key in ANNOTATIONS or key.startswith("x-")
