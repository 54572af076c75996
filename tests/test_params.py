"""SamplingParams refuses what cannot be, and gives each actor its part."""

from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from actorllm import InvalidRequest, SamplingParams
from actorllm.messages import Limits, Sampling, Terms, TextRules
from actorllm.params import Service, cache_key, terms

HUGE = 10**400
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -1, r"temperature must be in \[0, 2\], not -1"),
        ("temperature", 2.1, r"in \[0, 2\], not 2.1"),
        ("temperature", NAN, r"in \[0, 2\], not nan"),
        ("temperature", INF, r"in \[0, 2\], not inf"),
        ("temperature", HUGE, r"in \[0, 2\]"),
        ("temperature", "hot", "must be a number, not str"),
        ("temperature", True, "must be a number, not bool"),
        ("top_p", 0, r"top_p must be in \(0, 1\], not 0"),
        ("top_p", 2, r"in \(0, 1\], not 2"),
        ("top_p", NAN, r"in \(0, 1\], not nan"),
        ("min_p", -0.1, r"min_p must be in \[0, 1\], not -0.1"),
        ("min_p", HUGE, r"in \[0, 1\]"),
        ("top_k", -2, "top_k must be between -1 and"),
        ("top_k", 1.5, "must be an integer, not float"),
        ("max_tokens", 0, "max_tokens must be between 1 and"),
        ("max_tokens", "5", "must be an integer, not str"),
        ("seed", 2**63, "seed must be between"),
        ("seed", "x", "must be an integer, not str"),
        ("stop", [""], "stop must be non-empty strings, not ''"),
        ("stop", [5], "stop must be non-empty strings, not 5"),
        ("stop", 5, "stop must be a list, not int"),
        ("stop", ["a"] * 17, "stop has 17 strings; at most 16"),
        ("stop", "a" * 1001, "a stop string has 1001 characters; at most 1000"),
        ("stop_token_ids", [-1], "stop_token_ids must be between 0 and"),
        ("stop_token_ids", [None], "must be an integer, not NoneType"),
        ("n", None, "n must be an integer, not NoneType"),
        ("stop_token_ids", 5, "must be a list, not int"),
        ("ignore_eos", 1, "ignore_eos must be true or false"),
        ("detokenize", None, "detokenize must be true or false"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequest, match="stop needs detokenize=True"):
        SamplingParams(stop="x", detokenize=False)


def test_what_is_not_given_comes_from_the_model() -> None:
    defaults = Sampling(temperature=0.6, top_k=40, top_p=0.9, min_p=0.1)
    assert SamplingParams(seed=3).sampling(defaults) == Sampling(0.6, 40, 0.9, 0.1, 3)
    given = SamplingParams(temperature=1, top_k=-1, top_p=1, min_p=0)
    assert given.sampling(defaults) == Sampling(1.0, 0, 1.0, 0.0, None)


def test_a_temperature_of_nothing_is_greedy_whatever_else_is_given() -> None:
    params = SamplingParams(temperature=0.000001, top_k=5, top_p=0.5, seed=1)
    assert params.sampling(Sampling()) == Sampling(temperature=0.0, seed=1)


def test_each_actor_gets_its_part() -> None:
    params = SamplingParams(
        max_tokens=7,
        stop="end",
        stop_token_ids=[4, 5],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    assert params.limits() == Limits(7, (4, 5), True)
    assert params.text_rules() == TextRules(("end",), True, False, True)


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"timeout": -1}, r"timeout must be in \[0, "),
        ({"ttft_timeout": NAN}, "ttft_timeout must be in"),
        ({"queue_timeout": "soon"}, "queue_timeout must be a number, not str"),
        ({"priority": 1.5}, "priority must be an integer, not float"),
        ({"priority": None}, "priority must be an integer, not NoneType"),
        ({"tenant": 5}, "tenant must be a string, not int"),
        ({"tenant": None}, "tenant must be a string, not NoneType"),
        ({"deadline": 5}, "unknown argument 'deadline'; known are priority, tenant,"),
    ],
)
def test_a_wrong_service_is_named(service: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        terms(service)
    assert caught.value.param == next(iter(service))


@pytest.mark.parametrize(
    ("salt", "message"),
    [
        (b"a", "cache_salt must be a string, not bytes"),
        (None, "cache_salt must be a string, not NoneType"),
        ("\ud800", "cache_salt must be at most 1000 printable characters"),
        ("a" * 1001, "cache_salt must be at most 1000 printable characters"),
    ],
)
def test_a_wrong_cache_salt_is_named(salt: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        cache_key({"cache_salt": salt})
    assert caught.value.param == "cache_salt"


def test_the_scheduler_is_told_of_the_service() -> None:
    assert terms({}) == terms({"timeout": None}) == Terms()
    assert terms({"priority": -3, "tenant": "a", "timeout": 2}) == Terms(-3, "a", timeout=2)


class Name(str):
    """A text that shows itself as another one."""

    def __str__(self) -> str:
        return "something else"


class Number(IntEnum):
    ONE = 1


def types(value: Any) -> Any:
    """The types in a message, of its parts and theirs."""
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else value
    return [types(part) for part in parts] if isinstance(parts, list | tuple) else type(parts)


@pytest.mark.parametrize("real", [1.0, np.float64(1.0), Number.ONE])
def test_messages_are_of_plain_types_whatever_is_derived_from_them(real: float) -> None:
    def messages(text: str, whole: int, real: float) -> list[Any]:
        params = SamplingParams(
            n=whole,
            temperature=real,
            top_k=whole,
            top_p=real,
            min_p=real,
            seed=whole,
            max_tokens=whole,
            stop=[text],
            stop_token_ids=[whole],
        )
        service: Service = {"priority": whole, "tenant": text, "queue_timeout": real, "cache_salt": text}
        again: Service = {"ttft_timeout": real, "timeout": real}
        parts = [params.sampling(Sampling()), params.limits(), params.text_rules()]
        return [*parts, cache_key(service), terms(service), terms(again)]

    told, owed = messages(Name("a"), Number.ONE, real), messages("a", 1, 1.0)
    assert told == owed
    assert types(told) == types(owed)
