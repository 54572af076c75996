"""A model of random weights under random schemas: whatever it finishes is valid."""

import json
from collections import Counter
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from actorllm.structured import spec
from actorllm.structured.keywords import BY_TYPE, COMBINERS

from .sampling import new_grammars, sampled
from .schemas import Schema, schemas

COUNT = 300


@cache
def drawn() -> list[Schema]:
    found: list[Schema] = []

    @settings(
        max_examples=COUNT,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schemas())
    def draw(schema: Schema) -> None:
        found.append(schema)

    draw()
    return found


def check(schema: Any, output: bytes) -> None:
    """Raises for what does not parse or is not valid."""
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema)
    value = json.loads(output)
    jsonschema.validate(value, schema, validator, format_checker=validator.FORMAT_CHECKER)


def keywords(schema: Any) -> Counter[str]:
    """How often each key is in it, at any depth."""
    match schema:
        case dict():
            return sum(map(keywords, schema.values()), Counter(schema.keys()))
        case list():
            return sum(map(keywords, schema), Counter())
    return Counter()


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", [{}, {"disable_any_whitespace": True, "disable_additional_properties": True}]
)
def test_random_weights_under_random_schemas_write_what_is_valid(option: dict[str, bool]) -> None:
    found = drawn()
    assert len(found) == COUNT
    grammars, finished = new_grammars(), 0
    for seed, schema in enumerate(found):
        text = spec({"json": schema} | option)
        grammars.compile(text)
        output = sampled(grammars, text, seed)
        grammars.forget(text)
        if output is not None:
            finished += 1
            check(schema, output)
            assert not option or b"\n" not in output.replace(b"\\n", b"")
    assert finished >= 0.9 * COUNT


@pytest.mark.slow
def test_the_random_schemas_have_every_keyword() -> None:
    seen = sum(map(keywords, drawn()), Counter())
    enforced = set(COMBINERS) | {"type"} | set().union(*BY_TYPE.values()) - {"uniqueItems"}
    assert {keyword: seen[keyword] for keyword in enforced if seen[keyword] < 4} == {}
