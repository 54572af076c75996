"""The commands."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated

import anyio
import typer

from ..checkpoint import open_checkpoint
from ..config import DEFAULT_MODEL, EngineConfig
from ..errors import RequestError, UsageError
from ..params import SamplingParams
from ..server.settings import ServerSettings
from . import bench
from .connections import Connections
from .options import spread
from .replay import replay
from .simulate import simulate
from .terminal import DownloadBar, Session, Tally, open_session

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

API_KEY = "ACTORLLM_API_KEY"
"""Where `serve` finds keys that are not on its command line."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

with_config = spread("config", EngineConfig, [field.name for field in fields(EngineConfig)])
with_settings = spread(
    "settings",
    ServerSettings,
    [field.name for field in fields(ServerSettings) if field.name != "api_keys"],
)
with_connections = spread("connections", Connections, [field.name for field in fields(Connections)])
with_params = partial(
    spread, "params", SamplingParams, ("max_tokens", "temperature", "top_k", "top_p", "min_p", "ignore_eos")
)


class Loop(StrEnum):
    """The event loops of asyncio."""

    asyncio = "asyncio"
    uvloop = "uvloop"


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"actorllm {version('actorllm')}")
        raise typer.Exit


@app.callback()
def begin(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="tell the version")
    ] = False,
) -> None:
    """LLM inference of independent actors."""


def run(arguments: Sequence[str] | None) -> None:
    """Run the command that the arguments (None: sys.argv's) name, and exit."""
    typer.main.get_command(app)(arguments, prog_name="actorllm")


@app.command()
@with_params(max_tokens=256)
@with_config
def generate(
    config: EngineConfig,
    params: SamplingParams,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="the text that is continued")],
) -> None:
    """Continue a text."""
    with open_session(config) as session:
        try:
            session.show(session.engine.generate(prompt, replace(params, seed=config.seed)), Tally())
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


@app.command()
@with_params(max_tokens=None)
@with_config
def chat(
    config: EngineConfig,
    params: SamplingParams,
    system: Annotated[str | None, typer.Option(help="what the model is told first")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="one question, and no more")] = None,
) -> None:
    """Talk with a model. Ctrl-C stops an answer; Ctrl-D or /exit ends."""
    params = replace(params, seed=config.seed)
    messages = [{"role": "system", "content": system}] if system is not None else []
    with open_session(config) as session:
        if prompt is not None:
            _answer(session, messages, params, prompt)
            return
        while (question := _read_question()) is not None:
            try:
                _answer(session, messages, params, question)
            except RequestError as error:
                messages.pop()
                typer.secho(str(error), err=True, fg="red")


@app.command()
@with_connections
@with_settings
@with_config
def serve(
    config: EngineConfig,
    settings: ServerSettings,
    connections: Connections,
    host: Annotated[str, typer.Option(help="the address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one", min=0, max=65535)] = 8000,
    uds: Annotated[str | None, typer.Option(help="a Unix socket, instead of a host and a port")] = None,
    ssl_certfile: Annotated[str | None, typer.Option(help="a certificate (PEM): serve HTTPS")] = None,
    ssl_keyfile: Annotated[str | None, typer.Option(help="its key, unless the same file has it")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=API_KEY,
            help="a key that requests must bring, as `key` or `tenant=key`; may be repeated (in the "
            "environment: separated by spaces), and anyone who lists processes can read it here",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
    loop: Annotated[Loop, typer.Option(help="the event loop; uvloop must be installed")] = Loop.asyncio,
) -> None:
    """Serve a model over HTTP, as OpenAI does."""
    from .listening import Tls, listen, listen_unix
    from .logs import log_to_stderr
    from .serving import serve

    if not api_key and API_KEY in os.environ:
        raise UsageError(f"{API_KEY} is set and empty; unset it to serve without keys")
    if loop is Loop.uvloop and find_spec("uvloop") is None:
        raise UsageError("uvloop is not installed; pip install uvloop, or leave --loop out")
    settings = replace(settings, api_keys=tuple(api_key or ()))
    tls = Tls.of(ssl_certfile, ssl_keyfile)
    log_to_stderr(log_level)
    opening = listen(host, port) if uds is None else listen_unix(uds)
    with opening as listener, DownloadBar() as bar:
        options = {"use_uvloop": loop is Loop.uvloop}
        parts = (config, listener, bar, typer.echo, settings, tls, connections)
        anyio.run(serve, *parts, backend_options=options)


@app.command()
def fetch(
    model: Annotated[
        str, typer.Argument(help="the model that is fetched, unless it is there")
    ] = DEFAULT_MODEL,
) -> None:
    """Fetch a model, check it, and prepare its tokenizer."""
    with DownloadBar() as bar:
        checkpoint = open_checkpoint(model, progress=bar)
    checkpoint.tokenizer()
    typer.echo(f"{checkpoint.name} is at {checkpoint.path}")


app.command()(simulate)
app.command()(replay)
app.add_typer(bench.app, name="bench")


def _answer(session: Session, messages: list[dict[str, str]], params: SamplingParams, question: str) -> None:
    """Ask, show the answer, and note both in `messages`; Ctrl-C leaves the answer as far as it has come."""
    messages.append({"role": "user", "content": question})
    tally = Tally()
    with suppress(KeyboardInterrupt):
        session.show(session.engine.chat(messages, params), tally)
    messages.append({"role": "assistant", "content": tally.text})
    session.console.print(str(tally), style="dim", highlight=False)


def _read_question() -> str | None:
    """The next line that is not empty; None at the end."""
    with suppress(ImportError):
        import readline  # noqa: F401  # gives input() a history and editing
    with suppress(EOFError, KeyboardInterrupt):
        while not (line := input("> ").strip()):
            pass
        return None if line == "/exit" else line
    typer.echo()
    return None
