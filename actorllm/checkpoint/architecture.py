"""What kind of network a checkpoint holds, read from config.json or from GGUF metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelCorrupt, UnsupportedModel
from .fields import Fields
from .gguf import Extent, GGUFFile
from .rope import RopeScaling, scaling_from_config, scaling_from_gguf, stretched_length

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_GGUF_FAMILIES = ("llama", "qwen2", "qwen3")
_MAX_LAYERS = 10_000
_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder-only network: grouped-query attention with rotary embedding, RMS norms, gated SiLU.

    family              llama, mistral, qwen2, qwen3; `hash` has no weights
    vocab_size          rows of the embedding (a tokenizer may know fewer tokens)
    num_kv_heads        divides num_heads; head_dim need not be hidden_size / num_heads
    attention_bias      biases on q, k, v; attention_out_bias: on o; mlp_bias: on gate, up, down
    qk_norm             an RMS norm over each head of q and k, before the rotary embedding
    sliding_window      tokens that a token sees, itself included; None: all
    window_groups       the windows of groups of layers (0: all), where they differ; () where they do not
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
    window_groups: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def windows(self) -> tuple[int, ...]:
        """For each group of layers with a KV cache of its own how many tokens a token sees; 0: all."""
        return self.window_groups or (self.sliding_window or 0,)


def from_config(config: Mapping[str, Any], source: object, stored_dtype: str, has_head: bool) -> Architecture:
    """The architecture that a Hugging Face config.json describes.

    `stored_dtype` is used where the configuration names no dtype; without a stored `lm_head.weight`
    (`has_head` false) the embeddings are tied whatever it says. Raises UnsupportedModel and ModelCorrupt.
    """
    fields = Fields(source, config.get)
    family = config.get("model_type")
    _check_config(config, source, family)
    rope_fields = _rope_fields(fields)
    positions = fields.integer("max_position_embeddings")
    scaling = scaling_from_config(rope_fields, positions)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    biased = family in ("llama", "qwen3") and fields.flag("attention_bias", False)
    return _checked(
        Architecture(
            family=str(family),
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=fields.integer("head_dim", 128 if family == "qwen3" else max(1, hidden // heads)),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=rope_fields.number("rope_theta"),
            rope_scaling=scaling,
            max_position_embeddings=stretched_length(scaling, positions),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False) or not has_head,
            attention_bias=biased or family == "qwen2",
            attention_out_bias=biased,
            mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
            qk_norm=family == "qwen3",
            sliding_window=_sliding_window(fields, family),
            dtype=_dtype(config, source, stored_dtype),
        ),
        source,
    )


def from_gguf(file: GGUFFile) -> Architecture:
    """The architecture that GGUF metadata describe. Raises UnsupportedModel and ModelCorrupt."""
    fields = Fields(file.path, file.get)
    arch = fields.text("general.architecture")
    if arch not in _GGUF_FAMILIES:
        raise _unknown_family(file.path, arch, _GGUF_FAMILIES)
    _check_gguf(fields, arch)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelCorrupt(f"{file.path}: tensor token_embd.weight is missing")
    heads = fields.integer(f"{arch}.attention.head_count")
    hidden = fields.integer(f"{arch}.embedding_length")
    head_dim = _gguf_head_dim(fields, arch, hidden, heads)
    positions = fields.integer(f"{arch}.context_length")
    scaling = scaling_from_gguf(fields, arch, positions, _rope_factors(file, head_dim))
    window = int(fields.number(f"{arch}.attention.sliding_window", 0))
    return _checked(
        Architecture(
            family=arch,
            vocab_size=embedding.shape[0],
            hidden_size=hidden,
            intermediate_size=fields.integer(f"{arch}.feed_forward_length"),
            num_layers=fields.integer(f"{arch}.block_count"),
            num_heads=heads,
            num_kv_heads=fields.integer(f"{arch}.attention.head_count_kv", heads),
            head_dim=head_dim,
            rms_norm_eps=fields.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            rope_theta=fields.number(f"{arch}.rope.freq_base", 10000.0),
            rope_scaling=scaling,
            max_position_embeddings=stretched_length(scaling, positions),
            tie_word_embeddings="output.weight" not in file.tensors,
            attention_bias="blk.0.attn_q.bias" in file.tensors,
            attention_out_bias="blk.0.attn_output.bias" in file.tensors,
            mlp_bias="blk.0.ffn_up.bias" in file.tensors,
            qk_norm=arch == "qwen3",
            sliding_window=window or None,
            dtype=_stored_as(file.tensors),
        ),
        file.path,
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


def _check_config(config: Mapping[str, Any], source: object, family: Any) -> None:
    if family not in FAMILIES:
        raise _unknown_family(source, family, FAMILIES)
    heads = config.get("architectures")
    if isinstance(heads, list) and heads and not any(str(head).endswith("ForCausalLM") for head in heads):
        raise UnsupportedModel(f"{source}: {', '.join(map(str, heads))} is no causal language model")
    quantisation = Fields(source, config.get).mapping("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unknown")
        raise UnsupportedModel(
            f"{source}: the quantisation {method!r}; supported are plain safetensors and GGUF's quantisations"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{source}: the activation {config['hidden_act']!r}; supported is silu")


def _rope_fields(fields: Fields) -> Fields:
    """The settings of the rotary embedding, from where transformers wrote them before version 5 or since."""
    rope = dict(fields.mapping("rope_scaling")) | dict(fields.mapping("rope_parameters"))
    rope_fields = Fields(f"{fields.source}: rope_parameters" if rope else fields.source, rope.get)
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = fields.number("rope_theta", 10000.0)
    part = fields.number("partial_rotary_factor", 1.0)
    if rope_fields.number("partial_rotary_factor", part) != 1.0:
        raise UnsupportedModel(f"{fields.source}: a rotary embedding of part of each head")
    return rope_fields


def _gguf_head_dim(fields: Fields, arch: str, hidden_size: int, heads: int) -> int:
    head_dim = fields.integer(f"{arch}.attention.key_length", max(1, hidden_size // heads))
    if fields.integer(f"{arch}.rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel(f"{fields.source}: a rotary embedding of part of each head")
    if fields.integer(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{fields.source}: values of another size than keys")
    return head_dim


def _check_gguf(fields: Fields, arch: str) -> None:
    if fields.number(f"{arch}.expert_count", 0):
        raise UnsupportedModel(f"{fields.source}: a mixture of experts")
    if fields.number("split.count", 1) > 1:
        raise UnsupportedModel(f"{fields.source}: a GGUF in several files; merge them with llama-gguf-split")
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(fields.raw(f"{arch}.{key}"), list) or hasattr(fields.raw(f"{arch}.{key}"), "shape"):
            raise UnsupportedModel(f"{fields.source}: layers of different shapes ({arch}.{key})")


def _checked(architecture: Architecture, source: object) -> Architecture:
    a = architecture
    if a.num_layers > _MAX_LAYERS:
        raise ModelCorrupt(f"{source}: {a.num_layers} layers cannot be")
    if a.num_heads % a.num_kv_heads or a.head_dim % 2:
        raise ModelCorrupt(
            f"{source}: {a.num_heads} heads of {a.head_dim} over {a.num_kv_heads} key-value heads cannot be"
        )
    return architecture


def _sliding_window(fields: Fields, family: Any) -> int | None:
    if fields.raw("sliding_window") is None or family == "llama":
        return None
    window = fields.integer("sliding_window")
    if family == "mistral":
        return window
    if not fields.flag("use_sliding_window", False):
        return None
    first, layers = fields.number("max_window_layers", 0), fields.integer("num_hidden_layers")
    if first >= layers:
        return None
    if first:
        raise UnsupportedModel(f"{fields.source}: a sliding window in some layers only")
    return window


def _dtype(config: Mapping[str, Any], source: object, stored: str) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or _TORCH_NAMES.get(stored, stored))
    name = name.removeprefix("torch.")
    if name not in _TORCH_NAMES.values():
        raise UnsupportedModel(f"{source}: dtype {name!r}; supported are {', '.join(_TORCH_NAMES.values())}")
    return name


def _stored_as(tensors: Mapping[str, Extent]) -> str:
    """The type that most bytes of the matrices in the layers have."""
    sizes: dict[str, int] = {}
    for name, extent in tensors.items():
        if name.startswith("blk.") and len(extent.shape) == 2:
            sizes[extent.dtype] = sizes.get(extent.dtype, 0) + extent.size
    most = max(sizes, key=lambda dtype: sizes[dtype], default="F32")
    return _TORCH_NAMES.get(most, most)


def _rope_factors(file: GGUFFile, head_dim: int) -> tuple[float, ...] | None:
    extent = file.tensors.get("rope_freqs.weight")
    if extent is None:
        return None
    if extent.dtype != "F32" or extent.shape != (head_dim // 2,):
        raise ModelCorrupt(f"{file.path}: rope_freqs.weight must be {head_dim // 2} numbers of type F32")
    return tuple(file.bytes_of(extent).view("<f4").tolist())


def _unknown_family(source: object, family: object, known: tuple[str, ...]) -> UnsupportedModel:
    return UnsupportedModel(f"{source}: the architecture {family!r}; supported are {', '.join(known)}")
