"""EngineConfig refuses what cannot work, before anything starts."""

from dataclasses import fields
from typing import Any

import pytest

from actorllm import ConfigError, EngineConfig

WRONG: dict[str, tuple[Any, ...]] = {
    "model": ("", 5, None, b"x"),
    "served_model_name": ("", 5),
    "dtype": ("float8", None, 16),
    "quantization": ("int5", 8, ""),
    "activation_dtype": ("bfloat16", None, 8),
    "kv_cache_dtype": ("fp8", "float32", None, 8),
    "seed": ("a", 1.5, -1, True, 2**63),
    "max_model_len": (0, 1, "a", True),
    "block_size": (0, -1, 1.5, None, True),
    "num_gpu_blocks_override": (0, "a", 2**31),
    "kv_cache_memory_bytes": (0, None),
    "batch_invariant": (1, None, "yes"),
    "enable_prefix_caching": (1, None, "yes"),
    "enable_kv_cache_events": (1, None, "yes"),
    "watermark": (-0.1, 1, 2.0, float("nan"), "a", None),
    "max_num_batched_tokens": (0, None, 10**30),
    "max_num_seqs": (0, None, 2**31),
    "max_requests": (0, None),
    "max_num_queued_reqs": (0, 1.5),
    "max_num_queued_tokens": (0, "a"),
    "long_prefill_token_threshold": (-1, None),
    "policy": ("random", None),
    "steps_in_flight": (0, 3, None),
    "renderer_num_workers": (0, None),
    "structured_outputs_timeout": (-1, "a", None, float("nan")),
    "logprobs_mode": ("raw_logits", None),
    "max_logprobs": (-2, 1.5, None),
    "logits_processors": (["a:B"], "a:B", (5,)),
    "reasoning_start_str": ("", None, 5),
    "reasoning_end_str": ("", None, 5),
    "num_threads": (0, 1.5),
    "shutdown_timeout": (-1, float("inf"), float("nan"), "a", None),
    "verify": (1, None, "no"),
    "record": ("", 5, b"x", "a\0b", "\ud800"),
    "record_max_bytes": (0, 65535, None),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        EngineConfig(**{name: value})


def test_every_field_is_checked_here() -> None:
    assert {field.name for field in fields(EngineConfig)} == set(WRONG)


def test_a_record_may_have_any_name_that_a_file_can_have() -> None:
    assert EngineConfig(record="\udcff").record == "\udcff"


def test_the_defaults_are_right() -> None:
    assert EngineConfig().model == "smollm2-135m"
