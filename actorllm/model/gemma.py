"""The decoder of Gemma 3, its text part.

It norms what goes into a part of a layer and what comes out of it, before that is added to the residual
stream. Most layers see only a window, and have a rotary embedding of their own. Source: "Gemma 3 Technical
Report", arXiv 2503.19786.
"""

from ..checkpoint.architecture import Architecture
from .decoder import DOWN, EMBED, GATE_UP, OUT, QKV, Place, decoder, linear, places
from .program import HIDDEN, Attend, Embed, Gate, Head, Norm, Operation, Program


def program(architecture: Architecture) -> Program:
    """A step of the model; weights have their Hugging Face names. Raises UnsupportedModel for its rope."""
    a = architecture
    layers = [
        operation
        for layer, place in enumerate(places(a))
        for operation in _layer(a, f"model.layers.{layer}.", place, 1 if a.layer_windows[layer] else 0)
    ]
    weight = EMBED if a.tie_word_embeddings else "lm_head.weight"
    head = Head("model.norm.weight", weight, a.norm_offset, a.final_soft_cap)
    return decoder(a, (Embed(EMBED, a.hidden_size**0.5), *layers, head))


def _layer(a: Architecture, prefix: str, place: Place, rope: int) -> tuple[Operation, ...]:
    attend = Attend(
        "qkv",
        "attended",
        layer=place.slab,
        group=place.group,
        scale=a.attention_scale or a.head_dim**-0.5,
        q_norm=f"{prefix}self_attn.q_norm.weight",
        k_norm=f"{prefix}self_attn.k_norm.weight",
        offset=a.norm_offset,
        rope=rope,
        window=place.window,
        soft_cap=a.attention_soft_cap,
    )

    def norm(source: str, name: str, target: str, adds: bool = False) -> Norm:
        return Norm(source, f"{prefix}{name}.weight", target, a.norm_offset, adds)

    return (
        norm(HIDDEN, "input_layernorm", "normed"),
        linear(prefix, "normed", QKV, "qkv", biased=a.attention_bias),
        attend,
        linear(prefix, "attended", OUT, "normed", biased=a.attention_out_bias),
        norm("normed", "post_attention_layernorm", HIDDEN, adds=True),
        norm(HIDDEN, "pre_feedforward_layernorm", "normed"),
        linear(prefix, "normed", GATE_UP, "gate_up", biased=False),
        Gate("gate_up", "gated", "gelu_tanh"),
        linear(prefix, "gated", DOWN, "normed", biased=False),
        norm("normed", "post_feedforward_layernorm", HIDDEN, adds=True),
    )
