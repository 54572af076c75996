"""A load over HTTP: the prompts drawn, the server warmed, the run driven."""

from functools import partial

from .client import Client, Target
from .load import Load, draw, drive
from .report import Report, summarize
from .suite import Suite, loads, warm_load


async def measure(target: Target, load: Load) -> Report:
    """One load. Raises MachineError when nobody listens, UsageError when there is no model to ask for."""
    async with Client(target) as client:
        model = await client.find_model()
        await _run(client, model, load, load.warmup, "warm-up")
        return await _run(client, model, load, load.num_requests, "run")


async def measure_suite(target: Target, load: Load, suite: Suite) -> dict[str, Report]:
    """The suite's loads one after the other, by their names; of `load` count warm-up, vocabulary and seed."""
    async with Client(target) as client:
        model = await client.find_model()
        await _run(client, model, warm_load(load), load.warmup, "warm-up")
        return {
            name: await _run(client, model, each, each.num_requests, "run")
            for name, each in loads(load, suite).items()
        }


async def _run(client: Client, model: str, load: Load, count: int, purpose: str) -> Report:
    requests = client.encode(model, load, draw(load, count, purpose))
    run = await drive(partial(client.ask, asked=load.output_tokens), requests, load.concurrency)
    return summarize(load, run)
