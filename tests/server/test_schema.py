"""Whatever is sent, the server answers as its own schema tells."""

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given

from actorllm import Engine
from actorllm.server.app import create_app
from actorllm.server.openapi.document import OPERATIONS
from actorllm.server.settings import ServerSettings

from .build import CHAT, COMPLETIONS, CONFIG, HELLO, scripted
from .messages import MESSAGES
from .responses_joined import RESPONSES
from .schema import SOAK, Case, Server, examples, is_positive, loaded, running

pytestmark = pytest.mark.slow

FUZZED, COVERED = loaded("fuzzing"), loaded("coverage")
BODIES = sorted(path for path, method in OPERATIONS if method == "post" and "{" not in path)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def one() -> Iterator[Server]:
    with running("asyncio") as found:
        yield found


@pytest.fixture(scope="module")
def speaker() -> Iterator[Server]:
    """A server whose every answer thinks, speaks and calls."""
    call = '<tool_call>\n{"name": "clock", "arguments": {"a": 1}}\n</tool_call>'
    settings = ServerSettings(reasoning_parser="think")
    with running("asyncio", scripted(f"<think>Hm.</think>I see.\n{call}"), settings) as found:
        yield found


@FUZZED.parametrize()
@examples
def test_whatever_comes(case: Case, server: Server) -> None:
    server.check(case)
    if is_positive(case):
        server.check_answerable(case)


@COVERED.parametrize()
@examples
def test_every_field_and_limit(case: Case, one: Server) -> None:
    if SOAK or not is_positive(case):
        one.check(case)
    if is_positive(case):
        one.check_answerable(case)


BROKEN = st.sampled_from(
    [b"", b"{", b"[]", b"null", b'"', b"{]", b"\xff", b"\x00", b'{"a": NaN}', b'{"prompt": "\\ud800"}']
)
KINDS = st.sampled_from(["application/json", "text/plain", "application/x-www-form-urlencoded", "a", ""])


@pytest.mark.parametrize("path", BODIES)
@examples
@given(body=BROKEN | st.binary(max_size=50), kind=KINDS)
def test_what_is_no_json_is_refused(path: str, body: bytes, kind: str, server: Server) -> None:
    response = server.send("POST", path, content=body, headers={"content-type": kind})
    assert response.status_code == 400
    FUZZED[path]["POST"].validate_response(response)


CLOCK: dict[str, Any] = {"name": "clock", "parameters": {"type": "object"}}
TOLD: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
SHORT: dict[str, Any] = {"messages": HELLO, "max_tokens": 4}
ANSWERS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**SHORT, **TOLD, "n": 2, "prompt_logprobs": 1}),
    (CHAT, {**SHORT, "stop": "e", "stop_token_ids": list(range(100))}),
    (CHAT, {**SHORT, **TOLD, "n": 2, "stream": True, "stream_options": {"include_usage": True}}),
    (
        CHAT,
        {**SHORT, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    (COMPLETIONS, {"prompt": ["a", [98, 99]], "echo": True, "logprobs": 1, "prompt_logprobs": 1, "n": 2}),
    (COMPLETIONS, {"prompt": "a", "return_token_ids": True, "logprobs": 0, "max_tokens": 3}),
    (COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 1, "stream": True, "return_token_ids": True}),
    (MESSAGES, SHORT),
    (MESSAGES, {**SHORT, "stream": True, "max_tokens": 600}),
    (RESPONSES, {"input": "hello", "include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    (RESPONSES, {"input": "hello", "stream": True, "include": ["message.output_text.logprobs"]}),
    (RESPONSES, {"input": "hello", "max_output_tokens": 3, "metadata": {"a": "b"}, "user": "c"}),
    (RESPONSES, {"input": [{"role": "assistant", "content": "hello"}], "text": {"format": {"type": "text"}}}),
    (
        RESPONSES,
        {
            "input": "hello",
            "text": {"format": {"type": "json_schema", "name": "one", "schema": {"const": 1}}},
        },
    ),
    ("/tokenize", {"messages": HELLO, "return_token_strs": True}),
    ("/detokenize", {"tokens": [104, 105]}),
    ("/v1/messages/count_tokens", {"messages": HELLO}),
]


@pytest.mark.parametrize(("path", "body"), ANSWERS)
def test_an_answer_has_the_shape_that_is_told(path: str, body: dict[str, Any], server: Server) -> None:
    response = server.send("POST", path, json=body)
    assert response.status_code == 200
    FUZZED[path]["POST"].validate_response(response)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO, "tools": [{"type": "function", "function": CLOCK}]}),
        (MESSAGES, {**SHORT, "max_tokens": 400, "tools": [{"name": "clock", "input_schema": {}}]}),
        (RESPONSES, {"input": "hello", "tools": [{"type": "function", **CLOCK, "strict": False}]}),
    ],
)
def test_reasoning_and_calls_have_it_too(
    path: str, body: dict[str, Any], stream: bool, speaker: Server
) -> None:
    response = speaker.send("POST", path, json={**body, "stream": stream})
    assert response.status_code == 200
    assert "clock" in response.text
    assert ("thinking" if path == MESSAGES else "reasoning") in response.text
    FUZZED[path]["POST"].validate_response(response)


def test_what_is_stored_has_it_too(speaker: Server) -> None:
    tools = [{"type": "function", **CLOCK, "strict": False}]
    first = speaker.send("POST", RESPONSES, json={"input": "hello", "tools": tools}).json()
    call = next(item for item in first["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    asked = {"input": [output], "previous_response_id": first["id"], "instructions": "Be brief."}
    second = speaker.send("POST", RESPONSES, json=asked).json()
    for path in ("/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items"):
        response = speaker.send("GET", path.format(response_id=second["id"]))
        assert response.status_code == 200
        FUZZED[path]["GET"].validate_response(response)


def test_every_operation_is_told() -> None:
    paths = create_app(Engine(CONFIG)).openapi()["paths"]
    assert {(path, method) for path, told in paths.items() for method in told} == OPERATIONS.keys()


def test_bodies_are_told_as_the_settings_have_them() -> None:
    strict, lenient = (
        create_app(Engine(CONFIG), ServerSettings(ignore_unknown_fields=each)).openapi()
        for each in (False, True)
    )
    for document, is_refused in ((strict, True), (lenient, False)):
        schema = {"$ref": "#/components/schemas/ChatRequest", "components": document["components"]}
        fits = jsonschema.Draft202012Validator(schema).is_valid
        assert fits({"messages": HELLO, "verbosity": "medium", "max_tokens": None})
        assert not fits({"messages": HELLO, "verbosity": "high"})
        assert fits({"messages": HELLO, "colour": None})
        assert fits({"messages": HELLO, "colour": "red"}) is not is_refused
        assert fits({"messages": [HELLO[0] | {"colour": "red"}]}) is not is_refused


def test_keys_are_told_where_they_are_needed() -> None:
    open_to_all = create_app(Engine(CONFIG)).openapi()
    document = create_app(Engine(CONFIG), ServerSettings(api_keys=("secret",))).openapi()
    needs = {
        path for path, told in document["paths"].items() if any("security" in of for of in told.values())
    }
    assert needs == document["paths"].keys() - {"/health", "/health/live", "/health/ready", "/metrics"}
    assert "securitySchemes" not in open_to_all["components"]
    assert document["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
