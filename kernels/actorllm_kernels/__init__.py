"""One function per operation of a model step, in several implementations of one meaning."""

from .reference import (
    AttentionGroup,
    AttentionPlan,
    embedding,
    gelu_tanh_and_mul,
    linear,
    pack_linear,
    paged_attention,
    plan_attention,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
    soft_cap,
    write_kv,
)

__all__ = [
    "AttentionGroup",
    "AttentionPlan",
    "embedding",
    "gelu_tanh_and_mul",
    "linear",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "soft_cap",
    "write_kv",
]
