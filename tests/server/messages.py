"""Anthropic's API in tests: what is asked, and what the events of a stream say when they are put together."""

import json
from typing import Any

import httpx
import pydantic_core

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI: dict[str, Any] = {"model": "hash", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
CLOCK: dict[str, Any] = {"name": "clock", "input_schema": {"type": "object"}}
ROOM: dict[str, Any] = {"max_model_len": 4096, "num_gpu_blocks_override": 512}

DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""Of each type of delta the type of its block, and the name of what it adds."""


def named_events(response: httpx.Response) -> list[Any]:
    """The events of a stream, each of which is called as its type."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def join(events: list[Any]) -> dict[str, Any]:
    """The message. Asserts that its blocks come one after the other, and everything in its place."""
    start, *between, delta, stop = events
    assert start["type"] == "message_start"
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    open_block: int | None = None
    for event in between:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert open_block is None
                assert index == len(message["content"])
                open_block = index
                message["content"].append(block | ({"partial_json": ""} if "input" in block else {}))
            case {"type": "content_block_delta", "index": index, "delta": {"type": kind} as added}:
                assert index == open_block
                block, (of, name) = message["content"][index], DELTAS[kind]
                assert block["type"] == of
                block[name] += added["partial_json" if of == "tool_use" else name]
            case {"type": "content_block_stop", "index": index}:
                assert index == open_block
                open_block = None
            case _:
                raise AssertionError(event)
    assert open_block is None
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"})
    assert delta["usage"]["input_tokens"] == message["usage"]["input_tokens"]
    message["content"] = [_read(block) for block in message["content"]]
    return {**message, **delta["delta"], "usage": delta["usage"]}


def _read(block: dict[str, Any]) -> dict[str, Any]:
    """A block with the input of its call as Anthropic's client reads it."""
    if "partial_json" not in block:
        return block
    assert block["input"] == {}
    text = block.pop("partial_json")
    return block | {"input": pydantic_core.from_json(text, allow_partial=True) if text else {}}


def without_names(message: dict[str, Any]) -> dict[str, Any]:
    """The message without what is new in each answer; asserts what it looks like."""
    assert message.pop("id").startswith("msg_")
    for block in message["content"]:
        if block["type"] == "tool_use":
            name = block.pop("id").removeprefix("toolu_")
            assert len(name) == 9
            assert name.isalnum()
    return message


async def both(client: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    """The answer, which must be the same when it streams."""
    response = await client.post(MESSAGES, json=request)
    assert response.status_code == 200, response.text
    whole = without_names(response.json())
    assert (whole["type"], whole["role"]) == ("message", "assistant")
    streamed = await client.post(MESSAGES, json=request | {"stream": True})
    assert without_names(join(named_events(streamed))) == whole
    return whole


def fault(response: httpx.Response) -> tuple[int, str, str]:
    """Status, type and message of an error that has nothing else but the request's id."""
    body = response.json()
    assert list(body) == ["type", "error", "request_id"]
    assert body["type"] == "error"
    assert list(body["error"]) == ["type", "message"]
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return response.status_code, body["error"]["type"], body["error"]["message"]
