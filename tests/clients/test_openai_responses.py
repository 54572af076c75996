"""OpenAI's client: the Responses API."""

import math
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from .real import ENDLESS, MODEL, QUESTION, City, Server

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {"model": MODEL, "input": QUESTION}
FUNCTION: Any = openai.pydantic_function_tool(City, name="look_up")
TOOL: Any = {"type": "function", **FUNCTION["function"]}


def test_a_response_and_one_that_goes_on(client: openai.OpenAI) -> None:
    first = client.responses.create(
        **ASKED, instructions="Be brief.", temperature=0, max_output_tokens=6, extra_body=ENDLESS
    )
    again = client.responses.create(
        **ASKED, instructions="Be brief.", temperature=0, max_output_tokens=6, extra_body=ENDLESS
    )
    second = client.responses.create(
        input="Why?", previous_response_id=first.id, max_output_tokens=4, extra_body=ENDLESS
    )
    assert first.output_text == again.output_text != ""
    assert (first.status, second.previous_response_id) == ("incomplete", first.id)
    assert first.incomplete_details is not None
    assert first.incomplete_details.reason == "max_output_tokens"
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.output_tokens == 6
    assert first.usage.total_tokens == first.usage.input_tokens + 6
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [getattr(item, "role", None) for item in items] == ["user", "assistant", "user"]
    assert items[1].id == first.output[0].id
    assert client.responses.retrieve(second.id) == second
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.retrieve(second.id)


def test_a_stream_says_what_the_whole_does(client: openai.OpenAI) -> None:
    more: Any = {"seed": 4, **ENDLESS}
    asked = {**ASKED, "max_output_tokens": 12, "temperature": 1.2, "extra_body": more}
    whole = client.responses.create(**asked)
    with client.responses.create(**asked, stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.incomplete")
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == whole.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    told, usage = events[-1].response.usage, whole.usage
    assert told is not None
    assert usage is not None
    assert (told.input_tokens, told.output_tokens) == (usage.input_tokens, usage.output_tokens)
    assert told.input_tokens_details.cached_tokens == (told.input_tokens - 1) // 16 * 16


def test_log_probabilities_are_of_what_is_said(client: openai.OpenAI) -> None:
    response = client.responses.create(
        **ASKED,
        temperature=0,
        max_output_tokens=4,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body=ENDLESS,
    )
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    (text,) = message.content
    assert text.type == "output_text"
    assert text.logprobs is not None
    assert len(text.logprobs) == 4
    assert "".join(token.token for token in text.logprobs) == response.output_text
    for token in text.logprobs:
        assert math.isfinite(token.logprob)
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, token.top_logprobs[0].logprob)
        assert len(token.top_logprobs) == 2


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look_up"}])
def test_a_tool_must_be_called_and_its_result_is_heard(choice: Any, client: openai.OpenAI) -> None:
    asked = {**ASKED, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    called = client.responses.create(**asked, extra_body={"seed": 1})
    with client.responses.stream(**asked, extra_body={"seed": 1}) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    (call,) = called.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (called.status, call.name) == ("completed", "look_up")
    City.model_validate_json(call.arguments)
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments
    (again,) = streamed.output
    assert again.type == "function_call"
    City.model_validate(again.parsed_arguments)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
    then = client.responses.create(
        input=[result], previous_response_id=called.id, max_output_tokens=4, extra_body=ENDLESS
    )
    assert then.output_text
    items = client.responses.input_items.list(then.id, order="asc").data
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def test_an_answer_is_parsed_into_a_model_of_pydantic(client: openai.OpenAI) -> None:
    whole = client.responses.parse(**ASKED, text_format=City, extra_body={"seed": 2})
    with client.responses.stream(**ASKED, text_format=City, extra_body={"seed": 2}) as stream:
        streamed = stream.until_done().get_final_response()
    assert isinstance(whole.output_parsed, City)
    assert streamed.output_parsed == whole.output_parsed
    assert whole.status == "completed"
    more: Any = [{"role": "user", "content": QUESTION}, *whole.output, {"role": "user", "content": "Why?"}]
    then = client.responses.create(model=MODEL, input=more, max_output_tokens=2, extra_body=ENDLESS)
    assert then.usage is not None
    assert then.usage.output_tokens == 2


def test_an_error_in_mid_stream_is_its_last_event(client: openai.OpenAI) -> None:
    with client.responses.create(**ASKED, stream=True, extra_body={**ENDLESS, "timeout": 2}) as stream:
        events = list(stream)
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "ran into its timeout" in last.response.error.message


def test_a_stream_that_is_closed_early_ends_its_request(server: Server, client: openai.OpenAI) -> None:
    with server.aborting(), client.responses.create(**ASKED, stream=True, extra_body=ENDLESS) as stream:
        kinds = {event.type for event, _ in zip(stream, range(6), strict=False)}
    assert "response.output_text.delta" in kinds
