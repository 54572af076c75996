"""The tables of the rotary embedding, with the ways in which checkpoints stretch it."""

import math

import torch
from torch import Tensor

from ..checkpoint.architecture import Architecture
from ..checkpoint.rope import RopeScaling
from ..errors import UnsupportedModel


def rope_tables(architecture: Architecture, length: int) -> tuple[Tensor, Tensor]:
    """(cos, sin) for positions below `length`, float32 [length, 1, head_dim], as kernels want them.

    Both halves of the last dimension are alike, but in the first half of `sin` the sign is negated.
    Both are multiplied by yarn's attention factor. Raises UnsupportedModel for an unknown scaling.
    """
    scaling = architecture.rope_scaling
    angles = torch.outer(torch.arange(length).double(), inverse_frequencies(architecture))
    factor = scaling.attention_factor if scaling else 1.0
    cos, sin = (angles.cos() * factor).float(), (angles.sin() * factor).float()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def inverse_frequencies(architecture: Architecture) -> Tensor:
    """Radians per position of each pair of a head: float64 [head_dim / 2]."""
    dim, theta, scaling = architecture.head_dim, architecture.rope_theta, architecture.rope_scaling
    plain = theta ** (-torch.arange(0, dim, 2).double() / dim)
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
            return plain / torch.tensor(scaling.factors, dtype=torch.float64)
    raise UnsupportedModel(f"rope scaling {scaling.kind!r}")


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow frequencies are divided by the factor, quick ones stay, those between blend over.

    The blend is linear in the rotations over the original length, from `low_freq_factor` to
    `high_freq_factor`. Source: Meta's reference implementation of Llama 3.1.
    """
    rotations = plain * scaling.original_max_position_embeddings / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((rotations - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)


def _yarn(plain: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
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
    slowed = ((torch.arange(len(plain)).double() - low) / width).clamp(0, 1)
    return plain * (1 - slowed) + plain / scaling.factor * slowed
