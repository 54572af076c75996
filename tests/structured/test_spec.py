import json
from typing import Any

import pytest
from pydantic import BaseModel

from actorllm.errors import InvalidRequest
from actorllm.structured import spec


class Point(BaseModel):
    x: int


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"items": value}
    return value


@pytest.mark.parametrize(
    "given",
    [
        {"json": {"type": "object"}},
        {"json": True},
        {"regex": "a+"},
        {"choice": ["a", "b"]},
        {"grammar": 'root ::= "é"'},
        {"json_object": True},
        {"structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}}},
        {"json": {}, "disable_any_whitespace": True, "disable_additional_properties": True},
        {"regex": "a", "start_after": "</think>"},
    ],
)
def test_a_spec_is_the_json_text_of_its_parts(given: dict[str, Any]) -> None:
    assert json.loads(spec(given)) == given


def test_equal_grammars_have_equal_texts() -> None:
    schema = {"type": "integer"}
    text = spec({"start_after": "x", "json": schema, "regex": None, "disable_any_whitespace": False})
    assert text == spec({"json": json.dumps(schema, indent=2), "start_after": "x"})
    assert text == '{"json":{"type":"integer"},"start_after":"x"}'
    assert spec({"json": Point}) == spec({"json": Point.model_json_schema()})
    assert spec({"choice": ("a",)}) == spec({"choice": ["a"]})


def test_the_order_of_properties_is_part_of_a_schema() -> None:
    names: dict[str, Any] = {"a": {}, "b": {}}
    assert spec({"json": {"properties": names}}) != spec(
        {"json": {"properties": dict(reversed(names.items()))}}
    )


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ([], "", "must be an object such as"),
        ({}, "", "must have exactly one of json, regex, choice, .* not none"),
        ({"regex": "a", "json": {}}, "", r"not 2 \(json, regex\)"),
        ({"regex": "a", "backend": "x"}, "", "unknown key 'backend'; known are json"),
        ({"json": {}, "whitespace_pattern": " "}, "whitespace_pattern", "set disable_any_whitespace"),
        ({"json": 3}, "json", "must be a schema .* not int"),
        ({"json": "{"}, "json", "is not JSON: .*line 1 column 2"),
        ({"json": '{"const": NaN}'}, "json", "is not JSON: NaN"),
        ({"json": {"const": float("inf")}}, "json", r"has inf at \$.const"),
        ({"json": {"const": {1, 2}}}, "json", r"has set at \$.const"),
        ({"json": {"const": {1: 2}}}, "json", r"key that is int at \$.const"),
        ({"json": {"minimum": 10**5000}}, "json", r"an integer of more than 300 digits at \$.minimum"),
        ({"json": {"const": [-(10**300)]}}, "json", r"an integer of more than 300 digits at \$.const\[0\]"),
        ({"json": {"const": "\ud800"}}, "json", r"half of a surrogate pair at \$.const"),
        ({"json": nested(65)}, "json", "nested more than 64 deep"),
        ({"json": "[" * 100_000}, "json", "nested more than 64 deep"),
        ({"json": {"const": "a" * 10**6}}, "json", "is too large: 1000021 characters"),
        ({"json": '"' + "a" * 10**6 + '"'}, "json", "is too large"),
        ({"regex": 1}, "regex", "must be a text, not int"),
        ({"regex": "a\0"}, "regex", "has a NUL at 1"),
        ({"regex": "a\ud800"}, "regex", "half of a surrogate pair at 1"),
        ({"regex": "a" * 1_000_001}, "regex", "is too large"),
        ({"grammar": "\0"}, "grammar", "has a NUL at 0"),
        ({"choice": []}, "choice", "a list of at least one text"),
        ({"choice": "ab"}, "choice", "a list of at least one text"),
        ({"choice": ["a", ""]}, "choice", "an empty text at 1"),
        ({"choice": ["a", 1]}, "choice", "must be a text, not int"),
        ({"choice": ["a" * 600_000, "b" * 600_000]}, "choice", "is too large"),
        ({"json_object": False}, "json_object", "must be true"),
        ({"structural_tag": []}, "structural_tag", "must be an object, not list"),
        ({"json": {}, "disable_any_whitespace": 1}, "disable_any_whitespace", "true or false, not int"),
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace", "does nothing for regex"),
        (
            {"json_object": True, "disable_additional_properties": True},
            "disable_additional_properties",
            "does nothing",
        ),
        ({"regex": "a", "start_after": ""}, "start_after", "must have 1 to 1000 characters, not 0"),
        ({"regex": "a", "start_after": 1}, "start_after", "must be a text"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        spec(given)
    assert refusal.value.param == "structured_outputs" + (f".{param}" if param else "")


def test_a_model_without_a_schema_is_refused() -> None:
    class Odd(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        call: type(print)  # type: ignore[valid-type]

    with pytest.raises(InvalidRequest, match="the model Odd has no schema"):
        spec({"json": Odd})


def test_an_ebnf_is_not_too_long() -> None:
    rule = 'root ::= "a"'
    assert spec({"grammar": rule + " " * (20_000 - len(rule))})
    with pytest.raises(InvalidRequest, match="has 20001 characters; at most 20000") as caught:
        spec({"grammar": rule + " " * (20_001 - len(rule))})
    assert caught.value.param == "structured_outputs.grammar"
