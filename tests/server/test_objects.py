"""The JSON in bodies that goes on as it is: what it may be, and how little is said of Python."""

from typing import Any

import pytest

from actorllm import InvalidRequest
from actorllm.server.bodies.objects import called_with, check_json


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": ["\ud800"]}, "it has half of a surrogate pair"),
        ({"\udfff": 1}, "it has half of a surrogate pair"),
        ({"a": float("nan")}, "it has NaN or an infinite number"),
        ({"a": [-float("inf")]}, "it has NaN or an infinite number"),
    ],
)
def test_what_no_client_could_read_is_no_json(value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_json(value)
    assert str(caught.value) == f"must be JSON in UTF-8, with finite numbers: {reason}"


def test_what_is_nested_too_deep_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(InvalidRequest, match="finite numbers: it is nested too deep"):
        check_json(deep)


def test_all_else_stays_what_it_is() -> None:
    value = {"a": [1, 2.5, None, True, "\U0001f600"], "": {}}
    assert check_json(value) is value


def test_arguments_are_the_object_that_they_say() -> None:
    assert called_with(' {"a": {"b": [1e3, "\\u00e9"]}} ') == {"a": {"b": [1000.0, "\u00e9"]}}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ('{"a": "\x00"}', "Invalid control character at: line 1 column 8 (char 7)"),
        ("[1]", "it is no object"),
        ("null", "it is no object"),
        ('{"a": NaN}', "it has NaN or an infinite number"),
        ('{"a": [-Infinity]}', "it has NaN or an infinite number"),
        ('{"a": 1e400}', "it has NaN or an infinite number"),
        ('{"a": "\\ud800"}', "it has half of a surrogate pair"),
        (f'{{"a": {"9" * 5000}}}', "it has a number of too many digits"),
        (f'{{"a": {"[" * 100_000}}}', "it is nested too deep"),
    ],
)
def test_what_is_no_object_is_refused_with_its_reason(arguments: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        called_with(arguments)
    assert caught.value.param == "arguments"
    assert str(caught.value) == f"the arguments of a call must be the JSON text of an object: {reason}"
