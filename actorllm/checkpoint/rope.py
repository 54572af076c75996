"""How a checkpoint stretches its rotary embedding."""

import math
from dataclasses import dataclass

from ..errors import UnsupportedModel
from .fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """A change to the rotary frequencies f_i = theta ** (-2i / head_dim).

    kind  linear   every frequency is divided by `factor`
          llama3   long wavelengths are divided by `factor`, those between the two bounds
                   original / high_freq_factor and original / low_freq_factor blend over
          yarn     arXiv 2309.00071: frequencies between `beta_fast` and `beta_slow` rotations over the
                   original length blend over; cosine and sine are multiplied by `attention_factor`
          factors  frequency i is divided by `factors[i]` (head_dim / 2 numbers)

    `original_max_position_embeddings` is the length that the model was trained for before the change.
    """

    kind: str
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: tuple[float, ...] = ()


def stretched_length(scaling: RopeScaling | None, max_position_embeddings: int) -> int:
    """Positions that a model can use, given what its configuration says (the rule is vLLM's)."""
    if scaling is None:
        return max_position_embeddings
    if scaling.kind == "linear":
        return int(max_position_embeddings * scaling.factor)
    if scaling.kind == "yarn":
        stretched = int(scaling.original_max_position_embeddings * scaling.factor)
        return max(max_position_embeddings, stretched)
    return max_position_embeddings


def scaling_from_config(fields: Fields, max_position_embeddings: int) -> RopeScaling | None:
    """What `rope_scaling` or `rope_parameters` of a config.json mean. `fields` views that object.

    Raises UnsupportedModel for a type that is not known.
    """
    kind = fields.raw("rope_type") or fields.raw("type") or "default"
    original = fields.integer("original_max_position_embeddings", max_position_embeddings)
    match kind:
        case "default":
            return None
        case "linear":
            return RopeScaling(kind="linear", factor=fields.number("factor"))
        case "llama3":
            return RopeScaling(
                kind="llama3",
                factor=fields.number("factor"),
                original_max_position_embeddings=fields.integer("original_max_position_embeddings"),
                low_freq_factor=fields.number("low_freq_factor"),
                high_freq_factor=fields.number("high_freq_factor"),
            )
        case "yarn":
            if not fields.flag("truncate", True):
                raise UnsupportedModel(f"{fields.source}: yarn rope scaling with truncate = false")
            factor = fields.number("factor", max_position_embeddings / original)
            return RopeScaling(
                kind="yarn",
                factor=factor,
                original_max_position_embeddings=original,
                attention_factor=_attention_factor(fields, factor),
                beta_fast=fields.number("beta_fast", 32.0),
                beta_slow=fields.number("beta_slow", 1.0),
            )
    raise _unsupported(fields, kind)


def scaling_from_gguf(
    fields: Fields, arch: str, context_length: int, factors: tuple[float, ...] | None
) -> RopeScaling | None:
    """What the rope keys of GGUF metadata mean; `factors` are the tensor `rope_freqs.weight`, if there.

    Raises UnsupportedModel for a type that is not known.
    """
    prefix = f"{arch}.rope.scaling."
    kind = fields.text(prefix + "type") or "none"
    factor = fields.number(prefix + "factor", 1.0)
    if fields.raw(prefix + "type") is None and fields.raw(f"{arch}.rope.scale_linear") is not None:
        kind, factor = "linear", fields.number(f"{arch}.rope.scale_linear")
    if kind not in ("none", "linear", "yarn"):
        raise _unsupported(fields, kind)
    if factors is not None:
        if kind != "none":
            raise UnsupportedModel(f"{fields.source}: rope factors together with {kind} rope scaling")
        return RopeScaling(kind="factors", factors=factors)
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=fields.integer(prefix + "original_context_length", context_length),
        attention_factor=fields.number(prefix + "attn_factor", 1.0) * _mscale(factor, 1.0),
        beta_fast=fields.number(prefix + "yarn_beta_fast", 32.0),
        beta_slow=fields.number(prefix + "yarn_beta_slow", 1.0),
    )


def _attention_factor(fields: Fields, factor: float) -> float:
    if fields.raw("attention_factor") is not None:
        return fields.number("attention_factor")
    if fields.raw("mscale") and fields.raw("mscale_all_dim"):
        return _mscale(factor, fields.number("mscale")) / _mscale(factor, fields.number("mscale_all_dim"))
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _unsupported(fields: Fields, kind: object) -> UnsupportedModel:
    return UnsupportedModel(
        f"{fields.source}: rope scaling {kind!r}; supported are linear, llama3, yarn and the factors of GGUF"
    )
