"""Anthropic's client."""

from collections.abc import Callable
from typing import Any, Literal

import anthropic
import anyio.to_thread
import openai
import pytest
from anthropic.types import Message, MessageParam, TextBlock, ToolParam, ToolUseBlock

from .real import ENDLESS, KEY, MODEL, QUESTION, City, Pause, Server, full

pytestmark = pytest.mark.slow

MESSAGES: list[MessageParam] = [{"role": "user", "content": QUESTION}]
ASKED: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
LONG: dict[str, Any] = {**ASKED, "max_tokens": 8000, "extra_body": ENDLESS}
TOOL: ToolParam = {"name": "look_up", "input_schema": City.model_json_schema(), "strict": True}
OTHER: ToolParam = {"name": "pause", "input_schema": Pause.model_json_schema(), "strict": True}


def prompt_tokens(message: Message) -> int:
    """All that the prompt has: what was computed, and what was in the cache."""
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_a_message_and_its_tokens(claude: anthropic.Anthropic) -> None:
    asked = {**ASKED, "max_tokens": 6, "system": "Be brief."}
    first, second = (
        claude.messages.create(**asked, extra_body={**ENDLESS, "temperature": 0}) for _ in range(2)
    )
    (block,) = first.content
    assert isinstance(block, TextBlock)
    assert block.text
    assert first.content == second.content
    assert (first.model, first.role, first.stop_reason) == (MODEL, "assistant", "max_tokens")
    counted = claude.messages.count_tokens(**ASKED, system="Be brief.")
    assert (prompt_tokens(first), first.usage.output_tokens) == (counted.input_tokens, 6)
    assert claude.messages.count_tokens(**ASKED).input_tokens != counted.input_tokens
    assert first._request_id


def test_a_stream_says_what_the_whole_does(claude: anthropic.Anthropic) -> None:
    asked = {**ASKED, "max_tokens": 12, "extra_body": {"seed": 3, **ENDLESS}}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    (block,) = whole.content
    assert isinstance(block, TextBlock)
    assert "".join(pieces) == block.text
    assert [piece.to_dict() for piece in final.content] == [block.to_dict()]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)
    assert prompt_tokens(final) == prompt_tokens(whole)


def test_a_stop_sequence_ends_a_message(claude: anthropic.Anthropic) -> None:
    written: Any = {"structured_outputs": {"choice": ["one two three"]}}
    message = claude.messages.create(**ASKED, max_tokens=20, stop_sequences=[" three"], extra_body=written)
    (block,) = message.content
    assert isinstance(block, TextBlock)
    assert (block.text, message.stop_reason, message.stop_sequence) == ("one two", "stop_sequence", " three")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look_up"}])
def test_a_tool_must_be_used(choice: Any, claude: anthropic.Anthropic) -> None:
    tools = [TOOL] if choice["type"] == "any" else [OTHER, TOOL]
    asked = {**ASKED, "max_tokens": 200, "tools": tools, "extra_body": {"seed": 1}}
    asked["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
    message = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    (used,), (again,) = message.content, streamed.content
    assert isinstance(used, ToolUseBlock)
    assert isinstance(again, ToolUseBlock)
    assert message.stop_reason == streamed.stop_reason == "tool_use"
    assert (used.name, used.input) == (again.name, again.input)
    City.model_validate(used.input)
    results: list[MessageParam] = [
        *MESSAGES,
        message.to_param(),
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "Sunny."}]},
    ]
    asked |= {"messages": results, "tool_choice": {"type": "none"}, "max_tokens": 3, "extra_body": ENDLESS}
    then = claude.messages.create(**asked)
    assert [block.type for block in then.content] == ["text"]
    assert then.usage.output_tokens == 3


@pytest.mark.parametrize("streams", [False, True])
def test_a_runner_runs_what_is_used(streams: bool, claude: anthropic.Anthropic) -> None:
    given: list[str] = []

    @anthropic.beta_tool
    def look_up(size: Literal["small", "big"]) -> str:
        """Looks a city up."""
        given.append(size)
        return "It is sunny."

    asked: Any = {**ASKED, "max_tokens": 100, "tools": [look_up], "max_iterations": 2, "stream": streams}
    asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    runner: Any = claude.beta.messages.tool_runner(**asked)
    turns = [turn.get_final_message() if streams else turn for turn in runner]
    assert [turn.stop_reason for turn in turns] == ["tool_use", "tool_use"]
    assert prompt_tokens(turns[1]) > prompt_tokens(turns[0])
    assert given
    assert {*given} <= {"small", "big"}


def test_an_answer_is_parsed_into_a_model_of_pydantic(claude: anthropic.Anthropic) -> None:
    parsed = claude.messages.parse(**ASKED, max_tokens=300, output_format=City, extra_body={"seed": 2})
    assert isinstance(parsed.parsed_output, City)
    assert parsed.stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (
            lambda c: c.messages.create(**ASKED, max_tokens=0),
            anthropic.BadRequestError,
            "max_tokens: Input should be greater than or equal to 1",
        ),
        (
            lambda c: c.messages.create(**ASKED, max_tokens=1, extra_body={"temprature": 1}),
            anthropic.BadRequestError,
            "did you mean 'temperature'",
        ),
        (
            lambda c: c.beta.messages.create(**ASKED, max_tokens=1, thread={"type": "create"}),
            anthropic.BadRequestError,
            "thread is not supported; leave it out",
        ),
        (
            lambda c: c.messages.create(model="opus", max_tokens=1, messages=MESSAGES),
            anthropic.NotFoundError,
            f"there is no model 'opus' here; '{MODEL}' is served",
        ),
        (
            lambda c: c.with_options(api_key="sk-other").messages.count_tokens(**ASKED),
            anthropic.AuthenticationError,
            "the API key is not known here",
        ),
        (
            lambda c: c.with_options(base_url=f"{c.base_url}/v1").messages.create(**ASKED, max_tokens=1),
            anthropic.NotFoundError,
            "did you mean '/v1/messages'",
        ),
        (
            lambda c: c.messages.create(**LONG, timeout=anthropic.Timeout(1)),
            anthropic.APITimeoutError,
            "timed out",
        ),
        (
            lambda c: c.messages.create(**LONG, extra_headers={"X-Request-Timeout": "0.2"}),
            anthropic.GatewayTimeoutError,
            "ran into its timeout",
        ),
    ],
)
def test_errors_are_the_clients_own(
    ask: Callable[[anthropic.Anthropic], Any],
    kind: type[anthropic.APIError],
    message: str,
    claude: anthropic.Anthropic,
) -> None:
    with pytest.raises(kind, match=message):
        ask(claude)


def test_a_full_server_says_when_to_come_again(
    server: Server, client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    refused = pytest.raises(anthropic.RateLimitError, match="1 requests wait already")
    with full(server, client), refused as caught:
        claude.messages.create(**LONG)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.type == "rate_limit_error"


def test_an_error_in_mid_stream_is_raised_there(claude: anthropic.Anthropic) -> None:
    late: Any = {**LONG, "extra_body": {**ENDLESS, "timeout": 2}}
    with claude.messages.stream(**late) as stream, pytest.raises(anthropic.APIError, match="its timeout"):
        stream.until_done()
    assert stream.current_message_snapshot.content


def test_a_stream_that_is_closed_early_ends_its_request(server: Server, claude: anthropic.Anthropic) -> None:
    with server.aborting(), claude.messages.stream(**LONG) as stream:
        assert next(stream.text_stream)


# the client leaves generators to be collected, of which trio warns
@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
async def test_a_cancelled_task_ends_its_request(server: Server) -> None:
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=server.root, max_retries=0) as claude:

        async def ask() -> None:
            async with claude.messages.stream(**LONG) as stream:
                await stream.until_done()

        with server.aborting():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await anyio.to_thread.run_sync(server.until, "num_requests_running", 1)
                tasks.cancel_scope.cancel()
