"""Log-probabilities: of a token that was drawn and the likeliest beside it, and of a prompt's tokens.

Each row is worked on alone and in one fixed order, so what is told of it does not depend on the batch.
No value is NaN or infinite: `LEAST` stands for whatever is less likely than that, as in vLLM's answers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cores.arrays import Float32, Int32, Int64
from ..cores.logprobs import Candidates
from ..cores.logprobs import join as join_columns
from ..messages import Logprobs
from .filters import largest, reached, total

LEAST = -9999.0
"""The least log-probability that is told."""


class Told(NamedTuple):
    """What is told of one token: int32, float32 and int32 [C], the token itself first."""

    tokens: Int32
    values: Float32
    ranks: Int32

    def columns(self) -> Candidates:
        """The same as columns."""
        tokens, values, ranks = self.tokens.astype("<i4"), self.values.astype("<f4"), self.ranks.astype("<i4")
        return Candidates(tokens.tobytes(), values.tobytes(), ranks.tobytes())


def as_float32(logits: Float32 | Any) -> Float32:
    """An array as it is; the float32 of anything with `.float().numpy()` (a tensor of any float dtype)."""
    plain: Float32 = logits if isinstance(logits, np.ndarray) else logits.float().numpy()
    return plain


def tell(row: Float32, token: int, count: int, others: Int32 | Sequence[int] = ()) -> Told:
    """The log-probabilities of a row of logits [V], -inf among them but not all of them, nothing NaN.

    First that of the token, then those of the `count` likeliest (-1: all) in order, the lower id first of
    equals, then those of the others that are in the vocabulary; none twice. A rank is 1 + the number of
    tokens that are strictly likelier.
    """
    likeliest = find_likeliest_of(row, row.size if count < 0 else min(count, row.size))
    known = np.asarray(others, np.int64)
    known = known[(known >= 0) & (known < row.size)]
    wanted = np.concatenate((np.array([token]), likeliest, known))
    wanted = wanted[np.sort(np.unique(wanted, return_index=True)[1])]
    values, ordered = row[wanted], row[likeliest]
    ranks = np.searchsorted(-ordered, -values) + 1
    behind = values < ordered[-1] if ordered.size else np.ones(values.size, np.bool_)
    ranks[behind] = [np.count_nonzero(row > value) + 1 for value in values[behind]]
    told = np.maximum(values.astype(np.float64) - log_sum_exp(row), LEAST)
    return Told(wanted.astype(np.int32), told.astype(np.float32), ranks.astype(np.int32))


def find_likeliest_of(row: Float32, count: int) -> Int64:
    """The `count` largest of a row in order, the first of equals first; without sorting the row."""
    if count < 1:
        return np.zeros(0, np.int64)
    tokens = np.arange(row.size)
    if count < row.size:
        tokens = np.flatnonzero(row >= largest(row[row >= reached(row, count)], count))
    return tokens[np.argsort(-row[tokens], kind="stable")][:count]


def log_sum_exp(row: Float32) -> float:
    """The logarithm of the sum of exp(row), in one fixed order; correct to 1e-5 for any vocabulary."""
    shift = row.max()
    with np.errstate(over="ignore", under="ignore"):  # far below the largest is -inf, and its weight 0
        return float(shift) + float(np.log(total(np.exp(row - shift))))


def prompt_logprobs(logits: Float32 | Any, targets: Int32, k: int) -> Logprobs:
    """What is told of each of some tokens of a prompt: row i of the logits [N, V] predicts targets[i].

    `logits` are as `sample` takes them, and `k` of the likeliest are told (-1: all). Works row by row.
    Raises FloatingPointError for a row that is no distribution.
    """
    told: list[Told | None] = []
    for i, target in enumerate(targets.tolist()):
        row = as_float32(logits[i])
        if not np.isfinite(top := row.max()):
            raise FloatingPointError(f"the largest logit of prompt row {i} is {top}")
        told.append(tell(row, target, k))
    return join(told) or Logprobs()


def join(told: Sequence[Told | None]) -> Logprobs | None:
    """One message of what is told of each token, None where nothing is; None when nothing is of any."""
    return join_columns([None if entry is None else entry.columns() for entry in told])
