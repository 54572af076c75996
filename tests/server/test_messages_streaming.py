"""Streams of /v1/messages: put together they are the message that does not stream, whatever was asked for."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorllm.parsing import CallArguments, CallBegun, CallEnded, Content, Event, Reasoning
from actorllm.server.anthropic.answer import Blocks
from actorllm.server.settings import ServerSettings

from .build import scripted, served
from .messages import CLOCK, HI, ROOM, both

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOCAL = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 120),
    "stop_sequences": st.lists(st.sampled_from(["e", "t ", "}", "<", "\ufffd", "ab"]), max_size=2),
    "min_tokens": st.just(1),
    "include_stop_str_in_output": st.booleans(),
    "thinking": st.sampled_from([{"type": "adaptive"}, {"type": "adaptive", "display": "omitted"}]),
    "tool_choice": st.sampled_from([{"type": "none"}, {"type": "auto", "disable_parallel_tool_use": True}]),
    "tools": st.just([CLOCK]),
}
PIECES = st.sampled_from(
    [
        "<think>\nHm",
        "</think>\n",
        "So, ",
        "\n",
        " <tool",
        '<tool_call>\n{"name": "clock", "arguments": {"a": ["é", {"b": null}]}}\n</tool_call>',
        '<tool_call>{"name": "clock", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A few of the fields, of those that go together."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True))
    request = {name: draw(FIELDS[name]) for name in names}
    if "tools" not in request:
        request.pop("tool_choice", None)
    return {**HI, "max_tokens": 60, "seed": draw(st.integers(-3, 3)), **request}


@LOCAL
@given(requests())
async def test_a_random_answer_streams_as_it_is(request: dict[str, Any]) -> None:
    async with served(**ROOM) as (_, client):
        await both(client, request)


@LOCAL
@given(requests(), st.lists(PIECES, max_size=6))
async def test_an_answer_with_calls_streams_as_it_is(request: dict[str, Any], pieces: list[str]) -> None:
    script = "".join(pieces)
    parts = scripted(script)
    async with served(parts, ServerSettings(reasoning_parser="think"), **ROOM) as (_, client):
        found = await both(client, request | {"tools": [CLOCK]})
    if request["max_tokens"] > len(script.encode()) and not request.get("stop_sequences"):
        called = any(block["type"] == "tool_use" for block in found["content"])
        assert found["stop_reason"] == ("tool_use" if called else "end_turn")


def types(*events: Event) -> list[str]:
    """The types of what a stream says, with the places of the blocks."""
    blocks = Blocks()
    told = [chunk for event in events for chunk in blocks.take(event)] + blocks.close()
    names = [chunk.get("delta", chunk)["type"].removeprefix("content_block_") for chunk in told]
    return [f"{chunk['index']} {name}" for chunk, name in zip(told, names, strict=True)]


def test_each_block_ends_before_the_next_begins() -> None:
    thought = (Reasoning("a"), Reasoning("b"))
    call = (CallBegun(0, "f"), CallArguments(0, "{"), CallArguments(0, "}"), CallEnded(0))
    assert types(*thought, Content("c"), *call, CallBegun(1, "g"), CallEnded(1), Content("d")) == [
        "0 start",
        "0 thinking_delta",
        "0 thinking_delta",
        "0 signature_delta",
        "0 stop",
        "1 start",
        "1 text_delta",
        "1 stop",
        "2 start",
        "2 input_json_delta",
        "2 input_json_delta",
        "2 stop",
        "3 start",
        "3 stop",
        "4 start",
        "4 text_delta",
        "4 stop",
    ]


def test_an_answer_of_nothing_has_no_blocks() -> None:
    assert types() == []
