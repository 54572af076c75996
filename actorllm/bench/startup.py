"""How a server starts: a fresh process each time, from its first instruction to its first token."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import anyio
import anyio.to_thread

from ..checkpoint import Progress
from ..checkpoint.fetch import cache_directory
from ..checkpoint.resolve import resolve
from ..errors import MachineError
from .client import Client, Target
from .load import Load, draw
from .process import cpu_seconds, resident_bytes
from .program import POLL_SECONDS, address, end, program

ONE_TOKEN = Load(concurrency=1, num_requests=1, prompt_tokens=8, output_tokens=1, vocab_size=256)
"""The first request: token ids that every vocabulary has."""

SETTLE_SECONDS = 0.5
"""Between the last request and the time that counts as idle: threads of libraries spin on for a while."""

WARM = "warm: caches of compiled kernels and packed weights as they are, files in the page cache"
COLD = (
    "cold: empty caches of compiled kernels and packed weights (XDG_CACHE_HOME, ACTORLLM_CACHE, "
    "TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR are new); the model's file, Python's byte code and the "
    "page cache are as they are"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start. Seconds count from the start of the process.

    ready_s         until /health/ready (or /health, where there is no such path) answers 200
    first_token_s   until the first token of a request that is sent then
    resident_bytes  of the process and its children, after that request
    idle_cpu_s      CPU seconds that they take in `idle_s` seconds without a request
    """

    ready_s: float
    first_token_s: float
    resident_bytes: int
    idle_cpu_s: float
    idle_s: float


async def measure(
    model: str,
    arguments: Sequence[str],
    *,
    runs: int,
    cold: bool,
    idle_s: float,
    timeout: float,
    progress: Progress | None = None,
) -> list[Start]:
    """Start `python -m actorllm serve` so many times; `arguments` are further ones for it.

    The model is fetched before. Raises MachineError when a server ends by itself, or is not ready and
    does not answer within `timeout` seconds.
    """
    _, path = await anyio.to_thread.run_sync(resolve, model, progress)
    starts: list[Start] = []
    for _ in range(runs):
        with environment(path, cold) as variables:
            starts.append(await _start([model, *arguments], variables, idle_s, timeout))
    return starts


def to_json(model: str, cold: bool, starts: Sequence[Start]) -> dict[str, Any]:
    """All starts, and the median of each number."""
    rows = [asdict(start) for start in starts]
    middle = {name: median(row[name] for row in rows) for name in rows[0]}
    return {"model": model, "cold": cold, "caches": COLD if cold else WARM, "runs": rows, "median": middle}


def show_starts(cold: bool, starts: Sequence[Start]) -> str:
    """A line for each start, and one for the medians."""
    rows = [(f"run {number}", asdict(start)) for number, start in enumerate(starts, 1)]
    rows.append(("median", {name: median(row[name] for _, row in rows) for name in rows[0][1]}))
    lines = [COLD if cold else WARM]
    lines.append(f"{'':8}{'ready':>10}{'first token':>14}{'resident':>13}  idle")
    for name, row in rows:
        memory, idle = row["resident_bytes"] / 1e6, row["idle_cpu_s"] * 1e3
        lines.append(
            f"{name:8}{row['ready_s']:8.2f} s{row['first_token_s']:12.2f} s{memory:10.0f} MB"
            f"  {idle:.1f} ms of CPU in {row['idle_s']:g} s"
        )
    return "\n".join(lines)


async def _start(arguments: Sequence[str], variables: dict[str, str], idle_s: float, timeout: float) -> Start:
    """One start. The process has ended when this returns, or raises."""
    begun = perf_counter()
    with program(["serve", *arguments, "--port", "0"], variables) as (process, read):
        try:
            with anyio.move_on_after(timeout) as scope:
                url = await address(process, read)
                ready, first = await _first_answer(url, timeout)
                resident = resident_bytes(process.pid)
            if scope.cancelled_caught:
                raise MachineError(
                    f"the server gives no token within {timeout:g} s; it says: {read()[-500:]}"
                )
            await anyio.sleep(min(SETTLE_SECONDS, idle_s))
            before = cpu_seconds(process.pid)
            await anyio.sleep(idle_s)
            idle = cpu_seconds(process.pid) - before
        finally:
            await end(process)
    return Start(
        ready_s=ready - begun,
        first_token_s=first - begun,
        resident_bytes=resident,
        idle_cpu_s=idle,
        idle_s=idle_s,
    )


async def _first_answer(url: str, timeout: float) -> tuple[float, float]:
    """When it was ready, and when its first token came, on the clock of `perf_counter`."""
    async with Client(Target(url=url, timeout=timeout)) as client:
        path = "/health/ready"
        while (status := (await client.get(path))[0]) != 200:
            if status in (404, 405):
                path = "/health"
            await anyio.sleep(POLL_SECONDS)
        ready = perf_counter()
        model = await client.find_model()
        (request,) = client.encode(model, ONE_TOKEN, draw(ONE_TOKEN, 1, "start"))
        sample = await client.ask(request, ONE_TOKEN.output_tokens)
    if sample.failure is not None:
        raise MachineError(f"the server's first request failed: {sample.failure}")
    return ready, sample.arrivals[0]


@contextmanager
def environment(path: Path, cold: bool) -> Iterator[dict[str, str]]:
    """The environment of a server; a cold one has new caches, with the model's file linked into them."""
    if not cold:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="actorllm-cold-", ignore_cleanup_errors=True) as made:
        base, cache = Path(made), cache_directory().absolute()
        if path.absolute().is_relative_to(cache):
            link = base / "actorllm" / path.absolute().relative_to(cache)
            link.parent.mkdir(parents=True)
            link.symlink_to(path.absolute())
        hub = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
        new = {"XDG_CACHE_HOME": base, "ACTORLLM_CACHE": base / "actorllm"}
        new |= {"TRITON_CACHE_DIR": base / "triton", "TORCHINDUCTOR_CACHE_DIR": base / "inductor"}
        yield {"HF_HOME": str(hub)} | os.environ | {name: str(value) for name, value in new.items()}
