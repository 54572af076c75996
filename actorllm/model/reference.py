"""The reference kernels as a back end: plain torch, for any dtype, on any machine."""

import torch
from torch.profiler import ProfilerActivity, profile

from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..cores.arrays import Int64
from ..cores.inputs import StepInputs
from ..errors import ConfigError
from .dtypes import resolve_dtype
from .interpreter import Interpreter
from .loader import load_weights
from .program import Program


class ReferenceBackEnd:
    """Interprets a program with torch; see `runner.BackEnd`.

    Raises ConfigError for a cache in another dtype than the model's.
    """

    def __init__(self, program: Program, checkpoint: Checkpoint, config: EngineConfig) -> None:
        name = resolve_dtype(config.dtype, checkpoint.architecture.dtype)
        if config.kv_cache_dtype not in ("auto", name):
            raise ConfigError(
                f"kv_cache_dtype is {config.kv_cache_dtype}, but the reference kernels keep keys and values "
                f"in the model's dtype, {name}: take auto, or the native kernels, which need dtype bfloat16 "
                "and a C++ compiler"
            )
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._program = program
        self._checkpoint = checkpoint
        self._dtype: torch.dtype = getattr(torch, name)
        self._cell = (config.block_size, 2, program.num_kv_heads, program.head_dim)
        self.slab_bytes = torch.Size(self._cell).numel() * self._dtype.itemsize
        self._invariant = config.batch_invariant
        self._cache = torch.zeros(0)
        self._model: Interpreter | None = None
        self._profile: profile | None = None
        self._profile_path = ""

    def open(self, num_blocks: int, length: int) -> None:
        """Load the weights and allocate the cache, `num_blocks` blocks, for positions below `length`."""
        weights = load_weights(self._program, self._checkpoint.weights(), self._dtype)
        self._cache = torch.zeros((self._program.num_slabs, num_blocks, *self._cell), dtype=self._dtype)
        self._model = Interpreter(self._program, weights, length, self._invariant)

    def close(self) -> None:
        """Let go of weights and cache."""
        self._model, self._cache = None, torch.zeros(0)

    @property
    def variance(self) -> str | None:
        """Torch's products are not invariant, unless each token is computed alone."""
        return None if self._invariant else "torch orders the sums of a product by how many rows it has"

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Logits [S, vocab_size], in the model's dtype, of the step's `logits_indices`."""
        assert self._model is not None, "a step for a device that is asleep"
        return self._model.forward(inputs, self._cache)

    @torch.inference_mode()
    def logits_of(self, inputs: StepInputs, indices: Int64) -> torch.Tensor:
        """The same of other tokens of the last step, by their index in N."""
        assert self._model is not None, "a step for a device that is asleep"
        return self._model.logits_of(torch.from_numpy(indices))

    def likeliest(self) -> None:
        """They are not looked for here."""

    def start_profile(self, path: str) -> None:
        """Take the times of torch's operations from now on."""
        begun = profile(activities=[ProfilerActivity.CPU])
        begun.start()
        self._profile, self._profile_path = begun, path

    def stop_profile(self) -> None:
        """Write them as a Chrome trace. Raises OSError."""
        ended, self._profile = self._profile, None
        assert ended is not None, "no profile was begun"
        ended.stop()
        ended.export_chrome_trace(self._profile_path)
