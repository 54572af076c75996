"""The keywords of JSON Schema that are enforced, by the type that they speak of, and the reading of them."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from ..errors import InvalidRequest

ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "$schema",
        "$id",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "$defs",
        "definitions",
    ]
)
"""They say nothing about which values are valid; the definitions do so only where they are referred to."""

COMBINERS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")

BY_TYPE: dict[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "array": frozenset(["items", "prefixItems", "minItems", "maxItems", "uniqueItems"]),
    "object": frozenset(
        [
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
        ]
    ),
}

KNOWN = frozenset(COMBINERS).union(ANNOTATIONS, {"type"}, *BY_TYPE.values())

MAX_COUNT = 100_000
"""The highest length or count that a schema may ask for."""

MAX_REFERENCES = 1000

Fail = Callable[[str, str], InvalidRequest]
"""Makes the error of what is wrong (the second) at a JSON path (the first)."""


def step(path: str, key: str) -> str:
    """The JSON path of a member of what is at `path`."""
    return f"{path}.{key}" if key.replace("_", "a").replace("$", "a").isalnum() else f"{path}[{key!r}]"


def check_known(schema: dict[str, Any], path: str, fail: Fail) -> None:
    """Raises for the first keyword that is neither enforced nor without effect."""
    for key in schema:
        if key not in KNOWN and not key.startswith("x-"):
            raise fail(step(path, key), f"the keyword {key} is not enforced; leave it out")


def count(schema: dict[str, Any], key: str, path: str, fail: Fail) -> int | None:
    """The value of a keyword that counts; None where it is left out."""
    value = schema.get(key)
    if key not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise fail(step(path, key), "must be an integer that is not negative")
    if value > MAX_COUNT:
        raise fail(step(path, key), f"must be at most {MAX_COUNT}")
    return int(value)


def counts(schema: dict[str, Any], low: str, high: str, path: str, fail: Fail) -> tuple[int, int | None]:
    """The values of two keywords that bound a count."""
    least, most = count(schema, low, path, fail) or 0, count(schema, high, path, fail)
    if most is not None and least > most:
        raise fail(step(path, low), f"{least} is more than {high}, {most}")
    return least, most


def bound(schema: dict[str, Any], key: str, path: str, fail: Fail) -> Decimal | None:
    """The value of a keyword that bounds a number, as it is written; None where it is left out."""
    value = schema.get(key)
    if key not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fail(step(path, key), "must be a number")
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def texts(value: Any, path: str, fail: Fail) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise fail(path, "must be a list of texts")
    return value


def members(schema: dict[str, Any], key: str, path: str, fail: Fail) -> dict[str, Any]:
    """The value of a keyword that is an object of schemas; empty where it is left out."""
    value = schema.get(key, {})
    if not isinstance(value, dict):
        raise fail(step(path, key), "must be an object")
    return value
