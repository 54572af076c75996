"""What a caller may write in `structured_outputs`, and the one text that stands for it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidRequest

FIELD = "structured_outputs"

MAX_TEXT = 1_000_000
"""Characters of one grammar, a schema or a structural tag as JSON."""

MAX_EBNF = 20_000
"""Characters of an EBNF of one's own: xgrammar's time and memory grow with the square of its rules."""

MAX_DEPTH = 64
"""Lists and objects within each other, of a schema or a structural tag."""

MAX_DIGITS = 300
"""Digits of an integer: about those of the largest double."""

MAX_MARKER = 1000
"""Characters of `start_after`."""

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "start_after")
_APPLIES = {
    "disable_any_whitespace": ("json", "json_object", "structural_tag"),
    "disable_additional_properties": ("json", "structural_tag"),
}


def spec(structured_outputs: Mapping[str, Any]) -> str:
    """The grammar that a request is bound to, as one JSON text: equal texts are equal grammars.

    Exactly one of the kinds, and any of the options (what is None counts as left out):

    json              a JSON schema: a dict, a bool, its JSON text, or a class of pydantic models
    regex             an expression that the whole output matches, as `re.fullmatch` has it
    choice            a list of texts, of which the output is one
    grammar           an EBNF grammar with a rule `root`
    json_object       True: any JSON object
    structural_tag    tags in free text, as a dict or its JSON text: `format`, or `structures` and `triggers`
    disable_any_whitespace         no line breaks between the elements of JSON: one space after , and :
    disable_additional_properties  objects whose schema is silent about other properties have none
    start_after       nothing but the end is barred before the output's text has this in it

    The order of a schema's properties is kept, since the output has them in that order. Checks only what
    is cheap; the rest comes from `Grammars.compile`. Raises InvalidRequest with the name of the field.
    """
    if not isinstance(structured_outputs, Mapping):
        raise _invalid(f"must be an object such as {{'json': ...}}, not {_kind(structured_outputs)}")
    given = {key: value for key, value in structured_outputs.items() if value is not None}
    kind = _only_kind(given)
    parts: dict[str, Any] = {kind: _READERS[kind](given[kind])}
    for option in _OPTIONS[:2]:
        if _flag(given.get(option, False), option):
            if kind not in _APPLIES[option]:
                names = ", ".join(_APPLIES[option])
                raise _invalid(f"does nothing for {kind}, only for {names}; leave it out", option)
            parts[option] = True
    if "start_after" in given:
        parts["start_after"] = _marker(given["start_after"])
    text = json.dumps({key: parts[key] for key in sorted(parts)}, separators=(",", ":"))
    _bound(text, kind)
    return text


def _only_kind(given: Mapping[str, Any]) -> str:
    if "whitespace_pattern" in given:
        text = "is not possible; leave it out, or set disable_any_whitespace to true"
        raise _invalid(text, "whitespace_pattern")
    for key in given:
        if key not in KINDS + _OPTIONS:
            raise _invalid(f"has an unknown key {str(key)[:40]!r}; known are {', '.join(KINDS + _OPTIONS)}")
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        found = f"{len(kinds)} ({', '.join(kinds)})" if kinds else "none"
        raise _invalid(f"must have exactly one of {', '.join(KINDS)}, not {found}")
    return kinds[0]


def _schema(value: Any) -> Any:
    if isinstance(value, type) and callable(getattr(value, "model_json_schema", None)):
        try:
            value = value.model_json_schema()  # type: ignore[attr-defined]
        except Exception as error:  # whatever a model's own code raises is about this request
            text = f"the model {value.__name__} has no schema: {str(error)[:200]}"
            raise _invalid(text, "json") from error
    value = _parsed(value, "json")
    if not isinstance(value, dict | bool):
        raise _invalid(f"must be a schema (an object or a boolean), not {_kind(value)}", "json")
    return value


def _structural_tag(value: Any) -> Any:
    value = _parsed(value, "structural_tag")
    if not isinstance(value, dict):
        raise _invalid(f"must be an object, not {_kind(value)}", "structural_tag")
    return value


def _regex(value: Any) -> str:
    text = _text(value, "regex")
    if "\0" in text:
        raise _invalid(f"has a NUL at {text.index(chr(0))}; leave it out", "regex")
    return text


def _grammar(value: Any) -> str:
    text = _text(value, "grammar")
    if "\0" in text:
        raise _invalid(f"has a NUL at {text.index(chr(0))}; write it as \\x00", "grammar")
    if len(text) > MAX_EBNF:
        raise _invalid(f"has {len(text)} characters; at most {MAX_EBNF}", "grammar")
    return text


def _choice(value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or not value:
        raise _invalid("must be a list of at least one text", "choice")
    texts = [_text(choice, "choice") for choice in value]
    if "" in texts:
        raise _invalid(f"has an empty text at {texts.index('')}; leave it out", "choice")
    _bound("".join(texts), "choice")
    return texts


def _json_object(value: Any) -> bool:
    if value is not True:
        raise _invalid("must be true, or left out", "json_object")
    return True


_READERS: dict[str, Callable[[Any], Any]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}


def _marker(value: Any) -> str:
    marker = _text(value, "start_after")
    if not 0 < len(marker) <= MAX_MARKER:
        raise _invalid(f"must have 1 to {MAX_MARKER} characters, not {len(marker)}", "start_after")
    return marker


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(f"must be true or false, not {_kind(value)}", name)
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _invalid(f"must be a text, not {_kind(value)}", name)
    _bound(value, name)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"has half of a surrogate pair at {error.start}; leave it out", name) from error
    return str.__str__(value)


def _bound(text: str, name: str) -> None:
    if len(text) > MAX_TEXT:
        raise _invalid(f"is too large: {len(text)} characters; at most {MAX_TEXT}", name)


def _parsed(value: Any, name: str) -> Any:
    """Plain JSON values, from themselves or from their text."""
    if isinstance(value, str):
        try:
            value = json.loads(_text(value, name), parse_constant=_no_constant)
        except RecursionError as error:
            raise _invalid(f"is nested more than {MAX_DEPTH} deep", name) from error
        except ValueError as error:
            if isinstance(error, InvalidRequest):
                raise
            raise _invalid(f"is not JSON: {str(error)[:200]}", name) from error
    return _plain(value, name, "$", 0)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _plain(value: Any, name: str, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _invalid(f"is nested more than {MAX_DEPTH} deep at {path[:200]}", name)
    match value:
        case dict():
            return {
                _name(key, name, path): _plain(part, name, f"{path}.{key}", depth + 1)
                for key, part in value.items()
            }
        case list() | tuple():
            return [_plain(part, name, f"{path}[{index}]", depth + 1) for index, part in enumerate(value)]
        case str():
            return _name(value, name, path)
        case None | bool():
            return value
        case int():
            if abs(value) >= 10**MAX_DIGITS:
                raise _invalid(f"has an integer of more than {MAX_DIGITS} digits at {path[:200]}", name)
            return value
        case float() if value - value == 0:
            return value
    raise _invalid(f"has {_kind(value)} at {path[:200]}, which is no JSON value", name)


def _name(value: Any, name: str, path: str) -> str:
    if not isinstance(value, str):
        raise _invalid(f"has a key that is {_kind(value)} at {path[:200]}; keys are texts", name)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"has half of a surrogate pair at {path[:200]}; leave it out", name) from error
    return str.__str__(value)


def _kind(value: Any) -> str:
    return f"{value!r}" if isinstance(value, float) else type(value).__name__


def _invalid(text: str, name: str | None = None) -> InvalidRequest:
    field = FIELD if name is None else f"{FIELD}.{name}"
    return InvalidRequest(f"{field} {text}", field)
