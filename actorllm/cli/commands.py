"""The commands."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Annotated

import anyio
import typer

from ..checkpoint import open_checkpoint
from ..config import DEFAULT_MODEL, EngineConfig
from ..errors import RequestError
from ..params import SamplingParams
from . import bench
from .options import spread
from .replay import replay
from .simulate import simulate
from .terminal import DownloadBar, Session, Tally, open_session

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

app = typer.Typer(
    help="LLM inference of independent actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

with_config = spread("config", EngineConfig, [field.name for field in fields(EngineConfig)])
with_params = partial(
    spread, "params", SamplingParams, ("max_tokens", "temperature", "top_k", "top_p", "min_p", "ignore_eos")
)


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
@with_config
def serve(
    config: EngineConfig,
    host: Annotated[str, typer.Option(help="the address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one", min=0, max=65535)] = 8000,
) -> None:
    """Serve a model over HTTP, as OpenAI does."""
    from .serving import listen, serve

    with listen(host, port) as listener, DownloadBar() as bar:
        anyio.run(serve, config, listener, bar, typer.echo)


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
