"""EngineConfig: what the engine can be told. Names follow vLLM's where the meaning is the same."""

from dataclasses import dataclass
from typing import Any

from .errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of an engine. Raises ConfigError for values that cannot work.

    model                   `smollm2-135m`, a GGUF file, a Hugging Face directory, a hub id, or `hash`
                            (no weights: every token is a hash of what the cache holds)
    served_model_name       the name in HTTP answers; None: the name of the model
    dtype                   float32, bfloat16, float16, or auto: bfloat16 for checkpoints in 16 bits or less
    seed                    seeds of requests that bring none derive from it; None draws one
    max_model_len           tokens a request may have in all; None: what the model and the cache can hold
    block_size              tokens in a KV block
    num_gpu_blocks_override blocks in the KV pool (vLLM's name; here on any device); None: from the memory
    kv_cache_memory_bytes   memory for the KV pool, when the number of blocks is not given
    enable_prefix_caching   reuse the KV of equal prefixes
    watermark               share of the blocks kept free when a waiting request is let in
    max_num_batched_tokens  tokens in a step
    max_num_seqs            requests running at once
    max_requests            requests inside the engine at once; one more waits in `generate` itself
    max_num_queued_reqs     refuse a request when so many wait already; None: it waits
    max_num_queued_tokens   refuse a request when so many tokens wait already; None: it waits
    long_prefill_token_threshold   tokens of one prompt in a step; 0: no limit
    policy                  the order of requests: fcfs, priority, fair (between tenants) or deadline
    steps_in_flight         2 plans a step while the one before still runs
    renderer_num_workers    threads for templates and tokenising
    num_threads             threads for the model; None: one a core
    shutdown_timeout        seconds that leaving the engine waits for the step in flight
    verify                  check every core after every turn, and encode and decode every message: slow
    """

    model: str = DEFAULT_MODEL
    served_model_name: str | None = None
    dtype: str = "auto"
    seed: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int = 1 << 30
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 128
    max_requests: int = 1024
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    steps_in_flight: int = 2
    renderer_num_workers: int = 1
    num_threads: int | None = None
    shutdown_timeout: float = 5.0
    verify: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for the first field that cannot work."""
        for name in _POSITIVE:
            _at_least(name, getattr(self, name), 1)
        for name in _OPTIONAL:
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        _at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model must be a name or a path, not {self.model!r}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.policy not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        if self.steps_in_flight not in (1, 2):
            raise ConfigError(f"steps_in_flight must be 1 or 2, not {self.steps_in_flight!r}")
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark must be in [0, 1), not {self.watermark!r}")


DTYPES = ("auto", "float32", "bfloat16", "float16")
POLICIES = ("fcfs", "priority", "fair", "deadline")

_POSITIVE = (
    "block_size",
    "kv_cache_memory_bytes",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_requests",
    "renderer_num_workers",
)
_OPTIONAL = (
    "max_model_len",
    "num_gpu_blocks_override",
    "num_threads",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)


def _at_least(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{name} must be an integer of at least {low}, not {value!r}")
