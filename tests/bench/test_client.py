"""The client against the real server, and against servers that do what they must not."""

import json

import anyio
import httpx
import pytest

from actorllm import DecodeError, MachineError, UsageError
from actorllm.bench.client import Client, Target
from actorllm.bench.load import Load, Sample, draw

from .peers import MODELS, canned, chunked, event, sized, text, usage

pytestmark = pytest.mark.anyio

LOAD = Load(prompt_tokens=4, output_tokens=2, vocab_size=256)
GOOD = chunked(text("a"), text("b", "length"), usage(4, 2), event("[DONE]"))


async def ask(client: Client, load: Load = LOAD) -> Sample:
    """One request of the load."""
    (request,) = client.encode("canned", load, draw(load, 1, "run"))
    return await client.ask(request, load.output_tokens)


async def test_an_answer_of_the_real_server(url: str) -> None:
    load = Load(prompt_tokens=9, output_tokens=20, vocab_size=256)
    async with Client(Target(url=url)) as client:
        assert await client.find_model() == "hash"
        (request,) = client.encode("hash", load, draw(load, 1, "run"))
        sample = await client.ask(request, 20)
    assert (sample.failure, sample.prompt_tokens, sample.output_tokens) == (None, 9, 20)
    assert sample.begun < sample.arrivals[0]
    assert sample.arrivals == sorted(sample.arrivals)
    assert sample.arrivals[-1] <= sample.ended


async def test_a_chat_of_the_real_server(url: str) -> None:
    async with Client(Target(url=f"{url}/v1/", endpoint="chat")) as client:
        (request,) = client.encode("hash", LOAD, draw(LOAD, 1, "run"))
        sample = await client.ask(request, LOAD.output_tokens)
    assert (sample.failure, sample.output_tokens) == (None, 2)


async def test_what_is_sent_is_what_httpx_would_send() -> None:
    async with canned([sized("200 OK", MODELS), GOOD]) as server:
        target = Target(url=f"{server.url}/under/v1", api_key="secret", model="canned")
        async with Client(target) as client:
            assert await client.find_model() == "canned"
            assert (await ask(client)).failure is None
        sent = httpx.Request(
            "POST",
            f"{server.url}/under/v1/completions",
            headers={"authorization": "Bearer secret", "user-agent": "actorllm-bench"},
            content=server.requests[1].partition(b"\r\n\r\n")[2],
        )
    head, _, body = server.requests[1].partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == f"POST {sent.url.raw_path.decode()} HTTP/1.1"
    assert dict(line.split(": ", 1) for line in lines) == {
        **dict(sent.headers),
        "accept": "*/*",
        "content-type": "application/json",
    }
    assert json.loads(body) == {
        "model": "canned",
        "prompt": draw(LOAD, 1, "run")[0],
        "max_tokens": 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_connection_is_used_again_and_replaced_when_the_server_has_closed_it() -> None:
    async with canned([GOOD, GOOD], [GOOD]) as server, Client(Target(url=server.url)) as client:
        assert [(await ask(client)).failure for _ in range(3)] == [None, None, None]
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (
            sized("404 Not Found", b'{"error": {"message": "the model `x` does not exist"}}'),
            "HTTP 404: the model `x` does not exist",
        ),
        (sized("502 Bad Gateway", b""), "HTTP 502: (no body)"),
        (b"", "the server closed the connection without an answer"),
        (chunked(text("a"), end=False), "the server closed the connection in the middle of its answer"),
        (chunked(text("a")), "the stream ended early: 1 chunks of news, and no finish_reason"),
        (
            sized("200 OK", b'{"choices": []}'),
            "the stream ended early: 0 chunks of news, and no finish_reason",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "this is no HTTP/1.1: b'SSH-2.0-OpenSSH\\r\\n'"),
        (
            chunked(text("a", "stop"), usage(4, 1)),
            "the answer has 1 tokens of 2 (finish_reason 'stop'); does the server know ignore_eos?",
        ),
    ],
)
async def test_a_failure_is_named(reply: bytes, failure: str) -> None:
    async with canned([reply]) as server, Client(Target(url=server.url)) as client:
        assert (await ask(client)).failure == failure


async def test_a_server_that_says_nothing_is_left() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with Client(Target(url=f"http://127.0.0.1:{port}", timeout=0.02)) as client:
            assert (await ask(client)).failure == "no end within 0.02 s"
            with pytest.raises(MachineError, match=r"does not answer within 0.02 s"):
                await client.find_model()


async def test_nobody_listens() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with Client(Target(url=f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(MachineError, match=rf"nobody listens at http://127.0.0.1:{port} \(.*\); start"):
            await client.find_model()
        failure = (await ask(client)).failure
    assert failure is not None
    assert failure.startswith("nobody listens at ")


async def test_a_server_without_tls_is_named() -> None:
    async with (
        canned([b"HTTP/1.1 400 Bad Request\r\n\r\n"]) as server,
        Client(Target(url=server.url.replace("http", "https"))) as client,
    ):
        with pytest.raises(MachineError, match="no TLS with https://"):
            await client.find_model()


@pytest.mark.parametrize("reply", [sized("404 Not Found", b"gone"), sized("200 OK", b'{"data": []}')])
async def test_a_server_that_lists_no_model_needs_a_name(reply: bytes) -> None:
    async with canned([reply]) as server, Client(Target(url=server.url)) as client:
        with pytest.raises(UsageError, match=r"answers HTTP \d+: .*; name the model with --model"):
            await client.find_model()


async def test_no_http_at_all_is_told_at_once() -> None:
    async with canned([b"hello\r\n"]) as server, Client(Target(url=server.url, model="x")) as client:
        with pytest.raises(DecodeError, match=r"this is no HTTP/1\.1"):
            await client.find_model()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://", "ftp://a", "http://a:99999", "http://[::1"])
async def test_a_url_that_is_none_is_named(url: str) -> None:
    with pytest.raises(UsageError, match=r"url must be like http://127\.0\.0\.1:8000, not"):
        Target(url=url)
