"""The architecture that a Hugging Face config.json describes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import ModelCorrupt, UnsupportedModel
from .architecture import TORCH_NAMES, Architecture, checked, unknown_family
from .fields import Fields
from .rope import scaling_from_config, stretched_length

_FAMILIES = {name: name for name in ("llama", "mistral", "qwen2", "qwen3")} | {"gemma3_text": "gemma3"}
_HEAD_DIMS = {"qwen3": 128, "gemma3": 256}
_ACTIVATIONS = {"gemma3": ("hidden_activation", "gelu_pytorch_tanh")}
_SLIDING, _FULL = "sliding_attention", "full_attention"


def from_config(config: Mapping[str, Any], source: object, stored_dtype: str, has_head: bool) -> Architecture:
    """The architecture that a Hugging Face config.json describes.

    `stored_dtype` is used where the configuration names no dtype; without a stored `lm_head.weight`
    (`has_head` false) the embeddings are tied whatever it says. Raises UnsupportedModel and ModelCorrupt.
    """
    fields = Fields(source, config.get)
    family = _checked_family(config, source)
    gemma = family == "gemma3"
    rope_fields = _rope_fields(fields, _FULL, 1e6) if gemma else _rope_fields(fields, "", 1e4)
    positions = fields.integer("max_position_embeddings")
    scaling = scaling_from_config(rope_fields, positions)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    biased = family in ("llama", "qwen3", "gemma3") and fields.flag("attention_bias", False)
    architecture = Architecture(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", _HEAD_DIMS.get(family, max(1, hidden // heads))),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_fields.number("rope_theta"),
        rope_scaling=scaling,
        max_position_embeddings=positions if gemma else stretched_length(scaling, positions),
        tie_word_embeddings=fields.flag("tie_word_embeddings", gemma) or not has_head,
        attention_bias=biased or family == "qwen2",
        attention_out_bias=biased,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
        qk_norm=family in ("qwen3", "gemma3"),
        dtype=_dtype(config, source, stored_dtype),
    )
    checked(architecture, source)
    return _gemma3(architecture, fields) if gemma else _with_windows(architecture, fields)


def _with_windows(a: Architecture, fields: Fields) -> Architecture:
    """All layers of mistral have the window; of qwen those after the first, if it is switched on."""
    if fields.raw("sliding_window") is None or a.family == "llama":
        return a
    window = fields.integer("sliding_window")
    if a.family == "mistral":
        return replace(a, sliding_window=window)
    first = int(fields.number("max_window_layers", 0))
    if not fields.flag("use_sliding_window", False) or first >= a.num_layers:
        return a
    if first <= 0:
        return replace(a, sliding_window=window)
    return replace(a, layer_windows=(0,) * first + (window,) * (a.num_layers - first))


def _gemma3(a: Architecture, fields: Fields) -> Architecture:
    """With what only Gemma 3 has. Its makers state the length after it was stretched."""
    if fields.flag("use_bidirectional_attention", False):
        raise UnsupportedModel(f"{fields.source}: bidirectional attention")
    local = _rope_fields(fields, _SLIDING, 1e4)
    if local.raw("rope_type") not in (None, "default"):
        raise UnsupportedModel(f"{fields.source}: rope scaling in the layers with a sliding window")
    window = fields.integer("sliding_window", 4096)
    return replace(
        a,
        layer_windows=tuple(window if slides else 0 for slides in _sliding(fields, a.num_layers)),
        local_rope_theta=local.number("rope_theta"),
        attention_scale=fields.integer("query_pre_attn_scalar", 256) ** -0.5,
        attention_soft_cap=fields.number("attn_logit_softcapping", 0.0),
        final_soft_cap=fields.number("final_logit_softcapping", 0.0),
        norm_offset=1.0,
    )


def _sliding(fields: Fields, num_layers: int) -> list[bool]:
    """Whether each layer has a window: as `layer_types` says, or all but every sixth."""
    kinds = fields.raw("layer_types")
    if kinds is None:
        period = fields.integer("sliding_window_pattern", 6)
        return [(layer + 1) % period > 0 for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or not {*map(str, kinds)} <= {_SLIDING, _FULL}:
        raise ModelCorrupt(
            f"{fields.source}: layer_types must have {_SLIDING} or {_FULL} for each of {num_layers} layers"
        )
    return [kind == _SLIDING for kind in kinds]


def _checked_family(config: Mapping[str, Any], source: object) -> str:
    name = config.get("model_type")
    if name == "gemma3" and "vision_config" in config:
        raise UnsupportedModel(
            f"{source}: gemma3 with a vision part; supported is its text part, gemma3_text"
        )
    if name not in _FAMILIES:
        raise unknown_family(source, name, tuple(_FAMILIES))
    family = _FAMILIES[name]
    heads = config.get("architectures")
    if isinstance(heads, list) and heads and not any(str(head).endswith("ForCausalLM") for head in heads):
        raise UnsupportedModel(f"{source}: {', '.join(map(str, heads))} is no causal language model")
    quantisation = Fields(source, config.get).mapping("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unknown")
        raise UnsupportedModel(
            f"{source}: the quantisation {method!r}; supported are plain safetensors and GGUF's quantisations"
        )
    key, known = _ACTIVATIONS.get(family, ("hidden_act", "silu"))
    if config.get(key, known) != known:
        raise UnsupportedModel(f"{source}: the activation {config[key]!r}; supported is {known}")
    return family


def _rope_fields(fields: Fields, layers: str, theta: float) -> Fields:
    """The settings of the rotary embedding, from where transformers wrote them before version 5 or since.

    `layers` is the kind of layers that is asked for, where they differ ('' where not); `theta` the default
    of rope_theta.
    """
    old = {} if layers == _SLIDING else fields.mapping("rope_scaling")
    new = fields.mapping("rope_parameters")
    rope = dict(old) | dict(
        Fields(f"{fields.source}: rope_parameters", new.get).mapping(layers) if layers else new
    )
    rope_fields = Fields(f"{fields.source}: rope_parameters" if rope else fields.source, rope.get)
    if rope.get("rope_theta") is None:
        key = "rope_local_base_freq" if layers == _SLIDING else "rope_theta"
        rope["rope_theta"] = fields.number(key, theta)
    part = fields.number("partial_rotary_factor", 1.0)
    if rope_fields.number("partial_rotary_factor", part) != 1.0:
        raise UnsupportedModel(f"{fields.source}: a rotary embedding of part of each head")
    return rope_fields


def _dtype(config: Mapping[str, Any], source: object, stored: str) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or TORCH_NAMES.get(stored, stored))
    name = name.removeprefix("torch.")
    if name not in TORCH_NAMES.values():
        raise UnsupportedModel(f"{source}: dtype {name!r}; supported are {', '.join(TORCH_NAMES.values())}")
    return name
