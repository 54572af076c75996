"""Schemas by hand: what is written under them is valid, and what is not valid is not accepted."""

import json
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from actorllm.errors import InvalidRequest
from actorllm.structured.schema import grammar_of_schema

from .sampling import fits, outputs
from .test_random_schemas import check


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool = True


class Tree(BaseModel):
    """A tree."""

    name: Annotated[str, Field(min_length=1, max_length=4)]
    size: float = Field(gt=0, lt=10)
    colour: Colour | None = None
    pet: Cat | Dog = Field(discriminator="kind")
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}\d$")] = "AA0"
    pair: tuple[Annotated[int, Field(ge=0, le=5)], bool] = (0, True)
    tags: list[Literal["x", "y"]] = Field(default=[], max_length=2)
    scores: dict[Annotated[str, Field(pattern="^[a-c]$")], Annotated[int, Field(ge=0, le=99)]] = {}
    children: list["Tree"] = Field(default=[], max_length=1)


STRICT = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "explanation": {"type": "string", "maxLength": 8},
                    "unit": {"type": ["string", "null"], "enum": ["F", "C", None]},
                },
                "required": ["explanation", "unit"],
                "additionalProperties": False,
            },
        },
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["steps", "next"],
    "additionalProperties": False,
}


def deep(levels: int) -> Any:
    schema: Any = {"const": 1}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


GIVEN: dict[str, Any] = {
    "pydantic": Tree.model_json_schema(),
    "strict": STRICT,
    "deep": deep(20),
    "empty": {"type": "object", "properties": {}},
    "any object": {"type": "object", "maxProperties": 0},
    "unicode": {"type": "object", "properties": {"ключ": {"const": "日本\U0001f600"}}, "required": ["ключ"]},
    "names that a title has": {
        "type": "object",
        "properties": {
            "p": {
                "type": "object",
                "properties": {"title": {"type": "integer", "minimum": 0}},
                "required": ["title"],
            },
            "q": {"type": "object", "properties": {"title": {"type": "boolean"}}, "required": ["title"]},
        },
        "required": ["p", "q"],
    },
    "required without properties": {
        "type": "object",
        "required": ["a"],
        "additionalProperties": {"type": "null"},
    },
    "no type": {"properties": {"a": {"minimum": 3, "maximum": 5}}, "required": ["a"]},
    "one allOf": {"allOf": [{"type": "boolean"}], "title": "T"},
    "true items": {
        "type": "array",
        "prefixItems": [{"type": "null"}, {"const": 1}],
        "items": True,
        "maxItems": 2,
    },
    "cut prefix": {"type": "array", "prefixItems": [{"type": "null"}] * 3, "maxItems": 2},
    "small numbers": {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.1001},
    "negative numbers": {"type": "number", "minimum": -2.5, "maximum": -1},
    "integers between": {"type": "integer", "exclusiveMinimum": -3.5, "maximum": 12.9},
    "huge integers": {"type": "integer", "minimum": 2**63, "maximum": 2**64},
    "open end": {"type": "string", "pattern": "^ab", "minLength": 4, "maxLength": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_what_is_written_is_valid(name: str) -> None:
    found = list(outputs({"json": GIVEN[name]}, 20, limit=1500))
    assert len(found) >= 18
    for output in found:
        check(GIVEN[name], output.encode())


def test_a_model_reads_what_is_written_under_it() -> None:
    found = list(outputs({"json": Tree}, 10, limit=1500))
    assert len(found) >= 8
    for output in found:
        Tree.model_validate_json(output)


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"why": {"const": 1}, "answer": {"const": 2}},
        "required": ["why", "answer"],
    }
    assert fits({"json": schema}, '{"why": 1, "answer": 2}')
    assert not fits({"json": schema}, '{"answer": 2, "why": 1}')


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}}

ENFORCED: list[tuple[Any, str, str]] = [
    ({"type": "null"}, "null", "nul"),
    ({"type": "boolean"}, "true", "0"),
    ({"type": "integer"}, "-12", "1.5"),
    ({"type": "number"}, "-1.5e-3", '"1"'),
    ({"type": "string"}, '"\\ud83d\\ude00"', '"\\ud83d"'),
    ({"type": "string"}, '"é"', '"\t"'),
    ({"type": ["null", "boolean"]}, "false", "0"),
    ({"const": {"a": [1]}}, '{"a": [1]}', '{"a": [2]}'),
    ({"enum": ["a", 1]}, "1", '"b"'),
    ({"enum": ["a", 1], "type": "string"}, '"a"', "1"),
    ({"anyOf": [{"type": "null"}, {"const": 3}]}, "3", "4"),
    ({"oneOf": [{"type": "null"}, {"const": 3}]}, "3", "4"),
    ({"allOf": [{"const": 3}]}, "3", "4"),
    ({"oneOf": [{"const": {"a": 1}}, {"enum": [{"a": 2}, 7]}]}, '{"a": 2}', '{"a": 3}'),
    (
        {
            "oneOf": [
                {
                    "properties": {"k": {"enum": [1, 2]}, "z": {"const": 1}},
                    "required": ["k", "z"],
                    "type": "object",
                },
                {
                    "properties": {"k": {"enum": [2, 3]}, "z": {"const": 2}},
                    "required": ["k", "z"],
                    "type": "object",
                },
                {"properties": {"k": {"const": 4}}, "required": ["k"], "type": "object"},
            ]
        },
        '{"k": 2, "z": 2}',
        '{"k": 1, "z": 2}',
    ),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "prefixItems": [True], "maxItems": 1.0}}},
        "[1]",
        "[1, 2]",
    ),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 3}}}, "3", "4"),
    ({"$ref": "#/definitions/a", "definitions": {"a": {"const": 3}}}, "3", "4"),
    ({"type": "integer", "minimum": 7}, "7", "6"),
    ({"type": "integer", "maximum": 7}, "7", "8"),
    ({"type": "integer", "exclusiveMinimum": 7}, "8", "7"),
    ({"type": "integer", "exclusiveMaximum": 7}, "6", "7"),
    ({"type": "integer", "minimum": 0, "maximum": 20, "multipleOf": 7}, "14", "15"),
    ({"type": "number", "minimum": 0, "maximum": 20, "multipleOf": 7}, "14", "15"),
    ({"type": "number", "minimum": 1.5}, "1.5", "1.49"),
    ({"type": "number", "maximum": -1.5}, "-1.5", "-1.49"),
    ({"type": "number", "exclusiveMinimum": 1.5}, "1.51", "1.50"),
    ({"type": "number", "exclusiveMaximum": 1.5}, "1.49", "1.5"),
    ({"type": "string", "minLength": 2}, '"éb\\n"', '"a"'),
    ({"type": "string", "minLength": 2}, '"😀😀"', '"\\ud83d\\ude00"'),
    ({"type": "string", "maxLength": 2}, '"éb"', '"abc"'),
    ({"type": "string", "maxLength": 2}, '""', '"\t"'),
    ({"type": "string", "minLength": 10, "maxLength": 40}, '"' + "é" * 40 + '"', '"' + "é" * 41 + '"'),
    ({"type": "string", "minLength": 10, "maxLength": 40}, '"' + "é" * 10 + '"', '"' + "é" * 9 + '"'),
    ({"type": "string", "pattern": "^[a-c]+$"}, '"abc"', '"abd"'),
    ({"type": "string", "pattern": '^"$'}, '"\\""', '"""'),
    ({"type": "string", "pattern": "^ab"}, '"abc"', '"bab"'),
    ({"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
    ({"type": "array", "items": {"type": "null"}}, "[null,\n  null]", "[1]"),
    ({"type": "array", "items": False}, "[]", "[1]"),
    ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}]}, "[1, 2]", "[2, 1]"),
    ({"type": "array", "minItems": 2}, "[1, [2]]", "[1]"),
    ({"type": "array", "maxItems": 1}, "[1]", "[1, 2]"),
    ({"type": "array", "uniqueItems": False}, "[1, 1]", "[1, 1"),
    (OBJECT, '{"b": null}', '{"b": 1}'),
    (OBJECT, '{"a": 1, "b": null}', '{"a": 1, "c": 1}'),
    (OBJECT | {"required": ["a"]}, '{"a": 1}', '{"b": null}'),
    (OBJECT | {"required": ["c"]}, '{"c": []}', '{"a": 1}'),
    (OBJECT | {"additionalProperties": {"const": 2}}, '{"a": 1, "c": 2}', '{"a": 1, "c": 3}'),
    (OBJECT | {"additionalProperties": {"const": 2}}, '{"a": 1}', '{"a": 1, "b": 2}'),
    (OBJECT | {"additionalProperties": {"const": 2}}, '{"a": 1, "ab": 2}', '{"\\u0061": 2}'),
    (OBJECT | {"minProperties": 2}, '{"a": 1, "b": null}', '{"a": 1}'),
    (OBJECT | {"maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": null}'),
    ({"type": "object", "patternProperties": {"^x\\d$": {"const": 1}}}, '{"x3": 1}', '{"y": 1}'),
    ({"type": "object", "propertyNames": {"enum": ["p"]}}, '{"p": [1]}', '{"q": 1}'),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), ENFORCED)
def test_a_keyword_is_enforced(schema: Any, right: str, wrong: str) -> None:
    assert fits({"json": schema}, right)
    check(schema, right.encode())
    assert not fits({"json": schema}, wrong)


def test_a_pattern_beside_properties_takes_no_exponential_time() -> None:
    name = "a" * 60
    schema = {"properties": {name: {"const": 1}}, "patternProperties": {"(?:a?a?a?a?a)*b": True}}
    assert fits({"json": schema}, f'{{"{name}": 1, "ab": 2}}')
    assert not fits({"json": schema}, f'{{"{name}": 2}}')


def test_many_branches_are_told_apart_in_no_time() -> None:
    values = [{"const": number} for number in range(1000)]
    tags = [
        {"properties": {"k": {"const": number}}, "required": ["k"], "type": "object"}
        for number in range(1000)
    ]
    grammar_of_schema({"oneOf": values + tags})


def test_an_object_may_be_bounded_by_a_large_count() -> None:
    grammar_of_schema({"type": "object", "maxProperties": 100_000})
    grammar_of_schema({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 6000})


def test_a_longest_host_name_is_valid() -> None:
    label = "a" * 26 + ("-" + "b" * 15) * 2
    name = f"{label}." * 4 + "c" * 17
    assert len(name) == 253
    assert fits({"json": {"type": "string", "format": "hostname"}}, f'"{name}"')
    assert not fits({"json": {"type": "string", "format": "hostname"}}, f'"{name}c"')


def test_a_long_chain_of_references_ends() -> None:
    links: dict[str, Any] = {
        f"d{number}": {"properties": {"a": {"$ref": f"#/$defs/d{number + 1}"}}, "required": ["a"]}
        for number in range(900)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": links | {"d900": {"type": "null"}}}
    grammar_of_schema(schema)
    with pytest.raises(InvalidRequest, match=r"at \$.\$defs.d0: has no finite value"):
        grammar_of_schema(schema | {"$defs": links | {"d900": {"$ref": "#/$defs/d0"}}})


def test_white_space_is_bounded() -> None:
    schema = {"type": "array", "items": {"type": "null"}}
    assert fits({"json": schema}, "[\n" + " " * 32 + "null, null]")
    assert not fits({"json": schema}, "[\n" + " " * 33 + "null, null]")
    assert not fits({"json": schema}, "[\n\nnull]")
    assert not fits({"json": schema}, " [null]")


def test_without_any_white_space_there_is_one_space_after_commas_and_colons() -> None:
    given = {"json": OBJECT, "disable_any_whitespace": True}
    assert fits(given, '{"a": 1, "b": null}')
    assert not fits(given, '{"a":1, "b": null}')
    assert not fits(given, '{"a": 1,\n"b": null}')
    assert not fits(given, '{ "a": 1}')


def test_additional_properties_can_be_disabled_where_nothing_is_said() -> None:
    given = {"json": {"type": "object"}, "disable_additional_properties": True}
    assert fits({"json": {"type": "object"}}, '{"a": {"b": 1}}')
    assert fits(given, "{}")
    assert not fits(given, '{"a": 1}')
    said = {"json": {"type": "object", "additionalProperties": True}, "disable_additional_properties": True}
    assert fits(said, '{"a": 1}')


def test_any_json_object() -> None:
    found = list(outputs({"json_object": True}, 20))
    assert len(found) >= 15
    for output in found:
        assert isinstance(json.loads(output), dict)
    assert not fits({"json_object": True}, "[1]")


@pytest.mark.parametrize("schema", [True, {}, {"description": "anything", "x-order": 1}])
def test_a_schema_that_says_nothing_lets_everything_pass(schema: Any) -> None:
    grammar_of_schema(schema)
    for value in ("1", '"a"', "[true]", '{"a": null}'):
        assert fits({"json": schema}, value)
