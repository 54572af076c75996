"""Bodies: what may be said, what may only be said neutrally, and what is unknown."""

from typing import Any

import pytest
from pydantic import ValidationError

from actorllm import InvalidRequest, RequestOutputKind, SamplingParams
from actorllm.server.anthropic.request import MessagesRequest
from actorllm.server.bodies.fields import CHAT, COMPLETION, check_text
from actorllm.server.chat.conversation import Message
from actorllm.server.chat.request import ChatRequest
from actorllm.server.completions.request import CompletionRequest

HELLO = [{"role": "user", "content": "hello"}]
NEUTRAL_CHAT = [(name, value) for name, values in CHAT.items() for value in (*values, None)]
NEUTRAL_COMPLETION = [(name, value) for name, values in COMPLETION.items() for value in (*values, None)]


@pytest.mark.parametrize(("name", "value"), NEUTRAL_CHAT)
def test_neutral_values_of_a_chat_change_nothing(name: str, value: Any) -> None:
    plain = ChatRequest.model_validate({"messages": HELLO})
    assert ChatRequest.model_validate({"messages": HELLO, name: value}) == plain


@pytest.mark.parametrize(("name", "value"), NEUTRAL_COMPLETION)
def test_neutral_values_of_a_completion_change_nothing(name: str, value: Any) -> None:
    plain = CompletionRequest.model_validate({"prompt": "a"})
    assert CompletionRequest.model_validate({"prompt": "a", name: value}) == plain


@pytest.mark.parametrize("name", CHAT)
def test_other_values_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": HELLO, name: "something"})
    reason = caught.value.errors()[0]["ctx"]["error"]
    assert isinstance(reason, InvalidRequest)
    assert reason.param == name


@pytest.mark.parametrize(("name", "value"), [("length_penalty", True), ("use_beam_search", 0)])
def test_a_truth_value_is_no_number(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"{name} can only be"):
        CompletionRequest.model_validate({"prompt": "a", name: value})


def test_null_is_the_same_as_nothing() -> None:
    nothing = {name: None for name in CompletionRequest.model_fields if name != "prompt"}
    request = CompletionRequest.model_validate({"prompt": "a", **nothing})
    assert request == CompletionRequest.model_validate({"prompt": "a"})
    assert request.params() == SamplingParams(max_tokens=16, output_kind=RequestOutputKind.FINAL_ONLY)


def test_who_calls_does_not_matter() -> None:
    caller = {
        "user": "me",
        "metadata": {"run": "7"},
        "store": True,
        "safety_identifier": "a",
        "prompt_cache_key": "b",
    }
    request = ChatRequest.model_validate({"messages": HELLO, **caller})
    assert request.params() == SamplingParams(max_tokens=None, output_kind=RequestOutputKind.FINAL_ONLY)


def test_prompts_times_n_may_be_just_as_many_as_there_are_answers() -> None:
    many = CompletionRequest.model_validate({"prompt": ["a"] * 341, "n": 3})
    assert many.params().n == 3
    more = CompletionRequest.model_validate({"prompt": ["a"] * 342, "n": 3})
    with pytest.raises(InvalidRequest, match="n must be at most 2 for 342 prompts, not 3"):
        more.params()


def test_every_sampling_field_arrives() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 5,
        "max_tokens": 9,
        "stop": ["x", "y"],
        "stop_token_ids": [1, 2],
        "include_stop_str_in_output": True,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "structured_outputs": {"regex": "a"},
        "n": 3,
        "min_tokens": 2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 1, "6": -200.0},
        "allowed_token_ids": [5, 6],
        "bad_words": ["x"],
        "spaces_between_special_tokens": False,
        "truncate_prompt_tokens": 8,
        "prompt_logprobs": 2,
        "repetition_detection": {"max_pattern_size": 3},
        "thinking_token_budget": 7,
    }
    expected = SamplingParams(**given, output_kind=RequestOutputKind.FINAL_ONLY)
    assert CompletionRequest.model_validate({"prompt": "a", **given}).params() == expected
    assert ChatRequest.model_validate({"messages": HELLO, **given}).params() == expected
    streams = ChatRequest.model_validate({"messages": HELLO, "stream": True, "stream_interval": 4})
    assert streams.params().stream_interval == 4


@pytest.mark.parametrize(
    ("form", "outputs"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}, {"json": {"a": 1}}),
    ],
)
def test_a_response_format_is_a_structured_output(form: dict[str, Any], outputs: Any) -> None:
    request = CompletionRequest.model_validate({"prompt": "a", "response_format": form})
    assert request.params().structured_outputs == outputs


def test_a_form_cannot_be_given_twice() -> None:
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    request = CompletionRequest.model_validate({"prompt": "a", **both})
    with pytest.raises(InvalidRequest, match="exclude each other"):
        request.params()


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "tool_calls": [],
    }
    assert Message.model_validate(answer).for_template() == {"role": "assistant", "content": "a"}


def test_text_must_be_unicode() -> None:
    assert check_text("a\U0001f600") == "a\U0001f600"
    with pytest.raises(InvalidRequest, match="at character 2"):
        check_text("ab\udc00")


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{}] * 10_000},
        {"messages": [{"role": "assistant", "tool_calls": [{}] * 1000}]},
        {"stop_token_ids": ["a"] * 100_000},
        {"allowed_token_ids": ["a"] * 100_000},
        {"logprob_token_ids": ["a"] * 100_000},
        {"logit_bias": {str(token): "a" for token in range(100_000)}},
        {"documents": [1] * 100_000},
        {"tools": [1] * 1000},
        {"stop": [1] * 100_000},
        {"response_format": {"type": "structural_tag", "triggers": [1] * 100_000}},
        {f"field {number}": 1 for number in range(100_000)},
    ],
    ids=lambda change: min(change),
)
def test_of_many_mistakes_few_are_collected(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": HELLO} | change)
    assert caught.value.error_count() <= 2


def test_of_many_biases_in_a_message_request_no_more_are_collected() -> None:
    body = {"messages": HELLO, "max_tokens": 1, "logit_bias": {str(token): "a" for token in range(100_000)}}
    with pytest.raises(ValidationError) as caught:
        MessagesRequest.model_validate(body)
    assert caught.value.error_count() == 1
