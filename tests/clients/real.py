"""A server with a real model, as a process of its own, and what clients ask of it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import httpx
import openai
from pydantic import BaseModel, Field

MODEL = "smollm2-135m"
KEY = "sk-clients"
SEATS = 4
"""Requests that run at once. One more may wait."""

QUESTION = "What is the capital of France?"
ENDLESS: dict[str, Any] = {"ignore_eos": True}
"""What a body says to be answered until its limit."""


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    size: Literal["small", "big"]


class Pause(BaseModel):
    """A pause."""

    minutes: Literal[5, 10]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens at `root`."""

    process: "subprocess.Popen[str]"
    root: str

    @property
    def openai(self) -> str:
        """The base URL for OpenAI's clients; Anthropic's take `root`."""
        return f"{self.root}/v1"

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric that has these labels, and that of the model."""
        told = "".join(f'{key}="{value}",' for key, value in labels.items())
        pattern = rf'^actorllm:{name}{{{told}model_name="{MODEL}"}} (\S+)$'
        found = re.search(pattern, httpx.get(f"{self.root}/metrics", timeout=30).text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def aborted(self) -> float:
        """How many requests were aborted."""
        return self.metric("request_success_total", finished_reason="abort")

    def until(self, name: str, value: float) -> None:
        """Return when a metric has this value."""
        deadline = monotonic() + 20
        while (found := self.metric(name)) != value:
            assert monotonic() < deadline, f"{name} is still {found}, and not {value}"

    @contextmanager
    def aborting(self, count: int = 1) -> Iterator[None]:
        """A block which leaves this many requests behind, to be aborted."""
        before = self.aborted()
        yield
        self.until("num_requests_open", 0)
        assert self.aborted() == before + count


@contextmanager
def serving(log: Path) -> Iterator[Server]:
    """A server in a process group of its own, which must end well; stderr goes into `log`."""
    command = [sys.executable, "-m", "actorllm", "serve", MODEL, "--port", "0"]
    command += ["--api-key", KEY, "--max-num-seqs", str(SEATS), "--max-num-queued-reqs", "1"]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"{MODEL} is served at "), log.read_text()
            yield Server(process, line.split()[-1].removesuffix("/v1"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, log.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in log.read_text(), log.read_text()


@contextmanager
def full(server: Server, client: openai.OpenAI) -> Iterator[ExitStack]:
    """All seats are taken until the stack is closed, and one request waits; afterwards it is answered."""
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack, server.aborting(SEATS):
        for _ in range(SEATS):
            answer = client.chat.completions.create(**asked, stream=True, extra_body=ENDLESS)
            next(iter(stack.enter_context(answer)))
        waits = threads.submit(lambda: client.chat.completions.create(**asked, max_completion_tokens=1))
        server.until("num_requests_waiting", 1)
        yield stack
        stack.close()
        assert waits.result().choices[0].finish_reason == "length"
