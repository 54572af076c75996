"""What kind of network a checkpoint holds, and which weights that takes."""

from dataclasses import dataclass

from ..errors import ModelCorrupt, UnsupportedModel
from .rope import RopeScaling

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose keys and values lie in the same blocks; `window` is what their tokens see (0: all)."""

    window: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder-only network: grouped-query attention with rotary embedding, RMS norms, gated MLP.

    family              one of FAMILIES; `hash` has no weights
    vocab_size          rows of the embedding (a tokenizer may know fewer tokens)
    num_kv_heads        divides num_heads; head_dim need not be hidden_size / num_heads
    attention_bias      biases on q, k, v; attention_out_bias: on o; mlp_bias: on gate, up, down
    qk_norm             an RMS norm over each head of q and k, before the rotary embedding
    sliding_window      tokens that a token sees, itself included; None: all
    layer_windows       the same for each layer (0: all), where layers differ; () where they do not
    window_groups       the windows of groups of layers (0: all) of a model that has no layers
    local_rope_theta    what the layers with a window have for rope_theta, and then no scaling; None: the same
    attention_scale     what scores are multiplied with; None: head_dim ** -0.5
    attention_soft_cap  caps scores, and final_soft_cap logits; 0: not
    norm_offset         what is added to the weights of norms: 1 where the checkpoint has them less 1
    dtype               float32, bfloat16, float16, or the most common quantisation, such as Q4_1
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    layer_windows: tuple[int, ...] = ()
    window_groups: tuple[int, ...] = ()
    local_rope_theta: float | None = None
    attention_scale: float | None = None
    attention_soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    norm_offset: float = 0.0
    dtype: str = "float32"

    @property
    def windows(self) -> tuple[int, ...]:
        """For each group of layers with a KV cache of its own how many tokens a token sees; 0: all."""
        return self.window_groups or tuple(group.window for group in self.layer_groups)

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers by windows, in groups that are equally large, but for the last of a window.

        All groups take blocks from one pool, so a block is as large as the largest group: the fewest
        layers that share a window. A window that no request can outgrow is none.
        """
        windows = self.layer_windows or (self.sliding_window or 0,) * self.num_layers
        kinds: dict[int, list[int]] = {}
        for layer, window in enumerate(windows):
            kinds.setdefault(window if window < self.max_position_embeddings else 0, []).append(layer)
        size = min(map(len, kinds.values()))
        return tuple(
            LayerGroup(window, tuple(layers[begin : begin + size]))
            for window, layers in sorted(kinds.items())
            for begin in range(0, len(layers), size)
        )


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Every weight that a checkpoint of this architecture has, by its Hugging Face name."""
    a = architecture
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    linears = {
        "self_attn.q_proj": (q, a.hidden_size, a.attention_bias),
        "self_attn.k_proj": (kv, a.hidden_size, a.attention_bias),
        "self_attn.v_proj": (kv, a.hidden_size, a.attention_bias),
        "self_attn.o_proj": (a.hidden_size, q, a.attention_out_bias),
        "mlp.gate_proj": (a.intermediate_size, a.hidden_size, a.mlp_bias),
        "mlp.up_proj": (a.intermediate_size, a.hidden_size, a.mlp_bias),
        "mlp.down_proj": (a.hidden_size, a.intermediate_size, a.mlp_bias),
    }
    norms = {"input_layernorm": a.hidden_size, "post_attention_layernorm": a.hidden_size}
    if a.family == "gemma3":
        norms |= {"pre_feedforward_layernorm": a.hidden_size, "post_feedforward_layernorm": a.hidden_size}
    if a.qk_norm:
        norms |= {"self_attn.q_norm": a.head_dim, "self_attn.k_norm": a.head_dim}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (a.vocab_size, a.hidden_size)}
    for layer in range(a.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    shapes["model.norm.weight"] = (a.hidden_size,)
    if not a.tie_word_embeddings:
        shapes["lm_head.weight"] = (a.vocab_size, a.hidden_size)
    return shapes


def checked(architecture: Architecture, source: object) -> Architecture:
    """The architecture itself. Raises ModelCorrupt where its numbers contradict each other."""
    a = architecture
    if a.num_layers > _MAX_LAYERS:
        raise ModelCorrupt(f"{source}: {a.num_layers} layers cannot be")
    if a.num_heads % a.num_kv_heads or a.head_dim % 2:
        raise ModelCorrupt(
            f"{source}: {a.num_heads} heads of {a.head_dim} over {a.num_kv_heads} key-value heads cannot be"
        )
    return architecture


def unknown_family(source: object, family: object, known: tuple[str, ...]) -> UnsupportedModel:
    """The error for an architecture that is none of the known ones."""
    return UnsupportedModel(f"{source}: the architecture {family!r}; supported are {', '.join(known)}")
