"""POST /v1/messages: what the model is asked, and the shape of its answer."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from actorllm.server.anthropic.request import MessagesRequest
from actorllm.server.chat.reading import Formats
from actorllm.server.settings import ServerSettings

from ..engine.models import small_model
from .build import CHAT, HELLO_TOKENS, TEMPLATE, answer, scripted, served
from .messages import CLOCK, COUNT, HI, MESSAGES, ROOM, both, fault, without_names

pytestmark = pytest.mark.anyio

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "How it is outside",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "maximum": 7}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
TOOLS = [WEATHER, CLOCK]
REAL: dict[str, Any] = {**ROOM, "verify": False, "num_threads": 1}


def written(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def prompt(*turns: tuple[str, str]) -> list[int]:
    """The tokens of a conversation for the HashModel, up to where its answer begins."""
    found: list[int] = []
    for role, content in turns:
        found += [257, *f"{role}\n{content}".encode(), 258, *b"\n"]
    return [*found, 257, *b"assistant\n"]


def use(name: str, value: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": name, "input": value}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def think(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


@pytest.mark.slow
async def test_an_answer_is_a_message() -> None:
    async with served() as (_, client):
        found = await both(client, HI | {"temperature": 0})
    assert found == {
        "type": "message",
        "role": "assistant",
        "model": "hash",
        "content": [say(answer(HELLO_TOKENS, 20, temperature=0))],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {"input_tokens": len(HELLO_TOKENS), "cache_read_input_tokens": 0, "output_tokens": 20},
    }


async def test_every_kind_of_block_reaches_the_model() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [say("What") | cached, say("time?")]},
        {"role": "user", "content": "Quick!"},
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "x"},
                think("hm"),
                say("Let me see."),
                use("clock", {"zone": "é"}) | {"id": "toolu_a"} | cached,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_a", "content": [say("12"), say("pm")]},
                {"type": "tool_result", "tool_use_id": "toolu_b", "content": "broken", "is_error": True},
                say("Well?"),
            ],
        },
    ]
    called = '<tool_call>\n{"name": "clock", "arguments": {"zone": "é"}}\n</tool_call>'
    tokens = prompt(
        ("system", "Be\nbrief."),
        ("user", "What\ntime?\nQuick!"),
        ("assistant", f"Let me see.\n{called}"),
        ("user", "<tool_response>\n12\npm\n</tool_response>"),
        ("user", "<tool_response>\nError: broken\n</tool_response>"),
        ("user", "Well?"),
    )
    request = HI | {"messages": messages, "system": [say("Be") | cached, say("brief.")], "temperature": 0}
    async with served(**ROOM) as (_, client):
        found = await both(client, request)
    assert found["content"] == [say(answer(tokens, 20, temperature=0))]
    assert found["usage"]["input_tokens"] == len(tokens)


async def test_calls_have_for_the_template_the_names_that_it_takes() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_abcdefghi"}
    messages = [
        *HI["messages"],
        {"role": "assistant", "content": [use("clock", {}) | {"id": "toolu_abcdefghi"}]},
        {"role": "user", "content": [result]},
    ]
    async with served() as (engine, _):
        body = MessagesRequest.model_validate(HI | {"messages": messages})
        _, call, told = body.to_chat(engine, Formats(engine, "auto", "auto")).conversation()
    assert [each["id"] for each in call["tool_calls"]] == ["abcdefghi"]
    assert told == {"role": "tool", "content": "", "tool_call_id": "abcdefghi"}


async def test_an_answer_goes_on_with_the_assistants_last_message() -> None:
    messages = [*HI["messages"], {"role": "assistant", "content": "It is ("}]
    tokens = [*HELLO_TOKENS, *b"It is ("]
    async with served() as (_, client):
        found = await both(client, HI | {"messages": messages, "temperature": 0})
        count = await client.post(COUNT, json={"messages": messages})
    assert found["content"] == [say(answer(tokens, 20, temperature=0))]
    assert count.json() == {"input_tokens": len(tokens)}


SEEN = "<think>\nRome</think>Let me see.\n"
RESULTS: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "text": ("Hello <tool>", [say("Hello <tool>")], "end_turn"),
    "nothing": ("", [], "end_turn"),
    "a call": (written("weather", '{"town": "Rome"}'), [use("weather", {"town": "Rome"})], "tool_use"),
    "all": (
        SEEN + written("weather", '{"town": "Rome"}') + "\n" + written("clock", "{}"),
        [think("\nRome"), say("Let me see.\n"), use("weather", {"town": "Rome"}), use("clock", {})],
        "tool_use",
    ),
    "text behind a call": (
        f"So: {written('clock', '{}')} Done.",
        [say("So: "), use("clock", {}), say(" Done.")],
        "tool_use",
    ),
    "a call of nothing that there is": (written("wether", "{}"), [say(written("wether", "{}"))], "end_turn"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RESULTS)
async def test_what_a_model_says_is_told_in_blocks(case: str) -> None:
    script, content, reason = RESULTS[case]
    async with served(scripted(script), ServerSettings(reasoning_parser="think"), **ROOM) as (_, client):
        found = await both(client, HI | {"tools": TOOLS, "max_tokens": 300})
    assert found["content"] == content
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, None)
    assert found["usage"]["output_tokens"] == len(script) + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"a": 1,}', {"INVALID_JSON": '{"a": 1,}'}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('{"a": 1e999}', {"INVALID_JSON": '{"a": 1e999}'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
    ],
)
async def test_arguments_that_are_no_object_are_told_as_they_were_written(arguments: str, told: Any) -> None:
    async with served(scripted(written("clock", arguments)), **ROOM) as (_, client):
        whole = await client.post(MESSAGES, json=HI | {"tools": TOOLS, "max_tokens": 300})
        stream = await client.post(MESSAGES, json=HI | {"tools": TOOLS, "max_tokens": 300, "stream": True})
    assert whole.json()["content"][0]["input"] == told
    assert whole.json()["stop_reason"] == "tool_use"
    parts = [json.loads(line[6:]) for line in stream.text.splitlines() if "input_json_delta" in line]
    assert "".join(part["delta"]["partial_json"] for part in parts) == arguments


@pytest.mark.slow
async def test_a_call_that_a_limit_cuts_off_has_the_members_that_are_there() -> None:
    script = written("weather", '{"town": "Rome", "days": 3}')
    cut = {script.index(text): value for text, value in (("ome", {}), ("days", {"town": "Rome"}))}
    cut[script.index('{"town')] = {}
    async with served(scripted(script), **ROOM) as (_, client):
        for length, told in cut.items():
            found = await both(client, HI | {"tools": TOOLS, "max_tokens": length})
            assert found["content"] == [use("weather", told)]
            assert found["stop_reason"] == "max_tokens"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"days": 10', {}),
        ('{"days": -1.5', {}),
        ('{"days": 1e5', {}),
        ('{"days": 10 ', {"days": 10}),
        ('{"days": [1, 23', {"days": [1]}),
        ('{"town": "42", "days": {"a1', {"town": "42", "days": {}}),
    ],
)
async def test_a_number_that_might_go_on_is_not_there(arguments: str, value: Any) -> None:
    script = written("weather", arguments)
    length = script.rindex(arguments) + len(arguments)
    request = HI | {"tools": TOOLS, "max_tokens": length}
    async with served(scripted(script), **ROOM) as (_, client):
        found = (await client.post(MESSAGES, json=request)).json()
    assert without_names(found)["content"] == [use("weather", value)]


@pytest.mark.slow
async def test_an_answer_ends_for_one_of_five_reasons() -> None:
    request = HI | {"tools": TOOLS, "stop_sequences": ["Rome", "xyz"], "max_tokens": 300}
    async with served(scripted(f"In Rome {written('clock', '{}')}"), **ROOM) as (_, client):
        found = await both(client, request)
    assert found["content"] == [say("In ")]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "Rome")
    async with served(scripted("x" * 200), max_model_len=100) as (_, client):
        found = await both(client, HI | {"max_tokens": 300})
    assert found["stop_reason"] == "model_context_window_exceeded"
    assert sum(found["usage"].values()) == 100


@pytest.mark.slow
async def test_of_calls_that_are_not_wanted_in_parallel_the_first_is_told() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    script = f"{written('clock', '{}')} and {written('weather', '{}')} so"
    async with served(scripted(script), **ROOM) as (_, client):
        found = await both(client, HI | {"tools": TOOLS, "tool_choice": choice, "max_tokens": 300})
    assert found["content"] == [use("clock", {}), say(" and  so")]


@pytest.mark.slow
async def test_no_tools_are_called_where_none_are_to_be() -> None:
    script = written("clock", "{}")
    async with served(scripted(script), **ROOM) as (_, client):
        request = HI | {"tools": TOOLS, "tool_choice": {"type": "none"}, "max_tokens": 300}
        found = await both(client, request)
    assert found["content"] == [say(script)]
    assert found["usage"]["input_tokens"] == len(HELLO_TOKENS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("model"), context=4096, template=TEMPLATE))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "any"}, {"weather", "clock"}), ({"type": "tool", "name": "weather"}, {"weather"})],
)
async def test_a_model_of_random_weights_must_call(
    choice: dict[str, Any], names: set[str], model: str
) -> None:
    choice = choice | {"disable_parallel_tool_use": True}
    request = HI | {"tools": TOOLS, "tool_choice": choice, "max_tokens": 100, "model": None}
    async with served(model=model, **REAL) as (_, client):
        answers = [await both(client, request | {"seed": seed}) for seed in range(3)]
    finished = [each["content"] for each in answers if each["stop_reason"] == "tool_use"]
    assert finished
    for (call,) in finished:
        assert call["name"] in names
        schema = WEATHER["input_schema"] if call["name"] == "weather" else {"type": "object"}
        jsonschema.validate(call["input"], schema)


@pytest.mark.slow
async def test_an_answer_has_the_form_that_is_asked_for(model: str) -> None:
    properties = {"a": {"enum": [1, 2]}}
    schema = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    request = HI | {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "model": None}
    async with served(model=model, **REAL) as (_, client):
        found = await both(client, request | {"max_tokens": 100, "seed": 1})
    (block,) = found["content"]
    jsonschema.validate(json.loads(block["text"]), schema)
    assert found["stop_reason"] == "end_turn"


THINKER = (
    "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("thinker"), context=4096, template=THINKER)


@pytest.mark.slow
async def test_thinking_has_a_budget_and_can_be_disabled_and_not_shown(thinker: Path) -> None:
    request = HI | {"model": None, "max_tokens": 40, "ignore_eos": True, "seed": 3}
    budget = {"type": "enabled", "budget_tokens": 5}
    async with served(model=str(thinker), **REAL) as (_, client):
        free = await both(client, request)
        adaptive = await both(client, request | {"thinking": {"type": "adaptive"}})
        bound = await both(client, request | {"thinking": budget})
        hidden = await both(client, request | {"thinking": budget | {"display": "omitted"}})
        off = request | {"thinking": {"type": "disabled"}}
        disabled = await both(client, off)
        twice = off | {"chat_template_kwargs": {"enable_thinking": True}}
        refused = fault(await client.post(MESSAGES, json=twice))
    assert [block["type"] for block in free["content"]] == ["thinking"]
    assert adaptive == free
    thought, text = bound["content"]
    assert free["content"][0]["thinking"].startswith(thought["thinking"])
    assert 0 < len(thought["thinking"]) < len(free["content"][0]["thinking"]) / 2
    assert text["type"] == "text"
    assert hidden["content"] == [text]
    assert [block["type"] for block in disabled["content"]] == ["text"]
    assert refused[2] == "thinking and chat_template_kwargs.enable_thinking exclude each other; leave one out"
    assert disabled["usage"]["input_tokens"] == free["usage"]["input_tokens"] + len("</think>")


async def test_tokens_are_counted_as_a_message_has_them() -> None:
    asked = {"messages": HI["messages"], "system": "Be brief.", "tools": TOOLS}
    async with served(**ROOM) as (_, client):
        count = await client.post(COUNT, json=asked | {"model": "hash", "tool_choice": {"type": "auto"}})
        message = await client.post(MESSAGES, json=HI | asked)
        plain = await client.post(COUNT, json={"messages": HI["messages"]})
    assert count.json() == {"input_tokens": message.json()["usage"]["input_tokens"]}
    assert plain.json() == {"input_tokens": len(HELLO_TOKENS)}


async def test_what_changes_nothing_is_taken() -> None:
    neutral: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "standard_only",
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "mcp_servers": [],
        "thinking": None,
    }
    async with served() as (_, client):
        found = await both(client, HI | neutral | {"thinking": {"type": "disabled"}, "seed": 1})
        assert found == await both(client, HI | {"seed": 1})


async def test_our_own_fields_are_honoured() -> None:
    request = HI | {"stop_token_ids": [*range(256)], "request_id": "mine", "cache_salt": "s", "priority": 2}
    async with served() as (_, client):
        response = await client.post(MESSAGES, json=request | {"min_p": 0.1, "stream_interval": 1})
    assert response.json()["id"] == "msg_mine"
    assert response.json()["usage"]["output_tokens"] == 1
    assert response.json()["stop_reason"] == "end_turn"


async def test_errors_of_other_paths_keep_their_shape() -> None:
    async with served() as (_, client):
        response = await client.post(CHAT, json={"messages": []})
        assert fault(await client.post(MESSAGES, json=HI | {"model": "x"}))[0] == 404
    assert response.json()["error"]["code"] == 400
    assert "request-id" not in response.headers
