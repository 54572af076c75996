"""Tools and reasoning over HTTP: what a model says in its own format is what OpenAI's clients expect."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest

from actorllm import ConfigError, Engine
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from ..engine.models import small_model
from .build import CHAT, CONFIG, HELLO, TEMPLATE, error, events, scripted, served
from .joined import join_chat

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How it is outside",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "maximum": 7}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
ROOM: dict[str, Any] = {"max_model_len": 4096, "num_gpu_blocks_override": 512, "block_size": 16}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def function(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


ROME = function("weather", '{"town": "Rome"}')

ANSWERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "text": ("Hello <tool>", {"content": "Hello <tool>"}, "stop"),
    "a call": (CALL, {"content": None, "tool_calls": [ROME]}, "tool_calls"),
    "two calls": (
        f"{CALL}\n{NOW}",
        {"content": None, "tool_calls": [ROME, function("clock", "{}")]},
        "tool_calls",
    ),
    "text before": (f"Let me see.\n{CALL}", {"content": "Let me see.\n", "tool_calls": [ROME]}, "tool_calls"),
    "a call of nothing that there is": (
        CALL.replace("weather", "wether"),
        {"content": CALL.replace("weather", "wether")},
        "stop",
    ),
    "reasoning": (
        "<think>\nRome, I'd say.\n</think>\n\nIn Rome.",
        {"content": "In Rome.", "reasoning": "\nRome, I'd say.\n"},
        "stop",
    ),
    "reasoning and a call": (
        f"<think>Rome</think>{CALL}",
        {"content": None, "reasoning": "Rome", "tool_calls": [ROME]},
        "tool_calls",
    ),
}


async def both(client: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    """The only choice of the answer, which must be the same when it streams."""
    response = await client.post(CHAT, json=request)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    found = events(await client.post(CHAT, json=request | {"stream": True}))
    assert found.pop() == "[DONE]"
    (joined,) = join_chat(found)
    for calls in (choice["message"].get("tool_calls", []), joined["message"].get("tool_calls", [])):
        names = [call.pop("id") for call in calls]
        assert len({*names}) == len(names)
        assert all(len(name) == 9 and name.isalnum() for name in names)
    assert joined == choice
    return dict(choice)


@pytest.mark.parametrize("case", ANSWERS)
async def test_what_a_model_says_is_told_apart(case: str) -> None:
    script, message, reason = ANSWERS[case]
    request = {"messages": HELLO, "tools": [WEATHER, CLOCK], "max_tokens": 300}
    if "reasoning" in message:
        message = message | {"reasoning_content": message["reasoning"]}
    async with served(scripted(script), ServerSettings(reasoning_parser="think"), **ROOM) as (_, client):
        choice = await both(client, request)
    assert choice["message"] == {"role": "assistant"} | message
    assert choice["finish_reason"] == reason


async def test_without_tools_a_call_is_text() -> None:
    for request in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        async with served(scripted(CALL), **ROOM) as (_, client):
            choice = await both(client, {"messages": HELLO, "max_tokens": 300, **request})
        assert choice["message"] == {"role": "assistant", "content": CALL}
        assert choice["finish_reason"] == "stop"


async def test_only_one_call_where_several_are_not_wanted() -> None:
    request = {"messages": HELLO, "tools": [WEATHER, CLOCK], "parallel_tool_calls": False, "max_tokens": 300}
    async with served(scripted(f"{CALL}\n{NOW}"), **ROOM) as (_, client):
        choice = await both(client, request)
    assert choice["message"]["tool_calls"] == [ROME]


async def test_reasoning_can_be_left_out() -> None:
    settings = ServerSettings(reasoning_parser="think")
    async with served(scripted("<think>Rome</think>Oslo"), settings, **ROOM) as (_, client):
        choice = await both(client, {"messages": HELLO, "include_reasoning": False, "max_tokens": 99})
    assert choice["message"] == {"role": "assistant", "content": "Oslo"}


async def test_calls_that_a_limit_cuts_off_end_with_it() -> None:
    async with served(scripted(CALL), **ROOM) as (_, client):
        choice = await both(client, {"messages": HELLO, "tools": [WEATHER], "max_tokens": len(CALL) - 20})
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert ROME["function"]["arguments"].startswith(call["function"]["arguments"])


async def test_tokens_and_log_probabilities_are_told_of_calls_too() -> None:
    request = {"messages": HELLO, "tools": [WEATHER], "max_tokens": 300, "return_token_ids": True}
    async with served(scripted(f"So: {CALL}"), **ROOM) as (_, client):
        choice = await both(client, request)
    assert choice["token_ids"] == [*f"So: {CALL}".encode(), 256]


async def test_earlier_calls_and_their_results_reach_the_model() -> None:
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", **ROME}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "rain"}]},
    ]
    request = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    async with served(scripted(""), **ROOM) as (_, client):
        response = await client.post(CHAT, json=request)
    prompt = bytes(token for token in response.json()["prompt_token_ids"] if token < 256).decode()
    assert f"assistant\n{CALL}" in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("model"), context=4096, template=TEMPLATE))


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "clock"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
    ],
)
async def test_a_model_of_random_weights_must_call(choice: Any, names: set[str], model: str) -> None:
    request = {
        "messages": HELLO,
        "tools": [WEATHER, CLOCK],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 200,
    }
    async with served(model=model, **ROOM) as (_, client):
        finished = 0
        for seed in range(2):
            found = await both(client, request | {"seed": seed})
            finished += found["finish_reason"] == "tool_calls"
            (call,) = found["message"]["tool_calls"]
            assert call["function"]["name"] in names
            if found["finish_reason"] == "tool_calls":
                assert found["message"]["content"] is None
                check_arguments(call)
    assert finished >= 1


def check_arguments(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        jsonschema.validate(arguments, WEATHER["function"]["parameters"])
    assert isinstance(arguments, dict)


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "Input should be 'function'"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "2 tools are called 'weather'"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice required needs tools"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
            "tool_choice",
            "names 'weather', which is not among the tools",
        ),
        (
            {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tools",
            "exclude each other",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [function("f", "[1]")]}]},
            "messages.0.tool_calls.0.function.arguments",
            "the arguments of a call must be the JSON text of an object: it is no object",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [function("f", "{")]}]},
            "messages.0.tool_calls.0.function.arguments",
            "must be the JSON text of an object",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [function("f", '{"a": NaN}')]}]},
            "messages.0.tool_calls.0.function.arguments",
            "must be the JSON text of an object: it has NaN",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "get weather"}}]},
            "tools.0.function.name",
            "should match pattern",
        ),
        ({"reasoning_effort": "high"}, "reasoning_effort", "does nothing in this model's chat template"),
    ],
)
async def test_what_cannot_be_is_named(change: dict[str, Any], param: str, message: str) -> None:
    async with served() as (_, client):
        response = await client.post(CHAT, json={"messages": HELLO} | change)
    found = error(response)
    assert response.status_code == 400
    assert message in found["message"]
    assert found["param"] == param


async def test_a_model_that_calls_in_an_unknown_way_needs_a_parser(tmp_path: Path) -> None:
    model = str(small_model(tmp_path, context=1024, template=TEMPLATE + "{{ tools }}<call></call>"))
    request = {"messages": HELLO, "tools": [CLOCK], "max_tokens": 1}
    async with served(model=model) as (_, client):
        assert error(await client.post(CHAT, json=request))["param"] == "tools"
    async with served(settings=ServerSettings(tool_parser="llama3_json"), model=model) as (_, client):
        assert (await client.post(CHAT, json=request)).status_code == 200


async def test_a_server_without_a_parser_refuses_tools() -> None:
    async with served(settings=ServerSettings(tool_parser="none")) as (_, client):
        found = error(await client.post(CHAT, json={"messages": HELLO, "tools": [CLOCK]}))
    assert found["param"] == "tools"


THINKING = TEMPLATE + "assistant: {% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}"


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A template that begins the reasoning when it is told so, and leaves it open otherwise."""
    return str(small_model(tmp_path_factory.mktemp("thinking"), context=1024, template=THINKING))


@pytest.mark.parametrize("thinks", [False, True])
async def test_a_form_holds_behind_the_reasoning(thinks: bool, thinking: str) -> None:
    request = {
        "messages": HELLO,
        "chat_template_kwargs": {"enable_thinking": thinks},
        "structured_outputs": {"choice": ["yes", "no"]},
        "max_tokens": 60,
        "thinking_token_budget": 20,
    }
    settings = ServerSettings(reasoning_parser="think")
    async with served(model=thinking, settings=settings) as (_, client):
        found = [await both(client, request | {"seed": seed}) for seed in range(3)]
    assert any(choice["finish_reason"] == "stop" for choice in found)
    for choice in found:
        if choice["finish_reason"] == "stop":
            assert choice["message"]["content"].strip() in ("yes", "no")
            assert ("reasoning" in choice["message"]) or not thinks


def test_a_parser_that_there_is_not_is_told_at_once() -> None:
    for settings in (ServerSettings(tool_parser="hermse"), ServerSettings(reasoning_parser="thunk")):
        with pytest.raises(ConfigError, match=r"hermes|think"):
            create_app(Engine(CONFIG), settings)


@pytest.mark.parametrize(
    ("begun", "pattern"), [("It is: ", "(yes|no)"), ("<think>so", r".*</think>\s*(yes|no)")]
)
async def test_a_form_holds_where_a_message_is_continued(begun: str, pattern: str, thinking: str) -> None:
    request = {
        "messages": [*HELLO, {"role": "assistant", "content": begun}],
        "continue_final_message": True,
        "chat_template_kwargs": {"enable_thinking": True},
        "structured_outputs": {"choice": ["yes", "no"]},
        "max_tokens": 60,
        "thinking_token_budget": 10,
        "return_token_ids": True,
    }
    texts = []
    async with served(model=thinking, settings=ServerSettings(reasoning_parser="think")) as (engine, client):
        for seed in range(6):
            found = await both(client, request | {"seed": seed})
            texts.append(await engine.detokenize(found["token_ids"][:-1]))
    for text in texts:
        assert re.fullmatch(pattern, text, re.DOTALL), text
