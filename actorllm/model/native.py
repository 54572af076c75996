"""The CPU kernels as a back end: a whole step is one foreign call, with the interpreter's lock released."""

import json
import os
import time
from pathlib import Path

import numpy as np
from actorllm_kernels.cpu.library import Activation, Cache, Kernels, Kind, Running, Step, ThreadsUnavailable

from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..cores.arrays import Float32, Int64
from ..cores.inputs import StepInputs
from ..errors import ConfigError
from .compiler import Compiler, Limits, NativeWeights, heads_of
from .dtypes import resolve_dtype
from .packed import load_packed
from .program import Program
from .sampler import Likeliest

BLOCK = 16
"""The kernels' tiles have so many keys, and blocks of the cache whole tiles."""


MOST_HEAD = 256
"""Numbers of a head at most."""

CACHES = {"auto": Cache.BF16, **{cache.dtype: cache for cache in Cache}}
"""What keys and values are kept in, by kv_cache_dtype."""


class NativeModel:
    """A program with its weights, its KV cache and its threads.

    `integers` says what the other side of a product with integer codes is rounded to: INT16 or INT8.
    """

    def __init__(
        self,
        program: Program,
        weights: NativeWeights,
        kernels: Kernels,
        limits: Limits,
        integers: Activation = Activation.INT16,
    ) -> None:
        self._limits = limits
        self._vocab_size = program.vocab_size
        compiler = Compiler(program, weights, kernels, limits, integers)
        kept = compiler.compile()
        self._logits = compiler.logits
        self._soft_cap = compiler.soft_cap
        self._head = compiler.head
        self._ranks = np.zeros(limits.wanted, np.uint64)
        self._num_wanted = 0
        self.kinds = [Kind(op.kind) for op in compiler.ops]
        self._running: Running = kernels.open(compiler.ops, compiler.shape, limits.num_threads, kept)

    def forward(self, inputs: StepInputs, profile: "Profile | None" = None) -> Float32:
        """Logits, float32 [S, vocab_size], of the step's `logits_indices`, valid until the next step.

        Writes the keys and values of its tokens into the cache. With a profile every operation is a call of
        its own.
        """
        return self._run(inputs, inputs.logits_indices, 0, profile)

    def logits_of(self, inputs: StepInputs, indices: Int64) -> Float32:
        """Logits, float32 [n, vocab_size], of other tokens of the last step, by their index in N."""
        return self._run(inputs, indices, self._head, None)

    def _run(self, inputs: StepInputs, wanted: Int64, begin: int, profile: "Profile | None") -> Float32:
        """Run the operations from `begin` on; the logits of the wanted tokens."""
        table = np.ascontiguousarray(inputs.block_table)
        slots = np.ascontiguousarray(inputs.slot_mapping)
        assert len(inputs.input_ids) <= self._limits.tokens, "more tokens than a step may have"
        assert len(wanted) <= self._limits.wanted, "more wanted rows than a step may have"
        step = Step(
            len(inputs.input_ids),
            len(inputs.seq_lens),
            len(wanted),
            table.shape[2],
            inputs.input_ids.ctypes.data,
            inputs.positions.ctypes.data,
            slots.ctypes.data,
            inputs.query_start_loc.ctypes.data,
            inputs.seq_lens.ctypes.data,
            table.ctypes.data,
            wanted.ctypes.data,
            self._ranks.ctypes.data,
        )
        self._num_wanted = len(wanted)
        if profile is None:
            self._running.step(step, self._limits.num_threads, begin)
        else:
            for number, kind in enumerate(self.kinds):
                begun = time.perf_counter()
                self._running.step(step, self._limits.num_threads, number, number + 1)
                profile.add(kind.name.lower(), begun, time.perf_counter())
        logits: Float32 = self._logits[: len(wanted), : self._vocab_size]
        return np.tanh(logits / self._soft_cap) * self._soft_cap if self._soft_cap else logits

    def likeliest(self) -> Likeliest | None:
        """The likeliest tokens of the last step; None where a cap could still make two of them equal."""
        if self._soft_cap:
            return None
        ranks = self._ranks[: self._num_wanted]
        bits = (ranks >> np.uint64(32)).astype(np.uint32)
        bits = np.where(bits >> 31, bits ^ np.uint32(1 << 31), ~bits)
        return (~ranks.astype(np.uint32)).view(np.int32), bits.view(np.float32)

    def close(self) -> None:
        """End its threads."""
        self._running.close()


class Profile:
    """What each operation took, as a Chrome trace."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._events: list[dict[str, object]] = []

    def add(self, name: str, begun: float, ended: float) -> None:
        """One operation, from and to these seconds."""
        self._events.append(
            {"name": name, "ph": "X", "ts": begun * 1e6, "dur": (ended - begun) * 1e6, "pid": 0, "tid": 0}
        )

    def write(self) -> None:
        """Write the trace. Raises OSError."""
        Path(self._path).write_text(json.dumps({"traceEvents": self._events}), encoding="utf-8")


class NativeBackEnd:
    """Loads a program onto the CPU kernels; see `runner.BackEnd`. Raises ConfigError for its block size."""

    variance = None  # each element of an output has one order of operations, however many rows there are

    def __init__(
        self, program: Program, checkpoint: Checkpoint, config: EngineConfig, kernels: Kernels
    ) -> None:
        if config.block_size % BLOCK:
            raise ConfigError(
                f"block_size is {config.block_size}, but the native kernels take multiples of {BLOCK}; "
                "with ACTORLLM_CPU_KERNELS=reference any will do"
            )
        if program.head_dim > MOST_HEAD:
            raise ConfigError(
                f"the model's heads have {program.head_dim} numbers, but the native kernels take {MOST_HEAD} "
                "at most; with ACTORLLM_CPU_KERNELS=reference any will do"
            )
        self._cache = CACHES[config.kv_cache_dtype]
        self.slab_bytes = kernels.cache_bytes(heads_of(program, config.block_size, self._cache))
        self._program = program
        self._checkpoint = checkpoint
        self._config = config
        self._kernels = kernels
        self._model: NativeModel | None = None
        self._profile: Profile | None = None

    def open(self, num_blocks: int, length: int) -> None:
        """Load the weights and allocate the cache, `num_blocks` blocks, for positions below `length`.

        Raises ConfigError for more threads than there are.
        """
        config = self._config
        limits = Limits(
            tokens=config.max_num_batched_tokens,
            wanted=config.max_num_seqs,
            length=length,
            num_blocks=num_blocks,
            block_size=config.block_size,
            cache=self._cache,
            num_threads=config.num_threads or available_cores(),
        )
        dtype = resolve_dtype(config.dtype, self._checkpoint.architecture.dtype)
        weights = load_packed(self._program, self._checkpoint, dtype, config.quantization)
        integers = Activation[config.activation_dtype.upper()]
        try:
            self._model = NativeModel(self._program, weights, self._kernels, limits, integers)
        except ThreadsUnavailable as error:
            raise ConfigError(f"num_threads is {limits.num_threads}, but {error}") from error

    def close(self) -> None:
        """Let go of weights, cache and threads."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def forward(self, inputs: StepInputs) -> Float32:
        """Logits, float32 [S, vocab_size], valid until the next step."""
        assert self._model is not None, "a step for a device that is asleep"
        return self._model.forward(inputs, self._profile)

    def logits_of(self, inputs: StepInputs, indices: Int64) -> Float32:
        """The same of other tokens of the last step, by their index in N."""
        assert self._model is not None, "a step for a device that is asleep"
        return self._model.logits_of(inputs, indices)

    def likeliest(self) -> Likeliest | None:
        """The likeliest tokens of the last step."""
        assert self._model is not None, "a step for a device that is asleep"
        return self._model.likeliest()

    def start_profile(self, path: str) -> None:
        """Take the time of every operation from now on."""
        self._profile = Profile(path)

    def stop_profile(self) -> None:
        """Write what was taken. Raises OSError."""
        ended, self._profile = self._profile, None
        assert ended is not None, "no profile was begun"
        ended.write()


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
