"""The command `replay`: the cores on a recorded file, until one says something else."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ..testing.replay import Report
from ..testing.replay import replay as replay_file


def replay(
    path: Annotated[Path, typer.Argument(help="what the engine's `record` named, or the same with .1")],
    model: Annotated[
        str | None, typer.Option(help="where the model is, if no longer where the engine had it")
    ] = None,
) -> None:
    """Run the engine's actors on what was recorded, until one says something else."""
    report = replay_file(path, model=model)
    if report.difference is not None:
        typer.secho(str(report.difference), err=True)
        if report.version != version("actorllm"):
            typer.secho(f"recorded with actorllm {report.version}; this is {version('actorllm')}", err=True)
        raise typer.Exit(1)
    typer.echo(_summary(report))


def _summary(report: Report) -> str:
    lines = [
        f"{report.num_turns} turns of {report.num_actors} actors, {report.num_messages} messages, "
        f"{report.seconds:.1f} s: they say the same"
    ]
    if report.num_lost > 0:
        lines.append(f"there is a gap before them: {report.num_lost} turns were not recorded")
    if report.crash is not None:
        lines.append(f"{report.crash}, as it did then")
    if report.cut:
        lines.append("the recording ends within a turn, as when its process is killed")
    return "\n".join(lines)
