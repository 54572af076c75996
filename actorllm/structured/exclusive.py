"""Whether schemas exclude each other, so that `oneOf` of them is the same as `anyOf`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .scalars import type_names

MAX_COMPARED = 300
"""Schemas of objects that are compared two by two, since no single property tells all of them apart."""

_ALL = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])


class TooMany(ValueError):
    """More than MAX_COMPARED."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """What is known of a schema's values: their types, all of them when they are given, and those of the
    properties that are required and given.
    """

    index: int
    types: frozenset[str]
    values: frozenset[str] | None
    tags: dict[str, frozenset[str]]


def overlap(schemas: list[Any]) -> tuple[int, int] | None:
    """Two that are not surely exclusive, by their indices; None when all exclude each other.

    The schemas must have been read, and be without `$ref`. Raises TooMany.
    """
    branches = [_branch(index, schema) for index, schema in enumerate(schemas)]
    given = [(branch.index, branch.values) for branch in branches if branch.values is not None]
    objects = [branch for branch in branches if branch.values is None and "object" in branch.types]
    return _common(given) or _same_types(branches) or _same_tags(objects)


def _same_types(branches: list[_Branch]) -> tuple[int, int] | None:
    """Two that share a type, not both of them with their values given; except for two of objects."""
    groups: dict[tuple[frozenset[str], bool], int] = {}
    for branch in branches:
        is_given = branch.values is not None
        for (types, other_is_given), index in groups.items():
            shared = types & branch.types
            both_objects = shared == {"object"} and not is_given and not other_is_given
            if shared and not both_objects and not (is_given and other_is_given):
                return index, branch.index
        groups.setdefault((branch.types, is_given), branch.index)
    return None


def _same_tags(objects: list[_Branch]) -> tuple[int, int] | None:
    """Two without a property that both require and whose values differ in all cases."""
    if len(objects) < 2:
        return None
    for name in objects[0].tags:
        everywhere = all(name in branch.tags for branch in objects)
        if everywhere and _common((branch.index, branch.tags[name]) for branch in objects) is None:
            return None
    if len(objects) > MAX_COMPARED:
        raise TooMany(f"more than {MAX_COMPARED} schemas of objects")
    for left, right in combinations(objects, 2):
        if not any(
            name in right.tags and values.isdisjoint(right.tags[name]) for name, values in left.tags.items()
        ):
            return left.index, right.index
    return None


def _common(sets: Iterable[tuple[int, frozenset[str]]]) -> tuple[int, int] | None:
    """Two with a value in common."""
    owners: dict[str, int] = {}
    for index, values in sets:
        for value in values:
            if value in owners:
                return owners[value], index
        owners.update(dict.fromkeys(values, index))
    return None


def _branch(index: int, schema: Any) -> _Branch:
    if not isinstance(schema, dict):
        return _Branch(index, _ALL, None, {})
    values = _given(schema)
    if values is not None:
        types = frozenset().union(*map(type_names, values))
        return _Branch(index, types, _texts(values), {})
    properties = schema.get("properties", {})
    found = {name: _given(properties.get(name)) for name in schema.get("required", [])}
    tags = {name: _texts(values) for name, values in found.items() if values is not None}
    return _Branch(index, _types(schema), None, tags)


def _given(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    values: list[Any] | None = [schema["const"]] if "const" in schema else schema.get("enum")
    return values


def _texts(values: list[Any]) -> frozenset[str]:
    """The values as texts that are equal where the values are."""
    return frozenset(json.dumps(_plain(value), sort_keys=True) for value in values)


def _plain(value: Any) -> Any:
    """The same with whole floats as integers, which JSON Schema holds equal."""
    match value:
        case float() if value == int(value):
            return int(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in value.items()}
    return value


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """All types that a value may have; a number may always be an integer."""
    types = schema.get("type")
    if types is None or any(keyword in schema for keyword in ("$ref", "anyOf", "oneOf", "allOf")):
        return _ALL
    names = frozenset([types] if isinstance(types, str) else types)
    return names | {"integer"} if "number" in names else names
