"""Sampling as a pure function of (logits, parameters, seed, position), whatever else is in the batch.

A request that is preempted, moved or replayed draws the same tokens again, for nothing is remembered
between draws: the one random number of a draw comes from a counter-based generator. A row is worked on
alone, in memory of its own that stays in the cache, so its neighbours cannot change its rounding.

Every filter amounts to a least logit that a token needs. None sorts the vocabulary: a bound that certainly
lets enough tokens through leaves some hundreds, and those are ordered.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cores.batch import Float32, Int32, Int64, StepInputs

Float64 = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LOWEST = float(np.finfo(np.float32).min)
_BLOCK = 256  # tokens that a draw sums up at once
_PEAKS = 2048  # groups of tokens whose largest logits bound the k-th largest of all
_HEAD = 512  # tokens among which the last of top_p is looked for first
_INTERVALS = 2048  # and 1/32 wide each, for when it is not among those
_PIECE = 8192  # tokens that are sorted into intervals at once


Likeliest = tuple[Int32, Float32]
"""Of each row the token with the largest logit (the first of equals), and that logit; NaN is the largest."""


def find_likeliest(rows: Float32) -> Likeliest:
    """The likeliest tokens of logits [S, V]."""
    tokens = rows.argmax(axis=1)
    return tokens.astype(np.int32), rows[np.arange(len(rows)), tokens]


def sample(logits: Float32 | Any, inputs: StepInputs, likeliest: Likeliest | None = None) -> Int32:
    """The next token of each sampling row; `logits` are [S, V]. Changes nothing that it is given.

    They are float32, or anything whose `.float().numpy()` is (a tensor of torch, of any float dtype).
    Rows with temperature 0 take the likeliest token, which is looked for unless it is given. The others
    divide by the temperature, then drop tokens by min_p, top_k and top_p, in this order, and draw from what
    is left, in float32. Raises FloatingPointError for a row that is no distribution: NaN or +inf is in it,
    or all of it is -inf.
    """
    rows: Float32 = logits if isinstance(logits, np.ndarray) else logits.float().numpy()
    tokens, largest = likeliest or find_likeliest(rows)
    if (broken := np.flatnonzero(~np.isfinite(largest))).size:
        raise FloatingPointError(f"the largest logit of sampling row {broken[0]} is {largest[broken[0]]}")
    drawing = np.flatnonzero(inputs.temperature > 0)
    if not drawing.size:
        return tokens
    tokens = tokens.copy()
    numbers = uniform(inputs.seed[drawing], inputs.position[drawing]).tolist()
    top_k = np.where(inputs.top_k < rows.shape[1], inputs.top_k, 0)
    row = np.empty(rows.shape[1], np.float32)
    with np.errstate(over="ignore", under="ignore"):  # far below the largest is -inf, and its weight 0
        for i, number in zip(drawing.tolist(), numbers, strict=True):
            np.subtract(rows[i], largest[i], out=row)
            np.divide(row, inputs.temperature[i], out=row)
            filters = float(inputs.min_p[i]), int(top_k[i]), float(inputs.top_p[i])
            tokens[i] = _token(row, filters, number)
    return tokens


def _token(row: Float32, filters: tuple[float, int, float], number: float) -> int:
    if filters == (0.0, 0, 1.0):
        return draw(np.exp(row), number)
    kept = keep(row, *filters)
    return int(kept[draw(np.exp(row[kept]), number)])


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
        values = values[values >= max(least, _reached(values, top_k))]
        least = max(least, _largest(values, top_k))
        values = values[values >= least]
    if top_p < 1:
        least = max(least, _last(values, top_p))
    return np.flatnonzero(row >= least)


def draw(weights: Float32, number: float) -> int:
    """Where the cumulated weights pass `number`, in (0, 1), times their sum; never at a weight of 0.

    Sums float32 within blocks and float64 across them: the float32 weights are no more exact than that.
    """
    begins = np.arange(0, weights.size, _BLOCK)
    cumulated = np.add.reduceat(weights, begins).cumsum(dtype=np.float64)
    mark = number * float(cumulated[-1])
    block = _passing(cumulated, mark)
    begin = block * _BLOCK
    within = weights[begin : begin + _BLOCK].cumsum(dtype=np.float64)
    return begin + _passing(within, mark - float(cumulated[block - 1]) if block else mark)


def uniform(seed: Int64, position: Int64) -> Float64:
    """One number in (0, 1) for each pair, in steps of 2**-32.

    The first word of Philox4x32-10 with the seed as key and the position as counter (Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", 2011).
    """
    zeros = np.zeros_like(position, np.uint64)
    key, counter = seed.astype(np.uint64), position.astype(np.uint64)
    words = philox((counter & _LOW, counter >> _HALF, zeros, zeros), (key & _LOW, key >> _HALF))
    return (words[0].astype(np.float64) + 0.5) / 2.0**32


Words = NDArray[np.uint64]


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Philox4x32-10 on arrays of 32-bit words that are held in uint64."""
    first, second, third, fourth = counter
    key_0, key_1 = key
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * first, np.uint64(0xCD9E8D57) * third
        first, second = (right >> _HALF) ^ second ^ key_0, right & _LOW
        third, fourth = (left >> _HALF) ^ fourth ^ key_1, left & _LOW
        key_0 = (key_0 + np.uint64(0x9E3779B9)) & _LOW
        key_1 = (key_1 + np.uint64(0xBB67AE85)) & _LOW
    return first, second, third, fourth


def _passing(cumulated: Float64, mark: float) -> int:
    """The first place where `cumulated` passes the mark; its end, should rounding put the mark there."""
    return int(np.searchsorted(cumulated, min(mark, np.nextafter(cumulated[-1], 0.0)), "right"))


def _largest(values: Float32, count: int) -> float:
    """The count-th largest of the values, -inf where there are not as many."""
    return float(np.partition(values, -count)[-count]) if count <= values.size else -math.inf


def _reached(values: Float32, count: int) -> float:
    """What at least `count` of the values reach, and not many more: a lower bound of `_largest`."""
    groups = values.size // _PEAKS
    if groups < 4 or count > _PEAKS // 4:
        return _largest(values, count)
    return _largest(values[: groups * _PEAKS].reshape(groups, _PEAKS).max(axis=0), count)


def _last(values: Float32, share: float) -> float:
    """The least logit that is needed, from the largest on, to reach this share of the mass of all `values`.

    It is looked for among the likeliest; where those do not reach it, in the interval of logits that does.
    """
    weights = np.exp(values)
    mass = share * float(np.add.reduceat(weights, np.arange(0, values.size, _BLOCK)).sum(dtype=np.float64))
    above = 0.0
    if values.size > _HEAD:
        likely = np.flatnonzero(values >= _reached(values, _HEAD))
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
