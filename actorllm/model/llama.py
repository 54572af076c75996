"""The decoder of llama, SmolLM2, mistral, qwen2 and qwen3: one file, for they differ in biases and norms."""

from ..checkpoint.architecture import Architecture
from .program import HIDDEN, Attend, Embed, Gate, Head, Linear, Norm, Operation, Program
from .rope import rope

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def program(architecture: Architecture) -> Program:
    """A step of the model; weights have their Hugging Face names. Raises UnsupportedModel for its rope."""
    a = architecture
    embed = "model.embed_tokens.weight"
    layers = [operation for layer in range(a.num_layers) for operation in _layer(a, layer)]
    head = Head("model.norm.weight", embed if a.tie_word_embeddings else "lm_head.weight")
    return Program(
        operations=(Embed(embed), *layers, head),
        widths={
            HIDDEN: a.hidden_size,
            "normed": a.hidden_size,
            "qkv": (a.num_heads + 2 * a.num_kv_heads) * a.head_dim,
            "attended": a.num_heads * a.head_dim,
            "gate_up": 2 * a.intermediate_size,
            "gated": a.intermediate_size,
        },
        num_slabs=a.num_layers,
        num_heads=a.num_heads,
        num_kv_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        vocab_size=a.vocab_size,
        eps=a.rms_norm_eps,
        ropes=(rope(a.head_dim, a.rope_theta, a.rope_scaling),),
    )


def _layer(a: Architecture, layer: int) -> tuple[Operation, ...]:
    prefix = f"model.layers.{layer}."

    def linear(source: str, names: tuple[str, ...], target: str, biased: bool, adds: bool = False) -> Linear:
        weights = tuple(f"{prefix}{name}.weight" for name in names)
        biases = tuple(f"{prefix}{name}.bias" for name in names) if biased else ()
        return Linear(source, weights, target, biases, adds)

    return (
        Norm(HIDDEN, f"{prefix}input_layernorm.weight", "normed"),
        linear("normed", QKV, "qkv", a.attention_bias),
        Attend(
            "qkv",
            "attended",
            layer=layer,
            group=0,
            scale=a.head_dim**-0.5,
            q_norm=f"{prefix}self_attn.q_norm.weight" if a.qk_norm else None,
            k_norm=f"{prefix}self_attn.k_norm.weight" if a.qk_norm else None,
            window=a.sliding_window or 0,
        ),
        linear("attended", ("self_attn.o_proj",), HIDDEN, a.attention_out_bias, adds=True),
        Norm(HIDDEN, f"{prefix}post_attention_layernorm.weight", "normed"),
        linear("normed", GATE_UP, "gate_up", a.mlp_bias),
        Gate("gate_up", "gated"),
        linear("gated", ("mlp.down_proj",), HIDDEN, a.mlp_bias, adds=True),
    )
