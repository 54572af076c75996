"""The runner: a back end with its KV cache, and the persistent batch. It executes steps."""

from typing import Any, Protocol

import numpy as np

from ..checkpoint import Architecture, Checkpoint
from ..config import EngineConfig
from ..cores.batch import Batch, Int32, StepInputs
from ..errors import ConfigError, KernelsMissing, UsageError
from ..messages import RunStep
from .capacity import capacity
from .dtypes import resolve_dtype
from .families import program_of
from .program import Program
from .sampler import Likeliest, sample


class BackEnd(Protocol):
    """What runs a program: kernels, with weights and a KV cache while it is open."""

    @property
    def slab_bytes(self) -> int:
        """Bytes of one block in one slab of the cache."""

    def open(self, num_blocks: int, length: int) -> None:
        """Load the weights and allocate the cache, for positions below `length`."""

    def close(self) -> None:
        """Let go of both."""

    def forward(self, inputs: StepInputs) -> Any:
        """Logits [S, vocab_size] of the step's `logits_indices`, as `sample` takes them."""

    def likeliest(self) -> Likeliest | None:
        """The likeliest tokens of the last step, where they were found on the way."""

    def start_profile(self, path: str) -> None:
        """Take the times of what runs from now on."""

    def stop_profile(self) -> None:
        """Write them. Raises OSError."""


class Runner:
    """Executes steps on a back end; all of it belongs to the thread that made it.

    `num_blocks` blocks are in the KV cache; `max_model_len` tokens a request may have (see `capacity`,
    whose ConfigError it raises).
    """

    def __init__(
        self, architecture: Architecture, program: Program, back_end: BackEnd, config: EngineConfig
    ) -> None:
        windows = architecture.windows
        self._back_end = back_end
        self.num_blocks, self.max_model_len = capacity(
            config,
            architecture.max_position_embeddings,
            program.num_slabs * back_end.slab_bytes,
            windows,
        )
        self._batch = Batch(config.max_num_seqs, self.max_model_len, config.block_size, len(windows))
        self._profile_path: str | None = None
        back_end.open(self.num_blocks, self.max_model_len)

    def reset(self) -> None:
        """Forget every request: the next step brings all its rows anew."""
        self._batch.reset()

    def command(self, action: str, argument: str) -> None:
        """Drop weights and cache, bring them back, or profile the steps in between.

        Raises UsageError for a profile that has begun already or not at all, OSError when it cannot be
        written, and whatever loading raises.
        """
        match action:
            case "sleep":
                self._back_end.close()
            case "wake_up":
                self._back_end.open(self.num_blocks, self.max_model_len)
            case "start_profile":
                self._start_profile(argument)
            case "stop_profile":
                self._stop_profile()
            case _:
                raise AssertionError(f"unknown command {action}")

    def _start_profile(self, path: str) -> None:
        if self._profile_path is not None:
            raise UsageError(f"a profile is being taken already, for {self._profile_path}")
        with open(path, "w", encoding="utf-8"):
            pass  # it can be written, or fails now
        self._back_end.start_profile(path)
        self._profile_path = path

    def _stop_profile(self) -> None:
        if self._profile_path is None:
            raise UsageError("no profile is being taken")
        self._profile_path = None
        self._back_end.stop_profile()

    def execute(self, step: RunStep) -> bytes:
        """The token (int32 column) of each sampling row of the step, in row order.

        Raises AssertionError for a step that breaks the protocol (see `Batch.apply`). After any
        exception only `reset` is possible.
        """
        inputs = self._batch.apply(step)
        tokens = self._tokens(inputs) if inputs.input_ids.size else np.zeros(0, np.int32)
        self._batch.append(tokens)
        return tokens.astype("<i4").tobytes()

    def check(self) -> None:
        """Raise AssertionError when the batch is inconsistent."""
        self._batch.check()

    def _tokens(self, inputs: StepInputs) -> Int32:
        logits = self._back_end.forward(inputs)
        if not inputs.sample_rows.size:
            return np.zeros(0, np.int32)
        return sample(logits, inputs, self._back_end.likeliest())


def open_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """Make a runner of a checkpoint, on the native kernels where they serve and else on the reference.

    float32 runs on the reference, whose cache is float32 too, unless ACTORLLM_CPU_KERNELS says native.
    Raises ModelCorrupt for a damaged file, ConfigError for what does not fit (see `Runner`), and
    KernelsMissing.
    """
    architecture = checkpoint.architecture
    program = program_of(architecture)
    back_end = native_back_end(program, checkpoint, config) or _reference(program, checkpoint, config)
    return Runner(architecture, program, back_end, config)


def native_back_end(program: Program, checkpoint: Checkpoint, config: EngineConfig) -> BackEnd | None:
    """The native kernels, not open yet; None where the reference runs (see `open_runner`)."""
    from actorllm_kernels.cpu.build import KernelsUnavailable, kernels_mode, native_library
    from actorllm_kernels.cpu.isa import InvalidSetting

    try:
        is_exact = resolve_dtype(config.dtype, checkpoint.architecture.dtype) == "float32"
        if is_exact and kernels_mode() != "native":
            return None
        library = native_library()
    except InvalidSetting as error:
        raise ConfigError(str(error)) from None
    except KernelsUnavailable as error:
        raise KernelsMissing(str(error)) from error
    if library is None:
        return None
    from actorllm_kernels.cpu.library import Kernels

    from .native import NativeBackEnd

    return NativeBackEnd(program, checkpoint, config, Kernels(library))


def _reference(program: Program, checkpoint: Checkpoint, config: EngineConfig) -> BackEnd:
    if config.quantization is not None:
        raise ConfigError(
            f"quantization is {config.quantization}, which only the native kernels have, but the reference "
            "runs here: a checkpoint in float32 needs dtype bfloat16, and the kernels a C++ compiler"
        )
    from .reference import ReferenceBackEnd

    return ReferenceBackEnd(program, checkpoint, config)
