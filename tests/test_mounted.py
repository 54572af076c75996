"""The examples of web servers: the API at a path of theirs, under both event loops; clients that go."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from .test_examples import EXAMPLES

pytestmark = pytest.mark.slow


@contextmanager
def running(name: str) -> Iterator[httpx.Client]:
    """A client of an example on the hash model, which must end when it is asked to."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "hash", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
                line = process.stderr.readline()
                assert line, said
                said += line
            with httpx.Client(base_url=found[0], timeout=30) as client:
                yield client
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(30) == 0, said + rest
            assert "Traceback" not in rest
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["mounted", "mounted_trio"])
def test_an_application_has_the_api_at_a_path_of_its_own(name: str) -> None:
    request = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
    with running(name) as client:
        assert client.get("/").json() == {"model": "hash", "api": "/llm/v1"}
        whole = client.post("/llm/v1/chat/completions", json=request).json()
        streamed = client.post("/llm/v1/chat/completions", json=request | {"stream": True}).text
        assert client.get("/llm/health/ready").status_code == 200
        assert client.get("/llm/v1/models/hash").json()["id"] == "hash"
        assert client.get("/v1/models").status_code == 404
        assert client.post("/llm/v1/chat/completions", json={}).json()["error"]["param"] == "messages"
        assert client.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]
    text = whole["choices"][0]["message"]["content"]
    assert "".join(re.findall(r'"delta":\{"content":"([^"]*)"', streamed)) == text
    assert streamed.endswith("data: [DONE]\n\n")


def test_a_handler_streams_what_the_engine_says() -> None:
    with running("handler") as client:
        assert any(client.get("/story", params={"of": "a ship"}).text for _ in range(9))
        response = client.get("/story")
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
