"""EngineConfig: what the engine can be told. Names follow vLLM's where the meaning is the same."""

import os
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of an engine. Raises ConfigError for values that cannot work.

    model                   `smollm2-135m`, a GGUF file, a Hugging Face directory, a hub id, or `hash`
                            (no weights: every token is a hash of what the cache holds; `hash:0,8` has two
                            groups of layers, one of which sees the last 8 tokens)
    served_model_name       the name in HTTP answers; None: the name of the model
    dtype                   float32, bfloat16, float16, or auto: bfloat16 for checkpoints in 16 bits or less.
                            The native kernels keep a quantised checkpoint's own codes instead; float32 runs
                            on the reference kernels, which are exact and slow
    quantization            int8 or int4: matrices of a checkpoint in floating point are rounded while it is
                            loaded (of int4 the embedding and the head to int8); native kernels only
    activation_dtype        what the native kernels multiply quantised weights with: int16, or int8, which is
                            faster and coarser (llama.cpp's way)
    kv_cache_dtype          what keys and values are kept in: bfloat16, or int8, which is about half of it to
                            keep and to read, and coarser (native kernels only); auto: bfloat16 on the native
                            kernels, the model's dtype on the reference kernels
    seed                    seeds of requests that bring none derive from it; None draws one
    batch_invariant         a request's tokens and log-probabilities are the same to the last bit alone and in
                            any batch, in chunks, from the prefix cache, after preemption and after a restart
                            with the same settings on the same machine; drawn ones if the request brings a
                            seed. The native kernels always are so, at no cost; the reference kernels
                            (float32) compute one token after the other for it, several times slower. A
                            device that cannot is refused at the start
    max_model_len           tokens a request may have in all; None: what the model and the cache can hold
    block_size              tokens in a KV block
    num_gpu_blocks_override blocks in the KV pool (vLLM's name; here on any device); None: from the memory
    kv_cache_memory_bytes   memory for the KV pool, when the number of blocks is not given
    enable_prefix_caching   reuse the KV of equal prefixes
    enable_kv_cache_events  tell subscribers what the prefix cache holds (`Engine.cache_events`)
    watermark               share of the blocks kept free when a waiting request is let in
    max_num_batched_tokens  tokens in a step
    max_num_seqs            requests running at once
    max_requests            requests inside the engine at once; one more waits in `generate` itself
    max_num_queued_reqs     refuse a request when so many wait already, besides those that could run at once:
                            for each of the `max_num_seqs` seats that is free, one; None: it waits
    max_num_queued_tokens   the same for the tokens of their prompts
    long_prefill_token_threshold   tokens of one prompt in a step; 0: no limit
    policy                  the order of requests: fcfs, priority, fair (between tenants) or deadline
    steps_in_flight         2 plans a step while the one before still runs
    renderer_num_workers    threads for templates and tokenising
    structured_outputs_timeout   seconds that a request waits at most until its grammar is compiled
    logprobs_mode           raw_logprobs: log-probabilities of the model's own distribution;
                            processed_logprobs: of what is drawn from, after penalties, masks and filters
    max_logprobs            the most that one may ask for of a token; -1: the whole vocabulary
    logits_processors       names `package.module:Class` of one's own (`actorllm.LogitsProcessor`)
    reasoning_start_str     the texts around a model's reasoning, which `thinking_token_budget` limits
    reasoning_end_str
    num_threads             threads that compute a step, of the native kernels or of torch (for the whole
                            process); None: one a core. Beside a busy program fewer are faster, since they
                            spin while they wait
    shutdown_timeout        seconds that leaving the engine waits for the step in flight
    verify                  check every core after every turn, and encode and decode every message: slow
    record                  write every turn of every actor, with the prompts and answers, to this file, for
                            `actorllm replay`; the file is readable by its owner alone
    record_max_bytes        of the recording: when half of it is full, it goes on in a new file, and the one
                            before it is kept as PATH.1
    """

    model: str = DEFAULT_MODEL
    served_model_name: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    activation_dtype: str = "int16"
    kv_cache_dtype: str = "auto"
    seed: int | None = None
    batch_invariant: bool = False
    max_model_len: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int = 1 << 30
    enable_prefix_caching: bool = True
    enable_kv_cache_events: bool = False
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
    structured_outputs_timeout: float = 30.0
    logprobs_mode: str = "raw_logprobs"
    max_logprobs: int = 20
    logits_processors: tuple[str, ...] = ()
    reasoning_start_str: str = "<think>"
    reasoning_end_str: str = "</think>"
    num_threads: int | None = None
    shutdown_timeout: float = 5.0
    verify: bool = False
    record: str | None = None
    record_max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        """Raise ConfigError for the first field that cannot work."""
        for name, (types, low, high) in _NUMBERS.items():
            _check_number(name, getattr(self, name), types, low, high)
        for name in ("model", "served_model_name", "reasoning_start_str", "reasoning_end_str"):
            value = getattr(self, name)
            if not ((isinstance(value, str) and value) or (value is None and name == "served_model_name")):
                raise ConfigError(f"{name} must be a name, not {value!r}")
        for name in ("batch_invariant", "enable_prefix_caching", "enable_kv_cache_events", "verify"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.record is not None and not _is_path(self.record):
            raise ConfigError(f"record must be a path or None, not {self.record!r}")
        for name, choices in (
            ("dtype", DTYPES),
            ("quantization", QUANTIZATIONS),
            ("activation_dtype", ACTIVATION_DTYPES),
            ("kv_cache_dtype", KV_CACHE_DTYPES),
            ("logprobs_mode", LOGPROBS_MODES),
            ("policy", POLICIES),
            ("steps_in_flight", (1, 2)),
        ):
            if getattr(self, name) not in choices:
                listed = ", ".join(map(str, choices))
                raise ConfigError(f"{name} must be one of {listed}, not {getattr(self, name)!r}")
        processors = self.logits_processors
        if not (isinstance(processors, tuple) and all(isinstance(name, str) for name in processors)):
            raise ConfigError(f"logits_processors must be a tuple of names, not {processors!r}")
        if not self.watermark < 1:
            raise ConfigError(f"watermark must be in [0, 1), not {self.watermark!r}")


DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = (None, "int8", "int4")
ACTIVATION_DTYPES = ("int16", "int8")
KV_CACHE_DTYPES = ("auto", "bfloat16", "int8")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
POLICIES = ("fcfs", "priority", "fair", "deadline")

_WHOLE: tuple[type, ...] = (int,)
_REAL: tuple[type, ...] = (int, float)
_MAYBE: tuple[type, ...] = (int, type(None))
_INT32, _INT64 = 2**31, 2**63
_NUMBERS: dict[str, tuple[tuple[type, ...], float, int]] = {
    "seed": (_MAYBE, 0, _INT64),
    "max_model_len": (_MAYBE, 2, _INT32),
    "block_size": (_WHOLE, 1, _INT32),
    "num_gpu_blocks_override": (_MAYBE, 1, _INT32),
    "kv_cache_memory_bytes": (_WHOLE, 1, _INT64),
    "watermark": (_REAL, 0, _INT64),
    "max_num_batched_tokens": (_WHOLE, 1, _INT32),
    "max_num_seqs": (_WHOLE, 1, _INT32),
    "max_requests": (_WHOLE, 1, _INT64),
    "max_num_queued_reqs": (_MAYBE, 1, _INT64),
    "max_num_queued_tokens": (_MAYBE, 1, _INT64),
    "long_prefill_token_threshold": (_WHOLE, 0, _INT32),
    "renderer_num_workers": (_WHOLE, 1, _INT32),
    "structured_outputs_timeout": (_REAL, 0, _INT64),
    "max_logprobs": (_WHOLE, -1, _INT32),
    "num_threads": (_MAYBE, 1, _INT32),
    "shutdown_timeout": (_REAL, 0, _INT64),
    "record_max_bytes": (_WHOLE, 1 << 16, _INT64),
}
"""Of each number: its types, the least that it may be, and what it must be below."""


def _check_number(name: str, value: Any, types: tuple[type, ...], low: float, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, types):
        kind = "a number" if float in types else "an integer or None" if types == _MAYBE else "an integer"
        raise ConfigError(f"{name} must be {kind}, not {value!r}")
    if not isinstance(value, int | float):
        return
    if not low <= value:
        raise ConfigError(f"{name} must be at least {low:g}, not {value!r}")
    if value >= high:
        raise ConfigError(f"{name} must be below 2**{high.bit_length() - 1}, not {value!r}")


def _is_path(value: Any) -> bool:
    """Whether a file can have this name."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value) != b""
    except UnicodeEncodeError:
        return False
