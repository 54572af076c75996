"""Bodies: what may be said, what may only be said neutrally, and what is unknown."""

from typing import Any

import pytest
from pydantic import ValidationError

from actorllm import InvalidRequest, SamplingParams
from actorllm.server.fields import CHAT, COMPLETION, check_text
from actorllm.server.openai import ChatRequest, CompletionRequest, Message

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


@pytest.mark.parametrize(("name", "value"), [("n", True), ("echo", 0), ("presence_penalty", False)])
def test_a_truth_value_is_no_number(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"{name} can only be"):
        CompletionRequest.model_validate({"prompt": "a", name: value})


def test_null_is_the_same_as_nothing() -> None:
    nothing = {name: None for name in CompletionRequest.model_fields if name != "prompt"}
    request = CompletionRequest.model_validate({"prompt": "a", **nothing})
    assert request == CompletionRequest.model_validate({"prompt": "a"})
    assert request.params() == SamplingParams(max_tokens=16)


def test_who_calls_does_not_matter() -> None:
    request = ChatRequest.model_validate({"messages": HELLO, "user": "me", "metadata": {"run": "7"}})
    assert request.params() == SamplingParams(max_tokens=None)


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
        "ignore_eos": True,
        "skip_special_tokens": False,
        "structured_outputs": {"regex": "a"},
    }
    expected = SamplingParams(**given)
    assert CompletionRequest.model_validate({"prompt": "a", **given}).params() == expected
    assert ChatRequest.model_validate({"messages": HELLO, **given}).params() == expected


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
    with pytest.raises(InvalidRequest, match="exclude each other"):
        CompletionRequest.model_validate({"prompt": "a", **both}).params()


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "tool_calls": [],
    }
    assert Message.model_validate(answer).model_dump(exclude_none=True) == {
        "role": "assistant",
        "content": "a",
    }


def test_text_must_be_unicode() -> None:
    assert check_text("a\U0001f600") == "a\U0001f600"
    with pytest.raises(InvalidRequest, match="at character 2"):
        check_text("ab\udc00")
