"""A response that streams is the one that does not, and what ends it early is told."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actorllm import CompletionOutput, Engine, EngineDied, InvalidRequest, Parts, RequestFailed, RequestOutput
from actorllm.checkpoint.hash import HashSource
from actorllm.engine.outputs import START, Gathered
from actorllm.parsing.formats import HERMES, THINK
from actorllm.server.app import create_app
from actorllm.server.chat.reading import Reading, thought
from actorllm.server.responses.answer import ResponsesAnswer
from actorllm.server.responses.request import ResponsesRequest

from ..engine.build import Crashing, failing
from .build import CONFIG, HELLO_TOKENS, answer, client_of, left_in_mid_answer, served
from .responses_joined import RESPONSES, Json, bare, check_events, checked, join, join_items, named_events

pytestmark = pytest.mark.anyio

LONG: dict[str, Any] = {"input": "hello", "max_output_tokens": 400, "ignore_eos": True, "temperature": 0}

ANY_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "max_output_tokens": st.integers(1, 40),
    "temperature": st.sampled_from([0.5, 1.0]),
    "stop": st.lists(st.sampled_from(["e", "t ", "an", "\ufffd", "ab"]), max_size=2),
    "include_stop_str_in_output": st.booleans(),
    "min_tokens": st.integers(0, 1),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "include": st.just(["message.output_text.logprobs"]),
    "instructions": st.sampled_from(["", "Be."]),
    "store": st.booleans(),
}


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries({"seed": st.integers(-3, 3)}, optional=ANY_FIELDS),
    st.integers(0, 3),
    st.integers(1, 5),
)
@example({"seed": 5, "include": ["message.output_text.logprobs"]}, 2, 1)
async def test_a_response_that_streams_is_the_one_that_does_not(
    request: dict[str, Any], top: int, interval: int
) -> None:
    body = {"input": "caf\u00e9", "max_output_tokens": 20, **request}
    body |= {"top_logprobs": top} if "include" in request else {}
    async with served() as (_, client):
        whole = await client.post(RESPONSES, json=body)
        assert whole.status_code == 200, whole.text
        streamed = await client.post(RESPONSES, json=body | {"stream": True, "stream_interval": interval})
    assert bare(join(named_events(streamed))) == bare(checked(whole.json()))


READ = Reading(THINK, HERMES, frozenset({"f"}))
ONE_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e9"}}\n</tool_call>'
ANSWERS = [
    "hello",
    "",
    "  ",
    "<think>hm</think>\n\nhello",
    "<think>hm, caf\u00e9",
    "<think></think>hello",
    f"<think>hm</think>Let me see.\n{ONE_CALL}\n{ONE_CALL}",
    f"{ONE_CALL} and then?",
    ONE_CALL[:-16],
    ONE_CALL[:-14],
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
]


def told(**body: Any) -> tuple[ResponsesAnswer, list[Json]]:
    """An answer that nobody asked for, and the responses that it has kept."""
    asked = ResponsesRequest.model_validate({"input": "a", **body})
    kept: list[Json] = []
    chat = asked.chat([{"role": "user", "content": "a"}], strict=False)
    base = {"model": "hash", **asked.told(False)}
    return ResponsesAnswer(asked, chat, base, READ, HashSource().tokenizer(), kept.append), kept


def outputs(text: str, cuts: list[int], reason: str) -> list[RequestOutput]:
    """The outputs that bring a text, cut in bytes, each a token; characters that are cut come late."""
    data = text.encode()
    gathered = Gathered()
    found: list[RequestOutput] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        before = gathered.end
        said = data[:begin].decode(errors="ignore")
        delta = data[:end].decode(errors="ignore").removeprefix(said)
        gathered.parts.append(delta)
        gathered.tokens += data[begin:end]
        ended = reason if end == len(data) and len(found) == len(cuts) else None
        completion = CompletionOutput(0, gathered, delta, ended, None, before)
        found.append(RequestOutput("req-1", [*b"abc"], (completion,), ended is not None))
    return found


def whole(text: str, reason: str) -> RequestOutput:
    """The one output of an answer that does not stream."""
    gathered = Gathered(parts=[text], tokens=[*text.encode()])
    completion = CompletionOutput(0, gathered, text, reason, None, START)
    return RequestOutput("req-1", [*b"abc"], (completion,), True)


@pytest.mark.slow
@given(st.data(), st.sampled_from(ANSWERS), st.sampled_from(["stop", "length"]))
def test_reasoning_and_calls_are_the_same_however_they_come(
    data: st.DataObject, text: str, reason: str
) -> None:
    most = len(text.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, most), max_size=12)))
    streaming, kept = told(stream=True)
    found = outputs(text, cuts, reason)
    events = [event for output in found for event in streaming.chunks(0, output)]
    events += streaming.closing([found[-1]])
    check_events(events)
    response = join(events)
    assert kept == [response]
    assert bare(response) == bare(told()[0].whole([whole(text, reason)]))


@pytest.mark.parametrize(
    ("text", "reason", "items", "num_thought"),
    [
        (ANSWERS[0], "stop", [("message", "completed", "hello")], 0),
        (ANSWERS[0], "length", [("message", "incomplete", "hello")], 0),
        (ANSWERS[3], "stop", [("reasoning", "completed", "hm"), ("message", "completed", "hello")], 17),
        (ANSWERS[4], "length", [("reasoning", "incomplete", "hm, caf\u00e9")], 16),
        (
            ANSWERS[6],
            "stop",
            [
                ("reasoning", "completed", "hm"),
                ("message", "completed", "Let me see.\n"),
                ("function_call", "completed", '{"a": "\u00e9"}'),
                ("function_call", "completed", '{"a": "\u00e9"}'),
            ],
            17,
        ),
        (ANSWERS[8], "length", [("function_call", "incomplete", '{"a": "\u00e9')], 0),
        (ANSWERS[9], "length", [("function_call", "completed", '{"a": "\u00e9"}')], 0),
        ("", "stop", [("message", "completed", "")], 0),
    ],
)
def test_the_items_of_an_answer(
    text: str, reason: str, items: list[tuple[str, str, str]], num_thought: int
) -> None:
    response = checked(told()[0].whole([whole(text, reason)]))
    found = [
        (
            each["type"],
            each["status"],
            each["arguments"] if "arguments" in each else each["content"][0]["text"],
        )
        for each in response["output"]
    ]
    assert found == items
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": num_thought}
    assert response["status"] == {"stop": "completed", "length": "incomplete"}[reason]


@pytest.mark.parametrize(
    ("tokens", "count"), [(b"ab</x>cd", 6), (b"</x>", 4), (b"ab", 2), (b"", 0), (b"a</x></x>", 5)]
)
def test_the_tokens_that_are_thoughts(tokens: bytes, count: int) -> None:
    pieces = [bytes([byte]) for byte in range(128)]
    assert thought(pieces, b"</x>", [*tokens]) == count
    assert thought([b"ab<", b"/x> c", b"d"], b"</x>", [0, 1, 2]) == 2
    assert thought(pieces, b"</x>", [1000, *b"</x>", 1000]) == 5


@pytest.mark.parametrize("reason", ["timeout", "abort"])
def test_an_answer_that_was_cut_short_is_an_error(reason: str) -> None:
    for fail in (lambda output: told()[0].whole([output]), lambda output: told()[0].chunks(0, output)):
        with pytest.raises(RequestFailed, match="is not complete"):
            fail(whole("hello", reason))


def test_an_error_names_the_fields_of_the_body() -> None:
    with pytest.raises(InvalidRequest, match=r"^max_output_tokens is") as caught, told()[0].named():
        raise InvalidRequest("max_tokens is", "max_tokens")
    assert caught.value.param == "max_output_tokens"
    with pytest.raises(InvalidRequest, match=r"^tools is too large") as caught, told()[0].named():
        text = "structured_outputs.structural_tag is too large"
        raise InvalidRequest(text, "structured_outputs.structural_tag")
    assert caught.value.param == "tools"


def test_a_response_that_fails_before_its_first_event_was_created() -> None:
    events = told()[0].failure(InvalidRequest("too late"))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    assert events[-1]["response"]["error"]["message"] == "too late"


async def test_a_step_that_fails_in_mid_stream_is_a_failed_response_and_nothing_comes_after_it() -> None:
    async with served(failing(*range(30, 100))) as (_, client):
        events = named_events(await client.post(RESPONSES, json={**LONG, "stream": True}))
        response = checked(events[-1]["response"])
        gone = await client.get(f"{RESPONSES}/{response['id']}")
    assert events[-1]["type"] == "response.failed"
    assert response["status"] == "failed"
    assert response["id"] == events[0]["response"]["id"]
    assert response["error"] == {
        "code": "server_error",
        "message": "FloatingPointError: the model met a NaN",
        "type": "InternalServerError",
        "param": None,
    }
    (item,) = join_items(events[2:-1], all_end=False)
    assert response["output"] == [item | {"status": "incomplete"}]
    text = item["content"][0]["text"]
    assert text
    assert answer(HELLO_TOKENS, 400, temperature=0, ignore_eos=True).startswith(text)
    assert gone.status_code == 404


async def test_an_engine_that_dies_in_mid_stream_is_a_failed_response() -> None:
    parts = Parts(policy=Crashing(after=5))
    with pytest.raises(EngineDied, match="no order"):
        async with Engine(CONFIG, parts=parts) as engine, client_of(create_app(engine)) as client:
            events = named_events(await client.post(RESPONSES, json={**LONG, "stream": True}))
            assert len(events) > 1
            assert events[-1]["type"] == "response.failed"
            assert "no order" in events[-1]["response"]["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_aborts_its_response(stream: bool) -> None:
    sent = await left_in_mid_answer(RESPONSES, LONG | {"stream": stream})
    assert not re.search(rb"response\.(completed|failed|incomplete)", sent)
