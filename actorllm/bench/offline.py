"""A load without a server: the engine in this process, on the event loop of whoever measures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import anyio.to_thread

from ..actors.worker import Runner, open_runner
from ..checkpoint import Checkpoint, Progress, open_checkpoint
from ..config import EngineConfig
from ..engine.engine import Engine
from ..engine.parts import Parts
from ..errors import RequestError
from ..messages import RunStep, Sampled
from ..params import SamplingParams
from .lag import watch_lag
from .load import Load, Run, Sample, draw, drive
from .report import Report, Spread, show, spread, summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """What was measured in this process.

    report      the requests of all batches together
    batches     how many batches there were, one after the other
    batch_ms    from the first request of a batch to its last token
    steps       steps that the engine has planned
    step_ms     wall-clock time for each of them: it contains what is not hidden behind the model
    device_ms   how much of that the device works at a step; the rest is messages, plans and text
    loop_ms     how late the event loop hears of a byte at a socket meanwhile
    """

    report: Report
    batches: int
    batch_ms: Spread | None
    steps: int
    step_ms: float
    device_ms: float
    loop_ms: Spread | None

    def json(self) -> dict[str, Any]:
        """The same for JSON: what the report has, and the rest beside it."""
        own = {name: value for name, value in asdict(self).items() if name != "report"}
        return self.report.json() | own


class Timed:
    """A runner that adds up the seconds in which it executes steps."""

    def __init__(self, runner: Runner) -> None:
        self._execute = runner.execute
        self.num_blocks = runner.num_blocks
        self.max_model_len = runner.max_model_len
        self.reset = runner.reset
        self.sample = runner.sample
        self.command = runner.command
        self.seconds = 0.0

    def execute(self, step: RunStep) -> Sampled | None:
        """As the runner's."""
        begun = perf_counter()
        try:
            return self._execute(step)
        finally:
            self.seconds += perf_counter() - begun


async def measure(
    config: EngineConfig, load: Load, batches: int = 1, progress: Progress | None = None
) -> Offline:
    """Batches of `load.num_requests` prompts, `load.concurrency` of them at once.

    Token ids are drawn from the model's own vocabulary with the engine's seed. Raises what
    `Engine.__aenter__` raises.
    """
    opening = partial(open_checkpoint, config.model, progress=progress)
    vocab_size = (await anyio.to_thread.run_sync(opening)).architecture.vocab_size
    load = replace(load, vocab_size=vocab_size, seed=config.seed or 0)
    params = SamplingParams(temperature=0, max_tokens=load.output_tokens, ignore_eos=True)
    prompts = draw(load, batches * load.num_requests, "run")
    runners: list[Timed] = []

    def make(checkpoint: Checkpoint, config: EngineConfig) -> Timed:
        runners.append(Timed(open_runner(checkpoint, config)))
        return runners[-1]

    async with Engine(config, parts=Parts(open_runner=make), progress=progress) as engine:
        ask = partial(_ask, engine, params)
        await drive(ask, draw(load, load.warmup, "warm-up"), load.concurrency)
        before, device_before = await _num_steps(engine), runners[0].seconds
        async with watch_lag() as lags:
            runs = [await drive(ask, prompts[first::batches], load.concurrency) for first in range(batches)]
        steps, device = await _num_steps(engine) - before, runners[0].seconds - device_before
    return _sum(load, runs, steps, device, spread(lags))


def show_offline(found: Offline) -> str:
    """A table."""
    lines = [show(found.report, "this process")]
    lines.append(f"{'steps':14}{found.steps}, one in {found.step_ms:.2f} ms; device {found.device_ms:.2f}")
    if (loop := found.loop_ms) is not None:
        lines.append(
            f"{'event loop':14}late by ms: mean {loop.mean:.2f}, p50 {loop.p50:.2f}, p99 {loop.p99:.2f}"
        )
    if found.batch_ms is not None and found.batches > 1:
        each = found.batch_ms
        lines.append(
            f"{'batches':14}{found.batches}; ms: mean {each.mean:.1f}, p50 {each.p50:.1f}, p99 {each.p99:.1f}"
        )
    return "\n".join(lines)


async def _ask(engine: Engine, params: SamplingParams, prompt: list[int]) -> Sample:
    """One answer, as its reader sees it come."""
    sample = Sample(perf_counter(), prompt_tokens=len(prompt), output_tokens=0)
    try:
        async for output in engine.generate(prompt, params):
            if output.outputs[0].num_tokens != sample.output_tokens:
                sample.arrivals.append(perf_counter())
                sample.output_tokens = output.outputs[0].num_tokens
    except RequestError as error:
        sample.failure = str(error)
    sample.ended = perf_counter()
    return sample


async def _num_steps(engine: Engine) -> int:
    count: int = (await engine.statistics())["scheduler"]["num_steps"]
    return count


def _sum(load: Load, runs: Sequence[Run], steps: int, device: float, loop: Spread | None) -> Offline:
    seconds = sum(run.seconds for run in runs)
    samples = [sample for run in runs for sample in run.samples]
    whole = Run(samples, seconds, sum(run.cpu_seconds for run in runs))
    return Offline(
        report=summarize(load, whole),
        batches=len(runs),
        batch_ms=spread([run.seconds for run in runs]),
        steps=steps,
        step_ms=seconds / max(1, steps) * 1e3,
        device_ms=device / max(1, steps) * 1e3,
        loop_ms=loop,
    )
