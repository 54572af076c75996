"""One server for all clients of a test process."""

from collections.abc import Iterator

import anthropic
import openai
import pytest

from .real import KEY, Server, serving


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("clients") / "stderr.txt") as server:
        yield server


@pytest.fixture
def server(started: Server) -> Iterator[Server]:
    """The server; when the test has passed, nothing of it may be left in the engine."""
    yield started
    started.until("num_requests_open", 0)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=server.openai, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key=KEY, base_url=server.root, max_retries=0, timeout=60) as client:
        yield client
