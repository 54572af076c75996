"""What the model files share: buffers, fused matrices, and where a layer's keys and values lie."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..checkpoint.architecture import Architecture
from .program import HIDDEN, Linear, Operation, Program
from .rope import rope

EMBED = "model.embed_tokens.weight"
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUT = ("self_attn.o_proj",)
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = ("mlp.down_proj",)


@dataclass(frozen=True, slots=True)
class Place:
    """Of one layer: its group, its slab of the KV cache, and what its tokens see (0: all)."""

    group: int
    slab: int
    window: int


def places(architecture: Architecture) -> list[Place]:
    """Where the keys and values of each layer lie."""
    found = {
        layer: Place(group, slab, layers.window)
        for group, layers in enumerate(architecture.layer_groups)
        for slab, layer in enumerate(layers.layers)
    }
    return [found[layer] for layer in range(architecture.num_layers)]


def linear(
    prefix: str, source: str, names: tuple[str, ...], target: str, *, biased: bool, adds: bool = False
) -> Linear:
    """A product with the matrices of these names, fused; `prefix` is the layer's."""
    weights = tuple(f"{prefix}{name}.weight" for name in names)
    biases = tuple(f"{prefix}{name}.bias" for name in names) if biased else ()
    return Linear(source, weights, target, biases, adds)


def decoder(architecture: Architecture, operations: Iterable[Operation]) -> Program:
    """A program over the buffers hidden, normed, qkv, attended, gate_up and gated.

    Its second rotary embedding is that of the layers with a window, where they have their own. Raises
    UnsupportedModel for a rope scaling that is not known.
    """
    a = architecture
    ropes = [rope(a.head_dim, a.rope_theta, a.rope_scaling)]
    if a.local_rope_theta is not None:
        ropes.append(rope(a.head_dim, a.local_rope_theta, None))
    return Program(
        operations=tuple(operations),
        widths={
            HIDDEN: a.hidden_size,
            "normed": a.hidden_size,
            "qkv": (a.num_heads + 2 * a.num_kv_heads) * a.head_dim,
            "attended": a.num_heads * a.head_dim,
            "gate_up": 2 * a.intermediate_size,
            "gated": a.intermediate_size,
        },
        num_slabs=max(len(group.layers) for group in a.layer_groups),
        num_heads=a.num_heads,
        num_kv_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        vocab_size=a.vocab_size,
        eps=a.rms_norm_eps,
        ropes=tuple(ropes),
    )
