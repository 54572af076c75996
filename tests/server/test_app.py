"""The app: every error has OpenAI's shape, its right status and the field at fault; mounting."""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from actorllm import Engine, EngineDied, Parts, SamplingParams
from actorllm.server.app import create_app
from actorllm.server.openapi.document import OPERATIONS

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
        ({"stop_token_ids": [260]}, "stop_token_ids", "token id 260 is outside the vocabulary"),
        ({"guided_json": {}}, "guided_json", "did you mean 'structured_outputs'?"),
        ({"n": 0}, "n", "n must be between 1 and"),
        ({"n": True}, "n", "n: Input should be a valid integer"),
        ({"n": 2, "temperature": 0}, "n", "n must be 1 when sampling is greedy"),
        ({"best_of": 2}, "best_of", "best_of can only be n, which is 1"),
        ({"n": 2, "best_of": 1}, "best_of", "best_of can only be n, which is 2"),
        ({"use_beam_search": True}, "use_beam_search", "use_beam_search can only be false"),
        ({"length_penalty": 2}, "length_penalty", "length_penalty can only be 1"),
        ({"truncation_side": "right"}, "truncation_side", 'truncation_side can only be "left"'),
        ({"presence_penalty": 2.5}, "presence_penalty", "presence_penalty must be in [-2, 2]"),
        ({"frequency_penalty": "1"}, "frequency_penalty", "Input should be a valid number"),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be in (0, 10000]"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "min_tokens is 5, more than max_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "logit_bias has the key 'x', which is no token id"),
        ({"logit_bias": {"1": 1, "01": 5}}, "logit_bias", "has the key '01', which is no token id"),
        ({"logit_bias": {"260": 1}}, "logit_bias", "token id 260 is outside the vocabulary"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias.5", "must be in"),
        ({"logit_bias": [5]}, "logit_bias", "Input should be a valid dictionary"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids is empty"),
        ({"allowed_token_ids": [260]}, "allowed_token_ids", "token id 260 is outside the vocabulary"),
        ({"bad_words": [""]}, "bad_words", "bad_words must be non-empty strings"),
        ({"bad_words": ["\ud800"]}, "bad_words", "half of a surrogate pair at character 0"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids", "logprob_token_ids needs logprobs"),
        ({"prompt_logprobs": -2}, "prompt_logprobs", "prompt_logprobs must be between -1 and"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "the engine's max_logprobs is 20"),
        ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs", "not possible with stream: true"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "must be at least 1, or -1"),
        ({"detokenize": False, "stop": "a"}, "stop", "stop needs detokenize"),
        ({"stream_interval": 0}, "stream_interval", "stream_interval must be between 1 and"),
        ({"stream_interval": 2}, "stream_interval", "stream_interval needs stream: true"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "must be between -1 and"),
        ({"repetition_detection": {}}, "repetition_detection.max_pattern_size", "needs max_pattern_size"),
        ({"repetition_detection": {"size": 1}}, "repetition_detection", "must be an object with"),
        ({"vllm_xargs": {"a": float("inf")}}, "vllm_xargs", "vllm_xargs must be JSON"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs", "vllm_xargs needs custom processors"),
        ({"priority": 2**31}, "priority", "priority must be between"),
        ({"cache_salt": "a\n"}, "cache_salt", "cache_salt must be at most 1000 printable characters"),
        ({"ignore_eos": True, "structured_outputs": {"choice": ["a"]}}, "ignore_eos", "exclude each other"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream: true"),
        (
            {"stream_options": {"includeusage": True}},
            "stream_options.includeusage",
            "did you mean 'include_usage'?",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "Input should be 'text'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs a json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
            "Field required",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
            "response_format.json_schema",
            "response_format.json_schema does nothing for type json_object",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"choice": ["a"]}},
            "response_format",
            "exclude each other",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "what"}}},
            "response_format",
            "response_format at $.format: must be an object with a type",
        ),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs", "has an unknown key 'regx'"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs", "exactly one of"),
        (
            {"structured_outputs": {"grammar": "root ::= ("}},
            "structured_outputs.grammar",
            "cannot be compiled",
        ),
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
        ({"logprobs": 21}, "logprobs", "logprobs asks for 21, but the engine's max_logprobs is 20"),
        ({"logprobs": True}, "logprobs", "logprobs: Input should be a valid integer"),
        ({"echo": 1}, "echo", "echo: Input should be a valid boolean"),
        ({"top_logprobs": 1}, "top_logprobs", "unknown field 'top_logprobs'; did you mean 'logprobs'?"),
        ({"suffix": "end"}, "suffix", 'suffix can only be ""'),
        (
            {"prompt": ["a"] * 1000, "allowed_token_ids": [5] * 1001},
            "prompt",
            "1000 prompts with 1001 token ids each are too much at once",
        ),
        (
            {"prompt": ["a"] * 3, "n": 342},
            "n",
            "n must be at most 341 for 3 prompts, not 342: a request has 1024 answers at most",
        ),
        ({"prompt": ["a"] * 1024, "n": 1024}, "n", "n must be at most 1 for 1024 prompts, not 1024"),
        ({"prompt": ["a"] * 2, "n": 1025}, "n", "n must be between 1 and 1024"),
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
        ({"messages": [*HELLO, {"role": "user"}]}, "messages.1.content", "a message must have content"),
        ({"messages": [{"content": "a"}]}, "messages.0.role", "Field required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string or a list of text"),
        ({"messages": [{"role": "user", "contnt": 5}]}, "messages.0.contnt", "did you mean 'content'?"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content",
            "can only have parts of type 'text' with a text, not 'image_url'",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages.0.tool_calls",
            "only a message of role 'assistant' has tool_calls",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content", "surrogate pair"),
        ({"messages": [{"role": "\ud800", "content": "a"}]}, "messages.0.role", "surrogate pair"),
        ({"messages": [{"role": "user", "content": "a" * 512}]}, "messages", "max_model_len 512"),
        ({"documents": [{}, {"a": "\ud800"}]}, "documents.1", "documents.1: must be JSON in UTF-8"),
        ({"documents": [{"a": float("nan")}]}, "documents.0", "it has NaN or an infinite number"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"\ud800": 1}}}]},
            "tools.0.function.parameters",
            "tools.0.function.parameters: must be JSON in UTF-8, with finite numbers: it has half of a",
        ),
        ({"chat_template_kwargs": {"a": "\ud800"}}, "chat_template_kwargs", "lone surrogate"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
        ({"max_tokens": 0, "max_completion_tokens": 3}, "max_tokens", "must be between 1 and"),
        (
            {"max_tokens": 2, "max_completion_tokens": 3},
            "max_completion_tokens",
            "max_completion_tokens is 3, but max_tokens, its older name, is 2; leave one out",
        ),
        ({"logprobs": 1}, "logprobs", "logprobs: Input should be a valid boolean"),
        ({"top_logprobs": 1}, "top_logprobs", "top_logprobs needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs asks for 21, but the"),
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs", "top_logprobs must be between -1 and"),
        ({"echo": True}, "echo", "echo can only be false"),
        ({"tools": [{}]}, "tools.0.type", "Field required"),
        ({"timeout": -1}, "timeout", "timeout must be in"),
        ({"request_id": "a b"}, "request_id", "should match pattern"),
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


async def test_a_wrong_method_is_told_all_that_the_path_has() -> None:
    async with served() as (_, client):
        responses = [await client.put("/v1/responses/resp_1"), await client.post("/health")]
    assert [response.status_code for response in responses] == [405, 405]
    assert [response.headers["allow"] for response in responses] == ["GET, DELETE", "GET, HEAD"]


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


NEEDS_NONE = {"/health/live", "/version"}
"""Paths that answer without an engine; and /metrics tells the last ones afterwards."""


async def test_an_engine_that_is_not_open_is_unavailable_on_every_path() -> None:
    engine = Engine(CONFIG)
    async with client_of(create_app(engine)) as client:
        before = await asked_everywhere(client)
        async with engine:
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/detokenize", json={"tokens": [97]})).json() == {"prompt": "a"}
        after = await asked_everywhere(client)
    assert {path for path, status, _ in before if status == 200} == NEEDS_NONE
    assert {path for path, status, _ in after if status == 200} == NEEDS_NONE | {"/metrics"}
    not_yet = "the engine is not open yet; ask again later"
    closed = "the engine is closed, for the server is shutting down; ask another one, or again later"
    assert {(status, text) for _, status, text in before if status != 200} == {(503, not_yet)}
    assert {(status, text) for _, status, text in after if status != 200} == {(503, closed)}


async def asked_everywhere(client: httpx.AsyncClient) -> list[tuple[str, int, str]]:
    """Path, status and message of an error for every operation."""
    found = []
    for path, method in OPERATIONS:
        response = await client.request(method, path, json={} if method == "post" else None)
        is_error = response.status_code != 200
        assert response.headers.get("retry-after") == ("5" if is_error else None)
        found.append((path, response.status_code, response.json()["error"]["message"] if is_error else ""))
    return found


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


@pytest.mark.parametrize("stream", [False, True])
async def test_more_answers_than_are_let_in_are_refused(stream: bool) -> None:
    async with served(max_num_seqs=1, max_num_queued_reqs=2) as (_, client):
        many = await client.post(COMPLETIONS, json={"prompt": "a", "n": 5, "stream": stream})
        few = await client.post(COMPLETIONS, json={"prompt": "a", "n": 3, "max_tokens": 2})
    assert many.status_code == 429
    assert error(many)["type"] == "TooManyRequestsError"
    assert len(few.json()["choices"]) == 3
