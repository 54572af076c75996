"""The runner: a model, its KV cache and its persistent batch. It executes steps."""

from collections.abc import Callable

import numpy as np
import torch
from actorllm_kernels import plan_attention
from torch.profiler import ProfilerActivity, profile

from ..checkpoint import Architecture, Checkpoint
from ..config import EngineConfig
from ..cores.batch import Batch, Int32, StepInputs
from ..errors import UsageError
from ..messages import RunStep
from .capacity import capacity
from .llama import ForwardContext, Llama, LlamaWeights
from .loader import load_weights, resolve_dtype
from .rope import rope_tables
from .sampler import sample


class Runner:
    """Executes steps on the CPU with torch; all of it belongs to the thread that made it.

    `num_blocks` blocks are in the KV cache; `max_model_len` tokens a request may have (see `capacity`,
    whose ConfigError it raises).
    """

    def __init__(
        self, architecture: Architecture, load: Callable[[], LlamaWeights], config: EngineConfig
    ) -> None:
        """`load` brings the weights, now and after a sleep."""
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._architecture = architecture
        self._load = load
        weights = load()
        cell = (2, architecture.num_kv_heads, architecture.head_dim)
        layer = config.block_size * int(np.prod(cell)) * weights.dtype.itemsize
        self.num_blocks, self.max_model_len = capacity(
            config,
            architecture.max_position_embeddings,
            architecture.num_layers * layer,
            architecture.windows,
        )
        self._batch = Batch(config.max_num_seqs, self.max_model_len, config.block_size)
        self._cos, self._sin = rope_tables(architecture, self.max_model_len)
        self._shape = (architecture.num_layers, self.num_blocks, config.block_size, *cell)
        self._profile: profile | None = None
        self._profile_path = ""
        self._fill(weights)

    def _fill(self, weights: LlamaWeights) -> None:
        self._cache = torch.zeros(self._shape, dtype=weights.dtype)
        self._model: Llama | None = Llama(self._architecture, weights)

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
        logits = self._model.forward(
            torch.from_numpy(inputs.input_ids),
            self._context(inputs),
            self._cache,
            torch.from_numpy(inputs.logits_indices),
        )
        return sample(logits, inputs) if inputs.sample_rows.size else np.zeros(0, np.int32)

    def _context(self, inputs: StepInputs) -> ForwardContext:
        positions = torch.from_numpy(inputs.positions)
        architecture = self._architecture
        return ForwardContext(
            cos=self._cos.index_select(0, positions),
            sin=self._sin.index_select(0, positions),
            slot_mapping=torch.from_numpy(inputs.slot_mapping[0]),
            attention=plan_attention(
                torch.from_numpy(inputs.query_start_loc),
                torch.from_numpy(inputs.seq_lens),
                torch.from_numpy(inputs.block_table[0].clip(min=0)),
                self._batch.block_size,
                self._cache.dtype,
                architecture.num_heads // architecture.num_kv_heads,
                architecture.sliding_window,
            ),
        )


def open_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """Load the weights of a checkpoint in the configured dtype and make a runner of them.

    Raises ModelCorrupt for a damaged file and ConfigError for what does not fit (see `Runner`).
    """
    architecture = checkpoint.architecture
    dtype = resolve_dtype(config.dtype, architecture.dtype)
    return Runner(architecture, lambda: load_weights(architecture, checkpoint.weights(), dtype), config)
