"""Log-probabilities over HTTP: shapes, real bytes, prompts, and nothing that is no JSON."""

import codecs
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from actorllm import CompletionOutput, RequestFailed, RequestOutput
from actorllm.engine.outputs import Gathered
from actorllm.server.completions.answer import CompletionAnswer
from actorllm.server.completions.request import CompletionRequest
from actorllm.server.errors import error_body

from .build import CHAT, COMPLETIONS, HELLO, HELLO_TOKENS, answer, events, served
from .joined import join_completion
from .test_told import Vocabulary

pytestmark = pytest.mark.anyio

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


def strict(response: httpx.Response) -> Any:
    """The JSON of a response, in which every number is finite."""
    assert response.status_code == 200, response.text

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(response.content, parse_constant=refuse)


async def test_a_chat_tells_each_token_with_its_bytes() -> None:
    request = {"messages": HELLO, **GREEDY, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}
    async with served() as (_, client):
        body = strict(await client.post(CHAT, json=request))
    (choice,) = body["choices"]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert [entry["bytes"] for entry in content] == [[token] for token in choice["token_ids"]]
    assert body["prompt_token_ids"] == HELLO_TOKENS
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode(errors="replace") == answer(
        HELLO_TOKENS, 24, temperature=0, ignore_eos=True
    )
    for entry in content:
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
        assert entry["token"] == bytes(entry["bytes"]).decode(errors="replace")
        assert len(entry["top_logprobs"]) == 3
        likeliest = [each["logprob"] for each in entry["top_logprobs"]]
        assert likeliest == sorted(likeliest, reverse=True)
        assert -9999 <= entry["logprob"] <= likeliest[0] <= 0


async def test_without_top_logprobs_only_the_tokens_are_told() -> None:
    async with served() as (_, client):
        body = strict(await client.post(CHAT, json={"messages": HELLO, **GREEDY, "logprobs": True}))
        plain = strict(await client.post(CHAT, json={"messages": HELLO, **GREEDY, "top_logprobs": 0}))
    assert all(entry["top_logprobs"] == [] for entry in body["choices"][0]["logprobs"]["content"])
    assert plain["choices"][0]["logprobs"] is None


async def test_a_completion_tells_where_its_tokens_begin() -> None:
    request = {"prompt": "abc", **GREEDY, "max_tokens": 80, "logprobs": 2, "return_token_ids": True}
    async with served() as (_, client):
        (choice,) = strict(await client.post(COMPLETIONS, json=request))["choices"]
    told, tokens = choice["logprobs"], choice["token_ids"]
    assert list(told) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert {len(column) for column in told.values()} == {len(tokens)}
    assert all(2 <= len(top) <= 3 or "\ufffd" in top for top in told["top_logprobs"])
    before = b""
    for token, name, logprob, top, offset in zip(
        tokens, told["tokens"], told["token_logprobs"], told["top_logprobs"], told["text_offset"], strict=True
    ):
        piece = bytes([token]) if token < 256 else b"<|end|>"
        assert name == piece.decode(errors="replace")
        assert top[name] == logprob
        assert offset == len(codecs.getincrementaldecoder("utf-8")("replace").decode(before))
        if token < 128 and before[-1:].isascii():
            assert choice["text"][offset] == name
        before += piece if token < 256 else b""
    assert max(tokens) == 256, "a special token, which is hidden, should be among them"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("echo", "text"), [(False, ""), (True, "abc")])
async def test_tokens_that_are_not_made_text_begin_where_it_ends(echo: bool, text: str, stream: bool) -> None:
    asked = {"prompt": "abc", **GREEDY, "max_tokens": 5, "logprobs": 0, "detokenize": False, "echo": echo}
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, json=asked | {"stream": stream})
    (choice,) = join_completion(events(response)[:-1]) if stream else strict(response)["choices"]
    assert choice["text"] == text
    assert choice["logprobs"]["text_offset"] == [*range(len(text)), *[len(text)] * 5]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_tokens_can_be_named_by_their_ids(path: str) -> None:
    prompt: dict[str, Any] = {"messages": HELLO, "logprobs": True} if path == CHAT else {"prompt": "a"}
    request = {
        "logprobs": 1,
        **prompt,
        **GREEDY,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
    }
    async with served() as (_, client):
        (choice,) = strict(await client.post(path, json=request))["choices"]
    told = choice["logprobs"]
    names = [entry["token"] for entry in told["content"]] if path == CHAT else told["tokens"]
    assert names == [f"token_id:{token}" for token in choice["token_ids"]]


async def test_tokens_that_are_asked_for_are_told_beside_the_likeliest() -> None:
    ids = {"logprob_token_ids": [5, 66], "return_tokens_as_token_ids": True}
    async with served() as (_, client):
        chat = strict(await client.post(CHAT, json={"messages": HELLO, **GREEDY, "logprobs": True, **ids}))
        plain = strict(await client.post(COMPLETIONS, json={"prompt": "a", **GREEDY, "logprobs": 0, **ids}))
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert {each["token"] for each in entry["top_logprobs"]} >= {"token_id:5", "token_id:66"}
    for top in plain["choices"][0]["logprobs"]["top_logprobs"]:
        assert top.keys() >= {"token_id:5", "token_id:66"}


async def test_a_prompts_tokens_are_told() -> None:
    async with served() as (_, client):
        chat = strict(await client.post(CHAT, json={"messages": HELLO, **GREEDY, "prompt_logprobs": 0}))
        two = {"prompt": ["abc", [7]], "prompt_logprobs": 2}
        plain = strict(await client.post(COMPLETIONS, json={**two, **GREEDY}))
    told = chat["prompt_logprobs"]
    assert told[0] is None
    assert [list(each) for each in told[1:]] == [[str(token)] for token in HELLO_TOKENS[1:]]
    assert list(told[1][str(HELLO_TOKENS[1])]) == ["logprob", "rank", "decoded_token"]
    first, second = (choice["prompt_logprobs"] for choice in plain["choices"])
    assert [next(iter(each)) for each in first[1:]] == [str(ord("b")), str(ord("c"))]
    assert all(len(each) in (2, 3) for each in first[1:])
    assert second == [None]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_has_the_prompt_before_the_answer(stream: bool) -> None:
    request = {"prompt": ["caf\u00e9", [*b"xy"]], **GREEDY, "echo": True, "logprobs": 1, "stream": stream}
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, json=request)
    if stream:
        opening = [choice for event in events(response)[:-1] for choice in event["choices"]]
        choices = [next(choice for choice in opening if choice["index"] == index) for index in (0, 1)]
    else:
        choices = strict(response)["choices"]
    texts = [
        answer([*prompt], 24, temperature=0, ignore_eos=True) for prompt in ("caf\u00e9".encode(), b"xy")
    ]
    assert [choice["text"] for choice in choices] == (
        ["caf\u00e9", "xy"] if stream else [f"caf\u00e9{texts[0]}", f"xy{texts[1]}"]
    )
    for choice, tokens, offsets in zip(
        choices, (["c", "a", "f", "\ufffd", "\ufffd"], ["x", "y"]), ([0, 1, 2, 3, 3], [0, 1]), strict=True
    ):
        told, count = choice["logprobs"], len(tokens)
        assert told["tokens"][:count] == tokens
        assert told["text_offset"][:count] == offsets
        assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
        assert all(value <= 0 for value in told["token_logprobs"][1:])
        assert {len(column) for column in told.values()} == {count if stream else count + 24}
        assert stream or told["text_offset"][count] == len("caf\u00e9" if count == 5 else "xy")


@pytest.mark.parametrize("stream", [False, True])
async def test_only_the_prompt_can_be_asked_for(stream: bool) -> None:
    request = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 0, "stream": stream}
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, json={**request, "return_token_ids": True})
        refused = await client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 0})
    assert refused.status_code == 400
    if stream:
        first, last = (event["choices"][0] for event in events(response)[:-1])
        assert (last["text"], last["finish_reason"], last["token_ids"]) == ("", "length", [])
    else:
        body = strict(response)
        (first,) = body["choices"]
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 0)
        assert (first["finish_reason"], first["token_ids"]) == ("length", [])
    assert (first["text"], first["logprobs"]["tokens"]) == ("abc", ["a", "b", "c"])
    assert first["prompt_token_ids"] == [*b"abc"]


@pytest.mark.parametrize(("own", "of_prompt"), [(5, 1), (1, 5), (5, None)])
async def test_an_echo_lists_as_many_as_its_answer_whatever_is_told_of_the_prompt(
    own: int, of_prompt: int | None
) -> None:
    request = {"prompt": "abc", **GREEDY, "echo": True, "logprobs": own, "prompt_logprobs": of_prompt}
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, json={**request, "return_tokens_as_token_ids": True})
    (choice,) = strict(response)["choices"]
    listed = choice["logprobs"]["top_logprobs"]
    assert listed.pop(0) is None
    assert {len(top) for top in listed} <= {own, own + 1}
    assert ("prompt_logprobs" in choice) is (of_prompt is not None)
    for position in choice.get("prompt_logprobs", [None])[1:]:
        assert of_prompt is not None
        assert len(position) in (of_prompt, of_prompt + 1)


def echo_that_ended(reason: str) -> Any:
    body = CompletionRequest.model_validate({"prompt": "abc", "max_tokens": 0, "echo": True})
    output = RequestOutput("req-1", [*b"abc"], (CompletionOutput(0, Gathered(), "", reason, None),), True)
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)])
    return CompletionAnswer(body, "hash", vocabulary).whole([output])["choices"]


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_why_the_token_that_an_echo_does_not_show_ended_it_is_nothing_to_its_reader(reason: str) -> None:
    (choice,) = echo_that_ended(reason)
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")


@pytest.mark.parametrize(("reason", "status"), [("timeout", 504), ("abort", 500)])
def test_an_answer_that_was_cut_short_is_an_error(reason: str, status: int) -> None:
    with pytest.raises(RequestFailed, match="is not complete") as caught:
        echo_that_ended(reason)
    assert error_body(caught.value)["error"]["code"] == status


@pytest.mark.slow
async def test_what_is_impossible_is_still_a_number(small: Path) -> None:
    never = {"logit_bias": {"65": -100}, "allowed_token_ids": [66, 67], "logprob_token_ids": [65, 68]}
    request = {"prompt": "abc", "max_tokens": 3, "logprobs": 20, "temperature": 0, **never}
    async with served(model=str(small), logprobs_mode="processed_logprobs") as (_, client):
        (choice,) = strict(await client.post(COMPLETIONS, json=request))["choices"]
    for name, value, top in zip(
        choice["logprobs"]["tokens"],
        choice["logprobs"]["token_logprobs"],
        choice["logprobs"]["top_logprobs"],
        strict=True,
    ):
        assert name in "BC"
        assert value > -9999.0
        assert top["A"] == top["D"] == -9999.0


@pytest.mark.slow
async def test_what_the_tokenizer_puts_before_a_text_is_not_in_its_echo(spaced: Path) -> None:
    request = {"prompt": "ab", "max_tokens": 0, "echo": True, "logprobs": 0}
    async with served(model=str(spaced)) as (_, client):
        whole = strict(await client.post(COMPLETIONS, json=request))
        bare = strict(await client.post(COMPLETIONS, json={**request, "add_special_tokens": False}))
        shown = strict(await client.post(COMPLETIONS, json={**request, "skip_special_tokens": False}))
        cut = strict(await client.post(COMPLETIONS, json={**request, "truncate_prompt_tokens": 1}))
    (choice,) = whole["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["<s>", " a", "b"])
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]
    assert bare["choices"][0]["logprobs"]["tokens"] == [" a", "b"]
    assert (whole["usage"]["prompt_tokens"], bare["usage"]["prompt_tokens"]) == (3, 2)
    assert shown["choices"][0]["text"] == "ab"
    assert (cut["choices"][0]["text"], cut["choices"][0]["logprobs"]["tokens"]) == ("b", ["b"])
