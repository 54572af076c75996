"""What `$ref` refers to, and whether values that refer to themselves ever end."""

from collections.abc import Iterator
from typing import Any

from .keywords import Fail, step

_HOMES = ("$defs", "definitions")


def resolve(root: Any, reference: Any, path: str, fail: Fail) -> tuple[Any, str]:
    """The schema that is referred to, and its JSON path: the root, or one of its definitions."""
    if reference == "#":
        return root, "$"
    if isinstance(reference, str):
        for home in _HOMES:
            name = reference.removeprefix(f"#/{home}/")
            if name != reference and name and not set(name) & set("/~%"):
                place = root.get(home) if isinstance(root, dict) else None
                if isinstance(place, dict) and name in place:
                    return place[name], step(step("$", home), name)
                raise fail(path, f"there is no {reference}")
    raise fail(
        path, f"{str(reference)[:100]!r} is not possible; refer to #, #/$defs/... or #/definitions/..."
    )


def follow(root: Any, schema: Any, path: str, fail: Fail) -> Any:
    """The schema itself, or what it refers to in the end."""
    seen = set()
    while isinstance(schema, dict) and "$ref" in schema:
        if schema["$ref"] in seen:
            raise fail(path, f"{schema['$ref']} refers to itself")
        seen.add(schema["$ref"])
        schema, _ = resolve(root, schema["$ref"], path, fail)
    return schema


def check(root: Any, references: list[str], fail: Fail) -> None:
    """Raises for one of the references whose values contain themselves without end, or are themselves.

    All of what is referred to must have been read.
    """
    schemas = {each: resolve(root, each, "$", fail) for each in references}
    if (circle := _circle({each: _same(schema) for each, (schema, _) in schemas.items()})) is not None:
        raise fail(schemas[circle][1], "refers to itself, which says nothing")
    ending: set[str] = set()
    waiting: dict[str, set[str]] = {}
    ahead = list(references)
    while ahead:
        each = ahead.pop()
        blocked: set[str] = set()
        if each in ending:
            continue
        if _ends(schemas[each][0], ending, blocked):
            ending.add(each)
            ahead += waiting.pop(each, ())
        for other in blocked:
            waiting.setdefault(other, set()).add(each)
    for each in references:
        if each not in ending:
            raise fail(
                schemas[each][1], "has no finite value, since each would contain another; make it optional"
            )


def _circle(same: dict[str, list[str]]) -> str | None:
    """One that comes back to itself; each is looked at once, depth first."""
    done: set[str] = set()
    for start in same:
        entered: dict[str, Iterator[str]] = {} if start in done else {start: iter(same[start])}
        while entered:
            each, others = next(reversed(entered.items()))
            other = next(others, None)
            if other is None:
                del entered[each]
                done.add(each)
            elif other in entered:
                return other
            elif other not in done:
                entered[other] = iter(same[other])
    return None


def _same(schema: Any) -> list[str]:
    """The references to values that are this value, not within it."""
    if not isinstance(schema, dict):
        return []
    found = [schema["$ref"]] if "$ref" in schema else []
    for keyword in ("anyOf", "oneOf", "allOf"):
        found += [reference for each in schema.get(keyword, []) for reference in _same(each)]
    return found


def _ends(schema: Any, ending: set[str], blocked: set[str]) -> bool:
    """Whether there is a finite value, when there is one of the references in `ending`; others, without which
    there surely is none, are added to `blocked`.
    """
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema:
        if schema["$ref"] not in ending:
            blocked.add(schema["$ref"])
        return schema["$ref"] in ending
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return any(_ends(each, ending, blocked) for each in schema[keyword])
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type", [])
    if any(kind not in ("array", "object") for kind in ([types] if isinstance(types, str) else types)):
        return True
    named, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    inside = [named.get(name, other) for name in schema.get("required", [])]
    most = schema.get("maxItems")
    heads = schema.get("prefixItems", [])[: None if most is None else int(most)]
    more = schema.get("minItems", 0) > len(heads)
    inside += heads + ([schema.get("items", True)] if more else [])
    return all(_ends(each, ending, blocked) for each in inside) and _fills(schema, ending, blocked)


def _fills(schema: dict[str, Any], ending: set[str], blocked: set[str]) -> bool:
    """Whether enough properties have finite values, of those that there must be besides the required."""
    required = set(schema.get("required", []))
    needed = schema.get("minProperties", 0) - len(required)
    optional = [each for name, each in schema.get("properties", {}).items() if name not in required]
    others = [*schema.get("patternProperties", {}).values()]
    others.append(schema.get("additionalProperties", "propertyNames" in schema))
    if needed <= 0 or not (optional or any(others)):
        return True
    needed -= sum(_ends(each, ending, blocked) for each in optional)
    return needed <= 0 or any(each is not False and _ends(each, ending, blocked) for each in others)
