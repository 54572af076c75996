"""CPU time that an idle engine takes, before and after a request.

Usage: python benchmarks/idle.py [MODEL] [--seconds 5]
"""

import argparse
import time

import anyio

from actorllm import Engine, SamplingParams


async def idle(seconds: float) -> float:
    """CPU seconds of this process, all of its threads, while nobody asks anything."""
    begun = time.process_time()
    await anyio.sleep(seconds)
    return time.process_time() - begun


async def main(model: str, seconds: float) -> None:
    """Measure, ask, measure again."""
    async with Engine(model) as engine:
        await idle(0.5)
        before = await idle(seconds)
        await engine.generate("Hello", SamplingParams(max_tokens=16))
        await idle(0.5)
        after = await idle(seconds)
    print(
        f"idle for {seconds:g} s: {before * 1e3:.2f} ms of CPU before a request, {after * 1e3:.2f} ms after"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="CPU time that an idle engine takes")
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=5.0)
    chosen = parser.parse_args()
    anyio.run(main, chosen.model, chosen.seconds)
