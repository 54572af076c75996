"""EBNF and structural tags."""

import re
from typing import Any

import pytest

from actorllm.errors import InvalidRequest
from actorllm.structured import spec

from .sampling import fits, new_grammars, outputs

SUM = """
root ::= term ("+" term){0,2}
term ::= [0-9]{1,2} | "(" root ")"
"""

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["x"],
}

CALL = {
    "type": "tag",
    "begin": "<f>",
    "content": {"type": "json_schema", "json_schema": POINT},
    "end": "</f>",
}

LEGACY = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": POINT, "end": "</f>"}],
    "triggers": ["<f"],
}

CALLS = r"<f>\{\s*\"x\":\s*[0-9]\s*\}</f>"


def tag(content: Any) -> dict[str, Any]:
    return {"structural_tag": {"type": "structural_tag", "format": content}}


def test_ebnf() -> None:
    found = list(outputs({"grammar": SUM}, 20))
    assert len(found) >= 18
    assert all(isinstance(eval(re.sub(r"\b0+(?=\d)", "", text)), int) for text in found)
    assert fits({"grammar": SUM}, "1+(22+3)")
    assert not fits({"grammar": SUM}, "1+(22+3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root ::= x", 'EBNF parser error at line 1, column 10: Rule "x" is not defined'),
        ('root ::= "a"\nx ::= [z', "EBNF lexer error at line 2, column 9: Unterminated character class"),
        ('x ::= "a"', 'The root rule with name "root" is not found'),
    ],
)
def test_ebnf_that_cannot_be_read_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        new_grammars().compile(spec({"grammar": text}))
    assert str(refusal.value).startswith("structured_outputs.grammar cannot be compiled: ")
    assert words in str(refusal.value)
    assert refusal.value.param == "structured_outputs.grammar"


@pytest.mark.parametrize(
    "given",
    [
        {"structural_tag": LEGACY},
        tag({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL]}),
    ],
)
def test_tags_in_free_text(given: dict[str, Any]) -> None:
    assert fits(given, "no call")
    assert fits(given, 'so <f>{"x": 1}</f> and <f>{"x": 2}</f>.')
    assert not fits(given, 'so <f>{"x": 10}</f>')
    assert not fits(given, 'so <f>{"y": 1}</f>')
    assert not fits(given, 'so <f>{"x": 1}')


FORMATS: list[tuple[Any, str]] = [
    (
        {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [CALL],
            "at_least_one": True,
            "stop_after_first": True,
        },
        CALLS,
    ),
    (
        {"type": "tags_with_separator", "tags": [CALL], "separator": ";", "at_least_one": True},
        f"{CALLS}(;{CALLS})*",
    ),
    ({"type": "const_string", "value": 'a"b'}, 'a"b'),
    ({"type": "regex", "pattern": r"^\d{2}$"}, "[0-9]{2}"),
    ({"type": "grammar", "grammar": 'root ::= "a" | "b"'}, "a|b"),
    ({"type": "sequence", "elements": [{"type": "const_string", "value": v} for v in "ab"]}, "ab"),
    ({"type": "or", "elements": [{"type": "const_string", "value": v} for v in "ab"]}, "a|b"),
    ({"type": "optional", "content": {"type": "const_string", "value": "a"}}, "a?"),
    ({"type": "plus", "content": {"type": "const_string", "value": "a"}}, "a+"),
    ({"type": "star", "content": {"type": "const_string", "value": "a"}}, "a*"),
    ({"type": "repeat", "min": 1, "max": 2, "content": {"type": "const_string", "value": "a"}}, "a{1,2}"),
    ({"type": "any_text", "max_chars": 3, "excludes": ["a"]}, r"[^a]{0,3}"),
    (CALL | {"end": ["</f>", "</g>"]}, CALLS[:-1].replace("</f", "</[fg]") + ">"),
]


@pytest.mark.parametrize(("content", "pattern"), FORMATS)
def test_a_format_is_enforced(content: Any, pattern: str) -> None:
    found = list(outputs(tag(content), 10, limit=200))
    assert found
    for output in found:
        assert re.fullmatch(pattern, output, re.DOTALL), output
    assert not fits(tag(content), "zzzzz")


def test_options_reach_the_schemas_of_tags() -> None:
    call = CALL | {"content": {"type": "json_schema", "json_schema": {"type": "object"}}}
    closed = tag(call) | {"disable_additional_properties": True, "disable_any_whitespace": True}
    assert fits(tag(call), '<f>{\n"a": 1}</f>')
    assert fits(closed, "<f>{}</f>")
    assert not fits(closed, '<f>{"a": 1}</f>')


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"type": "structural_tag"}, "at $.format: must be an object with a type"),
        ({"format": {"type": []}}, "at $.format: must be an object with a type"),
        (
            {"format": {"type": "or", "elements": [{"type": {}}]}},
            "at $.format.elements[0]: must be an object",
        ),
        ({"type": "x", "format": {}}, 'at $.type: must be "structural_tag"'),
        (
            {"format": {"type": "token", "token": 3}},
            "at $.format: must be an object with a type, one of const_string",
        ),
        ({"format": {"type": "any_text", "max_tokens": 3}}, "at $.format.max_tokens: is not possible"),
        (
            {"format": {"type": "json_schema", "json_schema": POINT, "style": "glm_xml"}},
            "at $.format.style: must be 'json'",
        ),
        (
            {"format": {"type": "grammar", "grammar": "a", "syntax": "lark"}},
            "at $.format.syntax: must be 'ebnf'",
        ),
        ({"format": {"type": "regex", "pattern": "(?=a)"}}, "at $.format.pattern has a lookahead at 0"),
        ({"format": {"type": "sequence", "elements": {}}}, "at $.format.elements: must be a list"),
        ({"format": {"type": "sequence", "elements": [{"type": "or"}]}}, "cannot be compiled"),
        ({"format": CALL | {"begin": {"type": "token"}}}, "at $.format.begin: must be a text"),
        ({"format": CALL | {"end": [1]}}, "at $.format.end[0]: must be a text"),
        (
            {"format": CALL | {"content": {"type": "json_schema", "json_schema": {"not": {}}}}},
            "at $.format.content.json_schema at $.not: the keyword not is not enforced",
        ),
        (LEGACY | {"format": {}}, "at $.format: is not possible"),
        (LEGACY | {"structures": [3]}, "at $.structures[0]: must be an object"),
        (LEGACY | {"triggers": ["<g"]}, "cannot be compiled"),
    ],
)
def test_a_tag_is_refused_with_its_place(given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        new_grammars().compile(spec({"structural_tag": given}))
    assert words in str(refusal.value)
    assert refusal.value.param is not None
    assert refusal.value.param.startswith("structured_outputs.structural_tag")
