"""What HTTP costs: the same load on a server of the hash model and on an engine without one, in CPU time."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from ..config import EngineConfig
from ..engine.engine import Engine
from ..errors import MachineError
from ..params import RequestOutputKind, SamplingParams
from .client import Client, Target
from .load import Load, Sample, draw, drive
from .process import cpu_seconds
from .program import address, end, program
from .report import Report, summarize


@dataclass(frozen=True, slots=True)
class Front:
    """One load. CPU times are microseconds a token of the answers.

    server_us   of the server's process
    engine_us   of an engine that is asked the same by its own program, without HTTP
    """

    loop: str
    report: Report
    server_us: float
    engine_us: float

    @property
    def front_us(self) -> float:
        """What the HTTP side adds."""
        return self.server_us - self.engine_us


def installed_loops() -> list[str]:
    """The event loops that there are here."""
    return ["asyncio", *(["uvloop"] if find_spec("uvloop") else [])]


async def measure(load: Load, streams: Sequence[int], loops: Sequence[str]) -> list[Front]:
    """So many streams at once, each on a server with each event loop. Raises MachineError."""
    found: list[Front] = []
    for count in streams:
        each = replace(load, concurrency=count, num_requests=max(load.num_requests, count), vocab_size=256)
        engine_us = await _engine(each)
        for loop in loops:
            report, server_us = await _server(each, loop)
            found.append(Front(loop, report, server_us, engine_us))
    return found


def config_of(load: Load) -> EngineConfig:
    """An engine in which all streams run at once."""
    length = load.tokens_of_prompt + load.output_tokens
    return EngineConfig(
        model="hash",
        max_num_seqs=load.concurrency,
        max_model_len=length,
        num_gpu_blocks_override=load.concurrency * (length // 16 + 2),
        enable_prefix_caching=False,
    )


async def _engine(load: Load) -> float:
    """CPU time a token of an engine that streams to tasks of this process."""
    params = SamplingParams(
        temperature=0, max_tokens=load.output_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )

    async def ask(prompt: list[int]) -> Sample:
        sample = Sample(perf_counter())
        async for output in engine.generate(prompt, params):
            sample.output_tokens = output.outputs[0].num_tokens
        return sample

    async with Engine(config_of(load)) as engine:
        await drive(ask, draw(load, load.concurrency, "warm-up"), load.concurrency)
        run = await drive(ask, draw(load, load.num_requests, "run"), load.concurrency)
    return run.cpu_seconds * 1e6 / (load.num_requests * load.output_tokens)


async def _server(load: Load, loop: str) -> tuple[Report, float]:
    config = config_of(load)
    options = {
        "max-num-seqs": config.max_num_seqs,
        "max-model-len": config.max_model_len,
        "num-gpu-blocks-override": config.num_gpu_blocks_override,
        "loop": loop,
        "log-level": "warning",
        "port": 0,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with program(["serve", "hash", "--no-enable-prefix-caching", *words]) as (process, read):
        try:
            async with Client(Target(url=await address(process, read))) as client:
                warm = client.encode("hash", load, draw(load, load.concurrency, "warm-up"))
                await drive(partial(client.ask, asked=load.output_tokens), warm, load.concurrency)
                requests = client.encode("hash", load, draw(load, load.num_requests, "run"))
                before = cpu_seconds(process.pid)
                run = await drive(partial(client.ask, asked=load.output_tokens), requests, load.concurrency)
                taken = cpu_seconds(process.pid) - before
        finally:
            await end(process)
    report = summarize(load, run)
    if report.failed:
        raise MachineError(f"{report.failed} requests failed: {report.failures}")
    return report, taken * 1e6 / report.output_tokens


def show_fronts(fronts: Sequence[Front]) -> str:
    """A table."""
    lines = [
        f"{'streams':>7} {'loop':>8} {'req/s':>8} {'tokens/s':>9} {'TTFT p50':>9} {'p99':>8} "
        f"{'server':>8} {'engine':>8} {'front':>8}"
    ]
    for front in fronts:
        report, ttft = front.report, front.report.ttft_ms
        assert ttft is not None
        lines.append(
            f"{report.load.concurrency:7} {front.loop:>8} {report.requests_per_s:8.0f} "
            f"{report.output_tokens_per_s:9.0f} {ttft.p50:9.1f} {ttft.p99:8.1f} "
            f"{front.server_us:8.1f} {front.engine_us:8.1f} {front.front_us:8.1f}"
        )
    return "\n".join(
        [*lines, "TTFT in milliseconds; server, engine and front in microseconds of CPU a token"]
    )


def to_json(fronts: Sequence[Front]) -> list[dict[str, Any]]:
    """The same as plain values."""
    return [asdict(front) | {"front_us": front.front_us} for front in fronts]
