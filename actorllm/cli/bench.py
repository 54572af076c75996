"""The commands `bench ...`: what parts of the engine take by themselves."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..testing.cycles import Spread, Times

FEW = 32
"""Requests that run while the numbers of waiting requests and of cached blocks change."""

app = typer.Typer(help="Measure parts of the engine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure parts of the engine."""


@app.command()
def scheduler(
    running: Annotated[
        list[int] | None, typer.Option(min=1, help="requests that decode; may be repeated")
    ] = None,
    waiting: Annotated[
        list[int] | None, typer.Option(min=0, help="requests that wait for a seat; may be repeated")
    ] = None,
    cached: Annotated[
        list[int] | None, typer.Option(min=0, help="blocks in the prefix cache; may be repeated")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="how often each is timed")] = 10,
) -> None:
    """Time what the Scheduler and the KVPool do for a step, without a model or an event loop."""
    from ..testing.cycles import Load, measure

    series = {
        "running": [Load(running=count) for count in running or (1, FEW, 256, 1024)],
        "waiting": [Load(running=FEW, waiting=count) for count in waiting or (10, 1000, 100_000)],
        "cached": [Load(running=FEW, cached=count) for count in cached or (1000, 100_000, 1_000_000)],
    }
    typer.echo(f"CPU microseconds a step: the least of {repeats} repeats, and the median.")
    columns = "".join(f"{name:>10} {'median':>9} {'/running':>9}" for name in ("KVPool", "Scheduler"))
    typer.echo(f"{'running':>7} {'waiting':>8} {'cached':>8}{columns}")
    grown: list[str] = []
    for name, loads in series.items():
        times = measure(loads, repeats)
        typer.echo("\n".join(map(_line, times)))
        grown.append(_growth(name, times))
    typer.echo("\n".join(grown))


@app.command()
def record(
    cached: Annotated[
        list[int] | None, typer.Option(min=0, help="blocks in the prefix cache; may be repeated")
    ] = None,
    running: Annotated[
        list[int] | None, typer.Option(min=1, help="requests that decode; may be repeated")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="how often each is timed")] = 10,
) -> None:
    """Time what a recording costs the event loop: a snapshot, and a turn of a core."""
    from ..testing.cycles import Load
    from ..testing.recorded import measure_snapshots, measure_turns

    typer.echo(f"CPU time: the least of {repeats} repeats, and the median.")
    typer.echo(f"{'cached':>8} {'MB':>8} {'snapshot':>11} {'median':>9}")
    loads = [Load(running=FEW, cached=count) for count in cached or (1000, 100_000)]
    for taken in measure_snapshots(loads, repeats):
        least, middle = taken.seconds.least * 1e3, taken.seconds.median * 1e3
        typer.echo(f"{taken.load.cached:8} {taken.size / 1e6:8.2f} {least:8.1f} ms {middle:6.1f} ms")
    typer.echo(f"{'running':>8} {'turn':>11} {'median':>9} {'recorded':>11} {'median':>9}")
    for count in running or (1, FEW, 256):
        turns = measure_turns(Load(running=count), repeats)
        columns = [
            f"{spread.least * 1e6:8.1f} us {spread.median * 1e6:6.1f} us"
            for spread in (turns.alone, turns.recorded)
        ]
        typer.echo(f"{count:8} {' '.join(columns)}")


def _line(times: "Times") -> str:
    load = times.load
    columns = "".join(_columns(spread, load.running) for spread in (times.pool, times.scheduler))
    return f"{load.running:7} {load.waiting:8} {load.cached:8}{columns}"


def _columns(spread: "Spread", running: int) -> str:
    least, middle = spread.least * 1e6, spread.median * 1e6
    return f"{least:10.1f} {middle:9.1f} {least / running:9.2f}"


def _growth(name: str, times: Sequence["Times"]) -> str:
    """How the time grows from each load of a series to the next."""
    counts = " -> ".join(str(getattr(each.load, name)) for each in times)
    pool, scheduler = (
        ", ".join(f"x {after / before:.2f}" for before, after in pairwise(least))
        for least in ([each.pool.least for each in times], [each.scheduler.least for each in times])
    )
    return f"{name} {counts}: KVPool {pool or 'x 1'}; Scheduler {scheduler or 'x 1'}"
