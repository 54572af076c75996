"""Sampling as a pure function of (logits, parameters, seed, position), whatever else is in the batch.

A request that is preempted, moved or replayed draws the same tokens again, for nothing is remembered
between draws: the one random number of a draw comes from a counter-based generator. A row is worked on
alone, in memory of its own that stays in the cache, so its neighbours cannot change its rounding.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cores.arrays import Float32, Int32, Int64
from ..cores.extras import Extras
from ..cores.inputs import StepInputs
from ..messages import Logprobs
from ..processors import LogitsProcessor
from .filters import BLOCK, keep
from .logprobs import Told, as_float32, join, tell
from .masks import Mask, allows, few
from .processors import process

Float64 = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_NO_EXTRAS: Mapping[int, Extras] = MappingProxyType({})
_NO_MASKS: Mapping[int, Mask] = MappingProxyType({})


Likeliest = tuple[Int32, Float32]
"""Of each row the token with the largest logit (the first of equals), and that logit; NaN is the largest."""


class Drawn(NamedTuple):
    """A token (int32 [S]) for each sampling row, and what is told of those, None where nobody wants any."""

    tokens: Int32
    logprobs: Logprobs | None


class Choice(NamedTuple):
    """What a row's token is drawn from: the tokens that are left (None: all) and their weights.

    The weights are made of `logits` float32 [V]. All of it is valid until the next choice.
    """

    logits: Float32
    kept: Int64 | None
    weights: Float32

    def of(self, tokens: Int64) -> "Choice":
        """The same, where the logits are those of these tokens alone."""
        return self._replace(kept=tokens if self.kept is None else tokens[self.kept])

    def draw(self, number: float) -> int:
        """The token for a number in (0, 1)."""
        place = draw(self.weights, number)
        return place if self.kept is None else int(self.kept[place])


def find_likeliest(rows: Float32) -> Likeliest:
    """The likeliest tokens of logits [S, V]."""
    tokens = rows.argmax(axis=1)
    return tokens.astype(np.int32), rows[np.arange(len(rows)), tokens]


def sample(
    logits: Float32 | Any,
    inputs: StepInputs,
    likeliest: Likeliest | None = None,
    extras: Mapping[int, Extras] = _NO_EXTRAS,
    masks: Mapping[int, Mask] = _NO_MASKS,
    processors: Sequence[LogitsProcessor] = (),
    processed_logprobs: bool = False,
) -> Drawn:
    """The next token of each sampling row; `logits` are [S, V]. Changes nothing that it is given.

    They are float32, or anything whose `.float().numpy()` is (a tensor of torch, of any float dtype).
    Rows with extras or masks, whose keys are numbers of sampling rows, are first worked on by `process`.
    Rows with temperature 0 take the likeliest token; `likeliest` are those of the logits as they are, where
    they are known. The others divide by the temperature, then drop tokens by min_p, top_k and top_p, in
    this order, and draw from what is left, in float32.

    Log-probabilities are those of the logits as they are given, or, when `processed_logprobs`, of what
    the token was drawn from, at temperature 0 of what it was the likeliest of. Raises FloatingPointError
    for a row that is no distribution: NaN or +inf is in it, or all of it is -inf.
    """
    rows = as_float32(logits)
    whole = [i for i, each in extras.items() if each.tells] if processed_logprobs else ()
    work = Work(rows, inputs, likeliest or find_likeliest(rows), extras, masks, processors, whole)
    told: dict[int, Told] = {}
    telling = {i: each for i, each in extras.items() if each.tells}
    drawing = {*np.flatnonzero(inputs.temperature > 0).tolist(), *work.altered}
    chosen = sorted(drawing.union(telling) if processed_logprobs else drawing)
    if not (chosen or telling):
        return Drawn(work.likeliest[0], None)
    numbers = uniform(inputs.seed[chosen], inputs.position[chosen]).tolist()
    tokens = work.likeliest[0].copy()
    for number, (i, choice) in zip(numbers, work.choices(chosen), strict=True):
        tokens[i] = choice.draw(number)
        if processed_logprobs and i in telling:
            left = _left(choice) if inputs.temperature[i] > 0 else choice.logits
            told[i] = _tell(left, int(tokens[i]), telling[i])
    if not processed_logprobs:
        told = {i: _tell(rows[i], int(tokens[i]), each) for i, each in telling.items()}
    return Drawn(tokens, join([told.get(i) for i in range(len(rows))]) if told else None)


class Work:
    """A step's rows of logits [S, V] and all that is asked of them (see `sample`).

    A row on which nothing but a grammar's mask lies is not changed where that can be spared: the likeliest
    token is taken when it is allowed, and where few tokens are, only those are looked at. Not so the rows in
    `whole`, of which all processed logits are wanted.
    """

    def __init__(
        self,
        rows: Float32,
        inputs: StepInputs,
        likeliest: Likeliest,
        extras: Mapping[int, Extras],
        masks: Mapping[int, Mask],
        processors: Sequence[LogitsProcessor],
        whole: Sequence[int] = (),
    ) -> None:
        largest = likeliest[1]
        if (broken := np.flatnonzero(~np.isfinite(largest))).size:
            raise FloatingPointError(f"the largest logit of sampling row {broken[0]} is {largest[broken[0]]}")
        self.likeliest = likeliest
        self._rows, self._inputs = rows, inputs
        self._extras, self._masks, self._processors = extras, masks, processors
        self._dense = {i for i, each in extras.items() if each.alters}
        self._few: dict[int, Int64] = {}
        for i in masks.keys() - self._dense:
            self._spare(i, i in whole)
        self.altered = self._dense.union(self._few)

    def _spare(self, i: int, whole: bool) -> None:
        """See how little of a row that has a mask alone must be looked at."""
        row, mask = self._rows[i], self._masks[i]
        is_greedy = self._inputs.temperature[i] == 0
        if is_greedy and not whole and allows(mask, int(self.likeliest[0][i])):
            return
        tokens = None if whole else few(mask, row.size)
        if tokens is None or not tokens.size or row[tokens].max() == -np.inf:
            self._dense.add(i)
        else:
            self._few[i] = tokens

    def choices(self, chosen: Sequence[int]) -> Iterator[tuple[int, Choice]]:
        """What the token of each chosen row is drawn from; the rows ascend."""
        tokens, largest = self.likeliest
        inputs, size = self._inputs, self._rows.shape[1]
        top_k = np.where(inputs.top_k < size, inputs.top_k, 0)
        memory = np.empty(size, np.float32)
        dense = [i for i in chosen if i in self._dense]
        processed = process(self._rows, dense, self._extras, self._masks, self._processors)
        for i in chosen:
            row, token, top, known = self._rows[i], tokens[i], largest[i], self._few.get(i)
            if i in self._dense:
                row = next(processed)
            elif known is not None:
                row = row[known]
            if i in self.altered:
                token = row.argmax()
                top = row[token]
            if inputs.temperature[i] > 0:
                filters = float(inputs.min_p[i]), int(top_k[i]), float(inputs.top_p[i])
                choice = _choice(row, top, inputs.temperature[i], filters, memory[: row.size])
            else:
                choice = Choice(row, np.array([token], np.int64), np.ones(1, np.float32))
            yield i, choice if known is None else choice.of(known)


@np.errstate(over="ignore", under="ignore")  # far below the largest is -inf, and its weight 0
def _choice(
    row: Float32,
    largest: np.float32,
    temperature: np.float32,
    filters: tuple[float, int, float],
    memory: Float32,
) -> Choice:
    np.subtract(row, largest, out=memory)
    np.divide(memory, temperature, out=memory)
    if filters == (0.0, 0, 1.0):
        return Choice(memory, None, np.exp(memory))
    kept = keep(memory, *filters)
    return Choice(memory, kept, np.exp(memory[kept]))


def _left(choice: Choice) -> Float32:
    """The logits of what a token is drawn from, -inf for the others."""
    if choice.kept is None:
        return choice.logits
    left = np.full_like(choice.logits, -np.inf)
    left[choice.kept] = choice.logits[choice.kept]
    return left


def _tell(row: Float32, token: int, extras: Extras) -> Told:
    return tell(row, token, extras.num_logprobs, extras.logprob_tokens)


def draw(weights: Float32, number: float) -> int:
    """Where the cumulated weights pass `number`, in (0, 1), times their sum; never at a weight of 0.

    Sums float32 within blocks and float64 across them: the float32 weights are no more exact than that.
    """
    begins = np.arange(0, weights.size, BLOCK)
    cumulated = np.add.reduceat(weights, begins).cumsum(dtype=np.float64)
    mark = number * float(cumulated[-1])
    block = _passing(cumulated, mark)
    begin = block * BLOCK
    within = weights[begin : begin + BLOCK].cumsum(dtype=np.float64)
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
