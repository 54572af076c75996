"""What /openapi.json tells: FastAPI's document, completed by what no annotation says.

Bodies get the limits that the engine holds to, and every operation the bodies of its answers and errors.
"""

import json
import re
from collections.abc import Mapping

from ..settings import ServerSettings
from . import anthropic, chat, responses
from .limits import limit
from .shapes import NOTHING, TEXT, Json, Told, content, nullable, record, ref
from .variants import VARIANTS

ERRORS: Mapping[int, str] = {
    400: "The request asks for what cannot be; `param` names the field.",
    401: "The API key is missing or not known.",
    403: "The page that asks is of an origin that may not.",
    404: "There is no such model, response or item.",
    408: "The body has not come in time.",
    413: "The body has more bytes than the server takes.",
    429: "Too many requests wait already; `retry-after` says when to come again.",
    499: "The client has gone before there was an answer, and does not see this.",
    500: "The server failed.",
    503: "The server takes no requests now.",
    504: "The request ran into its timeout.",
}
"""What a status means."""

BODILESS = (499,)

CODE: Json = {"type": "integer", "minimum": 400, "maximum": 599}

ERROR = record({"error": record({"message": TEXT, "type": TEXT, "param": nullable(TEXT), "code": CODE})})

OPERATIONS: Mapping[tuple[str, str], Told] = {
    **chat.OPERATIONS,
    **anthropic.OPERATIONS,
    **responses.OPERATIONS,
}
"""What is answered, by path and method."""

SHAPES: Mapping[str, Json] = {
    "Error": ERROR,
    **chat.SHAPES,
    **anthropic.SHAPES,
    **responses.SHAPES,
}
"""The components of answers."""

KEYS: Mapping[str, Json] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""How a request brings its key."""


def complete(document: Json, settings: ServerSettings) -> None:
    """Add what FastAPI does not know to its document. Operations that are not ours stay as they are."""
    document |= json.loads(_LONG.sub(lambda found: _OF[found[1]], json.dumps(document)))
    components: Json = document.setdefault("components", {})
    schemas: Json = components.setdefault("schemas", {})
    for name in [name for name, schema in schemas.items() if schema.get("additionalProperties") == NOTHING]:
        schemas[name] = _body(name, schemas[name], settings.ignore_unknown_fields)
    schemas |= SHAPES
    if settings.keys:
        components["securitySchemes"] = dict(KEYS)
    for (path, method), told in OPERATIONS.items():
        operation = document["paths"][path][method]
        operation["responses"] = _responses(told)
        if settings.keys and (path != "/metrics" or settings.metrics_need_key) and 401 in told.errors:
            operation["security"] = [{name: []} for name in KEYS]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


_LONG = re.compile("actorllm__server__([a-z]+)__[a-z_]+?__")
"""How pydantic tells bodies of one name apart: by their modules."""

_OF = {"chat": "Conversation", "anthropic": "Messages", "responses": "Responses"}
"""How they are told apart here: by the API that they belong to."""


def _body(name: str, schema: Json, lenient: bool) -> Json:
    """A part of a request's body, with all that is known of it."""
    limit(name, schema.get("properties", {}))
    found = VARIANTS[name].split(schema) if name in VARIANTS else schema
    for form in found.get("anyOf", [found]):
        form["additionalProperties"] = True if lenient else NOTHING
    return found


def _responses(told: Told) -> Json:
    """What an operation answers, by status."""
    found: Json = {}
    if told.whole is not None:
        found["200"] = {"description": "The answer.", "content": content(told)}
    for status in sorted(told.errors):
        found[str(status)] = {"description": ERRORS[status]}
        if status not in BODILESS:
            found[str(status)]["content"] = {"application/json": {"schema": ref(told.error)}}
    return found
