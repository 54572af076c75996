"""A step of a model as a program: a flat list of operations over named buffers.

A model file describes its step once; what runs it is another matter. The reference back end interprets it
with torch; the CPU back end runs it in one foreign call. The number of rows N (tokens of the step) is known
only when it runs. `hidden` is the residual stream, float32; the dtype of the other buffers is the back end's.
"""

from dataclasses import dataclass

HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Embed:
    """`hidden` [N, H] = rows of the weight [V, H] * scale.

    The scale is first rounded to the dtype that the model runs in, as Gemma's makers and transformers do.
    """

    weight: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm:
    """`target` = rms_norm(source) * (weight + offset), or `target` += it (`adds`)."""

    source: str
    weight: str
    target: str
    offset: float = 0.0
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Linear:
    """`target` = source @ weight.T + bias, or `target` += it (`adds`).

    Several weights stand one below the other, and so do their biases (none, or one each).
    """

    source: str
    weights: tuple[str, ...]
    target: str
    biases: tuple[str, ...] = ()
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Attend:
    """`target` [N, heads * head_dim] = causal attention of `source` [N, (heads + 2 * kv heads) * head_dim].

    The rows of `source` are q, k, v. q and k are normed by head (where there are such norms; `offset` as in
    Norm) and turned by the rotary embedding number `rope`; then k and v go to their slots in slab `layer` of
    the KV cache. Layers of one window share a `group`, whose blocks are its own; each layer of a group has
    another slab. A token sees the last `window` tokens (0: all), itself included. Scores are q.k * scale,
    and `soft_cap` * tanh(that / soft_cap) where it is not 0. What `source` holds afterwards is undefined.
    """

    source: str
    target: str
    layer: int
    group: int
    scale: float
    q_norm: str | None = None
    k_norm: str | None = None
    offset: float = 0.0
    rope: int = 0
    window: int = 0
    soft_cap: float = 0.0


@dataclass(frozen=True, slots=True)
class Gate:
    """`target` [N, I] = activation(gate) * up of `source` [N, 2 * I], gate before up.

    `activation` is silu or gelu_tanh.
    """

    source: str
    target: str
    activation: str = "silu"


@dataclass(frozen=True, slots=True)
class Head:
    """Logits [S, V] of the S wanted rows: rms_norm(hidden) * (norm + offset) @ weight.T, soft-capped."""

    norm: str
    weight: str
    offset: float = 0.0
    soft_cap: float = 0.0


Operation = Embed | Norm | Linear | Attend | Gate | Head


@dataclass(frozen=True, slots=True)
class Program:
    """A model's step. `widths` has how many numbers a row of each buffer has.

    Heads and head_dim are those of every layer; `num_slabs` are the layers of the KV cache (of the largest
    group). `ropes` has for each rotary embedding the radians a position of each pair of a head
    (head_dim / 2), and the factor that its cosines and sines are multiplied with.
    """

    operations: tuple[Operation, ...]
    widths: dict[str, int]
    num_slabs: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    eps: float
    ropes: tuple[tuple[tuple[float, ...], float], ...]
