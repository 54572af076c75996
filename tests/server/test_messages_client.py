"""Anthropic's own client against /v1/messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import (
    MessageParam,
    TextBlock,
    ThinkingBlock,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlock,
    UserMessageParam,
)

from actorllm import Engine, Parts
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from ..engine.build import failing
from .build import CONFIG, HELLO_TOKENS, answer, scripted

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HELLO: list[MessageParam] = [UserMessageParam(role="user", content="hello")]
CLOCK: ToolParam = {"name": "clock", "input_schema": {"type": "object"}}
SCRIPT = '<think>Hm</think>Let me see.<tool_call>{"name": "clock", "arguments": {"a": [1]}}</tool_call>'
LARGER: dict[str, Any] = {"max_model_len": 1024, "num_gpu_blocks_override": 128}


@asynccontextmanager
async def connected(
    parts: Parts | None = None, key: str = "k", **changes: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """A client of an app that lets in who has the key `k`."""
    config = replace(CONFIG, **changes)
    settings = ServerSettings(api_keys=("k",), reasoning_parser="think")
    async with Engine(config, parts=parts) as engine:
        transport = httpx2.ASGITransport(create_app(engine, settings), raise_app_exceptions=False)
        async with anthropic.AsyncAnthropic(
            api_key=key,
            base_url="http://test",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        ) as client:
            yield client
        await engine.check()


async def test_a_message() -> None:
    async with connected() as client:
        message = await client.messages.create(
            model="hash", max_tokens=20, messages=HELLO, system=[], extra_body={"temperature": 0}
        )
    (block,) = message.content
    assert block.type == "text"
    assert block.text == answer(HELLO_TOKENS, 20, temperature=0)
    assert message.stop_reason == "max_tokens"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(HELLO_TOKENS), 20)
    assert message._request_id


async def test_a_conversation_with_a_tool_by_its_stream() -> None:
    async with connected(scripted(SCRIPT), **LARGER) as client:
        asked: dict[str, Any] = {"model": "hash", "max_tokens": 200, "tools": [CLOCK]}
        async with client.messages.stream(messages=HELLO, **asked) as stream:
            texts = [text async for text in stream.text_stream]
            message = await stream.get_final_message()
        whole = await client.messages.create(messages=HELLO, **asked)
        thought, said, call = message.content
        assert isinstance(thought, ThinkingBlock)
        assert isinstance(said, TextBlock)
        assert isinstance(call, ToolUseBlock)
        assert (thought.thinking, said.text) == ("Hm", "Let me see.")
        assert "".join(texts) == "Let me see."
        assert (call.name, call.input) == ("clock", {"a": [1]})
        assert message.stop_reason == whole.stop_reason == "tool_use"
        assert message.usage.output_tokens == whole.usage.output_tokens == len(SCRIPT) + 1
        assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
        result: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": call.id, "content": "noon"}
        messages: list[MessageParam] = [
            *HELLO,
            message.to_param(),
            UserMessageParam(role="user", content=[result]),
        ]
        then = await client.messages.create(messages=messages, **asked)
    assert then.usage.input_tokens > message.usage.input_tokens


async def test_tokens_are_counted() -> None:
    async with connected() as client:
        count = await client.messages.count_tokens(model="hash", messages=HELLO)
    assert count.input_tokens == len(HELLO_TOKENS)


async def test_errors_are_the_clients_own() -> None:
    async with connected() as client:
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'other' here") as missing:
            await client.messages.create(model="other", max_tokens=1, messages=HELLO)
        with pytest.raises(anthropic.BadRequestError, match="top_p must be") as invalid:
            await client.messages.create(model="hash", max_tokens=1, messages=HELLO, extra_body={"top_p": 9})
    assert missing.value.type == "not_found_error"
    assert invalid.value.type == "invalid_request_error"
    assert invalid.value.request_id
    async with connected(key="other") as client:
        with pytest.raises(anthropic.AuthenticationError, match="the API key is not known here"):
            await client.messages.count_tokens(model="hash", messages=HELLO)


# the client leaves its generators to the garbage collector when an event is an error, of which trio warns
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
async def test_an_error_in_mid_stream_is_raised_there() -> None:
    asked: dict[str, Any] = {"model": "hash", "max_tokens": 400, "extra_body": {"ignore_eos": True}}
    async with connected(failing(*range(200, 300))) as client:
        async with client.messages.stream(messages=HELLO, **asked) as stream:
            with pytest.raises(anthropic.APIStatusError, match="the model met a NaN"):
                async for _ in stream:
                    pass
        assert stream.current_message_snapshot.content
