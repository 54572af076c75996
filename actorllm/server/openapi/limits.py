"""The limits of a body's fields that its annotations do not have, since the engine holds to them."""

from collections.abc import Iterator, Mapping, Sequence

from ...params import MAX_BAD_WORDS, MAX_LOGPROB_TOKENS, MAX_N, MAX_STOP_LENGTH, MAX_STOP_STRINGS
from ...service import MAX_NAME, MAX_TIMEOUT
from ...structured.spec import MAX_MARKER
from .shapes import NOTHING, NUMBER, TEXT, Json, many, nullable, record

MAX_INTEGER = 2**31 - 1
WHITESPACE, PROPERTIES = OPTIONS = ("disable_any_whitespace", "disable_additional_properties")
TOKEN: Json = {"minimum": 0, "maximum": MAX_INTEGER}


def _between(low: float, high: float = MAX_INTEGER) -> Json:
    return {"minimum": low, "maximum": high}


def _above(low: float, high: float) -> Json:
    return {"exclusiveMinimum": low, "maximum": high}


def _texts(most: int) -> Mapping[str, Json]:
    text: Json = {"minLength": 1, "maxLength": MAX_STOP_LENGTH}
    return {"string": text, "array": {"maxItems": most, "items": {**TEXT, **text}}}


def _tokens(**limits: int) -> Mapping[str, Json]:
    return {"array": {**limits, "items": {"type": "integer", **TOKEN}}}


KINDS: Mapping[str, tuple[Json, Sequence[str]]] = {
    "json": ({"type": ["object", "boolean", "string"]}, (WHITESPACE, PROPERTIES)),
    "regex": (TEXT, ()),
    "choice": ({**many({**TEXT, "minLength": 1}), "minItems": 1}, ()),
    "grammar": (TEXT, ()),
    "json_object": ({"const": True}, (WHITESPACE,)),
    "structural_tag": ({"type": ["object", "string"]}, (WHITESPACE, PROPERTIES)),
}
"""What an answer can be bound to, and the options that this has."""

MARKER: Json = {**TEXT, "minLength": 1, "maxLength": MAX_MARKER}


def _form(kind: str) -> Json:
    schema, options = KINDS[kind]
    others = {name: NOTHING for name in KINDS if name != kind}
    flags = {name: {"enum": [False, None, *([True] if name in options else [])]} for name in OPTIONS}
    return record({kind: schema}, {**others, **flags, "start_after": nullable(MARKER)})


FORMS = {"object": {"anyOf": [_form(kind) for kind in KINDS]}}
REPETITION = {
    "object": {
        "properties": {
            "max_pattern_size": {"type": "integer", **_between(1, 1000)},
            "min_pattern_size": {"type": "integer", **_between(1, 1000)},
            "min_count": {"type": "integer", **_between(2, 1000)},
        },
        "required": ["max_pattern_size"],
        "additionalProperties": False,
    }
}
BIAS = {
    "object": {
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": {**NUMBER, **_between(-1e9, 1e9)},
    }
}
PENALTY = {"number": _between(-2, 2)}
SECONDS = {"number": _between(0, MAX_TIMEOUT)}

LIMITS: Mapping[str, Mapping[str, Json]] = {
    "n": {"integer": _between(1, MAX_N)},
    "max_tokens": {"integer": _between(1)},
    "max_completion_tokens": {"integer": _between(1)},
    "max_output_tokens": {"integer": _between(1)},
    "min_tokens": {"integer": _between(0)},
    "temperature": {"number": _between(0, 2)},
    "top_p": {"number": _above(0, 1)},
    "top_k": {"integer": _between(-1)},
    "min_p": {"number": _between(0, 1)},
    "seed": {"integer": _between(-(2**63), 2**63 - 1)},
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "repetition_penalty": {"number": _above(0, 1e4)},
    "logit_bias": BIAS,
    "allowed_token_ids": _tokens(minItems=1),
    "bad_words": _texts(MAX_BAD_WORDS),
    "stop": _texts(MAX_STOP_STRINGS),
    "stop_sequences": _texts(MAX_STOP_STRINGS),
    "stop_token_ids": _tokens(),
    "truncate_prompt_tokens": {"integer": {**_between(-1), "not": {"const": 0}}},
    "prompt_logprobs": {"integer": _between(-1)},
    "logprobs": {"integer": _between(-1)},
    "top_logprobs": {"integer": _between(-1)},
    "logprob_token_ids": _tokens(maxItems=MAX_LOGPROB_TOKENS),
    "structured_outputs": FORMS,
    "repetition_detection": REPETITION,
    "thinking_token_budget": {"integer": _between(-1)},
    "budget_tokens": {"integer": _between(1)},
    "priority": {"integer": _between(-(2**31))},
    "cache_salt": {"string": {"maxLength": MAX_NAME}},
    "timeout": SECONDS,
    "queue_timeout": SECONDS,
    "ttft_timeout": SECONDS,
    "stream_interval": {"integer": _between(1)},
    "tokens": _tokens(),
}
"""By the name of a field and the JSON type of its value, what else must be true of it."""

EXCEPTIONS: Mapping[tuple[str, str], Mapping[str, Json]] = {
    ("ChatRequest", "messages"): {"array": {"minItems": 1}},
    ("CompletionRequest", "max_tokens"): {"integer": _between(0)},
}
"""The same in one body alone. With `echo`, no token at all can be wanted."""


def limit(body: str, properties: Mapping[str, Json]) -> None:
    """Add the limits to the properties of a body of this name."""
    for name, schema in properties.items():
        limits = EXCEPTIONS.get((body, name), LIMITS.get(name, {}))
        for form in _forms(schema):
            form |= limits.get(form.get("type", ""), {})


def _forms(schema: Json) -> Iterator[Json]:
    """The alternatives of a schema."""
    for form in schema.get("anyOf", [schema]):
        if "anyOf" in form:
            yield from _forms(form)
        else:
            yield form
