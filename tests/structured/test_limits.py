"""Bounds within which grammars compile in seconds, and that what is within them is not refused."""

from contextlib import suppress
from typing import Any

import pytest

from actorllm.errors import InvalidRequest
from actorllm.structured.limits import Size
from actorllm.structured.source import source


def objects(count: int, pattern: str) -> dict[str, Any]:
    texts = {f"p{number}": {"type": "string", "pattern": pattern.format(number)} for number in range(count)}
    return {"type": "object", "properties": texts}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"regex": r"\W" * 120}, "more than 1000000 characters"),
        (
            {"choice": [f"{number:0300}" for number in range(4000)]},
            "more than 1000000 characters",
        ),
        ({"grammar": "root ::= " + "[ab]" * 5001}, "more than 5000 classes of characters"),
        ({"grammar": "root ::= a\n" + 'a ::= "b"\n' * 500}, "more than 500 rules"),
        ({"grammar": "root ::= " + '"a"* ' * 101}, "more than 100 of * + ? and"),
        (
            {"grammar": "\n".join(["root ::= r0", *(f'r{n} ::= "a"? ' * 3 for n in range(34))])},
            "more than 100 of",
        ),
        ({"grammar": "root ::= " + "[^a]* " * 26}, "more than 25 of * + and ? that follow a class [^...]"),
        ({"regex": "a*b" * 31}, "more than 30 of * and +"),
        ({"json": {"type": "string", "pattern": "(?:a*b+)" * 101}}, "more than 30 of * and +"),
        ({"json": objects(9, "(?:{0}*b)" * 20)}, "as the sum of their cubes by patterns"),
        (
            {"regex": "".join(f".{{1,{number}}}a" for number in range(200, 206))},
            "more than 1000 different",
        ),
        (
            {"structural_tag": {"format": {"type": "sequence", "elements": [{"type": "any_text"}] * 101}}},
            "more than 100 optional and repeated formats",
        ),
        (
            {
                "structural_tag": {
                    "format": {
                        "type": "sequence",
                        "elements": [
                            {"type": "regex", "pattern": f".{{1,{number}}}a"} for number in range(200, 206)
                        ],
                    }
                }
            },
            "more than 1000 different counts of characters",
        ),
    ],
)
def test_what_would_take_long_is_refused_with_the_bound(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        source(given)
    assert f"structured_outputs.{next(iter(given))} is too large: it has " in str(refusal.value)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "given",
    [
        {"regex": "a" * 10_000},
        {"regex": "a*b" * 30},
        {"regex": "[^a]*" * 8},
        {"regex": "a?" * 1000},
        {"regex": ".{1,200}a" * 1000},
        {"choice": [f"choice {number}" for number in range(10_000)]},
        {"json": {"enum": [f"choice {number}" for number in range(5000)]}},
        {"json": objects(400, "^[A-Z]+-{0}*[0-9]?$")},
        {"json": {"prefixItems": [{"type": "string", "maxLength": 1000 + number} for number in range(1000)]}},
        {"json": {"prefixItems": [{"type": "integer", "minimum": number} for number in range(500)]}},
        {"grammar": 'root ::= "[[[*" | [*?"]* # ***' + "\n# +++" * 100},
    ],
)
def test_what_is_within_the_bounds_is_not_refused(given: dict[str, Any]) -> None:
    source(given)


@pytest.mark.parametrize("text", ["[" * 200_000, '"' * 200_000, '"\\' * 100_000, "[[[[[[[[[\\\n" * 20_000])
def test_a_text_that_cannot_be_read_is_counted_in_linear_time(text: str) -> None:
    with suppress(InvalidRequest):
        Size("x").add(text, is_callers=True)
