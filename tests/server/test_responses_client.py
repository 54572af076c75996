"""OpenAI's own client, and what it makes of responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from .build import HELLO_TOKENS, answer, served

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Paint(BaseModel):
    """Paints."""

    colour: Literal["red", "green"]
    twice: bool


@asynccontextmanager
async def asking() -> AsyncIterator[openai.AsyncOpenAI]:
    async with served(max_model_len=2048, num_gpu_blocks_override=256) as (_, client):
        http: Any = client  # it takes the client of httpx as well, and its types name only that of httpx2
        yield openai.AsyncOpenAI(api_key="any", base_url="http://test/v1", http_client=http, max_retries=0)


async def test_it_asks_and_goes_on() -> None:
    async with asking() as client:
        first = await client.responses.create(
            model="hash", input="hello", temperature=0, max_output_tokens=12
        )
        second = await client.responses.create(
            input="more", previous_response_id=first.id, max_output_tokens=4
        )
        found = await client.responses.retrieve(second.id)
        items = await client.responses.input_items.list(second.id, order="asc")
        with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
            await client.responses.cancel(second.id)
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            await client.responses.retrieve(second.id)
    assert first.output_text == answer(HELLO_TOKENS, 12, temperature=0)
    assert found == second
    assert [item.type for item in items.data] == ["message", "message", "message"]
    assert items.data[1].id == first.output[0].id


async def test_it_streams() -> None:
    extra = {"structured_outputs": {"choice": ["a caf\u00e9 in Lyon"]}}
    async with asking() as client:
        async with client.responses.stream(model="hash", input="hello", extra_body=extra) as stream:
            text = "".join(
                [event.delta async for event in stream if event.type == "response.output_text.delta"]
            )
            response = await stream.get_final_response()
        raw = await client.responses.create(input="hello", stream=True, max_output_tokens=1)
        kinds = [event.type async for event in raw]
    assert text == response.output_text == "a caf\u00e9 in Lyon"
    assert response.status == "completed"
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.incomplete"


async def test_it_parses_text_and_arguments() -> None:
    tool: Any = openai.pydantic_function_tool(Paint)
    flat: Any = {"type": "function", **tool["function"]}
    async with asking() as client:
        parsed = await client.responses.parse(input="hello", text_format=Paint, max_output_tokens=400)
        body: dict[str, Any] = {"model": "hash", "input": "hello", "tools": [flat], "max_output_tokens": 400}
        called = await client.responses.create(**body, tool_choice="required", parallel_tool_calls=False)
        async with client.responses.stream(
            **body, tool_choice={"type": "function", "name": "Paint"}
        ) as stream:
            streamed = await stream.get_final_response()
        (call,) = called.output
        assert isinstance(call, ResponseFunctionToolCall)
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        answered = await client.responses.create(
            input=[output], previous_response_id=called.id, max_output_tokens=4
        )
    assert isinstance(parsed.output_parsed, Paint)
    Paint.model_validate_json(call.arguments)
    (again,) = streamed.output
    assert again.type == "function_call"
    Paint.model_validate(again.parsed_arguments)
    assert answered.output_text


async def test_an_error_is_an_exception_that_names_the_field() -> None:
    async with asking() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(input="hello", truncation="auto")
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-5' here"):
            await client.responses.create(input="hello", model="gpt-5")
    assert caught.value.param == "truncation"
