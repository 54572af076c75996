"""What requests and grammars ask of single rows of logits, before temperature and filters.

In vLLM's order: the grammar's mask, allowed tokens, bad words and early end tokens, bias, custom
processors, penalties, the budget of reasoning. Where only the last four bring a token back that the mask
forbids, the mask is laid on once more, so that nothing outside it can be drawn.

One request's wishes never fail the step of the others, but for a custom processor that raises: its request
is found and fails alone when the step has failed again (docs/design.md). What comes out as NaN counts as
-inf, and +inf as the largest float32. When nothing is left, the wishes are given up in this order, until
something is: all but the allowed tokens and the mask; all but the mask; the model's logits too, so that
whatever the mask allows is equally likely; the mask, when it allows nothing at all.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..cores.arrays import Float32, Int32, Int64
from ..cores.extras import Extras
from ..processors import LogitsProcessor
from .masks import Mask, ceilings

_MOST = float(np.finfo(np.float32).max)


def process(
    rows: Float32,
    chosen: Sequence[int],
    extras: Mapping[int, Extras],
    masks: Mapping[int, Mask],
    processors: Sequence[LogitsProcessor] = (),
) -> Iterator[Float32]:
    """The chosen rows of logits [S, V] as they are to be drawn from, one after the other.

    At least one of a row's logits is finite, and none is NaN or +inf. A row is valid until the next is
    asked for, and may be changed.
    """
    size = rows.shape[1]
    taking = [i for i in chosen if i in extras and extras[i].takes_part]
    customised = np.empty((len(taking), size), np.float32)
    for i, row in zip(taking, customised, strict=True):
        Wishes(rows[i], extras[i], masks.get(i)).restrict(row)
    _customise(customised, [extras[i] for i in taking], processors)
    places = {i: place for place, i in enumerate(taking)}
    memory = np.empty(size, np.float32)
    for i in chosen:
        wishes = Wishes(rows[i], extras.get(i), masks.get(i))
        if i in places:
            row = customised[places[i]]
        else:
            row = memory
            wishes.restrict(row)
        wishes.finish(row)
        yield row


class Wishes:
    """What is asked of one row; `raw` [V] are the model's logits."""

    def __init__(self, raw: Float32, extras: Extras | None, mask: Mask | None) -> None:
        self.raw, self.extras = raw, extras
        self._highest = None if mask is None else ceilings(mask, raw.size)

    @np.errstate(all="ignore")
    def restrict(self, row: Float32) -> None:
        """Fill `row` with the logits under the mask and all that comes before custom processors."""
        if self._highest is None:
            np.copyto(row, self.raw)
        else:
            np.minimum(self.raw, self._highest, out=row)
        extras = self.extras
        if extras is None:
            return
        self._keep_allowed(row)
        row[_within(extras.forbidden, row.size)] = -np.inf
        inside = _inside(extras.bias_tokens, row.size)
        np.add.at(row, extras.bias_tokens[inside], extras.bias[inside])

    @np.errstate(all="ignore")
    def finish(self, row: Float32) -> None:
        """Do with `row` what comes after custom processors, and see that something can be drawn."""
        if self.extras is not None:
            penalise(row, self.extras)
            if (forced := self.extras.forced) is not None:
                row.fill(-np.inf)
                row[_within([forced], row.size)] = 0.0
            self._mask(row)
        if not np.isfinite(row.max()):
            np.nan_to_num(row, copy=False, nan=-np.inf, posinf=_MOST, neginf=-np.inf)
            self._give_up(row)

    def _give_up(self, row: Float32) -> None:
        """Give up one wish after the other, until something is left."""
        if row.max() == -np.inf and self.extras is not None:
            np.copyto(row, self.raw)
            self._mask(row)
            self._keep_allowed(row)
        if row.max() == -np.inf:
            np.copyto(row, self.raw)
            self._mask(row)
        if row.max() == -np.inf:
            row.fill(0.0)
            self._mask(row)
        if row.max() == -np.inf:
            np.copyto(row, self.raw)

    def _mask(self, row: Float32) -> None:
        if self._highest is not None:
            np.minimum(row, self._highest, out=row)

    def _keep_allowed(self, row: Float32) -> None:
        if self.extras is not None and self.extras.allowed.size:
            tokens = _within(self.extras.allowed, row.size)
            kept = row[tokens]
            row.fill(-np.inf)
            row[tokens] = kept


def penalise(row: Float32, extras: Extras) -> None:
    """Repetition, frequency and presence penalties, in place.

    A seen token's logit is divided by the first where it is positive and else multiplied (Keskar et al.,
    arXiv 1909.05858); then the second is taken off for each time that it is in the output, and the third
    once. The logits are float32, as in vLLM.
    """
    tokens, counts = extras.seen
    inside = _inside(tokens, row.size)
    tokens, counts = tokens[inside], counts[inside]
    if not tokens.size:
        return
    sampling = extras.sampling
    logits = row[tokens]
    penalty = np.float32(sampling.repetition_penalty)
    logits = np.where(logits > 0, logits / penalty, logits * penalty)
    logits -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
    logits -= np.float32(sampling.presence_penalty) * (counts > 0).astype(np.float32)
    row[tokens] = logits


def _customise(rows: Float32, extras: Sequence[Extras], processors: Sequence[LogitsProcessor]) -> None:
    """Let each processor work on those of the rows [P, V] in which it takes part, at once."""
    for number, processor in enumerate(processors):
        states = [each.states[number] for each in extras]
        places = [place for place, state in enumerate(states) if state is not None]
        if places:
            logits = rows[places]
            processor.apply(logits, [states[place] for place in places])
            rows[places] = logits


def _within(tokens: Int32 | Sequence[int], size: int) -> Int64:
    """Those of the tokens that have logits; a tokenizer may know others."""
    ids = np.asarray(tokens, np.int64)
    return ids[_inside(ids, size)]


def _inside(ids: Int32 | Int64, size: int) -> NDArray[np.bool_]:
    return (ids >= 0) & (ids < size)
