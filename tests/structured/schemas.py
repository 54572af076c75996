"""JSON schemas of every keyword that is enforced, where nothing is unbounded."""

from typing import Any

from hypothesis import strategies as st

from actorllm.structured.formats import FORMATS

Schema = dict[str, Any]

NAMES = ["a", "b", "ab", "title", "é", 'q"', "日本", "$ref", "x y", "", "properties"]

PATTERNS = [
    r"^[a-z]{1,4}$",
    r"^\d{3}-\d{4}$",
    r"[A-Z][a-z]?",
    r"^(?:yes|no|\")$",
    r"^[^a-z]{2}$",
    r"^\w{1,3}\s?\S{0,2}$",
    r"^.{0,3}$",
    r'^["\\/]{1,2}$',
    r"^(a|b(c|d)?){1,2}$",
    r"^[\x01-\x1f]{1,2}$",
    r"^[é-ü日]$",
]


def _described(schema: Schema) -> st.SearchStrategy[Schema]:
    notes: Schema = {"title": "T", "description": "D", "default": None, "examples": [1], "$comment": "C"}
    return st.lists(st.sampled_from(sorted(notes)), max_size=1).map(
        lambda keys: schema | {key: notes[key] for key in keys}
    )


@st.composite
def _bounds(draw: st.DrawFn, low: str, high: str, most: int) -> Schema:
    least = draw(st.integers(0, most))
    schema: Schema = {high: draw(st.integers(least, most))}
    return schema | ({low: least} if draw(st.booleans()) else {})


@st.composite
def strings(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(["length", "pattern", "open", "format"]))
    if kind == "length":
        return {"type": "string", **draw(_bounds("minLength", "maxLength", 6))}
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(PATTERNS))}
    if kind == "open":
        return {
            "type": "string",
            "pattern": draw(st.sampled_from(["^ab", "c$"])),
            "maxLength": draw(st.integers(2, 6)),
        }
    return {"type": "string", "format": draw(st.sampled_from(FORMATS))}


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(["integer", "number", "multiple"]))
    if kind == "multiple":
        least = draw(st.integers(-100, 100))
        name = draw(st.sampled_from(["integer", "number"]))
        return {"type": name, "minimum": least, "maximum": least + 50, "multipleOf": draw(st.integers(1, 25))}
    scale = 1.0 if kind == "integer" else 100.0
    values = st.integers(-1000, 1000).map(lambda value: value / scale)
    low, high = sorted([draw(values), draw(values)])
    schema: Schema = {"type": kind}
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = round(high + 2, 3)
    return schema


def scalars() -> st.SearchStrategy[Schema]:
    values = st.sampled_from(
        [None, True, 0, 1, 1.5, -2, 1e21, 10**18, "a", 'é"\n', "", [1, {"title": 2}], {"title": 3}]
    )
    return st.one_of(
        strings(),
        numbers(),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
        values.map(lambda value: {"const": value}),
        st.lists(values, min_size=1, max_size=4).map(lambda found: {"enum": found}),
        st.just({"type": "string", "enum": ["x", "y", 1]}),
        st.just({"type": ["integer", "string", "null"], "minimum": 3, "maximum": 9, "maxLength": 2}),
        st.just({"$ref": "#/$defs/point"}),
    )


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    schema: Schema = {"type": "array", **draw(_bounds("minItems", "maxItems", 3))}
    if draw(st.booleans()):
        schema["items"] = draw(inner)
        return schema
    schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=3))
    schema["items"] = draw(st.one_of(inner, st.just(False)))
    if schema["items"] is False:
        schema.pop("minItems", None)
    return schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    kind = draw(st.sampled_from(["closed", "silent", "open", "counted", "pattern", "names"]))
    if kind == "names":
        names: Schema = draw(
            st.sampled_from([{"enum": ["p", "q"]}, {"pattern": "^k[0-9]$"}, {"maxLength": 2}])
        )
        extra = {
            "additionalProperties": draw(inner),
            "minProperties": draw(st.integers(0, 1)),
            "maxProperties": 2,
        }
        return {"type": "object", "propertyNames": names, **extra}
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    if kind == "closed":
        schema["additionalProperties"] = False
    elif kind == "open":
        schema |= {"additionalProperties": draw(inner), "maxProperties": len(properties) + 2}
        schema["minProperties"] = draw(st.integers(0, len(properties)))
        schema["required"] = [*required, *draw(st.lists(st.just("further"), max_size=1))]
    elif kind == "counted":
        schema["minProperties"] = draw(st.integers(0, len(properties)))
        schema["maxProperties"] = draw(
            st.integers(max(len(required), schema["minProperties"]), len(properties))
        )
    elif kind == "pattern":
        schema |= {"patternProperties": {"^z[0-9]{1,2}$": draw(inner)}, "maxProperties": len(properties) + 1}
    return schema


@st.composite
def _unions(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    kind = draw(st.sampled_from(["anyOf", "allOf", "types", "tagged"]))
    if kind == "anyOf":
        return {"anyOf": draw(st.lists(inner, min_size=1, max_size=3))}
    if kind == "allOf":
        return {"allOf": [draw(inner)]}
    if kind == "types":
        return {"oneOf": [draw(numbers()), draw(strings()), {"type": "null"}]}
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": tag}, "of": draw(inner)},
                "required": ["kind"],
            }
            for tag in draw(st.sampled_from([["one"], ["one", "two"]]))
        ]
    }


def schemas() -> st.SearchStrategy[Schema]:
    """A root, with a definition that it may refer to, and a recursive one."""
    return st.recursive(scalars(), _containers, max_leaves=6).map(_rooted)


def _containers(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(arrays(inner), objects(inner), _unions(inner)).flatmap(_described)


def _rooted(schema: Schema) -> Schema:
    point: Schema = {
        "type": "object",
        "properties": {
            "x": {"type": "integer", "minimum": 0, "maximum": 9},
            "next": {"$ref": "#/$defs/maybe"},
        },
        "required": ["x"],
    }
    maybe: Schema = {
        "anyOf": [{"type": "null"}, {"type": "null", "title": "again"}, {"$ref": "#/$defs/point"}]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "$defs": {"point": point, "maybe": maybe},
    }
