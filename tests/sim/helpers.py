"""What the tests of both simulators do with a run."""

import os
import subprocess
import sys
from collections.abc import Callable

from actorllm.testing.report import SimulationFailed


def fingerprints_elsewhere(simulator: str, count: int) -> list[str]:
    """Those of the first seeds, in another process; strings have other hashes there."""
    program = (
        "from actorllm.testing.scenarios import pick\n"
        f"from actorllm.testing.{simulator} import {simulator} as run\n"
        f"print(*(run(seed, pick(seed)).fingerprint for seed in range({count})))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.split()


def first_failure(run: Callable[[int], object], count: int) -> SimulationFailed:
    """What the first seed that finds something finds. Raises AssertionError when none of so many does."""
    for seed in range(count):
        try:
            run(seed)
        except SimulationFailed as failure:
            return failure
    raise AssertionError(f"not caught within {count} seeds")
