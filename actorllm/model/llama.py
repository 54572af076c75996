"""The decoder of llama, SmolLM2, mistral, qwen2 and qwen3: one file, for they differ in biases and norms."""

from ..checkpoint.architecture import Architecture
from .decoder import DOWN, EMBED, GATE_UP, OUT, QKV, Place, decoder, linear, places
from .program import HIDDEN, Attend, Embed, Gate, Head, Norm, Operation, Program


def program(architecture: Architecture) -> Program:
    """A step of the model; weights have their Hugging Face names. Raises UnsupportedModel for its rope."""
    layers = [
        operation
        for layer, place in enumerate(places(architecture))
        for operation in _layer(architecture, f"model.layers.{layer}.", place)
    ]
    head = Head("model.norm.weight", EMBED if architecture.tie_word_embeddings else "lm_head.weight")
    return decoder(architecture, (Embed(EMBED), *layers, head))


def _layer(a: Architecture, prefix: str, place: Place) -> tuple[Operation, ...]:
    attend = Attend(
        "qkv",
        "attended",
        layer=place.slab,
        group=place.group,
        scale=a.head_dim**-0.5,
        q_norm=f"{prefix}self_attn.q_norm.weight" if a.qk_norm else None,
        k_norm=f"{prefix}self_attn.k_norm.weight" if a.qk_norm else None,
        window=place.window,
    )
    return (
        Norm(HIDDEN, f"{prefix}input_layernorm.weight", "normed"),
        linear(prefix, "normed", QKV, "qkv", biased=a.attention_bias),
        attend,
        linear(prefix, "attended", OUT, HIDDEN, biased=a.attention_out_bias, adds=True),
        Norm(HIDDEN, f"{prefix}post_attention_layernorm.weight", "normed"),
        linear(prefix, "normed", GATE_UP, "gate_up", biased=a.mlp_bias),
        Gate("gate_up", "gated"),
        linear(prefix, "gated", DOWN, HIDDEN, biased=a.mlp_bias, adds=True),
    )
