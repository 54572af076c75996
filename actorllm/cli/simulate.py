"""The command `simulate`: seeds of simulated engines, until one finds a bug."""

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from ..errors import UsageError

CHUNK = 20
"""Seeds that a process is given at a time."""


@dataclass(slots=True)
class Tally:
    """What some runs have seen; `failure` is what the first bug says, `replay` the command that shows it."""

    num_runs: int = 0
    num_messages: int = 0
    num_steps: int = 0
    covered: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    replay: str = ""

    def add(self, other: "Tally") -> None:
        """Take in what others have seen."""
        self.num_runs += other.num_runs
        self.num_messages += other.num_messages
        self.num_steps += other.num_steps
        self.covered += other.covered
        if self.failure is None:
            self.failure, self.replay = other.failure, other.replay


def simulate(
    seeds: Annotated[int, typer.Option(help="how many engines", min=1)] = 1000,
    start: Annotated[int, typer.Option(help="the first seed")] = 0,
    scenario: Annotated[
        str | None, typer.Option(help="calm, tight, faulty, impatient or mixed; all in turn without it")
    ] = None,
    jobs: Annotated[int, typer.Option(help="processes", min=1)] = 2,
    seed: Annotated[int | None, typer.Option(help="run this seed alone")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="with --seed: show every message")] = False,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="run the shells, streams and links too, in an event loop")
    ] = False,
) -> None:
    """Run the engine's actors under seeded schedules and faults, and look for bugs."""
    from ..testing.scenarios import FAMILIES

    if scenario is not None and scenario not in FAMILIES:
        raise UsageError(f"there is no scenario {scenario!r}; there are {', '.join(FAMILIES)}")
    if trace and seed is None:
        raise UsageError("--trace shows one run: say which with --seed")
    began = time.monotonic()
    if seed is not None:
        tally = _run([seed], scenario, schedules, trace)
    else:
        run = partial(_run, scenario=scenario, schedules=schedules)
        tally = _run_all(range(start, start + seeds), run, jobs)
    if tally.failure is not None:
        typer.secho(tally.failure, err=True)
        typer.secho(f"found after {tally.num_runs} runs; replay: {tally.replay}", err=True, fg="red")
        raise typer.Exit(1)
    typer.echo(_report(tally, schedules, time.monotonic() - began))


def _run_all(seeds: Sequence[int], run: Callable[[list[int]], Tally], jobs: int) -> Tally:
    """All seeds, spread over processes, up to the first that fails.

    Ctrl-C is for this process alone, which then ends the others: they would tell where it met them.
    """
    tally = Tally()
    if jobs == 1:
        return _until_failure(tally, map(run, _chunks(seeds)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        try:
            with _hold_interrupts():
                parts = [pool.submit(run, chunk) for chunk in _chunks(seeds)]
            _until_failure(tally, (part.result() for part in parts))
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return tally


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Ctrl-C comes after the block, and never to a process that is started in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _until_failure(tally: Tally, parts: Iterable[Tally]) -> Tally:
    for part in parts:
        tally.add(part)
        if tally.failure is not None:
            break
    return tally


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _run(
    seeds: list[int], scenario: str | None = None, schedules: bool = False, trace: bool = False
) -> Tally:
    """These seeds here and now, up to the first that fails."""
    from ..testing import schedules as event_loop
    from ..testing import simulate as synchronous
    from ..testing.report import SimulationFailed
    from ..testing.scenarios import draw, pick

    run_one = event_loop.schedules if schedules else synchronous.simulate
    tally = Tally()
    for seed in seeds:
        drawn = pick(seed) if scenario is None else draw(scenario, seed)
        tally.num_runs += 1
        try:
            report = run_one(seed, drawn, write=typer.echo if trace else None)
        except SimulationFailed as failed:
            tally.failure = str(failed)
            which = "--schedules " if schedules else ""
            tally.replay = f"actorllm simulate {which}--scenario {drawn.name} --seed {seed} --trace"
            break
        tally.num_messages += report.num_messages
        tally.num_steps += report.num_steps
        tally.covered += report.covered
    return tally


def _report(tally: Tally, schedules: bool, seconds: float) -> str:
    """The rare paths with their counts, and the sum of all."""
    from ..testing.schedules import FAULTS
    from ..testing.sightings import SIGHTINGS

    lines = [f"{tally.covered[name]:9}  {name}" for name in (FAULTS if schedules else SIGHTINGS)]
    rate = 60 * tally.num_runs / seconds
    lines.append(
        f"{tally.num_runs} runs, {tally.num_steps} steps, {tally.num_messages} messages: nothing found "
        f"({seconds:.1f} s, {rate:.0f} runs a minute)"
    )
    return "\n".join(lines)
