"""OpenAI's client: conversations."""

import math
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionUserMessageParam

from .real import ENDLESS, MODEL, QUESTION, City, Pause

pytestmark = pytest.mark.slow

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are brief."},
    ChatCompletionUserMessageParam(role="user", content=[{"type": "text", "text": QUESTION}]),
]
ASKED: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
TOOL = openai.pydantic_function_tool(City, name="look_up", description="Looks a city up.")
OTHER = openai.pydantic_function_tool(Pause, name="pause")


def test_greedy_answers_are_the_same(client: openai.OpenAI) -> None:
    first, second = (
        client.chat.completions.create(
            **ASKED, temperature=0, max_completion_tokens=12, seed=seed, extra_body=ENDLESS
        )
        for seed in (1, 2)
    )
    assert first.choices == second.choices
    assert first.choices[0].message.content
    assert (first.model, first.choices[0].finish_reason) == (MODEL, "length")
    assert first.id != second.id
    for usage in (first.usage, second.usage):
        assert usage is not None
        assert usage.completion_tokens == 12
        assert usage.total_tokens == usage.prompt_tokens + 12
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_a_stream_says_what_the_whole_does(client: openai.OpenAI) -> None:
    asked = {**ASKED, "seed": 7, "temperature": 1.5, "max_completion_tokens": 30, "extra_body": ENDLESS}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = stream
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    assert (last.choices, last.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in (*chunks, last)}) == 1


def test_a_stop_string_ends_an_answer(client: openai.OpenAI) -> None:
    written: Any = {"structured_outputs": {"choice": ["one two three"]}}
    answer = client.chat.completions.create(**ASKED, stop=[" three"], extra_body=written)
    assert answer.choices[0].message.content == "one two"
    assert answer.choices[0].finish_reason == "stop"


def test_log_probabilities_are_of_what_is_said(client: openai.OpenAI) -> None:
    asked = {**ASKED, "temperature": 0, "max_completion_tokens": 5, "extra_body": ENDLESS}
    (choice,) = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices
    assert choice.logprobs is not None
    told = choice.logprobs.content
    assert told is not None
    assert len(told) == 5
    said = b"".join(bytes(token.bytes or ()) for token in told)
    assert said.decode() == choice.message.content
    for token in told:
        likeliest = token.top_logprobs
        assert len(likeliest) == 3
        assert (token.token, token.logprob) == (likeliest[0].token, likeliest[0].logprob)
        assert all(math.isfinite(other.logprob) and other.logprob <= 0 for other in likeliest)
        assert [other.logprob for other in likeliest] == sorted((o.logprob for o in likeliest), reverse=True)
    assert client.chat.completions.create(**asked).choices[0].logprobs is None


def test_several_answers_to_one_prompt(client: openai.OpenAI) -> None:
    asked = {**ASKED, "n": 3, "seed": 5, "temperature": 1.5, "max_completion_tokens": 8}
    first = client.chat.completions.create(**asked, extra_body=ENDLESS)
    second = client.chat.completions.create(**asked, extra_body=ENDLESS)
    said = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(said)) == 3
    assert said == [choice.message.content for choice in second.choices]
    assert first.usage is not None
    assert first.usage.completion_tokens == 24
    streamed = ["", "", ""]
    with client.chat.completions.create(**asked, stream=True, extra_body=ENDLESS) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
    assert streamed == said


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look_up"}}], ids=["any", "named"]
)
def test_a_tool_must_be_called(choice: Any, client: openai.OpenAI) -> None:
    tools = [TOOL] if choice == "required" else [OTHER, TOOL]
    asked = {**ASKED, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "seed": 1}
    answer = client.chat.completions.parse(**asked)
    assert answer.choices[0].finish_reason == "tool_calls"
    message = answer.choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.function.name == "look_up"
    assert isinstance(call.function.parsed_arguments, City)
    said: Any = message
    results: list[ChatCompletionMessageParam] = [
        *MESSAGES,
        said,
        {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."},
    ]
    then = client.chat.completions.create(
        model=MODEL, messages=results, tools=[TOOL], tool_choice="none", max_tokens=4, extra_body=ENDLESS
    )
    assert then.choices[0].message.tool_calls is None
    assert then.usage is not None
    assert then.usage.completion_tokens == 4


def test_a_call_streams(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "look_up"}}
    asked = {**ASKED, "tools": [TOOL], "tool_choice": choice, "seed": 1}
    whole = client.chat.completions.create(**asked).choices[0].message.tool_calls
    assert whole is not None
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    pieces = [e.arguments_delta for e in events if e.type == "tool_calls.function.arguments.delta"]
    (done,) = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert len(pieces) > 1
    assert whole[0].type == "function"
    assert "".join(pieces) == done.arguments == whole[0].function.arguments
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert isinstance(final.message.tool_calls[0].function.parsed_arguments, City)


# of what it has parsed and sends again, the client warns
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_an_answer_is_parsed_into_a_model_of_pydantic(client: openai.OpenAI) -> None:
    asked = {**ASKED, "response_format": City, "seed": 2}
    whole = client.chat.completions.parse(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        stream.until_done()
        streamed = stream.get_final_completion().choices[0]
    assert isinstance(whole.message.parsed, City)
    assert streamed.message.parsed == whole.message.parsed
    assert whole.finish_reason == streamed.finish_reason == "stop"
    said: Any = whole.message
    then = client.chat.completions.create(
        model=MODEL, messages=[*MESSAGES, said, MESSAGES[1]], max_tokens=2, extra_body=ENDLESS
    )
    assert then.choices[0].finish_reason == "length"


def test_an_answer_that_is_cut_off_is_not_parsed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**ASKED, response_format=City, max_completion_tokens=3)


def test_an_answer_can_be_any_object(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_object"}
    answer = client.chat.completions.create(**ASKED, response_format=form, max_completion_tokens=4, seed=1)
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")
