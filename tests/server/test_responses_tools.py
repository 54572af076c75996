"""Functions in the Responses API: calls that are enforced, their outputs, and forms of text; reasoning."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from actorllm import Engine
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from ..engine.models import small_model
from .build import CONFIG, client_of, error, served
from .responses_joined import RESPONSES, bare, checked, join, named_events
from .test_responses import create, user

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COLOURS = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
PAINT = {"type": "function", "name": "paint", "description": "Paints.", "parameters": COLOURS}
WAIT = {"type": "function", "name": "wait", "parameters": {"type": "object", "additionalProperties": False}}
TURN = (
    "{{ m['role'] + ': ' + (m['content'] or '') + (m['tool_calls'] | string if m['tool_calls'] else '') }}\n"
)
TEMPLATE = (
    "{% if tools %}<tool_call></tool_call>{{ tools | length }}\n{% endif %}"
    "{% for m in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose conversations know tools."""
    return small_model(tmp_path_factory.mktemp("caller"), context=1024, template=TEMPLATE)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that may reason. Its template has ended the reasoning, so that a form begins at once."""
    template = TEMPLATE.replace("assistant:", "assistant:<think></think>")
    return small_model(tmp_path_factory.mktemp("thinker"), context=1024, template=template)


async def both(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """The response that does not stream, which must be the one that does; both compute all of the prompt."""
    response = await create(client, **body, cache_salt="whole")
    streamed = named_events(
        await client.post(RESPONSES, json={**body, "cache_salt": "stream", "stream": True})
    )
    assert bare(join(streamed)) == bare(response)
    return response


@pytest.mark.parametrize(("choice", "names"), [("required", {"paint", "wait"}), ("wait", {"wait"})])
async def test_calls_are_enforced_and_strict_by_default(caller: Path, choice: str, names: set[str]) -> None:
    body: dict[str, Any] = {"tools": [PAINT, WAIT], "parallel_tool_calls": False, "seed": 1}
    body["tool_choice"] = {"type": "function", "name": choice} if choice == "wait" else choice
    async with served(model=str(caller), max_model_len=1024) as (_, client):
        response = await both(client, input="go", max_output_tokens=200, **body)
    (call,) = response["output"]
    assert (call["type"], call["status"], response["status"]) == ("function_call", "completed", "completed")
    assert call["name"] in names
    arguments = json.loads(call["arguments"])
    assert arguments == {} if call["name"] == "wait" else arguments["colour"] in ("red", "green")
    assert response["tool_choice"] == body["tool_choice"]
    assert response["parallel_tool_calls"] is False
    described = {"wait": None, "paint": "Paints."}
    assert response["tools"] == [
        {**tool, "description": described[str(tool["name"])], "strict": True} for tool in (PAINT, WAIT)
    ]


async def test_the_output_of_a_call_is_answered(caller: Path) -> None:
    body: dict[str, Any] = {"tools": [PAINT], "seed": 1, "max_output_tokens": 60}
    async with served(model=str(caller), max_model_len=1024) as (engine, client):
        first = await create(client, input="go", tool_choice="required", parallel_tool_calls=False, **body)
        (call,) = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
        plain: dict[str, Any] = {**body, "tool_choice": "none", "temperature": 0}
        stored = await create(client, input=[output], previous_response_id=first["id"], **plain)
        again = await create(client, input=[user("go"), call, output], store=False, **plain)
        lost = {"input": [output | {"call_id": "c9"}], "previous_response_id": first["id"]}
        found = error(await client.post(RESPONSES, json=lost))
        silent = {"input": "and now?", "previous_response_id": first["id"]}
        missing = error(await client.post(RESPONSES, json=silent))
        twice = error(
            await client.post(RESPONSES, json={"input": [output], "previous_response_id": stored["id"]})
        )
        messages = [user("go"), {"role": "assistant", "content": None}, {"role": "tool", "content": "done"}]
        fewer = await engine.tokenize_chat([{**each, "tool_calls": None} for each in messages])
    assert bare(stored)["output"] == bare(again)["output"]
    assert stored["usage"] == again["usage"]
    assert stored["usage"]["input_tokens"] > len(fewer)
    assert (found["code"], found["param"]) == (400, "input.0.call_id")
    assert (missing["code"], missing["param"]) == (400, "input")
    assert f"the call_id {call['call_id']!r} has no output" in missing["message"]
    assert (twice["code"], twice["param"]) == (400, "input.0.call_id")
    assert f"an output already for the call_id {call['call_id']!r}" in twice["message"]


@pytest.mark.parametrize(
    ("change", "strict"),
    [
        ({}, True),
        ({"tools": [{**PAINT, "strict": False}]}, False),
        ({"tools": [{**PAINT, "parameters": {"type": "object", "not": {}}}]}, False),
        ({"text": {"format": {"type": "json_schema", "name": "c", "schema": COLOURS}}}, False),
        ({"tool_choice": "none"}, False),
    ],
)
async def test_a_response_tells_whether_its_calls_were_strict(
    caller: Path, change: dict[str, Any], strict: bool
) -> None:
    body = {"input": "go", "tools": [PAINT], "max_output_tokens": 4, **change}
    async with served(model=str(caller), max_model_len=1024) as (_, client):
        response = await create(client, **body)
    assert response["tools"][0]["strict"] is strict


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tools": [{**PAINT, "strict": True, "parameters": {"not": {}}}]},
            "tools: the parameters of 'paint'",
        ),
        (
            {"tools": [{**PAINT, "strict": True}], "text": {"format": {"type": "json_object"}}},
            "the form of an answer and enforced calls of tools exclude each other",
        ),
    ],
)
async def test_what_is_strict_must_be_possible(caller: Path, change: dict[str, Any], message: str) -> None:
    async with served(model=str(caller), max_model_len=1024) as (_, client):
        found = error(await client.post(RESPONSES, json={"input": "go", **change}))
    assert (found["code"], found["param"]) == (400, "tools")
    assert message in found["message"]


async def test_python_calls_are_not_strict_by_default(caller: Path) -> None:
    settings = ServerSettings(tool_parser="pythonic")
    config = replace(CONFIG, model=str(caller), max_model_len=1024)
    async with Engine(config) as engine, client_of(create_app(engine, settings)) as client:
        response = await create(client, input="go", tools=[PAINT], max_output_tokens=4)
        strict = [{**PAINT, "strict": True}]
        found = error(await client.post(RESPONSES, json={"input": "go", "tools": strict}))
    assert response["tools"][0]["strict"] is False
    assert found["param"] == "tools"


async def test_text_has_the_form_of_its_schema(caller: Path) -> None:
    text = {"format": {"type": "json_schema", "name": "colours", "strict": True, "schema": COLOURS}}
    async with served(model=str(caller), max_model_len=1024) as (_, client):
        response = await both(client, input="go", text=text, seed=3, max_output_tokens=300)
    (message,) = response["output"]
    assert json.loads(message["content"][0]["text"])["colour"] in ("red", "green")
    assert response["text"]["format"] == text["format"] | {"description": None}


async def test_reasoning_is_an_item_of_its_own_and_its_tokens_are_counted(thinker: Path) -> None:
    form = {"regex": "<think>[a-c]{3}</think>\n\n[0-9]{5}"}
    logprobs: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    async with served(model=str(thinker), max_model_len=1024) as (_, client):
        response = await both(client, input="go", structured_outputs=form, seed=3, **logprobs)
        later = await create(client, input="on", previous_response_id=response["id"], max_output_tokens=2)
    thought, message = response["output"]
    assert (thought["type"], thought["summary"], len(thought["content"][0]["text"])) == ("reasoning", [], 3)
    (part,) = message["content"]
    assert len(part["text"]) == 5
    told = "".join(each["token"] for each in part["logprobs"])
    assert told == "\n\n" + part["text"] + "<|end|>"
    count = response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert count == response["usage"]["output_tokens"] - len(part["logprobs"])
    assert 3 < count <= len("<think>abc</think>")
    assert checked(later)["usage"]["input_tokens"] > response["usage"]["input_tokens"]
