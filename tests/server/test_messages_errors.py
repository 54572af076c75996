"""What /v1/messages refuses, in Anthropic's shape, whoever refuses it."""

import json
from typing import Any

import pytest

from actorllm import Engine, EngineDied, Parts, SamplingParams
from actorllm.server.app import create_app
from actorllm.server.guards.drain import Drain
from actorllm.server.settings import ServerSettings

from ..engine.build import Crashing, failing
from .build import CONFIG, Held, client_of, left_in_mid_answer, served
from .messages import CLOCK, COUNT, HI, MESSAGES, fault, named_events

pytestmark = pytest.mark.anyio

INVALID = (400, "invalid_request_error")
LONG = HI | {"max_tokens": 400, "ignore_eos": True, "temperature": 0}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [*HI["messages"], {"role": "assistant", "content": list(blocks)}]}


CALL = {"type": "tool_use", "id": "a", "name": "clock", "input": {}}
TEXT = {"type": "text", "text": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "a"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": "hello"}, "messages: Input should be a valid list"),
        ({"n": 2}, "unknown field 'n'"),
        ({"stop": ["x"]}, "unknown field 'stop'; did you mean"),
        ({"stop_sequences": [""]}, "stop_sequences must be non-empty strings"),
        ({"temperature": 3}, "temperature must be"),
        ({"container": "c"}, "container is not supported; leave it out"),
        ({"service_tier": "flex"}, 'service_tier can only be "auto" or "standard_only"'),
        (user({"type": "image", "source": {}}), "messages.0.content.0: a block of type 'image' is not read"),
        (user(TEXT, {"type": "document"}), "messages.0.content.1: a block of type 'document' is not read"),
        (user({"type": "text"}), "messages.0.content.0.text.text: Field required"),
        (user(TEXT | {"text": "\ud800"}), "messages.0.content.0.text.text: the text has half of a surrogate"),
        (user(TEXT | {"citations": [1]}), "citations can only be []"),
        (user(CALL), "messages.0.content.0: a message of role 'user' cannot have a block of type 'tool_use'"),
        (user(), "messages.0.content: List should have at least 1 item"),
        (user(RESULT | {"content": [{"type": "image"}]}), "only text"),
        (assistant(RESULT), "messages.1.content.0: a message of role 'assistant' cannot have"),
        (assistant(TEXT, CALL), "messages: the answer goes on with the last message"),
        (assistant(CALL, TEXT), "messages: the answer goes on with the last message"),
        (assistant({"type": "redacted_thinking", "data": ""}), "it can only be text"),
        (assistant(TEXT | {"text": ""}), "messages: the last message has no text in the prompt"),
        ({"system": [{"type": "image"}]}, "system.0: a block of type 'image' is not read here, only text"),
        ({"system": 5}, "system: must be a string or a list of blocks"),
        (user({"type": "text", "text": "a" * 600}), "messages: the prompt has"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 1}]},
            "tools.0.type: tools of type 'web_search_20250305' are not known here",
        ),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: Field required"),
        (
            {"tools": [CLOCK | {"input_schema": {"a": "\ud800"}}]},
            "tools.0.input_schema: must be JSON in UTF-8, with finite numbers: it has half of a surrogate",
        ),
        (
            assistant(CALL | {"input": {"a": float("nan")}}),
            "messages.1.content.0.tool_use.input: must be JSON in UTF-8",
        ),
        ({"tools": [CLOCK, CLOCK]}, "2 tools are called 'clock'"),
        (
            {"tools": [CLOCK | {"strict": True, "input_schema": {"type": "object", "minProperties": "x"}}]},
            "tools: the parameters of 'clock'",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice any needs tools"),
        ({"tool_choice": {"type": "tool"}, "tools": [CLOCK]}, "tool_choice.name: tool_choice has a name"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [CLOCK]}, "names 'x', which is not among"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: thinking has budget_tokens if"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking has budget_tokens if"),
        ({"thinking": {"type": "disabled", "display": "omitted"}}, "thinking.display does nothing"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking of type enabled needs a model"),
        ({"output_config": {"effort": "high"}}, "output_config.effort does nothing in this model's chat"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            "output_config.format.schema",
        ),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
                "structured_outputs": {"regex": "a"},
            },
            "output_config.format and structured_outputs exclude each other",
        ),
    ],
)
async def test_what_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    async with served() as (_, client):
        found = fault(await client.post(MESSAGES, content=json.dumps(HI | change)))
        streamed = fault(await client.post(MESSAGES, content=json.dumps(HI | change | {"stream": True})))
    assert found[:2] == INVALID
    assert message in found[2]
    assert streamed == found


@pytest.mark.slow
async def test_results_of_tools_are_messages_of_which_there_may_be_ten_thousand() -> None:
    async with served() as (_, client):
        found = fault(await client.post(MESSAGES, json=HI | user(*[RESULT] * 10_001)))
    assert found == (*INVALID, "messages: List should have at most 10000 items after validation, not 10001")


async def test_thinking_that_cannot_be_controlled_is_refused() -> None:
    enabled = HI | {"thinking": {"type": "enabled", "budget_tokens": 9}}
    disabled = HI | {"thinking": {"type": "disabled"}}
    other = ServerSettings(reasoning_parser="mistral")
    async with served(settings=other) as (_, client):
        budget = fault(await client.post(MESSAGES, json=enabled))
        off = fault(await client.post(MESSAGES, json=disabled))
    assert budget[2].startswith(
        "thinking.budget_tokens: budget_tokens needs the engine's reasoning_start_str"
    )
    assert "thinking cannot be disabled" in off[2]


async def test_a_count_is_refused_as_a_message_is() -> None:
    async with served() as (_, client):
        wrong = fault(await client.post(COUNT, json=HI))
        model = fault(await client.post(COUNT, json={"messages": HI["messages"], "model": "x"}))
        empty = fault(await client.post(COUNT, json=assistant(TEXT | {"text": ""})))
    assert wrong == (*INVALID, "unknown field 'max_tokens'")
    assert model == (404, "not_found_error", "there is no model 'x' here; 'hash' is served")
    assert empty[2].startswith("messages: the last message has no text")


async def test_what_guards_and_routers_refuse_has_the_shape_too() -> None:
    settings = ServerSettings(api_keys=("k",), max_body_bytes=200)
    key = {"x-api-key": "k"}
    drain = Drain()
    async with Engine(CONFIG) as engine, client_of(create_app(engine, settings, drain=drain)) as client:
        unknown = await client.post(MESSAGES, json=HI)
        large = await client.post(MESSAGES, json=HI | {"system": "x" * 300}, headers=key)
        header = await client.post(MESSAGES, json=HI, headers=key | {"x-request-timeout": "soon"})
        method = await client.get(COUNT, headers=key)
        no_json = await client.post(MESSAGES, content=b"{", headers=key)
        drain.begin()
        late = await client.post(MESSAGES, json=HI, headers=key)
    assert fault(unknown)[:2] == (401, "authentication_error")
    assert fault(large)[:2] == (413, "request_too_large")
    assert fault(header)[:2] == INVALID
    assert fault(method)[:2] == (405, "invalid_request_error")
    assert "the body is not JSON" in fault(no_json)[2]
    assert fault(late)[:2] == (503, "overloaded_error")
    assert int(late.headers["retry-after"]) > 0


async def test_a_full_queue_is_a_limit_of_rate() -> None:
    held = Held()
    async with served(held.parts, max_num_seqs=1, max_num_queued_reqs=1) as (engine, client):
        first = engine.generate("a", SamplingParams(max_tokens=9, ignore_eos=True))
        await anext(first)
        second = engine.generate("b", SamplingParams(max_tokens=9, ignore_eos=True))
        await second.accepted()
        refused = await client.post(MESSAGES, json=HI | {"stream": True})
        held.gate.set()
        assert (await first).finished
        assert (await second).finished
    assert fault(refused)[:2] == (429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeout_is_never_an_ordinary_end(stream: bool) -> None:
    held = Held()
    async with served(held.parts) as (_, client):
        response = await client.post(MESSAGES, json=HI | {"timeout": 0.5, "stream": stream})
        held.gate.set()
    if stream:
        assert named_events(response)[-1]["error"]["type"] == "timeout_error"
    else:
        assert fault(response)[:2] == (504, "timeout_error")


@pytest.mark.slow
async def test_a_step_that_fails_in_mid_stream_ends_it_with_an_error_event() -> None:
    async with served(failing(*range(200, 300))) as (_, client):
        found = named_events(await client.post(MESSAGES, json=LONG | {"stream": True}))
    message = "FloatingPointError: the model met a NaN"
    assert found.pop() == {"type": "error", "error": {"type": "api_error", "message": message}}
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert {*kinds[2:]} == {"content_block_delta"}


async def test_a_step_that_fails_before_the_first_event_is_a_response() -> None:
    async with served(failing(*range(100))) as (_, client):
        found = fault(await client.post(MESSAGES, json=LONG | {"stream": True}))
    assert found == (500, "api_error", "FloatingPointError: the model met a NaN")


async def test_an_engine_that_dies_in_mid_stream_is_an_error_event() -> None:
    with pytest.raises(EngineDied, match="no order"):
        parts = Parts(policy=Crashing(after=5))
        async with Engine(CONFIG, parts=parts) as engine, client_of(create_app(engine)) as client:
            found = named_events(await client.post(MESSAGES, json=LONG | {"stream": True}))
    assert found[-1]["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_aborts_its_request(stream: bool) -> None:
    assert b"message_stop" not in await left_in_mid_answer(MESSAGES, LONG | {"stream": stream})
