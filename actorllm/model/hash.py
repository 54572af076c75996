"""HashModel, the oracle: a model whose next token is a hash of the KV content a request can see.

It has no weights and needs no torch, but it keeps a paged cache as a real model does and reads it back
through the block table. The tokens are a function of the request alone (`naive_tokens`), so every
schedule, chunking, preemption, cache hit and restart must give the same ones; a lost, doubled, stale or
misplaced block changes them.

The meaning, with all arithmetic modulo 2**64 and `mix` the finaliser of SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014):

    cell[p] = CHAIN * cell[p - 1] + mix(token[p] * TOKEN + p * PLACE),      cell[-1] = START
    draw    = mix(sum over p < n of mix(cell[p] + p * PLACE) + n + (mix(seed) if temperature > 0))

The chain is linear so that a whole chunk is one cumulative sum. The token of a draw is a byte (mostly
ASCII, with some characters of several bytes and some broken ones) or, once in 40, `END`.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import EngineConfig
from ..cores.batch import Batch, StepInputs, ranges
from ..messages import RunStep, Sampling
from .capacity import capacity

UInt64 = NDArray[np.uint64]

END = 256
"""The end token; the ids below it are bytes, those above are marks that only prompts have."""

VOCAB_SIZE = 260

_WORD = (1 << 64) - 1
_CHAIN = 0xD1342543DE82EF95
_UNCHAIN = pow(_CHAIN, -1, 1 << 64)
_TOKEN = 0x9E3779B97F4A7C15
_PLACE = 0xBF58476D1CE4E5B9
_START = 0x2545F4914F6CDD1D
_ALPHABET = np.frombuffer(
    b"etaoinshrdlucmfwypvbgkjqxz" * 3
    + b"ETAOINSR .,!?0123456789\n"
    + b" " * 16
    + b"\xc3\xd0\xf0" * 2
    + b"\x80\xff",
    np.uint8,
)
_NEXT = {0xC3: (0x80, 64), 0xD0: (0x90, 48), 0xF0: (0x9F, 1), 0x9F: (0x98, 1), 0x98: (0x80, 64)}
"""After this byte comes one of (first, count) bytes: the rest of a character."""
_NEXT_FIRST = np.array([_NEXT.get(token, (0, 0))[0] for token in range(VOCAB_SIZE)])
_NEXT_COUNT = np.array([_NEXT.get(token, (0, 0))[1] for token in range(VOCAB_SIZE)])


class HashRunner:
    """Runs steps of the HashModel; the same interface as the runner of a real model.

    `num_blocks` and `max_model_len` are as `capacity` says for blocks of 8 * block_size bytes and a
    model of at most `limit` tokens. Raises ConfigError as `capacity` does.
    """

    def __init__(self, config: EngineConfig, limit: int) -> None:
        self.num_blocks, self.max_model_len = capacity(config, limit, 8 * config.block_size)
        self._batch = Batch(config.max_num_seqs, self.max_model_len, config.block_size)
        self._powers = _powers(_CHAIN, self.max_model_len + 1)
        self._roots = _powers(_UNCHAIN, self.max_model_len + 1)
        self._resets = 0
        self.reset()

    def reset(self) -> None:
        """Forget every request; the cache then holds garbage that no request has written."""
        self._batch.reset()
        self._resets += 1
        garbage = np.arange(self.num_blocks * self._batch.block_size, dtype=np.uint64)
        self._cache = mix(garbage * np.uint64(_PLACE) + np.uint64(self._resets))

    def execute(self, step: RunStep) -> bytes:
        """The token (int32 column) of each sampling row of the step, in row order.

        Raises AssertionError for a step that breaks the protocol (see `Batch.apply`) or writes
        outside the cache; after that only `reset` is possible.
        """
        inputs = self._batch.apply(step)
        assert (inputs.block_table < self.num_blocks).all(), "a block id outside the cache"
        if inputs.input_ids.size:
            self._write(inputs)
        tokens = self._sample(inputs)
        self._batch.append(tokens)
        return tokens.astype("<i4").tobytes()

    def check(self) -> None:
        """Raise AssertionError when the batch is inconsistent."""
        self._batch.check()

    def _write(self, inputs: StepInputs) -> None:
        """Compute the cells of the step's tokens from the cell before each row's first."""
        begins = inputs.query_start_loc[:-1]
        lengths = np.diff(inputs.query_start_loc)
        firsts = inputs.positions[begins]
        before = self._cells(inputs, np.arange(len(firsts)), np.maximum(firsts - 1, 0))
        before = np.where(firsts == 0, np.uint64(_START), before)
        nth = inputs.positions - np.repeat(firsts, lengths) + 1
        own = inputs.input_ids.astype(np.uint64) * np.uint64(_TOKEN)
        terms = self._roots[nth] * mix(own + inputs.positions.astype(np.uint64) * np.uint64(_PLACE))
        sums = np.cumsum(terms)
        base = before - (sums[begins] - terms[begins])
        self._cache[inputs.slot_mapping] = self._powers[nth] * (np.repeat(base, lengths) + sums)

    def _cells(self, inputs: StepInputs, rows: NDArray[Any], positions: NDArray[Any]) -> UInt64:
        """What the cache holds for these positions of these rows, through the block table."""
        block, offset = np.divmod(positions, self._batch.block_size)
        cells: UInt64 = self._cache[inputs.block_table[rows, block] * self._batch.block_size + offset]
        return cells

    def _sample(self, inputs: StepInputs) -> NDArray[np.int32]:
        """A token from all that each sampling row can see."""
        lengths = inputs.position
        if not lengths.size:
            return np.zeros(0, np.int32)
        positions = ranges(np.zeros_like(lengths), lengths)
        cells = self._cells(inputs, np.repeat(inputs.sample_rows, lengths), positions)
        seen = mix(cells + positions.astype(np.uint64) * np.uint64(_PLACE))
        sums = np.add.reduceat(seen, np.cumsum(lengths) - lengths) + lengths.astype(np.uint64)
        seeds = np.where(inputs.temperature > 0, mix(inputs.seed.astype(np.uint64)), np.uint64(0))
        return _token(mix(sums + seeds), inputs.input_ids[inputs.logits_indices])


def naive_tokens(
    prompt: Collection[int],
    max_tokens: int,
    sampling: Sampling,
    eos_ids: Collection[int] = (END,),
    ignore_eos: bool = False,
) -> list[int]:
    """What the HashModel must generate after `prompt`: at most `max_tokens` ids, an end token included.

    Straight from the token ids, without a cache: the oracle of the tests.
    """
    cell, seen, tokens, made = _START, 0, list(prompt), 0
    seed = _mix((sampling.seed or 0) & _WORD) if sampling.temperature > 0 else 0
    for position in range(len(tokens) + max_tokens):
        own = _mix(tokens[position] * _TOKEN + position * _PLACE)
        cell = (_CHAIN * cell + own) & _WORD
        seen += _mix(cell + position * _PLACE)
        if position < len(tokens) - 1:
            continue
        draw = np.array([_mix(seen + position + 1 + seed)], np.uint64)
        tokens.append(int(_token(draw, np.array([tokens[position]]))[0]))
        made += 1
        if made == max_tokens or (tokens[-1] in eos_ids and not ignore_eos):
            break
    return tokens[len(tokens) - made :]


def mix(words: UInt64) -> UInt64:
    """The finaliser of SplitMix64, on an array of 64-bit words."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix(word: int) -> int:
    """The same on one number (taken modulo 2**64)."""
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _powers(base: int, count: int) -> UInt64:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


def _token(draws: UInt64, last: NDArray[Any]) -> NDArray[np.int32]:
    """The token of each draw, given the token before it."""
    numbers = (draws >> np.uint64(16)).astype(np.int64)
    first, count = _NEXT_FIRST[last], _NEXT_COUNT[last]
    free = _ALPHABET[numbers % len(_ALPHABET)]
    tokens = np.where(count > 0, first + numbers % np.maximum(count, 1), free)
    return np.where(draws % np.uint64(40) == 0, END, tokens).astype(np.int32)
