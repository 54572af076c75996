"""The architecture that GGUF metadata describe."""

from collections.abc import Mapping
from dataclasses import replace

from ..errors import ModelCorrupt, UnsupportedModel
from .architecture import TORCH_NAMES, Architecture, checked, unknown_family
from .fields import Fields
from .gguf import Extent, GGUFFile
from .rope import scaling_from_gguf, stretched_length

_FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
_GEMMA3_PERIOD = 6
_GEMMA3_27B_LAYERS = 62


def from_gguf(file: GGUFFile) -> Architecture:
    """The architecture that GGUF metadata describe. Raises UnsupportedModel and ModelCorrupt."""
    fields = Fields(file.path, file.get)
    arch = fields.text("general.architecture")
    if arch not in _FAMILIES:
        raise unknown_family(file.path, arch, _FAMILIES)
    _check(fields, arch)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelCorrupt(f"{file.path}: tensor token_embd.weight is missing")
    heads = fields.integer(f"{arch}.attention.head_count")
    hidden = fields.integer(f"{arch}.embedding_length")
    head_dim = _head_dim(fields, arch, hidden, heads)
    positions = fields.integer(f"{arch}.context_length")
    scaling = scaling_from_gguf(fields, arch, positions, _rope_factors(file, head_dim))
    architecture = Architecture(
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
        max_position_embeddings=positions if arch == "gemma3" else stretched_length(scaling, positions),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm=arch in ("qwen3", "gemma3"),
        dtype=_stored_as(file.tensors),
    )
    checked(architecture, file.path)
    window = max(0, int(fields.number(f"{arch}.attention.sliding_window", 0)))
    if arch == "gemma3":
        return _gemma3(architecture, fields, window)
    return replace(architecture, sliding_window=window or None)


def _gemma3(a: Architecture, fields: Fields, window: int) -> Architecture:
    """With what only Gemma 3 has; the numbers that no key has are those of llama.cpp's src/llama-model.cpp.

    Norms have their 1 already.
    """
    pattern = fields.raw("gemma3.attention.sliding_window_pattern")
    if pattern is not None and not isinstance(pattern, int):
        raise UnsupportedModel(f"{fields.source}: a sliding window in layers of no regular pattern")
    period = fields.integer("gemma3.attention.sliding_window_pattern", _GEMMA3_PERIOD)
    wide = a.num_layers == _GEMMA3_27B_LAYERS
    return replace(
        a,
        layer_windows=tuple(window if (layer + 1) % period else 0 for layer in range(a.num_layers)),
        local_rope_theta=fields.number("gemma3.rope.freq_base_swa", 10000.0),
        attention_scale=(a.hidden_size // a.num_heads if wide else a.head_dim) ** -0.5,
        final_soft_cap=fields.number("gemma3.final_logit_softcapping", 0.0),
    )


def _head_dim(fields: Fields, arch: str, hidden_size: int, heads: int) -> int:
    head_dim = fields.integer(f"{arch}.attention.key_length", max(1, hidden_size // heads))
    if fields.integer(f"{arch}.rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel(f"{fields.source}: a rotary embedding of part of each head")
    if fields.integer(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{fields.source}: values of another size than keys")
    return head_dim


def _check(fields: Fields, arch: str) -> None:
    if fields.number(f"{arch}.expert_count", 0):
        raise UnsupportedModel(f"{fields.source}: a mixture of experts")
    if fields.number("split.count", 1) > 1:
        raise UnsupportedModel(f"{fields.source}: a GGUF in several files; merge them with llama-gguf-split")
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(fields.raw(f"{arch}.{key}"), list) or hasattr(fields.raw(f"{arch}.{key}"), "shape"):
            raise UnsupportedModel(f"{fields.source}: layers of different shapes ({arch}.{key})")


def _stored_as(tensors: Mapping[str, Extent]) -> str:
    """The type that most bytes of the matrices in the layers have."""
    sizes: dict[str, int] = {}
    for name, extent in tensors.items():
        if name.startswith("blk.") and len(extent.shape) == 2:
            sizes[extent.dtype] = sizes.get(extent.dtype, 0) + extent.size
    most = max(sizes, key=lambda dtype: sizes[dtype], default="F32")
    return TORCH_NAMES.get(most, most)


def _rope_factors(file: GGUFFile, head_dim: int) -> tuple[float, ...] | None:
    extent = file.tensors.get("rope_freqs.weight")
    if extent is None:
        return None
    if extent.dtype != "F32" or extent.shape != (head_dim // 2,):
        raise ModelCorrupt(f"{file.path}: rope_freqs.weight must be {head_dim // 2} numbers of type F32")
    return tuple(file.bytes_of(extent).view("<f4").tolist())
