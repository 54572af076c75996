"""What an answer says of its tokens: how many were in the cache, and how many are reasoning."""

from typing import Any

import httpx
import pytest

from actorllm.server.settings import ServerSettings

from .build import CHAT, COMPLETIONS, HELLO, HELLO_TOKENS, events, scripted, served
from .messages import MESSAGES, ROOM, named_events
from .responses_joined import RESPONSES

pytestmark = pytest.mark.anyio

CACHING: Any = {"enable_prefix_caching": True}
SHORT = {"max_tokens": 3, "temperature": 0}
CACHED = (len(HELLO_TOKENS) - 1) // 16 * 16
PROMPT = list(range(100, 133))
"""33 tokens: two whole blocks."""


async def asked(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()["usage"]


async def test_a_chat_tells_what_was_in_the_cache_streaming_or_not() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with served(**CACHING) as (_, client):
        first, second = [await asked(client, CHAT, messages=HELLO, **SHORT) for _ in range(2)]
        streamed = events(await client.post(CHAT, json={"messages": HELLO, **SHORT, **options}))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second == first | {"prompt_tokens_details": {"cached_tokens": CACHED}}
    assert streamed[-2]["usage"] == second


async def test_the_prompts_of_a_completion_are_summed_up() -> None:
    async with served(**CACHING) as (_, client):
        first = await asked(client, COMPLETIONS, prompt=PROMPT, n=2, max_tokens=3)
        several = await asked(client, COMPLETIONS, prompt=[PROMPT, PROMPT[:17], [1] * 17], n=2, max_tokens=3)
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert several["prompt_tokens_details"] == {"cached_tokens": 32 + 16}
    assert several["prompt_tokens"] == 33 + 17 + 17


async def test_a_response_tells_it() -> None:
    body = {"input": "hello", "max_output_tokens": 3}
    async with served(**CACHING) as (_, client):
        first, second = [await asked(client, RESPONSES, **body) for _ in range(2)]
    cached = (first["input_tokens"] - 1) // 16 * 16
    assert first["input_tokens_details"]["cached_tokens"] == 0
    assert second["input_tokens_details"]["cached_tokens"] == cached > 0
    assert second["input_tokens"] == first["input_tokens"]


async def test_a_message_counts_it_apart() -> None:
    body = {"model": "hash", "messages": HELLO, "max_tokens": 3, "temperature": 0}
    async with served(**CACHING) as (_, client):
        first, second = [await asked(client, MESSAGES, **body) for _ in range(2)]
        streamed = named_events(await client.post(MESSAGES, json=body | {"stream": True}))
    assert first == {"input_tokens": len(HELLO_TOKENS), "cache_read_input_tokens": 0, "output_tokens": 3}
    assert second == first | {
        "input_tokens": len(HELLO_TOKENS) - CACHED,
        "cache_read_input_tokens": CACHED,
    }
    begun, ended = streamed[0]["message"]["usage"], streamed[-2]["usage"]
    assert begun == second | {"output_tokens": 0}
    assert ended == second


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_counted_in_each_choice(stream: bool) -> None:
    settings = ServerSettings(reasoning_parser="think")
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 99, "n": 2}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with served(scripted("<think>Rome</think>Oslo"), settings, **ROOM) as (_, client):
        response = await client.post(CHAT, json=body)
        silent = await asked(client, CHAT, messages=HELLO, max_tokens=99, include_reasoning=False)
    usage = events(response)[-2]["usage"] if stream else response.json()["usage"]
    thought = len("<think>Rome</think>")
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * thought}
    assert silent["completion_tokens_details"] == {"reasoning_tokens": thought}
