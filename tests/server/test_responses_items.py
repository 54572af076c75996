"""What a body of the Responses API asks, as a conversation."""

import time
from typing import Any

import pytest

from actorllm import InvalidRequest, SamplingParams
from actorllm.params import RequestOutputKind
from actorllm.server.responses.items import Item, check_outputs, conversation
from actorllm.server.responses.request import ResponsesRequest

USER = {"role": "user", "content": "u"}
SAID = {"role": "assistant", "content": "s"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "o"}


def call(call_id: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}


def called(call_id: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def told(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return [Item.model_validate(item).told() for item in items]


TURN = {"role": "assistant", "reasoning": "t", "content": "s", "tool_calls": [called(), called("c2")]}
TOOL = {"role": "tool", "tool_call_id": "c1", "content": "o"}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([USER, USER], [USER, USER]),
        ([USER, SAID, SAID], [USER, SAID, SAID]),
        ([USER, THOUGHT, SAID, call(), call("c2"), OUTPUT, USER], [USER, TURN, TOOL, USER]),
        ([call(), SAID], [{"role": "assistant", "tool_calls": [called()], "content": "s"}]),
        ([SAID, call(), SAID], [{"role": "assistant", "tool_calls": [called()], "content": "s\ns"}]),
        ([SAID, THOUGHT, SAID], [SAID, {"role": "assistant", "reasoning": "t", "content": "s"}]),
        ([THOUGHT, THOUGHT, SAID], [{"role": "assistant", "reasoning": "t\nt", "content": "s"}]),
        ([call(), OUTPUT, SAID], [{"role": "assistant", "tool_calls": [called()]}, TOOL, SAID]),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "brief"}]}, SAID],
            [{"role": "assistant", "reasoning": "brief", "content": "s"}],
        ),
        (
            [call(), {**OUTPUT, "output": [{"type": "input_text", "text": text} for text in "xy"]}],
            [{"role": "assistant", "tool_calls": [called()]}, {**TOOL, "content": "x\ny"}],
        ),
    ],
)
def test_what_the_assistant_does_in_one_turn_is_one_message(
    items: list[dict[str, Any]], messages: list[dict[str, Any]]
) -> None:
    assert conversation(told(*items)) == messages
    body = ResponsesRequest.model_validate({"input": items, "instructions": "i"})
    chat = body.chat(messages, strict=False)
    assert chat.conversation()[0] == {"role": "system", "content": "i"}
    assert [message["role"] for message in chat.conversation()[1:]] == [each["role"] for each in messages]


@pytest.mark.parametrize(
    ("item", "param", "message"),
    [
        (
            {"type": "computer_call", "action": {}},
            "type",
            "items of type computer_call are not supported here",
        ),
        (
            {"id": "msg_1", "content": "a"},
            "content",
            "content does nothing in an item of type item_reference",
        ),
        ({"type": "item_reference"}, "id", "an item of type item_reference needs id"),
        ({**USER, "phase": "commentary"}, "phase", 'phase can only be "final_answer"'),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id", "function_call needs call_id"),
        (call(arguments="[]"), "arguments", "must be the JSON text of an object"),
        (call(arguments='{"a": NaN}'), "arguments", "it has NaN or an infinite number"),
        (call(arguments='{"a'), "arguments", "must be the JSON text of an object: Unterminated string"),
        ({**THOUGHT, "encrypted_content": "x"}, "encrypted_content", "encrypted_content is not supported"),
        ({**THOUGHT, "role": "assistant"}, "role", "role does nothing in an item of type reasoning"),
    ],
)
def test_an_item_that_cannot_be_is_refused(item: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(ValueError, match="1 validation error") as caught:
        Item.model_validate(item)
    (found,) = caught.value.errors()  # type: ignore[attr-defined]  # it is pydantic's
    reason = found["ctx"]["error"]
    assert isinstance(reason, InvalidRequest)
    assert reason.param == param
    assert message in str(reason)


def test_many_items_of_one_turn_cost_what_they_are_long() -> None:
    text = "t" * 3000
    thought = told({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]})
    message = told({"role": "assistant", "content": text})
    begun = time.process_time()
    (turn,) = conversation([*thought * 3000, *told(call()), *message * 3000])
    assert time.process_time() - begun < 0.2
    assert (turn["reasoning"], turn["content"]) == ("\n".join([text] * 3000),) * 2


def test_an_item_is_told_with_an_id_and_keeps_its_own() -> None:
    message, own, thought = told(USER, {**SAID, "id": "mine", "status": "incomplete"}, THOUGHT)
    assert message.pop("id").startswith("msg_")
    content = [{"type": "input_text", "text": "u"}]
    assert message == {"type": "message", "role": "user", "status": "completed", "content": content}
    assert (own["id"], own["status"]) == ("mine", "incomplete")
    assert own["content"] == [{"type": "output_text", "text": "s", "annotations": []}]
    assert thought["id"].startswith("rs_")


def test_an_output_belongs_to_a_call_before_it() -> None:
    check_outputs(told(call()), told(OUTPUT))
    check_outputs([], told(call(), OUTPUT))
    with pytest.raises(
        InvalidRequest, match="no function_call before this output has the call_id 'c1'"
    ) as caught:
        check_outputs(told(call("c2")), told(USER, OUTPUT, call()))
    assert caught.value.param == "input.1.call_id"


@pytest.mark.parametrize(
    ("earlier", "items"),
    [
        ([call(), OUTPUT], [USER, OUTPUT]),
        ([call()], [OUTPUT, OUTPUT]),
        ([], [call(), OUTPUT | {"output": "p"}, USER, OUTPUT]),
    ],
)
def test_a_call_has_no_second_output(earlier: list[dict[str, Any]], items: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequest, match="there is an output already for the call_id 'c1'") as caught:
        check_outputs(told(*earlier), told(*items))
    assert caught.value.param == f"input.{len(items) - 1}.call_id"


@pytest.mark.parametrize(
    ("earlier", "items"),
    [
        ([call()], [USER]),
        ([], [USER, call()]),
        ([call("c2")], [call(), OUTPUT | {"call_id": "c2"}, USER]),
        ([call(), OUTPUT, call()], [USER]),
    ],
)
def test_every_call_has_an_output(earlier: list[dict[str, Any]], items: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequest, match="the function_call with the call_id 'c1' has no") as caught:
        check_outputs(told(*earlier), told(*items))
    assert caught.value.param == "input"


def test_an_id_may_be_used_again_when_its_call_has_an_output() -> None:
    check_outputs(told(call(), OUTPUT, USER), told(call(), OUTPUT, call(), call(), OUTPUT))


OWN: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.25,
    "min_tokens": 2,
    "seed": 7,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.5,
    "logit_bias": {"65": 2.0},
    "allowed_token_ids": [65, 66],
    "bad_words": ["x"],
    "stop": ["y"],
    "stop_token_ids": [67],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
}
SERVICE: dict[str, Any] = {
    "priority": 2,
    "cache_salt": "salt",
    "timeout": 5.0,
    "queue_timeout": 3.0,
    "ttft_timeout": 4.0,
}


def test_every_field_reaches_the_engine() -> None:
    more = {"max_output_tokens": 9, "vllm_xargs": {"a": 1}, "stream": True, "stream_interval": 3}
    body = {"input": "a", **OWN, **SERVICE, **more, "thinking_token_budget": None}
    chat = ResponsesRequest.model_validate(body).chat([USER], strict=False)
    kind = RequestOutputKind.DELTA
    expected = SamplingParams(max_tokens=9, extra_args={"a": 1}, stream_interval=3, output_kind=kind, **OWN)
    assert chat.params() == expected
    service: dict[str, Any] = dict(chat.service("me"))
    assert service == {"tenant": "me", **SERVICE}


def test_every_field_of_the_template_reaches_it() -> None:
    body = {"input": "a", "chat_template_kwargs": {"b": 1}, "documents": [{"c": "d"}]}
    chat = ResponsesRequest.model_validate(body).chat([USER], strict=False)
    assert (chat.chat_template_kwargs, chat.documents) == ({"b": 1}, [{"c": "d"}])


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({}, None),
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {"format": {"type": "json_object"}}}, {"json_object": True}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}}}},
            {"json": {"type": "null"}},
        ),
        ({"structured_outputs": {"choice": ["a"]}}, {"choice": ["a"]}),
    ],
)
def test_the_form_of_the_text(body: dict[str, Any], form: dict[str, Any] | None) -> None:
    assert ResponsesRequest.model_validate({"input": "a", **body}).chat([USER], strict=False).form() == form


def test_the_effort_of_reasoning() -> None:
    body = ResponsesRequest.model_validate({"input": "a", "reasoning": {"effort": "high"}})
    assert body.chat([USER], strict=False).reasoning_effort == "high"


def test_too_many_messages_are_an_error_of_the_input() -> None:
    body = ResponsesRequest.model_validate({"input": "a"})
    with (
        pytest.raises(InvalidRequest, match=r"^input: List should have at most 10000 items") as caught,
        body.named(),
    ):
        body.chat([USER] * 10_001, strict=False)
    assert caught.value.param == "input"


def test_too_many_calls_in_one_turn_are_told_as_such() -> None:
    body = ResponsesRequest.model_validate({"input": [USER, *[call()] * 1001]})
    messages = conversation([item.told() for item in body.input])
    text = "^input: the assistant calls more than 1000 functions in one turn; send fewer items"
    with pytest.raises(InvalidRequest, match=text) as caught, body.named():
        body.chat(messages, strict=False)
    assert caught.value.param == "input"
