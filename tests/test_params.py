"""SamplingParams refuses what cannot be, and gives each actor its part."""

import copy
import json
import pickle
import struct
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from actorllm import InvalidRequest, RepetitionDetection, SamplingParams
from actorllm.messages import Limits, Repetition, Sampling, Terms, TextRules, Thinking, pack
from actorllm.service import Service, cache_key, terms

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
        ("stop", "a" * 1001, "stop has a string of 1001 characters; at most 1000"),
        ("presence_penalty", 2.1, r"presence_penalty must be in \[-2, 2\], not 2.1"),
        ("frequency_penalty", NAN, r"frequency_penalty must be in \[-2, 2\], not nan"),
        ("repetition_penalty", 0, r"repetition_penalty must be in \(0, 10000\], not 0"),
        ("repetition_penalty", INF, "repetition_penalty must be in"),
        ("min_tokens", -1, "min_tokens must be between 0 and"),
        ("logprobs", -2, "logprobs must be between -1 and"),
        ("logprobs", True, "logprobs must be an integer, not bool"),
        ("prompt_logprobs", 1.5, "prompt_logprobs must be an integer, not float"),
        ("logprob_token_ids", [1] * 129, "logprob_token_ids has 129 tokens; at most 128"),
        ("logprob_token_ids", [-1], "logprob_token_ids must be between 0 and"),
        ("logit_bias", [5], "logit_bias must be an object of numbers by token id"),
        ("logit_bias", {"five": 1}, "logit_bias has the key 'five', which is no token id"),
        ("logit_bias", {-1: 1}, "logit_bias has the key -1, which is no token id"),
        ("logit_bias", {2**31: 1}, "logit_bias has the key 2147483648, which is no token id"),
        ("logit_bias", {True: 1}, "logit_bias has the key True, which is no token id"),
        ("logit_bias", {"1": 1, "01": 5}, "logit_bias has the key '01', which is no token id"),
        ("logit_bias", {"1" * 99: 1}, f"logit_bias has the key '{'1' * 39}, which is no token id"),
        ("logit_bias", {1: 1, "1": 5}, "logit_bias has token 1 twice"),
        ("allowed_token_ids", [], "allowed_token_ids is empty"),
        ("bad_words", ["a"] * 129, "bad_words has 129 strings; at most 128"),
        ("bad_words", [""], "bad_words must be non-empty strings"),
        ("bad_words", ["a", "\ud800"], "bad_words has half of a surrogate pair in"),
        ("truncate_prompt_tokens", 0, "truncate_prompt_tokens must be at least 1, or -1, not 0"),
        ("truncate_prompt_tokens", -2, "truncate_prompt_tokens must be between -1 and"),
        ("output_kind", "delta", "output_kind must be a RequestOutputKind, not 'delta'"),
        ("skip_reading_prefix_cache", "no", "skip_reading_prefix_cache must be true, false or None"),
        ("stream_interval", 0, "stream_interval must be between 1 and"),
        ("repetition_detection", {"size": 5}, "repetition_detection must be an object with max_pattern_size"),
        ("thinking_token_budget", -2, "thinking_token_budget must be between -1 and"),
        ("extra_args", [5], "extra_args must be an object"),
        ("extra_args", {"a": {1}}, "extra_args must be JSON"),
        ("extra_args", {"a": NAN}, "extra_args must be JSON"),
        ("spaces_between_special_tokens", None, "spaces_between_special_tokens must be true or false"),
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


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        (
            {"min_tokens": 5, "max_tokens": 4},
            "min_tokens",
            "min_tokens is 5, more than max_tokens, which is 4",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "ignore_eos": True},
            "ignore_eos",
            "ignore_eos and structured_outputs exclude each other",
        ),
        (
            {"prompt_logprobs": 0, "skip_reading_prefix_cache": False},
            "skip_reading_prefix_cache",
            "prompt_logprobs needs the whole prompt computed",
        ),
        ({"n": 2, "temperature": 0}, "n", "n must be 1 when sampling is greedy"),
        (
            {"repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 2}},
            "repetition_detection.min_pattern_size",
            "must be between 1 and 1, not 2",
        ),
        (
            {"repetition_detection": {"min_count": 2}},
            "repetition_detection.max_pattern_size",
            "repetition_detection needs max_pattern_size",
        ),
        ({"logit_bias": {7: "a"}}, "logit_bias.7", "logit_bias.7 must be a number, not str"),
    ],
)
def test_what_contradicts_each_other_is_an_error(given: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        SamplingParams(**given)
    assert caught.value.param == param


def test_a_field_that_is_not_known_is_an_error() -> None:
    with pytest.raises(TypeError, match="guided_json"):
        SamplingParams(guided_json={})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "most", "asked"),
    [
        ({"logprobs": 21}, 20, "logprobs asks for 21"),
        ({"prompt_logprobs": -1}, 20, "prompt_logprobs asks for the whole vocabulary"),
    ],
)
def test_more_log_probabilities_than_the_engine_gives_are_refused(
    given: dict[str, int], most: int, asked: str
) -> None:
    params = SamplingParams(**given)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"{asked}, but the engine's max_logprobs is {most}"):
        params.check_logprobs(most)
    params.check_logprobs(-1)


def test_the_worker_gets_its_part_of_the_rest() -> None:
    params = SamplingParams(
        presence_penalty=1,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        min_tokens=3,
        logit_bias={5: 200, 6: -1},
        allowed_token_ids=[5, 6],
        logprobs=2,
        logprob_token_ids=[8],
        prompt_logprobs=-1,
        thinking_token_budget=9,
        extra_args={"a": [1, None]},
        temperature=0,
    )
    assert params.sampling(Sampling(repetition_penalty=2.0)) == Sampling(
        temperature=0.0,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        min_tokens=3,
        bias_tokens=pack([5, 6]),
        bias=struct.pack("<2f", 100, -1),
        allowed=pack([5, 6]),
        logprobs=2,
        logprob_tokens=pack([8]),
        prompt_logprobs=-1,
        thinking=Thinking(9),
        arguments='{"a": [1, null]}',
    )
    assert SamplingParams(thinking_token_budget=-1).sampling(Sampling()).thinking is None
    assert SamplingParams().sampling(Sampling(repetition_penalty=2.0)).repetition_penalty == 2.0


@pytest.mark.parametrize(
    ("given", "skips"),
    [({}, False), ({"prompt_logprobs": 0}, True), ({"skip_reading_prefix_cache": True}, True)],
)
def test_the_prefix_cache_is_not_read_for_log_probabilities_of_a_prompt(
    given: dict[str, Any], skips: bool
) -> None:
    assert SamplingParams(**given).skips_prefix_cache is skips


class Asked:
    """A class that tells its schema, and counts how often it was asked."""

    times = 0

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        cls.times += 1
        return {"type": "integer"}


def test_a_grammar_is_read_once_and_what_becomes_of_the_callers_object_is_not_seen() -> None:
    given: dict[str, Any] = {"json": Asked}
    params = SamplingParams(structured_outputs=given)
    given["json"] = {1}
    assert params.limits().grammar == params.limits().grammar == '{"json":{"type":"integer"}}'
    assert params.structured_outputs == {"json": {"type": "integer"}}
    assert Asked.times == 1
    again = replace(params, seed=5)
    assert again.limits() == params.limits()
    assert again != params == SamplingParams(structured_outputs={"json": '{"type": "integer"}'})
    assert copy.deepcopy(params).limits() == pickle.loads(pickle.dumps(params)).limits() == params.limits()
    assert replace(params, structured_outputs=None).limits().grammar is None


def test_arguments_of_processors_are_as_the_workers_get_them() -> None:
    given: dict[Any, Any] = {"turns": (1, 2), 3: [None]}
    params = SamplingParams(extra_args=given)
    given["turns"] = {4}
    assert params.extra_args == {"turns": [1, 2], "3": [None]}
    assert json.loads(params.sampling(Sampling()).arguments) == params.extra_args


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
        min_tokens=2,
        spaces_between_special_tokens=False,
        repetition_detection={"max_pattern_size": 4},
    )
    assert params.limits() == Limits(7, (4, 5), True, None, Repetition(4, 1, 2))
    assert params.text_rules() == TextRules(("end",), True, False, True, 2, False)


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
            presence_penalty=real,
            frequency_penalty=real,
            repetition_penalty=real,
            min_tokens=whole,
            logprobs=whole,
            prompt_logprobs=whole,
            logprob_token_ids=[whole],
            logit_bias={whole: real},
            allowed_token_ids=[whole],
            thinking_token_budget=whole,
            repetition_detection=RepetitionDetection(max_pattern_size=whole),
        )
        service: Service = {"priority": whole, "tenant": text, "queue_timeout": real, "cache_salt": text}
        again: Service = {"ttft_timeout": real, "timeout": real}
        parts = [params.sampling(Sampling()), params.limits(), params.text_rules()]
        return [*parts, cache_key(service), terms(service), terms(again)]

    told, owed = messages(Name("a"), Number.ONE, real), messages("a", 1, 1.0)
    assert told == owed
    assert types(told) == types(owed)
