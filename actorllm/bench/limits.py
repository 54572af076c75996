"""What the machine can do at most, measured here and now: read memory, and multiply."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np
from actorllm_kernels.cpu.library import Activation, Kernels
from actorllm_kernels.cpu.packing import LANES, STRIP, Packed

from ..cores.batch import Batch
from ..messages import NewRow, RunStep, Sampling, pack, pack_ids
from ..model.compiler import Limits, NativeWeights
from ..model.native import NativeModel
from ..model.program import HIDDEN, Linear, Program

MEMORY_BYTES = 256 << 20
"""So many are read: several times what the last level of cache of most machines holds."""

CACHED_BYTES = 256 << 10
"""Of weights; with both sides of the product they stay in the second level of cache."""

ROWS = 64
PRODUCTS = 20

ROUNDS = 10
SECONDS = 1.0
"""A limit is looked for so long: on a busy machine a single moment would tell of the others."""


def memory_rate(num_threads: int, size: int = MEMORY_BYTES) -> float:
    """GB/s that so many threads read together, the best of some rounds."""
    parts = np.array_split(np.ones(size // 8), num_threads)
    with ThreadPoolExecutor(num_threads) as threads:
        seconds = best(lambda: list(threads.map(np.max, parts)), SECONDS)
    return size // 8 * 8 / seconds / 1e9


def product_rate(packed: Packed, kernels: Kernels, integers: Activation, num_threads: int) -> float:
    """GMAC/s of products of 64 rows with some strips of a matrix, which stay in the cache.

    It is the best of some rounds; a round is a step that has nothing but such products.
    """
    strip_bytes = packed.data.nbytes // len(packed.data)
    strips = max(1, min(len(packed.data), CACHED_BYTES // strip_bytes))
    outputs = min(packed.outputs, strips * STRIP)
    part = Packed(packed.form, outputs, packed.columns, packed.data[:strips])
    program = Program(
        operations=(Linear(HIDDEN, ("matrix",), "target"),) * PRODUCTS,
        widths={HIDDEN: packed.columns, "target": outputs},
        num_slabs=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=LANES,
        vocab_size=1,
        eps=1e-5,
        ropes=(),
    )
    limits = Limits(
        tokens=ROWS, wanted=1, length=ROWS, num_blocks=1, block_size=ROWS, num_threads=num_threads
    )
    model = NativeModel(program, NativeWeights({"matrix": part}, {}), kernels, limits, integers)
    try:
        inputs = Batch(1, ROWS, ROWS).apply(_step())
        seconds = best(lambda: model.forward(inputs), SECONDS)
    finally:
        model.close()
    return PRODUCTS * ROWS * outputs * packed.columns / seconds / 1e9


def best(run: Callable[[], object], least: float = 0.0) -> float:
    """The seconds of the fastest of some rounds, which take so many seconds at least."""
    times: list[float] = []
    began = perf_counter()
    while len(times) < ROUNDS or perf_counter() - began < least:
        begun = perf_counter()
        run()
        times.append(perf_counter() - begun)
    return min(times)


def _step() -> RunStep:
    """One request with as many tokens as the product has rows."""
    return RunStep(
        step=1,
        epoch=0,
        new=(NewRow(1, pack([0] * ROWS), 0, Sampling(temperature=0.0)),),
        rows=pack_ids([1]),
        num_tokens=pack([ROWS]),
        samples=bytes(1),
        num_blocks=pack([1]),
        blocks=pack([0]),
        finished=b"",
    )
