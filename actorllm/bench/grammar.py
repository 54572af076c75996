"""What grammars cost: the same load with and without one, by turns, in one engine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import anyio.to_thread

from ..checkpoint import Progress, open_checkpoint
from ..config import EngineConfig
from ..engine.engine import Engine
from ..errors import RequestError
from ..params import SamplingParams
from .load import Load, Sample, draw, drive

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "happy": {"type": "boolean"}},
        "required": ["name", "age", "happy"],
        "additionalProperties": False,
    },
}
"""No answer comes to its end: each has as many tokens as it may."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of answers a second, the median of the runs, without a grammar and with one."""

    temperature: float
    free: float
    constrained: float

    @property
    def ratio(self) -> float:
        """How much of the throughput is left with a grammar."""
        return self.constrained / self.free


async def measure(
    config: EngineConfig,
    load: Load,
    repeats: int,
    temperatures: Sequence[float],
    progress: Progress | None = None,
) -> list[Cost]:
    """So many runs of each kind, by turns. Raises what an engine and its requests raise."""
    checkpoint = await anyio.to_thread.run_sync(partial(open_checkpoint, config.model, progress=progress))
    vocab_size = min(load.vocab_size, checkpoint.architecture.vocab_size)
    load = replace(load, vocab_size=vocab_size, concurrency=load.num_requests, seed=config.seed or 0)
    costs: list[Cost] = []
    async with Engine(config, progress=progress) as engine:
        for temperature in temperatures:
            rates: dict[bool, list[float]] = {False: [], True: []}
            for number in range(2 * (repeats + 1)):
                constrained = number % 2 == 1
                params = _params(load, temperature, constrained)
                rate = await _run(engine, load, params, f"{temperature} {number // 2}")
                if number >= 2:  # the first of each warms up
                    rates[constrained].append(rate)
            costs.append(Cost(temperature, median(rates[False]), median(rates[True])))
    return costs


def _params(load: Load, temperature: float, constrained: bool) -> SamplingParams:
    grammar = {"json": SCHEMA} if constrained else None
    return SamplingParams(
        temperature=temperature,
        seed=0,
        max_tokens=load.output_tokens,
        ignore_eos=not constrained,
        structured_outputs=grammar,
    )


async def _run(engine: Engine, load: Load, params: SamplingParams, purpose: str) -> float:
    """Tokens of answers a second. Both kinds of a run have the same prompts, which the cache then has."""
    prompts = draw(load, load.num_requests, purpose)
    await engine.reset_prefix_cache()
    run = await drive(partial(_ask, engine, params), prompts, load.concurrency)
    return sum(sample.output_tokens or 0 for sample in run.samples) / run.seconds


async def _ask(engine: Engine, params: SamplingParams, prompt: list[int]) -> Sample:
    sample = Sample(perf_counter())
    answer = await engine.generate(prompt, params)
    sample.ended, sample.output_tokens = perf_counter(), len(answer.token_ids)
    if sample.output_tokens != params.max_tokens:
        raise RequestError(f"an answer has {sample.output_tokens} tokens, not {params.max_tokens}")
    return sample


def show_costs(costs: Sequence[Cost]) -> str:
    """A table."""
    lines = [f"{'temperature':>11} {'free':>9} {'grammar':>9} {'left':>7}"]
    lines += [
        f"{cost.temperature:11g} {cost.free:9.0f} {cost.constrained:9.0f} {cost.ratio:7.1%}" for cost in costs
    ]
    return "\n".join([*lines, "tokens of answers a second, medians"])


def to_json(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """The same as plain values."""
    return [asdict(cost) | {"ratio": cost.ratio} for cost in costs]
