"""Streams of decoding: put together they are the answer that does not stream, whatever was asked for."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from .build import CHAT, COMPLETIONS, HELLO, events, served
from .joined import join_chat, join_completion

pytestmark = pytest.mark.anyio

THREE: dict[str, Any] = {"n": 3, "seed": 5, "max_tokens": 20, "ignore_eos": True}

ANY_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 40),
    "temperature": st.sampled_from([0.5, 1.0]),
    "n": st.integers(1, 3),
    "stop": st.lists(st.sampled_from(["e", "t ", "an", "\ufffd", "ab"]), max_size=2),
    "include_stop_str_in_output": st.booleans(),
    "min_tokens": st.integers(0, 1),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "structured_outputs": st.just({"grammar": 'root ::= "a" [b-d]* "\u00e9"'}),
}
INTERVALS = st.integers(1, 5)
PROMPTS = st.sampled_from(["abc", [5, 6, 0xC3], ["x", "yz", "caf\u00e9"], [[257, 9], [256]]])


@st.composite
def fields(draw: st.DrawFn, /, **more: st.SearchStrategy[Any]) -> dict[str, Any]:
    """A few of the fields."""
    known = ANY_FIELDS | more
    names = draw(st.lists(st.sampled_from(sorted(known)), unique=True, max_size=6))
    request = {name: draw(known[name]) for name in names}
    if "structured_outputs" in request:
        request.pop("ignore_eos", None)
    return {"seed": draw(st.integers(-3, 3)), "max_tokens": 20, **request}


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields(logprobs=st.integers(0, 3), echo=st.just(True), truncate_prompt_tokens=st.just(2)),
    PROMPTS,
    INTERVALS,
)
@example({**THREE, "logprobs": 1, "echo": True, "return_token_ids": True}, ["abc", [5, 0xE2, 0x82]], 1)
async def test_a_completion_that_streams_is_the_one_that_does_not(
    request: dict[str, Any], prompt: Any, interval: int
) -> None:
    body = {"prompt": prompt, **request}
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, json=body)
        whole = response.json()
        assert response.status_code == 200, whole
        streamed = {"stream": True, "stream_interval": interval, "stream_options": {"include_usage": True}}
        found = events(await client.post(COMPLETIONS, json=body | streamed))
    assert found.pop() == "[DONE]"
    assert found.pop()["usage"] == whole["usage"]
    assert join_completion(found) == whole["choices"]


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields(logprobs=st.just(True)), st.integers(0, 3), INTERVALS)
@example({**THREE, "logprobs": True, "return_token_ids": True}, 1, 1)
async def test_a_chat_that_streams_is_the_one_that_does_not(
    request: dict[str, Any], top: int, interval: int
) -> None:
    body = {"messages": HELLO, **request} | ({"top_logprobs": top} if "logprobs" in request else {})
    async with served() as (_, client):
        response = await client.post(CHAT, json=body)
        whole = response.json()
        assert response.status_code == 200, whole
        streamed = {"stream": True, "stream_interval": interval}
        found = events(await client.post(CHAT, json=body | streamed))
    assert found.pop() == "[DONE]"
    assert join_chat(found) == whole["choices"]
    assert found[0].get("prompt_token_ids") == whole.get("prompt_token_ids")
    assert all("prompt_token_ids" not in event for event in found[1:])


async def test_answers_stream_side_by_side_each_with_its_role_and_its_end() -> None:
    request = {"messages": HELLO, **THREE, "max_tokens": 60, "stream": True}
    async with served() as (_, client):
        found = events(await client.post(CHAT, json=request))[:-1]
    indexes = [event["choices"][0]["index"] for event in found]
    assert indexes != sorted(indexes)
    for index in range(3):
        own = [event["choices"][0] for event in found if event["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["length"]
        assert own[-1]["finish_reason"] == "length"


async def test_each_answer_to_each_prompt_has_its_index() -> None:
    request = {"prompt": ["abc", "xyz"], **THREE}
    async with served() as (_, client):
        whole = (await client.post(COMPLETIONS, json=request)).json()
        found = events(await client.post(COMPLETIONS, json={**request, "stream": True}))[:-1]
        alone = [
            (
                await client.post(COMPLETIONS, json={**request, "prompt": prompt, "n": 1, "seed": 5 + nth})
            ).json()
            for prompt in ("abc", "xyz")
            for nth in range(3)
        ]
    texts = [each["choices"][0]["text"] for each in alone]
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert [choice["text"] for choice in join_completion(found)] == texts
    usage = whole["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6, 120, 126)


async def test_the_usage_can_be_told_all_along() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = {
        "prompt": "abc",
        "max_tokens": 9,
        "ignore_eos": True,
        "stream": True,
        "stream_options": options,
    }
    async with served() as (_, client):
        found = events(await client.post(COMPLETIONS, json=request))[:-1]
    counts = [event["usage"]["completion_tokens"] for event in found]
    assert counts == sorted(counts)
    assert counts[-1] == 9
    assert all(event["usage"]["prompt_tokens"] == 3 for event in found)


async def test_a_stream_of_few_chunks_begins_at_once() -> None:
    request = {
        "prompt": "abc",
        "max_tokens": 300,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    async with served() as (_, client):
        found = events(await client.post(COMPLETIONS, json={**request, "stream_interval": 60}))[:-1]
        last = events(await client.post(COMPLETIONS, json={**request, "stream_interval": 999}))[:-1]
    counts = [len(event["choices"][0].get("token_ids", ())) for event in found]
    assert sum(counts) == 300
    assert all(count >= 60 for count in counts[2:-1])
    begins = [len(event["choices"][0].get("token_ids", ())) for event in last]
    assert len(begins) == 3
    assert 1 <= begins[1] < 300
