"""The app: every error has OpenAI's shape, its right status and the field at fault; mounting."""

import json
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI

from actorllm import Engine, EngineDied, Parts, SamplingParams
from actorllm.server.app import create_app

from ..engine.build import POISON, Crashing, failing
from .build import (
    CHAT,
    COMPLETIONS,
    CONFIG,
    HELLO,
    Held,
    answer,
    client_of,
    error,
    served,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "the body is not JSON: Expecting property name enclosed in double quotes at character 1"),
        (b"", "must be a JSON object"),
        (b"[1]", "must be a JSON object"),
        (b'"prompt"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"\xff", "error parsing the body"),
        (b"[" * 100_000, "error parsing the body"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "error parsing the body"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_is_no_json_object_is_a_bad_request(path: str, content: bytes, message: str) -> None:
    async with served() as (_, client):
        response = await client.post(path, content=content, headers={"content-type": "application/json"})
    found = error(response)
    assert response.status_code == 400
    assert message in found["message"]
    assert (found["type"], found["param"]) == ("BadRequestError", None)


async def test_json_needs_no_content_type_but_a_form_is_no_json() -> None:
    async with served() as (_, client):
        plain = await client.post(COMPLETIONS, content=b'{"prompt": "a", "max_tokens": 1}')
        form = await client.post(COMPLETIONS, data={"prompt": "a"})
    assert plain.status_code == 200
    assert error(form)["message"] == "the body must be a JSON object, sent with content-type application/json"


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"temprature": 1}, "temprature", "unknown field 'temprature'; did you mean 'temperature'?"),
        ({"max_new_tokens": 1}, "max_new_tokens", "did you mean 'max_tokens'?"),
        ({"qqq": None, "zzzzzz": 1}, "zzzzzz", "unknown field 'zzzzzz'"),
        ({"\ud800": 1}, "\ud800", r"unknown field '\ud800'"),
        ({"temperature": "1"}, "temperature", "temperature: Input should be a valid number"),
        ({"temperature": 10**400}, "temperature", "temperature: Input should be a valid number"),
        ({"temperature": 2.5}, "temperature", "temperature must be in [0, 2], not 2.5"),
        ({"top_p": 0}, "top_p", "top_p must be in (0, 1]"),
        ({"min_p": 1.5}, "min_p", "min_p must be in [0, 1]"),
        ({"top_k": 1.5}, "top_k", "top_k: Input should be a valid integer"),
        ({"max_tokens": True}, "max_tokens", "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be between 1 and"),
        ({"seed": 2**63}, "seed", "seed must be between"),
        ({"stream": "yes"}, "stream", "stream: Input should be a valid boolean"),
        ({"stop": 5}, "stop", "stop: must be a string or a list of strings"),
        ({"stop": ["a", 5]}, "stop", "stop: must be a string or a list of strings"),
        ({"stop": [""]}, "stop", "stop must be non-empty strings"),
        ({"stop": "\ud800"}, "stop", "half of a surrogate pair at character 0"),
        ({"stop_token_ids": [5, "6"]}, "stop_token_ids.1", "Input should be a valid integer"),
        ({"stop_token_ids": [260]}, "stop_token_ids", "stop token id 260 is outside the vocabulary"),
        ({"n": 2}, "n", "n can only be 1"),
        ({"best_of": 2}, "best_of", "best_of can only be 1"),
        ({"presence_penalty": 0.5}, "presence_penalty", "presence_penalty can only be 0"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias can only be {}"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream: true"),
        (
            {"stream_options": {"includeusage": True}},
            "stream_options.includeusage",
            "did you mean 'include_usage'?",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "Input should be 'text'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs a json_schema"),
        ({"response_format": {"type": "json_object"}}, "structured_outputs", "not available"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "not available"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_bad_field_is_named(path: str, change: dict[str, Any], param: str, message: str) -> None:
    await refused(path, valid(path) | change, param, message)


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"prompt": None}, "prompt", "prompt: Field required"),
        ({"prompt": 5}, "prompt", "prompt: must be a string, a list of strings, a list of token ids"),
        ({"prompt": ["a", 5]}, "prompt", "prompt: must be a string, a list of strings"),
        ({"prompt": []}, "prompt", "prompt: has 0 prompts"),
        ({"prompt": ["a"] * 1025}, "prompt", "prompt: has 1025 prompts; there must be 1 to 1024"),
        ({"prompt": ""}, "prompt", "the prompt is empty"),
        ({"prompt": [5, "a"]}, "prompt", "a token id must be an integer, not 'a'"),
        ({"prompt": [[5], [260]]}, "prompt", "token id 260 is outside the vocabulary"),
        ({"prompt": ["a", "b" * 512]}, "prompt", "the prompt has 512 tokens"),
        ({"prompt": "\ud800"}, "prompt", "prompt: the text has half of a surrogate pair"),
        ({"logprobs": 0}, "logprobs", "logprobs can only be false"),
        ({"echo": True}, "echo", "echo can only be false"),
        ({"suffix": "end"}, "suffix", 'suffix can only be ""'),
        ({"messages": HELLO}, "messages", "unknown field 'messages'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_prompt_is_named(stream: bool, change: dict[str, Any], param: str, message: str) -> None:
    await refused(COMPLETIONS, valid(COMPLETIONS) | change | {"stream": stream}, param, message)


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"messages": None}, "messages", "messages: Field required"),
        ({"messages": "hello"}, "messages", "messages: Input should be a valid list"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": ["hello"]}, "messages.0", "messages.0: must be a JSON object"),
        ({"messages": [*HELLO, {"role": "user"}]}, "messages.1.content", "Field required"),
        ({"messages": [{"content": "a"}]}, "messages.0.role", "Field required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string or a list of text"),
        ({"messages": [{"role": "user", "contnt": 5}]}, "messages.0.contnt", "did you mean 'content'?"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content",
            "can only have parts of type 'text' with a text, not 'image_url'",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]},
            "messages.0.tool_calls",
            "tool_calls can only be []",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content", "surrogate pair"),
        ({"messages": [{"role": "\ud800", "content": "a"}]}, "messages.0.role", "surrogate pair"),
        ({"messages": [{"role": "user", "content": "a" * 512}]}, "prompt", "max_model_len 512"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
        ({"logprobs": True}, "logprobs", "logprobs can only be false"),
        ({"tools": [{}]}, "tools", "tools can only be []"),
        ({"audio": {}}, "audio", "audio is not supported"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_conversation_is_named(
    stream: bool, change: dict[str, Any], param: str, message: str
) -> None:
    await refused(CHAT, valid(CHAT) | change | {"stream": stream}, param, message)


def valid(path: str) -> dict[str, Any]:
    return {"messages": HELLO} if path == CHAT else {"prompt": "abc"}


async def refused(path: str, request: dict[str, Any], param: str, message: str) -> None:
    """Sent as escaped JSON, for httpx cannot encode what is no Unicode."""
    headers = {"content-type": "application/json"}
    async with served() as (_, client):
        response = await client.post(path, content=json.dumps(request), headers=headers)
        good = await client.post(COMPLETIONS, json={"prompt": "abc", "temperature": 0})
    found = error(response)
    assert response.status_code == 400
    assert (found["type"], found["param"]) == ("BadRequestError", param)
    assert message in found["message"]
    assert good.json()["choices"][0]["text"] == answer([*b"abc"], 16, temperature=0)


async def test_every_error_of_a_body_is_listed() -> None:
    async with served() as (_, client):
        response = await client.post(COMPLETIONS, json={"temperature": "1", "top_k": 1.5})
    found = error(response)
    assert found["param"] == "temperature"
    assert found["message"] == (
        "temperature: Input should be a valid number; top_k: Input should be a valid integer; "
        "prompt: Field required"
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_unknown_model_is_not_found(path: str) -> None:
    async with served() as (_, client):
        response = await client.post(path, json=valid(path) | {"model": "gpt"})
    assert error(response) == {
        "message": "there is no model 'gpt' here; 'hash' is served",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


async def test_unknown_paths_and_methods_have_the_same_shape() -> None:
    async with served() as (_, client):
        path = await client.get("/v1/nothing")
        method = await client.get(COMPLETIONS)
    assert (path.status_code, error(path)["type"]) == (404, "NotFoundError")
    assert (method.status_code, error(method)["type"]) == (405, "MethodNotAllowedError")
    assert method.headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_the_engine_cannot_finish_is_a_500(stream: bool) -> None:
    async with served(failing()) as (_, client):
        request = {"prompt": [POISON, 1], "temperature": 0, "stream": stream}
        failed = await client.post(COMPLETIONS, json=request)
        good = await client.post(COMPLETIONS, json={"prompt": "abc", "temperature": 0})
    assert error(failed) == {
        "message": "FloatingPointError: the model met a NaN",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert good.json()["choices"][0]["text"] == answer([*b"abc"], 16, temperature=0)


async def test_an_engine_that_died_says_why_and_is_not_healthy() -> None:
    with pytest.raises(EngineDied, match="no order"):
        async with (
            Engine(CONFIG, parts=Parts(policy=Crashing())) as engine,
            client_of(create_app(engine)) as client,
        ):
            for stream in (False, True):
                response = await client.post(COMPLETIONS, json={"prompt": "a", "stream": stream})
                assert response.status_code == 503
                found = error(response)
                assert found["type"] == "ServiceUnavailableError"
                assert found["message"] == "the scheduler crashed: ZeroDivisionError: no order"
            health = await client.get("/health")
            assert health.status_code == 503
            assert "no order" in error(health)["message"]


async def test_an_engine_that_is_not_open_is_unavailable() -> None:
    engine = Engine(CONFIG)
    async with client_of(create_app(engine)) as client:
        for path in (CHAT, COMPLETIONS):
            assert (await client.post(path, json=valid(path))).status_code == 503
        for path in ("/health", "/v1/models"):
            response = await client.get(path)
            assert response.status_code == 503
            assert "the engine is not open" in error(response)["message"]
        async with engine:
            assert (await client.get("/health")).status_code == 200
        assert (await client.post(COMPLETIONS, json=valid(COMPLETIONS))).status_code == 503


async def test_the_app_can_be_mounted_in_another() -> None:
    async with Engine(CONFIG) as engine:
        outer = FastAPI()
        outer.mount("/llm", create_app(engine))
        async with client_of(outer) as client:
            good = await client.post(f"/llm{COMPLETIONS}", json={"prompt": "abc", "temperature": 0})
            bad = await client.post(f"/llm{COMPLETIONS}", json={})
            nothing = await client.get("/llm/nothing")
    assert good.json()["choices"][0]["text"] == answer([*b"abc"], 16, temperature=0)
    assert error(bad)["param"] == "prompt"
    assert error(nothing)["code"] == 404


async def test_a_bug_of_the_server_is_a_500_that_tells_no_secrets() -> None:
    async with Engine(CONFIG) as engine:
        app = create_app(engine)

        @app.get("/bug")
        async def bug() -> None:
            raise KeyError("secret")

        async with client_of(app) as client:
            response = await client.get("/bug")
    assert error(response)["message"] == "the server failed: KeyError"
    assert error(response)["type"] == "InternalServerError"


async def test_the_schema_describes_both_requests() -> None:
    schema = create_app(Engine(CONFIG)).openapi()
    assert {"ChatRequest", "CompletionRequest"} <= schema["components"]["schemas"].keys()
    prompt = schema["components"]["schemas"]["CompletionRequest"]["properties"]["prompt"]
    assert {"type": "string"} in prompt["anyOf"]


async def test_a_full_queue_is_a_429_that_says_when_to_come_again() -> None:
    held = Held()
    config = replace(CONFIG, max_num_seqs=1, max_num_queued_reqs=1)
    async with Engine(config, parts=held.parts) as engine, client_of(create_app(engine)) as client:
        first = engine.generate("a", SamplingParams(max_tokens=9, ignore_eos=True))
        await anext(first)
        second = engine.generate("b", SamplingParams(max_tokens=9, ignore_eos=True))
        await second.accepted()
        response = await client.post(COMPLETIONS, json={"prompt": "c"})
        held.gate.set()
        assert (await first).finished
        assert (await second).finished
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert error(response)["type"] == "TooManyRequestsError"
