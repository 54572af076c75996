"""The routes: answers with the right values, streaming or not."""

from typing import Any

import pytest

from .build import CHAT, COMPLETIONS, CONFIG, HELLO, HELLO_TOKENS, answer, events, served

pytestmark = pytest.mark.anyio

GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


async def test_a_chat_answer_is_the_models() -> None:
    async with served() as (_, client):
        response = await client.post(CHAT, json={"messages": HELLO, **GREEDY})
    body = response.json()
    assert response.status_code == 200
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "chat.completion",
        "model": "hash",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": answer(HELLO_TOKENS, 24, temperature=0, ignore_eos=True),
                },
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len(HELLO_TOKENS),
            "completion_tokens": 24,
            "total_tokens": len(HELLO_TOKENS) + 24,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_a_chat_stream_says_who_speaks_then_the_text_then_the_end() -> None:
    async with served() as (_, client):
        request = {"messages": HELLO, **GREEDY, "stream": True, "stream_options": {"include_usage": True}}
        found = events(await client.post(CHAT, json=request))
    assert found.pop() == "[DONE]"
    usage = found.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 24
    assert usage["usage"]["total_tokens"] == len(HELLO_TOKENS) + 24
    assert len({event["id"] for event in found} | {usage["id"]}) == 1
    assert {event["object"] for event in found} == {"chat.completion.chunk"}
    assert all("usage" not in event for event in found)
    choices = [event["choices"][0] for event in found]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    end = choices.pop()
    assert (end["delta"], end["finish_reason"], end["stop_reason"]) == ({}, "length", None)
    assert all(choice["finish_reason"] is None for choice in choices)
    deltas = [choice["delta"]["content"] for choice in choices[1:]]
    assert all(deltas)
    assert "".join(deltas) == answer(HELLO_TOKENS, 24, temperature=0, ignore_eos=True)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("abc", [[*b"abc"]]),
        (["abc", "xyz"], [[*b"abc"], [*b"xyz"]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7], [8, 9]], [[5, 6], [7], [8, 9]]),
    ],
)
async def test_every_form_of_prompt_streams_what_it_answers(prompt: Any, tokens: list[list[int]]) -> None:
    request = {"prompt": prompt, **GREEDY}
    async with served() as (_, client):
        whole = (await client.post(COMPLETIONS, json=request)).json()
        found = events(await client.post(COMPLETIONS, json={**request, "stream": True}))
    texts = [answer(one, 24, temperature=0, ignore_eos=True) for one in tokens]
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(tokens)))
    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert whole["usage"] == {
        "prompt_tokens": sum(map(len, tokens)),
        "completion_tokens": 24 * len(tokens),
        "total_tokens": sum(map(len, tokens)) + 24 * len(tokens),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert found.pop() == "[DONE]"
    streamed = [""] * len(tokens)
    ends: list[Any] = []
    for event in found:
        (choice,) = event["choices"]
        streamed[choice["index"]] += choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] == "length" else []
    assert streamed == texts
    assert sorted(ends) == list(range(len(tokens)))


async def test_prompts_stream_side_by_side() -> None:
    async with served() as (_, client):
        request = {"prompt": ["abc", "xyz"], **GREEDY, "max_tokens": 60, "stream": True}
        found = events(await client.post(COMPLETIONS, json=request))[:-1]
    indexes = [event["choices"][0]["index"] for event in found]
    assert indexes != sorted(indexes)


async def test_the_same_seed_gives_the_same_text_and_another_one_does_not() -> None:
    async with served() as (_, client):
        request = {"prompt": "abc", "max_tokens": 24, "ignore_eos": True, "temperature": 1.5, "top_p": 0.9}

        async def ask(**more: Any) -> Any:
            response = await client.post(COMPLETIONS, json={**request, **more})
            return response.json()["choices"][0]["text"]

        first = await ask(seed=7)
        assert first == await ask(seed=7)
        assert first == answer([*b"abc"], 24, ignore_eos=True, temperature=1.5, top_p=0.9, seed=7)
        assert first != await ask(seed=8)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_text_and_is_told(stream: bool) -> None:
    full = answer([*b"abc"], 40, temperature=0, ignore_eos=True)
    stop = full[20:22]
    cut = full[: full.index(stop)]
    request = {"prompt": "abc", **GREEDY, "max_tokens": 40, "stop": stop}
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, json={**request, "stream": stream})
        kept = await client.post(COMPLETIONS, json={**request, "include_stop_str_in_output": True})
    if stream:
        choices = [event["choices"][0] for event in events(response)[:-1]]
    else:
        choices = response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == cut
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)
    assert kept.json()["choices"][0]["text"] == cut + stop


async def test_limits_have_their_defaults_and_in_a_chat_two_names() -> None:
    async with served() as (_, client):

        async def count(path: str, **request: Any) -> Any:
            response = await client.post(path, json={"ignore_eos": True, "temperature": 0, **request})
            return response.json()["usage"]["completion_tokens"]

        assert await count(COMPLETIONS, prompt="abc") == 16
        assert await count(COMPLETIONS, prompt="abc", max_tokens=None) == 16
        rest = 512 - len(HELLO_TOKENS)
        assert await count(CHAT, messages=HELLO) == rest
        assert await count(CHAT, messages=HELLO, max_tokens=3) == 3
        assert await count(CHAT, messages=HELLO, max_completion_tokens=5) == 5
        assert await count(CHAT, messages=HELLO, max_tokens=5, max_completion_tokens=5) == 5


async def test_parts_of_a_content_become_lines() -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    async with served() as (_, client):
        split = await client.post(CHAT, json={"messages": [{"role": "user", "content": parts}], **GREEDY})
        joined = [{"role": "user", "content": "hel\nlo"}]
        whole = await client.post(CHAT, json={"messages": joined, **GREEDY})
    assert split.json()["choices"] == whole.json()["choices"]
    assert split.json()["usage"]["prompt_tokens"] == len(HELLO_TOKENS) + 1


async def test_the_model_is_listed_and_lives() -> None:
    async with served() as (engine, client):
        listed = (await client.get("/v1/models")).json()
        health = await client.get("/health")
        named = await client.post(COMPLETIONS, json={"prompt": "a", "model": engine.model_name})
    (model,) = listed["data"]
    assert listed["object"] == "list"
    assert (model["id"], model["object"], model["max_model_len"]) == ("hash", "model", CONFIG.max_model_len)
    assert health.status_code == 200
    assert named.json()["model"] == "hash"
