"""The runner: a model, its KV cache and its persistent batch. It executes steps."""

from collections.abc import Callable

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from ..checkpoint import Architecture, Checkpoint
from ..config import EngineConfig
from ..cores.batch import Batch, Int32, StepInputs
from ..errors import UsageError
from ..messages import RunStep
from .capacity import capacity
from .families import program_of
from .interpreter import Interpreter
from .loader import Weights, load_weights, resolve_dtype
from .program import Program
from .sampler import sample


class Runner:
    """Executes steps on the CPU with torch; all of it belongs to the thread that made it.

    `num_blocks` blocks are in the KV cache; `max_model_len` tokens a request may have (see `capacity`,
    whose ConfigError it raises).
    """

    def __init__(
        self,
        architecture: Architecture,
        program: Program,
        load: Callable[[], Weights],
        config: EngineConfig,
    ) -> None:
        """`load` brings the weights of the program, now and after a sleep."""
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._program = program
        self._load = load
        weights = load()
        cell = (2, program.num_kv_heads, program.head_dim)
        slab = config.block_size * int(np.prod(cell)) * weights.dtype.itemsize
        windows = architecture.windows
        self.num_blocks, self.max_model_len = capacity(
            config, architecture.max_position_embeddings, program.num_slabs * slab, windows
        )
        self._batch = Batch(config.max_num_seqs, self.max_model_len, config.block_size, len(windows))
        self._shape = (program.num_slabs, self.num_blocks, config.block_size, *cell)
        self._profile: profile | None = None
        self._profile_path = ""
        self._fill(weights)

    def _fill(self, weights: Weights) -> None:
        self._cache = torch.zeros(self._shape, dtype=weights.dtype)
        self._model: Interpreter | None = Interpreter(self._program, weights, self.max_model_len)

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
                self._model, self._cache = None, torch.zeros(0)
            case "wake_up":
                self._fill(self._load())
            case "start_profile":
                self._start_profile(argument)
            case "stop_profile":
                self._stop_profile()
            case _:
                raise AssertionError(f"unknown command {action}")

    def _start_profile(self, path: str) -> None:
        if self._profile is not None:
            raise UsageError(f"a profile is being taken already, for {self._profile_path}")
        with open(path, "w", encoding="utf-8"):
            pass  # it can be written, or fails now
        begun = profile(activities=[ProfilerActivity.CPU])
        begun.start()
        self._profile, self._profile_path = begun, path

    def _stop_profile(self) -> None:
        if self._profile is None:
            raise UsageError("no profile is being taken")
        ended, self._profile = self._profile, None
        ended.stop()
        ended.export_chrome_trace(self._profile_path)

    @torch.inference_mode()
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
        assert self._model is not None, "a step for a device that is asleep"
        logits = self._model.forward(inputs, self._cache)
        return sample(logits, inputs) if inputs.sample_rows.size else np.zeros(0, np.int32)


def open_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """Load the weights of a checkpoint in the configured dtype and make a runner of them.

    Raises ModelCorrupt for a damaged file and ConfigError for what does not fit (see `Runner`).
    """
    architecture = checkpoint.architecture
    dtype = resolve_dtype(config.dtype, architecture.dtype)
    program = program_of(architecture)
    return Runner(architecture, program, lambda: load_weights(program, checkpoint.weights(), dtype), config)
