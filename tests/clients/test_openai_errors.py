"""OpenAI's client: each of its exceptions, and requests that it gives up."""

from collections.abc import Callable
from typing import Any

import anyio.to_thread
import httpx2
import openai
import pytest

from .real import ENDLESS, KEY, MODEL, QUESTION, Server, full

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}


@pytest.mark.parametrize(
    ("ask", "param", "message"),
    [
        (lambda c: c.chat.completions.create(**ASKED, temperature=9), "temperature", "temperature must be"),
        (lambda c: c.chat.completions.create(**ASKED, extra_body={"tmperature": 1}), "tmperature", "did you"),
        (lambda c: c.completions.create(model=MODEL, prompt="a" * 99_999), "prompt", "8192"),
        (lambda c: c.responses.create(input="a", background=True), "background", "can only be false"),
        (lambda c: c.responses.create(input="a", tools=[{"type": "web_search"}]), "tools.0.type", "only fun"),
    ],
)
def test_a_bad_request_names_the_field(
    ask: Callable[[openai.OpenAI], Any], param: str, message: str, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client)
    assert caught.value.param == param
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_a_key_must_be_known(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError, match="the API key is not known here"):
        client.with_options(api_key="sk-other").models.list()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda c: c.embeddings.create(model=MODEL, input="a"), "there is nothing at '/v1/embeddings' here"),
        (lambda c: c.images.generate(prompt="a"), "GET /docs shows all paths"),
        (lambda c: c.models.retrieve("gpt-5"), f"no model 'gpt-5' here; '{MODEL}' is served"),
        (lambda c: c.responses.retrieve("resp_1"), "there is no response 'resp_1' here"),
    ],
)
def test_what_is_not_here_is_not_found(
    ask: Callable[[openai.OpenAI], Any], message: str, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.NotFoundError, match=message):
        ask(client)


@pytest.mark.parametrize("wrong", ["", "/v1/v1"])
def test_a_wrong_base_url_is_set_right(wrong: str, server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="did you mean '/v1/chat/completions'"):
        client.with_options(base_url=server.root + wrong).chat.completions.create(**ASKED)


def test_a_method_that_a_path_does_not_take(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="does not take PUT, only POST") as caught:
        client.put("/chat/completions", cast_to=object)
    assert caught.value.status_code == 405


def test_a_full_server_says_when_to_come_again(server: Server, client: openai.OpenAI) -> None:
    refused = pytest.raises(openai.RateLimitError, match="1 requests wait already")
    with full(server, client), refused as caught:
        client.chat.completions.create(**ASKED)
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_the_client_comes_again(server: Server, client: openai.OpenAI) -> None:
    statuses: list[int] = []
    with full(server, client) as taken:

        def make_room(response: httpx2.Response) -> None:
            statuses.append(response.status_code)
            taken.close()

        with openai.DefaultHttpxClient(event_hooks={"response": [make_room]}) as http:
            again = client.with_options(max_retries=1, http_client=http)
            answer = again.chat.completions.create(**ASKED, max_completion_tokens=2)
    assert statuses == [429, 200]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_a_client_that_waits_no_longer_ends_its_request(server: Server, client: openai.OpenAI) -> None:
    with server.aborting(), pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).chat.completions.create(**ASKED, extra_body=ENDLESS)


def test_a_timeout_of_the_server_is_its_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="ran into its timeout") as caught:
        client.chat.completions.create(
            **ASKED, extra_body=ENDLESS, extra_headers={"X-Request-Timeout": "0.2"}
        )
    assert caught.value.status_code == 504


def test_an_error_in_mid_stream_is_raised_there(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**ASKED, stream=True, extra_body={**ENDLESS, "timeout": 2})
    chunks = []
    with stream, pytest.raises(openai.APIError, match="ran into its timeout"):
        for chunk in stream:
            chunks.append(chunk)
    assert chunks


def test_nobody_listens() -> None:
    nowhere = openai.OpenAI(api_key=KEY, base_url="http://127.0.0.1:9/v1", max_retries=0)
    with nowhere as client, pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_a_stream_that_is_closed_early_ends_its_request(server: Server, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**ASKED, stream=True, extra_body=ENDLESS)
    with server.aborting(), stream:
        next(iter(stream))


# the client leaves generators to be collected, of which trio warns
@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
@pytest.mark.parametrize("streams", [False, True])
async def test_a_cancelled_task_ends_its_request(streams: bool, server: Server) -> None:
    async with openai.AsyncOpenAI(api_key=KEY, base_url=server.openai, max_retries=0) as client:

        async def ask() -> None:
            answer: Any = await client.chat.completions.create(**ASKED, stream=streams, extra_body=ENDLESS)
            async for _ in answer:
                pass

        with server.aborting():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await anyio.to_thread.run_sync(server.until, "num_requests_running", 1)
                tasks.cancel_scope.cancel()
