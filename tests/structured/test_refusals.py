"""What is not enforced is refused, by its name and its place."""

from typing import Any

import pytest

from actorllm.errors import InvalidRequest
from actorllm.structured.keywords import KNOWN
from actorllm.structured.schema import grammar_of_schema

UNKNOWN = [
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "$anchor",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$vocabulary",
    "nullable",
    "id",
    "maxLenght",
]


@pytest.mark.parametrize("keyword", UNKNOWN)
def test_a_keyword_that_is_not_enforced_is_refused_by_its_path(keyword: str) -> None:
    assert keyword not in KNOWN
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {keyword: {}}}}}
    with pytest.raises(InvalidRequest) as refusal:
        grammar_of_schema(schema)
    assert f"at $.properties.a.items.{keyword}: the keyword {keyword} is not enforced" in str(refusal.value)
    assert refusal.value.param == "structured_outputs.json"


A = {"type": "string"}
TAGGED = [{"type": "object", "required": ["a"], "properties": {"a": {"const": n}}} for n in range(301)]
REFUSED: list[tuple[Any, str]] = [
    (False, "at $: false accepts no value"),
    (3, "at $: a schema must be an object or a boolean"),
    ({"properties": {"a b": False}}, "at $.properties['a b']: false accepts no value"),
    ({"type": "list"}, "at $.type: unknown type 'list'"),
    ({"type": []}, "at $.type: must be a type"),
    ({"type": "array", "uniqueItems": True}, "at $.uniqueItems: the keyword uniqueItems"),
    ({"type": "array", "items": [A]}, "at $.items: must be one schema; use prefixItems"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "at $.minItems: 3 is more than maxItems, 2"),
    (
        {"type": "array", "prefixItems": [A], "items": False, "minItems": 2},
        "at $.minItems: 2 is more than the 1",
    ),
    ({"type": "array", "minItems": -1}, "at $.minItems: must be an integer"),
    ({"type": "array", "maxItems": 10**6}, "at $.maxItems: must be at most 100000"),
    ({"type": "integer", "minLength": 1}, "at $.minLength: minLength says nothing about integer"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "at $: no integer is from 2 to 1"),
    ({"type": "integer", "minimum": True}, "at $.minimum: must be a number"),
    ({"type": "integer", "multipleOf": 3}, "at $.multipleOf: multipleOf is possible only together"),
    ({"type": "integer", "multipleOf": 0, "minimum": 0, "maximum": 9}, "at $.multipleOf: must be a positive"),
    (
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6},
        "at $.multipleOf: 0 numbers are possible",
    ),
    ({"type": "number", "multipleOf": 0.01}, "at $.multipleOf: multiples of a fraction"),
    ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "at $: no number is within the bounds"),
    (
        {"type": "number", "minimum": 1.2345678901234567},
        "at $: the bound 1.2345678901234567 has more than 15",
    ),
    ({"type": "number", "maximum": 1e15}, "has more than 15 digits"),
    (
        {"type": "string", "format": "color"},
        "at $.format: the format 'color' is not enforced; known are date",
    ),
    ({"type": "string", "format": "date", "pattern": "a"}, "at $.pattern: pattern together with format"),
    (
        {"type": "string", "format": "uuid", "maxLength": 5},
        "at $.format: matches texts of 36 to 36 characters",
    ),
    ({"type": "string", "pattern": "a*", "maxLength": 5}, "at $.pattern: matches texts of 0 to any number"),
    ({"type": "string", "pattern": "(?=a)"}, "at $.pattern: the pattern has a lookahead at 0"),
    ({"enum": []}, "at $.enum: must have a value"),
    ({"enum": ["a"], "type": "integer"}, "at $.enum: no value is possible of type integer"),
    ({"enum": ["a"], "maxLength": 3}, "at $.maxLength: maxLength beside enum"),
    ({"const": 1, "enum": [1]}, "at $.enum: enum beside const"),
    ({"anyOf": []}, "at $.anyOf: must be a list of at least one"),
    ({"anyOf": [A], "type": "string"}, "at $.type: type beside anyOf is not enforced; move it into"),
    ({"allOf": [A, A]}, "at $.allOf: allOf of several schemas"),
    ({"oneOf": [A, {"type": "string", "maxLength": 1}]}, "at $.oneOf: the schemas 0 and 1 may both accept"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "at $.oneOf: the schemas 0 and 1"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "at $.oneOf: the schemas 0 and 1"),
    ({"$ref": "#/$defs/a", "$defs": {"a": A}, "maxLength": 1}, "at $.maxLength: maxLength beside $ref"),
    ({"$ref": "#/$defs/a"}, "at $.$ref: there is no #/$defs/a"),
    ({"$ref": "https://a.org"}, "at $.$ref: 'https://a.org' is not possible; refer to #"),
    ({"$ref": "#/properties/a"}, "at $.$ref: '#/properties/a' is not possible"),
    ({"$ref": "#"}, "at $: refers to itself"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, A]}}},
        "at $.$defs.a: refers to itself",
    ),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "at $: has no finite value"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "at $: has no finite value"),
    ({"required": ["a"], "additionalProperties": False}, "at $.required: 'a' is not among the properties"),
    ({"properties": {}, "required": "a"}, "at $.required: must be a list of texts"),
    (
        {"properties": {"a": A, "b": A}, "required": ["a", "b"], "maxProperties": 1},
        "at $.maxProperties: 1 is less",
    ),
    ({"properties": {f"p{n}": True for n in range(1001)}}, "at $: more than 1000 properties; make it"),
    ({"minProperties": 2}, "at $.minProperties: 2 is more than what there surely can be"),
    ({"patternProperties": {"a": A, "b": A}}, "at $.patternProperties: must be one pattern only"),
    (
        {"patternProperties": {"a": A}, "additionalProperties": True},
        "at $.patternProperties: must be one pattern",
    ),
    (
        {"patternProperties": {"a": A}, "properties": {"ab": A}},
        "at $.patternProperties.a: the property 'ab' matches",
    ),
    (
        {"propertyNames": {"pattern": "a"}, "properties": {"a": A}},
        "at $.propertyNames: is not possible together",
    ),
    ({"properties": {"a" * 101: A}, "additionalProperties": A}, "a name of more than 100 characters is not"),
    ({"properties": {"a" * 101: A}, "patternProperties": {"b": A}}, "a name of more than 100 characters is"),
    ({"properties": {"٣": A}, "patternProperties": {r"^\d$": A}}, "the property '٣' matches, too"),
    (
        {"properties": {"a" * 100: A}, "patternProperties": {"(?:(?:a{100}){100}){100}": A}},
        "the pattern has more than 20000 parts, with all that it counts; make it simpler",
    ),
    ({"propertyNames": {"type": "integer"}}, "at $.propertyNames: must be a schema of type string"),
    (
        {"type": "integer", "multipleOf": 2, "minimum": -1e30, "maximum": 1e30},
        "at $.multipleOf: too many numbers are possible; there must be 1 to 1000",
    ),
    ({"type": "integer", "minimum": 10**200}, "at $: a bound has more than 100 digits"),
    ({"type": "integer", "maximum": -1e200}, "at $: a bound has more than 100 digits"),
    (
        {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": 5}}},
        "at $.$defs.A.type: must be a type or a list of types",
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"enum": 5}}},
        "at $.$defs.A.enum: must be a list",
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"required": 5}}},
        "at $.$defs.A.required: must be a list of texts",
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"required": [[]]}}},
        "at $.$defs.A.required: must be a list of texts",
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"$ref": []}}},
        "at $.$defs.A.$ref: '[]' is not possible",
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": ["object", []]}}},
        "at $.$defs.A.type: must be a type or a list of types",
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"$ref": "#/$defs/A"}}},
        "#/$defs/A refers to itself",
    ),
    ({"oneOf": [*TAGGED, {"const": {"a": 1}}]}, "at $.oneOf: the schemas 0 and 301 may both accept"),
    (
        {"oneOf": [{"type": "object", "properties": {"a": A}}] * 301},
        "at $.oneOf: more than 300 schemas of objects are too many for oneOf where no required property",
    ),
    (
        {"oneOf": [{"type": "object", "properties": {"a": A}}] * 300},
        "at $.oneOf: the schemas 0 and 1 may both accept a value",
    ),
    (
        {"$ref": "#/$defs/A", "$defs": {"A": {"$id": "http://x/y", "type": "string"}}},
        "at $.$defs.A.$id: within a schema it changes what references mean",
    ),
    (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "minProperties": 1},
        "at $: has no finite value, since each would contain another",
    ),
    (
        {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
        "at $: has no finite value, since each would contain another",
    ),
    ({"oneOf": [{"const": 1}, {"type": "string"}, {"enum": [2, 1]}]}, "the schemas 0 and 2 may both accept"),
    ({"oneOf": [{"const": "a"}, {"type": ["null", "string"]}]}, "the schemas 0 and 1 may both accept"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_a_schema_is_refused_with_its_place(schema: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        grammar_of_schema(schema)
    assert words in str(refusal.value)


def test_a_schema_of_too_many_rules_is_refused() -> None:
    schema = {"anyOf": [{"const": number} for number in range(5000)]}
    with pytest.raises(InvalidRequest, match=r"at \$: the schema needs more than 5000 rules"):
        grammar_of_schema(schema)


def test_too_many_references_are_refused() -> None:
    definitions = {f"d{number}": {"const": number} for number in range(1001)}
    schema = {"$defs": definitions, "anyOf": [{"$ref": f"#/$defs/{name}"} for name in definitions]}
    with pytest.raises(InvalidRequest, match="more than 1000 definitions"):
        grammar_of_schema(schema)
