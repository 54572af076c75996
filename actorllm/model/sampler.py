"""Sampling as a pure function of (logits, parameters, seed, position), whatever else is in the batch.

A request that is preempted, moved or replayed draws the same tokens again, for nothing is remembered
between draws: the one random number of a draw comes from a counter-based generator. Sums run along a row
in one fixed order (softmax and cumsum work row by row), so a row's neighbours cannot change its rounding.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores.batch import Float32, Int32, Int64, StepInputs

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def sample(logits: Tensor, inputs: StepInputs) -> Int32:
    """The next token of each sampling row; `logits` are [S, V] of any float dtype.

    Rows with temperature 0 take the likeliest token, the first of equals. The others divide by the
    temperature, then drop tokens by min_p, top_k and top_p, in this order, and draw from what is left,
    in float32.
    """
    tokens: Int32 = logits.max(dim=-1).indices.numpy().astype(np.int32)
    rows = np.flatnonzero(inputs.temperature > 0)
    if rows.size:
        scaled = logits[torch.from_numpy(rows)].float() / torch.from_numpy(inputs.temperature[rows])[:, None]
        kept = filter_logits(scaled, inputs.min_p[rows], inputs.top_k[rows], inputs.top_p[rows])
        tokens[rows] = draw(kept, uniform(inputs.seed[rows], inputs.position[rows]))
    return tokens


def filter_logits(logits: Tensor, min_p: Float32, top_k: Int32, top_p: Float32) -> Tensor:
    """Set to -inf what is not to be drawn, in place; logits are float32 [S, V], the others [S].

    min_p keeps tokens at least min_p times as likely as the likeliest (Nguyen et al., arXiv 2407.01082);
    top_k the k likeliest (0: all); top_p the likeliest whose mass just reaches p (Holtzman et al.,
    arXiv 1904.09751), of the mass that min_p and top_k left. Equal logits are kept or dropped together.
    """
    if (rows := np.flatnonzero(min_p > 0)).size:
        likely = logits[torch.from_numpy(rows)].softmax(dim=-1)
        _drop(logits, rows, likely < torch.from_numpy(min_p[rows])[:, None] * likely.amax(-1, keepdim=True))
    if (rows := np.flatnonzero((top_k > 0) & (top_k < logits.shape[1]))).size:
        own = logits[torch.from_numpy(rows)]
        last = torch.from_numpy(top_k[rows].astype(np.int64))[:, None] - 1
        _drop(logits, rows, own < own.topk(int(top_k[rows].max())).values.gather(1, last))
    if (rows := np.flatnonzero(top_p < 1)).size:
        likely = logits[torch.from_numpy(rows)].softmax(dim=-1)
        _drop(logits, rows, likely < _least(likely, torch.from_numpy(top_p[rows])))
    return logits


def draw(logits: Tensor, numbers: NDArray[np.float64]) -> Int32:
    """The token where the cumulated probability passes each row's number in (0, 1): int32 [S]."""
    cumulated = logits.softmax(dim=-1).double().cumsum(dim=-1)
    marks = cumulated[:, -1:] * torch.from_numpy(numbers)[:, None]
    tokens: Int32 = torch.searchsorted(cumulated, marks, right=True)[:, 0].numpy().astype(np.int32)
    return tokens


def uniform(seed: Int64, position: Int64) -> NDArray[np.float64]:
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


def _drop(logits: Tensor, rows: Int64, unlikely: Tensor) -> None:
    index = torch.from_numpy(rows)
    logits[index] = logits[index].masked_fill_(unlikely, float("-inf"))


def _least(likely: Tensor, top_p: Tensor, width: int = 512) -> Tensor:
    """The probability of the last token that top_p [S] keeps: [S, 1]; `likely` are probabilities [S, V].

    Looks at the `width` likeliest first, and at all where those do not reach top_p.
    """
    for count in (min(width, likely.shape[1]), likely.shape[1]):
        ordered = likely.topk(count).values
        reached = ordered.double().cumsum(dim=-1) >= top_p[:, None].double()
        if bool(reached[:, -1].all()):
            break
    last = torch.where(reached[:, -1], reached.int().argmax(dim=-1), count - 1)
    return ordered.gather(1, last[:, None])
