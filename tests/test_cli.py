"""The command line, with the HashModel: what it writes, its exit codes, and how it stops."""

import gc
import io
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from rich.console import Console

from actorllm import Engine, EngineConfig, EngineDied, MachineError, Parts, SamplingParams
from actorllm.cli import main
from actorllm.cli.options import describe
from actorllm.cli.serving import listen, serve_engine
from actorllm.cli.terminal import DownloadBar, Session, Tally

from .engine.build import Crashing, config, expected, text

SMALL = ["--num-gpu-blocks-override", "64", "--max-model-len", "256", "--verify"]
GREEDY = ["--temperature", "0", "--ignore-eos"]
RATE = r"\d+ tokens, the first after \d+\.\d\d s, \d+\.\d tokens/s"


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


def owed(prompt: list[int], max_tokens: int, **sampling: Any) -> str:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **{"temperature": 0, **sampling})
    return text(expected(prompt, params))


def shown(answer: str) -> str:
    """An answer as a text stream shows it."""
    return answer.replace("\r\n", "\n").replace("\r", "\n")


def chat(*turns: str) -> list[int]:
    """The tokens of a conversation that begins with the user."""
    tokens: list[int] = []
    for index, turn in enumerate(turns):
        role = ("user", "assistant")[index % 2]
        tokens += [257, *f"{role}\n{turn}".encode(), 258, *b"\n"]
    return [*tokens, 257, *b"assistant\n"]


def test_generate_writes_the_models_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "hash", "-p", "abc", "--max-tokens", "24", *GREEDY, *SMALL) == 0
    out, err = capfd.readouterr()
    assert shown(out) == shown(owed([*b"abc"], 24)) + "\n"
    assert err == ""


def test_the_seed_is_the_requests(capfd: pytest.CaptureFixture[str]) -> None:
    sampled = ["--temperature", "1.5", "--ignore-eos", "--max-tokens", "24", "--seed", "7"]
    assert run("generate", "hash", "-p", "abc", *sampled, *SMALL) == 0
    assert shown(capfd.readouterr().out) == shown(owed([*b"abc"], 24, temperature=1.5, seed=7)) + "\n"


def test_one_question_is_answered_with_its_speed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("chat", "hash", "-p", "hi", "--max-tokens", "12", *GREEDY, *SMALL) == 0
    *lines, speed = shown(capfd.readouterr().out).removesuffix("\n").split("\n")
    assert "\n".join(lines) == shown(owed(chat("hi"), 12))
    assert re.fullmatch(RATE, speed)
    assert speed.startswith("12 tokens")


def test_a_conversation_remembers_and_ends_by_exit(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n\nmore\n/exit\nnever\n"))
    assert run("chat", "hash", "--max-tokens", "12", *GREEDY, *SMALL) == 0
    out = shown(capfd.readouterr().out)
    first = owed(chat("hi"), 12)
    second = owed(chat("hi", first, "more"), 12)
    pattern = f"> {re.escape(shown(first))}\n{RATE}\n> > {re.escape(shown(second))}\n{RATE}\n> "
    assert re.fullmatch(pattern, out)


def test_a_system_message_changes_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("chat", "hash", "-p", "hi", "--system", "be", "--max-tokens", "12", *GREEDY, *SMALL) == 0
    prompt = [257, *b"system\nbe", 258, *b"\n", *chat("hi")]
    assert shown(capfd.readouterr().out).startswith(shown(owed(prompt, 12)))


def test_a_question_that_is_too_long_does_not_end_the_conversation(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x" * 300 + "\nhi\n"))
    assert run("chat", "hash", "--max-tokens", "12", *GREEDY, *SMALL) == 0
    out, err = capfd.readouterr()
    assert "with max_model_len 256 it may have 255 at most" in err
    assert shown(owed(chat("hi"), 12)) in shown(out)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate", "hash", "-p", "a", "--temperature", "7"], 2, "temperature must be in [0, 2], not 7.0"),
        (["generate", "hash", "-p", "a", "--dtype", "int3"], 2, "dtype must be one of auto"),
        (["generate", "hash", "-p", ""], 2, "the prompt is empty"),
        (["chat", "hash", "-p", "a", "--block-size", "0"], 2, "block_size must be at least 1, not 0"),
        (["serve", "./no-such-model", "--port", "0"], 1, "no-such-model"),
        (["generate", "./no-such-model", "-p", "a"], 1, "no-such-model"),
    ],
)
def test_an_error_is_one_line(
    arguments: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    err = capfd.readouterr().err
    assert err.startswith("actorllm: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["generate", "hash"], ["nothing"], ["generate", "hash", "-p", "a", "--wrong"]]
)
def test_wrong_usage_is_code_2(arguments: list[str]) -> None:
    assert run(*arguments) == 2


@pytest.mark.parametrize("command", ["generate", "chat", "serve"])
def test_every_setting_of_the_engine_is_an_option(
    command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(command, "--help") == 0
    out = capfd.readouterr().out
    for name in EngineConfig.__dataclass_fields__:
        assert name == "model" or f"--{name.replace('_', '-')}" in out
    assert "--no-enable-prefix-caching" in out
    assert "[default: smollm2-135m]" in out


def test_the_help_of_an_option_is_the_line_of_the_docstring() -> None:
    found = describe(EngineConfig)
    assert found.keys() == EngineConfig.__dataclass_fields__.keys()
    assert found["block_size"] == "tokens in a KV block"
    assert found["seed"] == "seeds of requests that bring none derive from it; None draws one"
    assert found["model"].endswith("sees the last 8 tokens)")


@pytest.mark.slow
@pytest.mark.parametrize(("package", "command"), [("typer", "generate"), ("uvicorn", "serve")])
def test_a_missing_extra_is_named(package: str, command: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from actorllm.cli import main; main([{command!r}, 'hash'] + ['-p', 'a'] * ({command!r} != 'serve'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"actorllm: this command needs {package}; pip install 'actorllm[cli,serve]' brings it\n"
    )


@pytest.mark.slow
def test_fetch_says_where_the_model_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("fetch", "hash") == 0
    assert capfd.readouterr().out == "hash is at hash\n"


def test_help_loads_neither_torch_nor_a_server() -> None:
    code = (
        "import sys\nfrom actorllm.cli import main\n"
        "try:\n    main(['--help'])\n"
        "finally:\n    assert not {'torch', 'transformers', 'fastapi', 'uvicorn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "generate" in done.stdout


def test_a_keyboard_interrupt_aborts_the_answer_and_no_more() -> None:
    opening = Engine(config())
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opening) as engine:
        session = Session(portal, engine, Console())
        broken, whole = Interrupting(after=3), Tally()
        with pytest.raises(KeyboardInterrupt):
            session.show(engine.generate("abc", SamplingParams(max_tokens=200, ignore_eos=True)), broken)
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        session.show(engine.generate("abc", params), whole)
        portal.call(engine.check)
    assert 0 < broken.num_tokens < 200
    assert whole.text == owed([*b"abc"], 8)


class Interrupting(Tally):
    """Ctrl-C, as Python raises it in the main thread, after some outputs."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def add(self, output: Any) -> None:
        super().add(output)
        self.after -= 1
        if not self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"), [(["chat", "hash"], 0), (["generate", "hash", "-p", "a"], 130)]
)
def test_ctrl_c_stops_an_answer(arguments: list[str], code: int) -> None:
    command = [sys.executable, "-m", "actorllm", *arguments, "--max-tokens", "4000", "--ignore-eos"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        assert process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        out = process.stdout.read(1) + process.communicate(b"/exit\n", 20)[0]
    assert process.returncode == code
    if arguments[0] == "chat":
        speed = re.search(RATE.encode(), out)
        assert speed is not None
        assert int(speed[0].split()[0]) < 4000
        assert out.endswith(b"> ")


def test_the_rate_counts_what_came_after_the_first() -> None:
    tally = Tally(num_first=1, num_tokens=11, first=0.5, last=2.5)
    assert str(tally) == "11 tokens, the first after 0.50 s, 5.0 tokens/s"
    at_once = Tally(num_first=4, num_tokens=4, first=0.5, last=0.5)
    assert at_once.rate == 8.0
    assert Tally().rate == 0.0


def test_a_download_is_shown_from_any_thread(capfd: pytest.CaptureFixture[str]) -> None:
    with DownloadBar() as bar:
        for done in (0, 1000, 2000):
            thread = threading.Thread(target=bar, args=("model==1", done, 2000))
            thread.start()
            thread.join()
    out, err = capfd.readouterr()
    assert out == ""
    assert "model==1" in err
    assert "2.0/2.0 kB" in err


def test_no_download_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with DownloadBar():
        pass
    assert capfd.readouterr() == ("", "")


def test_an_address_in_use_is_an_error_of_the_machine() -> None:
    with listen("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(MachineError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
            listen("127.0.0.1", port)
    with pytest.raises(MachineError, match=r"cannot listen at 203.0.113.1:80: Cannot assign"):
        listen("203.0.113.1", 80)
    with pytest.raises(MachineError, match=r"cannot listen at a{64}\.example:80: .*label"):
        listen("a" * 64 + ".example", 80)


@pytest.mark.slow
def test_a_dead_engine_ends_the_server_and_leaves_the_signals_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    said: list[str] = []
    statuses: list[int] = []

    async def live() -> None:
        ready = anyio.Event()

        def say(line: str) -> None:
            said.append(line)
            ready.set()

        async with (
            Engine(config(), parts=Parts(policy=Crashing())) as engine,
            anyio.create_task_group() as nursery,
        ):
            nursery.start_soon(partial(serve_engine, engine, listen("127.0.0.1", 0), say))
            await ready.wait()
            async with httpx.AsyncClient() as client:
                url = said[0].removeprefix("hash is served at ") + "/completions"
                statuses.append((await client.post(url, json={"prompt": "a"})).status_code)

    with pytest.raises(EngineDied, match="no order"):
        anyio.run(live)
    assert statuses == [503]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_address_that_cannot_be_told_ends_the_server_with_that_error() -> None:
    def say(line: str) -> None:
        raise BrokenPipeError("nobody reads")

    async def live() -> None:
        with listen("127.0.0.1", 0) as listener:
            async with Engine(config()) as engine:
                await serve_engine(engine, listener, say)

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        anyio.run(live)
    gc.collect()


@contextmanager
def serving() -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`python -m actorllm serve`, and its URL."""
    command = [sys.executable, "-m", "actorllm", "serve", "hash", "--port", "0", *SMALL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("hash is served at http://127.0.0.1:")
            yield process, line.split()[-1]
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_cleanly(number: signal.Signals) -> None:
    with serving() as (process, url):
        request = {"prompt": "abc", "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{url}/completions", json=request).json()["choices"][0]["text"]
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert answer == owed([*b"abc"], 16)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])))
