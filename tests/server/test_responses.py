"""The Responses API: its answers are those of a conversation, as OpenAI's client reads them."""

import json
import math
from typing import Any

import httpx
import pytest

from actorllm import Engine
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from ..engine.build import failing
from .build import CHAT, CONFIG, HELLO_TOKENS, answer, client_of, error, served
from .responses_joined import RESPONSES, bare, checked, join, named_events

pytestmark = pytest.mark.anyio

GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def create(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post(RESPONSES, json=body)
    assert response.status_code == 200, response.text
    return checked(response.json())


def said(response: dict[str, Any]) -> str:
    """The text of a response that is one message."""
    (item,) = response["output"]
    (part,) = item["content"]
    assert (item["type"], part["type"]) == ("message", "output_text")
    text: str = part["text"]
    return text


async def test_a_text_is_answered() -> None:
    async with served() as (_, client):
        response = await create(client, input="hello", ignore_eos=True, **GREEDY)
    assert said(response) == answer(HELLO_TOKENS, 12, temperature=0, ignore_eos=True)
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is response["error"] is None
    assert response["model"] == "hash"
    assert response["usage"] == {
        "input_tokens": len(HELLO_TOKENS),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(HELLO_TOKENS) + 12,
    }


async def test_an_answer_that_ends_by_itself_is_completed() -> None:
    async with served() as (_, client):
        response = await create(client, input="hello", stop="s", **GREEDY)
    assert said(response) == answer(HELLO_TOKENS, 12, temperature=0).partition("s")[0]
    assert response["status"] == response["output"][0]["status"] == "completed"
    assert response["incomplete_details"] is None
    assert response["completed_at"] >= response["created_at"]


async def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    first = ord(answer(HELLO_TOKENS, 1, temperature=0))
    body = {
        "input": "hello",
        "stop_token_ids": [first],
        "include": ["message.output_text.logprobs"],
        **GREEDY,
    }
    async with served() as (_, client):
        response = await create(client, **body)
        events = named_events(await client.post(RESPONSES, json=body | {"stream": True}))
    assert said(response) == ""
    assert response["status"] == "completed"
    assert len(response["output"][0]["content"][0]["logprobs"]) == 1
    assert bare(join(events)) == bare(response)


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({"input": [user("a")]}, [user("a")]),
        ({"input": "a", "instructions": "Be."}, [{"role": "system", "content": "Be."}, user("a")]),
        (
            {"input": [{"type": "message", "role": "developer", "content": "Be."}, user("a")]},
            [{"role": "system", "content": "Be."}, user("a")],
        ),
        (
            {"input": [user("a"), {"role": "assistant", "content": "b"}, user("c")]},
            [user("a"), {"role": "assistant", "content": "b"}, user("c")],
        ),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": text} for text in "ab"]},
                    {
                        "type": "message",
                        "id": "msg_1",
                        "status": "completed",
                        "role": "assistant",
                        "content": [
                            {"type": "output_text", "text": "c", "annotations": [], "logprobs": []},
                        ],
                    },
                    user("d"),
                ]
            },
            [user("a\nb"), {"role": "assistant", "content": "c"}, user("d")],
        ),
    ],
)
async def test_items_are_the_messages_of_a_conversation(
    body: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    async with served() as (_, client):
        response = await create(client, **body, **GREEDY)
        asked = {"messages": messages, "temperature": 0, "max_tokens": 12}
        chat = (await client.post(CHAT, json=asked)).json()
    assert said(response) == chat["choices"][0]["message"]["content"]
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "extra",
    [
        {"seed": 7, "temperature": 1.0},
        {"stop": "s", "include_stop_str_in_output": True},
        {"ignore_eos": True, "min_tokens": 3, "stop_token_ids": [112]},
    ],
)
async def test_what_is_not_openais_means_what_it_means_in_a_conversation(extra: dict[str, Any]) -> None:
    both = {"temperature": 0, **extra}
    async with served() as (_, client):
        response = await create(client, input="hello", max_output_tokens=20, **both)
        asked = {"messages": [user("hello")], "max_tokens": 20, **both}
        (choice,) = (await client.post(CHAT, json=asked)).json()["choices"]
    assert said(response) == choice["message"]["content"] != answer(HELLO_TOKENS, 20, temperature=0)
    assert response["status"] == {"stop": "completed", "length": "incomplete"}[choice["finish_reason"]]


async def test_what_describes_the_request_is_told_again() -> None:
    told = {
        "instructions": "Be.",
        "max_output_tokens": 2,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "key",
        "safety_identifier": "me",
        "store": False,
        "temperature": 0.5,
        "top_p": 0.25,
        "user": "I",
    }
    neutral = {
        "background": False,
        "truncation": "disabled",
        "service_tier": "auto",
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
        "text": {"verbosity": "medium"},
        "conversation": None,
    }
    async with served() as (_, client):
        response = await create(client, input="hello", **told, **neutral)
    assert {name: response[name] for name in told} == told
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert response["tool_choice"] == "auto"


async def test_log_probabilities_are_those_of_a_conversation() -> None:
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with served() as (_, client):
        response = await create(client, input="hello", **GREEDY, **include)
        asked = {"messages": [user("hello")], "temperature": 0, "max_tokens": 12, "logprobs": True}
        (choice,) = (await client.post(CHAT, json={**asked, "top_logprobs": 2})).json()["choices"]
    assert response["output"][0]["content"][0]["logprobs"] == choice["logprobs"]["content"]
    assert len(choice["logprobs"]["content"]) == 12


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"input": 5}, "input", "input: must be a string or a list of items"),
        ({"input": []}, "input", "input: List should have at least 1 item"),
        ({"input": None}, "input", "input: Field required"),
        ({"input": "a" * 600}, "input", "the prompt has 619 tokens"),
        ({"input": [{"role": "user"}]}, "input.0.content", "an item of type message needs content"),
        ({"input": [user("a"), {"role": "tool", "content": "a"}]}, "input.1.role", "input.1.role: Input"),
        ({"input": [{**user("a"), "name": "x"}]}, "input.0.name", "name does nothing in an item of type"),
        ({"input": [{**user("a"), "nme": "x"}]}, "input.0.nme", "unknown field 'nme'; did you mean 'name'?"),
        ({"input": [user("\ud800")]}, "input.0.content.0.text", "half of a surrogate pair"),
        ({"temprature": 1}, "temprature", "unknown field 'temprature'; did you mean 'temperature'?"),
        ({"temperature": 3}, "temperature", "temperature must be in [0, 2], not 3.0"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens: Input should be greater"),
        ({"min_tokens": 9, "max_output_tokens": 5}, "min_tokens", "min_tokens"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs include"),
        ({"background": True}, "background", "background can only be false; leave it out"),
        ({"truncation": "auto"}, "truncation", 'truncation can only be "disabled"; leave it out'),
        ({"conversation": "conv_1"}, "conversation", "conversation is not supported; leave it out"),
        ({"stream_options": {"include_obfuscation": True}, "stream": True},
         "stream_options.include_obfuscation", "include_obfuscation can only be false"),
        ({"include": ["x"]}, "include.0", "include.0: Input should be"),
        ({"metadata": {"a": 1}}, "metadata.a", "metadata.a: Input should be a valid string"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a", "metadata.a: Value should have at most 512"),
        ({"metadata": dict.fromkeys(map(str, range(17)), "b")}, "metadata", "at most 16 pairs, not 17"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "reasoning.effort does nothing in this"),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary", "summary can only be"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "verbosity can only be"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "needs a name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "needs a schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema", "schema does nothing"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "b"}}}},
         "text.format.schema", "text.format.schema at $.type: unknown type 'b'"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"choice": ["a"]}},
         "text.format", "text.format and structured_outputs exclude each other"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "structured_outputs.regex"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "tools of type web_search are not run here"),
        ({"tools": [{"type": "function"}]}, "tools.0.name", "tools.0.name: Field required"),
        ({"tools": [{**TOOL, "parameters": {"a": "\ud800"}}]}, "tools.0.parameters", "must be JSON in UTF-8"),
        ({"documents": [{"a": "\ud800"}]}, "documents.0", "documents.0: must be JSON in UTF-8"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"b": math.nan}}}},
         "text.format.schema", "with finite numbers"),
        ({"input": [{"type": []}]}, "input.0.type", "input.0.type: Input should be a valid string"),
        ({"tools": [TOOL, TOOL]}, "tools", "2 tools are called 'f'"),
        ({"tools": [TOOL], "include": ["message.output_text.logprobs"]}, "include", "not possible with"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice required needs tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "tool_choice: must be none, auto"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "names 'g'"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_an_error_that_names_it(
    change: dict[str, Any], param: str, message: str
) -> None:
    async with served() as (_, client):
        for stream in ({}, {"stream": True}):
            body = json.dumps({"input": "hello", **stream, **change})
            found = error(await client.post(RESPONSES, content=body))
            assert (found["code"], found["param"]) == (400, param)
            assert message in found["message"]


async def test_options_of_a_stream_need_one() -> None:
    async with served() as (_, client):
        found = error(await client.post(RESPONSES, json={"input": "a", "stream_options": {}}))
        ok = {"input": "a", "stream": True, "stream_options": {"include_obfuscation": False}, **GREEDY}
        join(named_events(await client.post(RESPONSES, json=ok)))
    assert (found["code"], found["param"]) == (400, "stream_options")
    assert found["message"] == "stream_options needs stream: true"


async def test_another_model_is_not_there() -> None:
    async with served() as (_, client):
        found = error(await client.post(RESPONSES, json={"input": "a", "model": "other"}))
    assert (found["code"], found["param"]) == (404, "model")


async def test_a_server_that_ignores_unknown_fields_ignores_them_here_too() -> None:
    async with Engine(CONFIG) as engine:
        app = create_app(engine, ServerSettings(ignore_unknown_fields=True))
        async with client_of(app) as client:
            response = await create(client, input=[{**user("hello"), "nme": 1}], colour="red", **GREEDY)
    assert said(response) == answer(HELLO_TOKENS, 12, temperature=0)


async def test_an_answer_that_fails_is_an_error_and_no_response() -> None:
    async with served(failing(*range(20))) as (_, client):
        response = await client.post(RESPONSES, json={"input": "hello", **GREEDY})
        streamed = await client.post(RESPONSES, json={"input": "hello", **GREEDY, "stream": True})
    for found in (error(response), error(streamed)):
        assert found["code"] == 500
        assert found["message"] == "FloatingPointError: the model met a NaN"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_takes_too_long_is_an_error(stream: bool) -> None:
    body = {"input": "hello", "timeout": 1e-9, "stream": stream}
    async with served() as (_, client):
        found = error(await client.post(RESPONSES, json=body))
    assert found["code"] == 504
