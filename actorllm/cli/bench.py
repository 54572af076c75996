"""The commands `bench ...`: how fast an engine is beside its peers, and what its parts take alone."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ..bench.client import Target
from ..bench.load import Load
from ..config import DEFAULT_MODEL, EngineConfig
from ..errors import UsageError
from .options import spread
from .terminal import DownloadBar

if TYPE_CHECKING:
    from ..testing.cycles import Spread, Times

FEW = 32
"""Requests that run while the numbers of waiting requests and of cached blocks change."""

LIGHT = "trio"
"""The event loop of the load generator: 32 us of CPU a token of a stream, where asyncio takes 58."""

app = typer.Typer(help="Measure the engine, its parts, and its peers.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="write JSON instead of a table")]
Plot = Annotated[str | None, typer.Option(help="draw a picture to this path, which ends with .svg")]

with_config = spread("config", EngineConfig, [field.name for field in fields(EngineConfig)])
with_target = spread("target", Target, [field.name for field in fields(Target)])
with_load = partial(spread, "load", Load)


@app.callback()
def bench() -> None:
    """Measure the engine, its parts, and its peers."""


@app.command()
@with_target
@with_load([field.name for field in fields(Load)])
def serve(
    target: Target,
    load: Load,
    suite: Annotated[
        bool, typer.Option("--suite", help="six loads; only --warmup, --vocab-size and --seed apply")
    ] = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Load a server that speaks OpenAI's API (this one, vLLM, llama-server), and tell how fast it answers.

    The exit code is 1 when a request failed.
    """
    from ..bench.picture import bars, check_path, save
    from ..bench.report import show
    from ..bench.serve import measure, measure_suite
    from ..bench.suite import SUITE, show_suite

    if plot is not None and not suite:
        raise UsageError("--plot draws the loads of a --suite")
    check_path(plot)
    if not suite:
        report = anyio.run(measure, target, load, backend=LIGHT)
        _write(report.json(), f"{target.url}: {load}\n{show(report, 'generator')}", as_json)
        _fail_if(report.failed)
        return
    reports = anyio.run(measure_suite, target, load, SUITE, backend=LIGHT)
    _write({name: each.json() for name, each in reports.items()}, show_suite(reports), as_json)
    rates = [
        (str(each.load), each.output_tokens_per_s) for each in reports.values() if each.load.output_tokens > 1
    ]
    save(plot, bars(f"Tokens of answers a second, {target.url}", rates))
    _fail_if(sum(each.failed for each in reports.values()))


@app.command()
@with_config
@with_load(("num_requests", "prompt_tokens", "output_tokens", "shared_prefix_tokens", "warmup"))
def throughput(config: EngineConfig, load: Load, plot: Plot = None, as_json: AsJson = False) -> None:
    """Run the engine in this process, without a server: all requests at once."""
    from ..bench.offline import measure, show_offline
    from ..bench.picture import bars, check_path, save

    check_path(plot)
    load = replace(load, concurrency=load.num_requests)
    with DownloadBar() as bar:
        found = anyio.run(partial(measure, config, load, progress=bar))
    report = found.report
    _write(found.json(), f"{config.model}: {load}\n{show_offline(found)}", as_json)
    rates = {"answers": report.output_tokens_per_s, "prompts": report.prompt_tokens_per_s}
    save(plot, bars(f"Tokens a second, {config.model}, {load}", list(rates.items())))
    _fail_if(report.failed)


@app.command()
@with_config
@with_load(("prompt_tokens", "output_tokens", "warmup"))
def latency(
    config: EngineConfig,
    load: Load,
    batch_size: Annotated[int, typer.Option("--batch-size", "-c", min=1, help="requests at once")] = 1,
    iterations: Annotated[int, typer.Option(min=1, help="batches, one after the other")] = 5,
    as_json: AsJson = False,
) -> None:
    """Run the engine in this process, without a server: one batch after the other."""
    from ..bench.offline import measure, show_offline

    load = replace(load, concurrency=batch_size, num_requests=batch_size)
    with DownloadBar() as bar:
        found = anyio.run(partial(measure, config, load, batches=iterations, progress=bar))
    _write(found.json(), f"{config.model}: {load}\n{show_offline(found)}", as_json)
    _fail_if(found.report.failed)


@app.command()
@with_config
@with_load(("num_requests", "prompt_tokens", "output_tokens"))
def grammar(
    config: EngineConfig,
    load: Load,
    repeats: Annotated[int, typer.Option(min=1, help="runs of each kind, by turns")] = 5,
    temperature: Annotated[list[float] | None, typer.Option(help="may be repeated")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the engine in this process with and without a grammar, all requests at once."""
    from ..bench.grammar import measure, show_costs, to_json

    with DownloadBar() as bar:
        run = partial(measure, config, load, repeats, temperature or (0.0, 1.0), bar)
        costs = anyio.run(run)
    _write(to_json(costs), f"{config.model}: {load.num_requests} requests\n{show_costs(costs)}", as_json)


@app.command()
@with_load(("num_requests", "prompt_tokens", "output_tokens"), num_requests=512, prompt_tokens=16)
def front(
    load: Load,
    streams: Annotated[
        list[int] | None, typer.Option(min=1, help="requests at once; may be repeated")
    ] = None,
    loop: Annotated[
        list[str] | None, typer.Option(help="asyncio or uvloop (both, if it is installed); may be repeated")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a server of the hash model, and an engine without HTTP: what the HTTP side costs a token."""
    from ..bench.front import installed_loops, measure, show_fronts, to_json

    fronts = anyio.run(partial(measure, load, streams or (1, 64, 256), loop or installed_loops()))
    _write(to_json(fronts), show_fronts(fronts), as_json)


@app.command()
@with_config
def kernels(
    config: EngineConfig,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="requests that decode at once; may be repeated")
    ] = None,
    context: Annotated[int, typer.Option(min=2, help="tokens of each of them")] = 200,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="tokens of the prompt that is computed")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="how often each step is timed")] = 20,
    as_json: AsJson = False,
) -> None:
    """Tell where a step's time goes on the native kernels, and how near they are to the machine's limits."""
    from ..bench.kernels import measure, show_kernels

    with DownloadBar() as bar:
        found = measure(config, batch or (1, 8, 32), context, prompt_tokens, repeats, bar)
    _write(found.json(), f"{config.model}\n{show_kernels(found)}", as_json)


@app.command()
def startup(
    model: Annotated[str, typer.Argument(help="as `actorllm serve` takes it")] = DEFAULT_MODEL,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="further options of `actorllm serve`, after --")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="how often a server is started")] = 3,
    cold: Annotated[
        bool, typer.Option("--cold", help="with empty caches of compiled kernels and packed weights")
    ] = False,
    idle_seconds: Annotated[float, typer.Option(min=0, help="how long it is watched at rest")] = 5.0,
    timeout: Annotated[float, typer.Option(min=0, help="seconds until the first token, at most")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Start a server several times: until it is ready, its first token, its memory, its CPU time at rest."""
    from ..bench.startup import measure, show_starts, to_json

    with DownloadBar() as bar:
        run = partial(measure, runs=runs, cold=cold, idle_s=idle_seconds, timeout=timeout, progress=bar)
        starts = anyio.run(run, model, arguments or ())
    _write(to_json(model, cold, starts), f"{model}, {show_starts(cold, starts)}", as_json)


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


def _write(data: Any, text: str, as_json: bool) -> None:
    typer.echo(json.dumps(data, indent=2) if as_json else text)


def _fail_if(failed: int) -> None:
    if failed:
        raise typer.Exit(1)


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
