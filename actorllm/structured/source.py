"""From a spec to what xgrammar compiles: EBNF text, or a structural tag."""

import json
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequest
from .ebnf import literal
from .limits import Size
from .rules import Rules
from .schema import grammar_of_schema
from .spec import FIELD, KINDS
from .tags import grammar_of_regex, structural_tag


def source(given: Mapping[str, Any]) -> tuple[str, str]:
    """`ebnf` or `tag`, and its text, of the parts of a spec. Raises InvalidRequest, whatever goes wrong."""
    try:
        return _source(given)
    except InvalidRequest:
        raise
    except Exception as error:  # a caller's text must not end as a fault of ours
        field = field_of(given)
        text = f"{field} cannot be read: {type(error).__name__}: {str(error)[:200]}"
        raise InvalidRequest(text, field) from error


def field_of(given: Mapping[str, Any]) -> str:
    """The name of the field that the grammar of a spec comes from."""
    return next(f"{FIELD}.{kind}" for kind in KINDS if kind in given)


def _source(given: Mapping[str, Any]) -> tuple[str, str]:
    compact, closed = (
        given.get("disable_any_whitespace", False),
        given.get("disable_additional_properties", False),
    )
    field = field_of(given)
    size = Size(field)
    match given:
        case {"json": schema}:
            return "ebnf", size.add(grammar_of_schema(schema, field, compact=compact, closed=closed))
        case {"json_object": _}:
            return "ebnf", Rules(compact).text("object")
        case {"regex": pattern}:
            return "ebnf", size.add(grammar_of_regex(pattern, field))
        case {"choice": choices}:
            return "ebnf", size.add("root ::= " + " | ".join(map(literal, dict.fromkeys(choices))))
        case {"grammar": text}:
            return "ebnf", size.add(text, is_callers=True)
    tag = structural_tag(given["structural_tag"], field, size, compact=compact, closed=closed)
    return "tag", json.dumps(tag)
