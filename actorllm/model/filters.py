"""Which tokens temperature, min_p, top_k and top_p leave.

Every filter amounts to a least logit that a token needs. None sorts the vocabulary: a bound that certainly
lets enough tokens through leaves some hundreds, and those are ordered.
"""

import math

import numpy as np

from ..cores.arrays import Float32, Int64

BLOCK = 256
"""Tokens whose float32 weights are summed up at once; sums across blocks are float64."""

_LOWEST = float(np.finfo(np.float32).min)
_PEAKS = 2048  # groups of tokens whose largest logits bound the k-th largest of all
_HEAD = 512  # tokens among which the last of top_p is looked for first
_INTERVALS = 2048  # and 1/32 wide each, for when it is not among those
_PIECE = 8192  # tokens that are sorted into intervals at once


def keep(row: Float32, min_p: float, top_k: int, top_p: float) -> Int64:
    """The tokens that the filters leave of a row, ascending; `row` are logits [V], the largest of them 0.

    min_p keeps tokens at least min_p times as likely as the likeliest (Nguyen et al., arXiv 2407.01082);
    top_k the k likeliest (0: all); top_p the likeliest whose mass just reaches p (Holtzman et al.,
    arXiv 1904.09751), of the mass that min_p and top_k left. Equal logits are kept or dropped together,
    -inf is dropped.
    """
    least, values = _LOWEST, row
    if min_p > 0:
        least = math.log(min_p)
        values = row[row >= least]
    if 0 < top_k < values.size:
        values = values[values >= max(least, reached(values, top_k))]
        least = max(least, largest(values, top_k))
        values = values[values >= least]
    if top_p < 1:
        least = max(least, _last(values, top_p))
    return np.flatnonzero(row >= least)


def total(weights: Float32) -> float:
    """The sum of the weights, in one fixed order: float32 within blocks and float64 across them."""
    return float(np.add.reduceat(weights, np.arange(0, weights.size, BLOCK)).sum(dtype=np.float64))


def largest(values: Float32, count: int) -> float:
    """The count-th largest of the values, -inf where there are not as many."""
    return float(np.partition(values, -count)[-count]) if count <= values.size else -math.inf


def reached(values: Float32, count: int) -> float:
    """What at least `count` of the values reach, and not many more: a lower bound of `largest`."""
    groups = values.size // _PEAKS
    if groups < 4 or count > _PEAKS // 4:
        return largest(values, count)
    return largest(values[: groups * _PEAKS].reshape(groups, _PEAKS).max(axis=0), count)


def _last(values: Float32, share: float) -> float:
    """The least logit that is needed, from the largest on, to reach this share of the mass of all `values`.

    It is looked for among the likeliest; where those do not reach it, in the interval of logits that does.
    """
    weights = np.exp(values)
    mass = share * total(weights)
    above = 0.0
    if values.size > _HEAD:
        likely = np.flatnonzero(values >= reached(values, _HEAD))
        if weights[likely].sum(dtype=np.float64) < mass:
            likely, above = _interval(values, weights, mass)
        values = values[likely]
    ordered = np.sort(values)
    within = np.exp(ordered)[::-1].cumsum(dtype=np.float64)
    return float(ordered[-1 - min(int(np.searchsorted(within, mass - above)), ordered.size - 1)])


def _interval(values: Float32, weights: Float32, mass: float) -> tuple[Int64, float]:
    """Where the values are among which the mass is reached, of intervals of 1/32, and the mass above those.

    Their masses are summed up piece by piece, for the temporary arrays of a piece stay in the cache.
    """
    masses = np.zeros(_INTERVALS)
    for begin in range(0, values.size, _PIECE):
        places = np.minimum(values[begin : begin + _PIECE] * -32, _INTERVALS - 1).astype(np.intp)
        masses += np.bincount(places, weights[begin : begin + _PIECE], _INTERVALS)
    cumulated = masses.cumsum()
    place = int(np.searchsorted(cumulated, min(mass, cumulated[-1])))
    least = -(place + 1) / 32 if place < _INTERVALS - 1 else -math.inf
    return np.flatnonzero((values <= -place / 32) & (values > least)), float(cumulated[place] - masses[place])
