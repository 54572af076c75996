"""Texts and conversations as tokens, and back."""

from importlib.metadata import version
from typing import Any

import pytest

from .build import CHAT, HELLO, HELLO_TOKENS, error, served

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "f"}}


async def test_tokens_of_a_prompt() -> None:
    async with served() as (_, client):
        whole = (await client.post("/tokenize", json={"prompt": "Hü<|im_end|>"})).json()
        named = (await client.post("/tokenize", json={"prompt": "Hü", "return_token_strs": True})).json()
    assert whole == {"count": 4, "max_model_len": 512, "tokens": [72, 195, 188, 258], "token_strs": None}
    assert named["token_strs"] == ["H", "\ufffd", "\ufffd"]


async def test_tokens_of_a_conversation_are_those_that_are_computed() -> None:
    room: dict[str, Any] = {"max_model_len": 2048, "num_gpu_blocks_override": 256}
    async with served(**room) as (_, client):
        plain = (await client.post("/tokenize", json={"messages": HELLO})).json()
        request: dict[str, Any] = {"messages": HELLO, "tools": [TOOL]}
        told = (await client.post("/tokenize", json=request)).json()
        request |= {"max_tokens": 1, "return_token_ids": True}
        computed = (await client.post(CHAT, json=request)).json()["prompt_token_ids"]
    assert plain["tokens"] == HELLO_TOKENS
    assert told["tokens"] == computed
    assert told["count"] == len(computed) > len(HELLO_TOKENS)


async def test_text_of_tokens() -> None:
    async with served() as (_, client):
        response = await client.post("/detokenize", json={"tokens": [72, 195, 188, 258]})
    assert response.json() == {"prompt": "Hü<|im_end|>"}


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/tokenize", {}, "prompt", "give either a prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt", "give either a prompt or messages"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, "tools", "tools needs messages"),
        ("/tokenize", {"prompt": "a" * 100_000}, "prompt", "more than max_model_len 512 tokens can hold"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a" * 100_000}]},
            "messages",
            "max_model_len",
        ),
        ("/tokenize", {"promt": "a"}, "promt", "did you mean 'prompt'?"),
        ("/detokenize", {"tokens": [5, 260]}, "tokens", "outside the vocabulary of 260"),
        ("/detokenize", {"tokens": [5] * 513}, "tokens", "tokens has 513 ids; at most 512 (max_model_len)"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "outside the vocabulary"),
        ("/detokenize", {"tokens": ["a"] * 100_000}, "tokens.0", "tokens.0: Input should be a valid integer"),
    ],
)
async def test_what_cannot_be_is_named(path: str, body: dict[str, Any], param: str, message: str) -> None:
    async with served() as (_, client):
        response = await client.post(path, json=body)
    found = error(response)
    assert response.status_code == 400
    assert (found["param"], found["message"].count(message)) == (param, 1)


async def test_another_model_is_not_served() -> None:
    async with served() as (_, client):
        assert (await client.post("/tokenize", json={"prompt": "a", "model": "x"})).status_code == 404
        assert (await client.post("/detokenize", json={"tokens": [], "model": "x"})).status_code == 404


async def test_the_version_is_the_packages() -> None:
    async with served() as (_, client):
        assert (await client.get("/version")).json() == {"version": version("actorllm")}
