"""JSON Schemas of answers, in few words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
NUMBER: Json = {"type": "number"}
FLAG: Json = {"type": "boolean"}
ANYTHING: Json = {}
OBJECT: Json = {"type": "object"}
NOTHING: Json = {"type": "null"}


def record(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None) -> Json:
    """An object that has these members, may have the optional ones, and has no other."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def only(*texts: str) -> Json:
    """One of these texts."""
    return {"type": "string", "enum": list(texts)}


def many(items: Json) -> Json:
    """A list."""
    return {"type": "array", "items": items}


def by_name(values: Json) -> Json:
    """An object with members of any name."""
    return {"type": "object", "additionalProperties": values}


def either(*schemas: Json) -> Json:
    """One or the other."""
    return {"anyOf": list(schemas)}


def nullable(schema: Json) -> Json:
    """The same, or null."""
    return either(schema, NOTHING)


def ref(name: str) -> Json:
    """A component."""
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True, slots=True)
class Told:
    """What an operation answers.

    whole   the schema of its JSON, or the media types of its text; None: it never succeeds
    events  the schema of the data of an event, where the answer can be a stream; None: it cannot
    errors  the statuses of its errors
    error   the component that all of them are
    done    the data of a stream's last event, where that is no JSON
    """

    whole: Json | Sequence[str] | None
    errors: tuple[int, ...]
    events: Json | None = None
    error: str = "Error"
    done: str | None = None


def content(told: Told) -> Json:
    """The bodies of a success, by media type."""
    if not isinstance(told.whole, dict):
        return {kind: {"schema": TEXT} for kind in told.whole or ()}
    found: Json = {"application/json": {"schema": told.whole}}
    if told.events is not None:
        data: Json = {**TEXT, "contentMediaType": "application/json", "contentSchema": told.events}
        if told.done is not None:
            data = either({**TEXT, "const": told.done}, data)
        event = {"type": "object", "properties": {"event": TEXT, "data": data}, "required": ["data"]}
        found["text/event-stream"] = {"itemSchema": event}
    return found
