"""The frequencies of the rotary embedding, with the ways in which checkpoints stretch it."""

import math

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.rope import RopeScaling
from ..errors import UnsupportedModel

Float64 = NDArray[np.float64]


def rope(head_dim: int, theta: float, scaling: RopeScaling | None) -> tuple[tuple[float, ...], float]:
    """A rotary embedding as a Program has it: radians per position of each pair, and yarn's attention factor.

    Raises UnsupportedModel for an unknown scaling.
    """
    frequencies = inverse_frequencies(head_dim, theta, scaling)
    return tuple(frequencies.tolist()), scaling.attention_factor if scaling else 1.0


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Float64:
    """Radians per position of each pair of a head: float64 [head_dim / 2]. Raises UnsupportedModel."""
    plain: Float64 = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return plain
    match scaling.kind:
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling)
        case "yarn":
            return _yarn(plain, scaling, theta)
        case "factors":
            return plain / np.array(scaling.factors, np.float64)
    raise UnsupportedModel(f"rope scaling {scaling.kind!r}")


def _llama3(plain: Float64, scaling: RopeScaling) -> Float64:
    """Slow frequencies are divided by the factor, quick ones stay, those between blend over.

    The blend is linear in the rotations over the original length, from `low_freq_factor` to
    `high_freq_factor`. Source: Meta's reference implementation of Llama 3.1.
    """
    rotations = plain * scaling.original_max_position_embeddings / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept: Float64 = ((rotations - low) / (high - low)).clip(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)


def _yarn(plain: Float64, scaling: RopeScaling, theta: float) -> Float64:
    """As llama3, but the blend is linear in the index of the pair, between whole indices.

    They are where a pair makes `beta_fast` and `beta_slow` rotations over the original length. Source:
    Peng et al., "YaRN", arXiv 2309.00071, section 3.2.
    """
    dim = 2 * len(plain)

    def index(rotations: float) -> float:
        wavelength = scaling.original_max_position_embeddings / rotations
        return dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(index(scaling.beta_fast)), 0)
    high = min(math.ceil(index(scaling.beta_slow)), dim - 1)
    width = max(high - low, 0.001)  # a step where both indices are one
    slowed: Float64 = ((np.arange(len(plain), dtype=np.float64) - low) / width).clip(0, 1)
    return plain * (1 - slowed) + plain / scaling.factor * slowed
