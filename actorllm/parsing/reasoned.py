"""Forms of answers that begin with reasoning, or may."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidRequest
from .formats import ReasoningFormat

Form = dict[str, Any]

BLANKS: Form = {"type": "regex", "pattern": r"[ \n]{0,4}"}
"""What models write behind the marker that ends their reasoning."""

_WRITTEN: dict[str, Callable[[Any], Form]] = {
    "json": lambda schema: {"type": "json_schema", "json_schema": schema},
    "json_object": lambda _: {"type": "json_schema", "json_schema": {"type": "object"}},
    "regex": lambda pattern: {"type": "regex", "pattern": pattern},
    "grammar": lambda grammar: {"type": "grammar", "grammar": grammar},
    "choice": lambda texts: {
        "type": "or",
        "elements": [{"type": "const_string", "value": text} for text in texts],
    },
}
"""Every kind of `SamplingParams.structured_outputs`, as a part of a structural tag."""


def behind_reasoning(form: Mapping[str, Any], reasoning: ReasoningFormat) -> Form:
    """`SamplingParams.structured_outputs` of an answer whose reasoning has begun in its prompt.

    It is free up to the end of that, but does not end before. Raises InvalidRequest for tags in OpenAI's
    older form, which have no place behind something else.
    """

    def behind(written: Form) -> Form:
        return {"type": "sequence", "elements": [BLANKS, written]}

    return {"start_after": reasoning.end, **_placed(form, behind)}


def perhaps_behind_reasoning(form: Mapping[str, Any], reasoning: ReasoningFormat) -> Form:
    """The same of an answer that may begin with reasoning, or with what the form wants at once."""
    thought = {"type": "tag", "begin": reasoning.begin, "content": {"type": "any_text"}, "end": reasoning.end}

    def behind(written: Form) -> Form:
        reasoned = {"type": "sequence", "elements": [thought, BLANKS, written]}
        return {"type": "or", "elements": [reasoned, written]}

    return _placed(form, behind)


def _placed(form: Mapping[str, Any], behind: Callable[[Form], Form]) -> Form:
    """The form as a structural tag, in its place. What says itself where it begins, or is none, stays."""
    given = {key: value for key, value in form.items() if value is not None}
    kinds = [kind for kind in (*_WRITTEN, "structural_tag") if kind in given]
    if "start_after" in given or len(kinds) != 1:
        return given
    (kind,) = kinds
    value = given.pop(kind)
    written = _tags(value) if kind == "structural_tag" else _WRITTEN[kind](_plain(kind, value))
    return {"structural_tag": {"type": "structural_tag", "format": behind(written)}, **given}


def _plain(kind: str, value: Any) -> Any:
    """A schema as what it says: it may be given as its text."""
    if kind == "json" and isinstance(value, str):
        return _loaded(value, "json")
    return value


def _tags(value: Any) -> Form:
    tag = _loaded(value, "structural_tag") if isinstance(value, str) else value
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        text = "behind reasoning, structural_tag must be in its form with `format`, not `structures`"
        raise InvalidRequest(text, "structured_outputs.structural_tag")
    found: Form = tag["format"]
    return found


def _loaded(text: str, kind: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        param = f"structured_outputs.{kind}"
        raise InvalidRequest(f"{param} is not JSON: {error}", param) from error
