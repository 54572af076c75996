"""HashModel, the oracle: a model whose next token is a hash of the KV content a request can see.

It has no weights and needs no torch, but it keeps a paged cache as a real model does and reads it back
through the block table. The tokens are a function of the request alone (`naive_tokens`), so every
schedule, chunking, preemption, cache hit and restart must give the same ones; a lost, doubled, stale or
misplaced block changes them.

The meaning, with all arithmetic modulo 2**64 and `mix` the finaliser of SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014):

    cell[g, p] = CHAIN * cell[g, p - 1] + mix(token[p] * TOKEN + p * PLACE + g * GROUP),  cell[g, -1] = START
    draw       = mix(sum over g, n - window[g] <= p < n of mix(cell[g, p] + p * PLACE)
                     + n + (mix(seed) if temperature > 0))

`g` counts groups of layers; a window of 0 is as long as the request. The chain is linear so that a whole
chunk is one cumulative sum. The token of a draw is a byte (mostly ASCII, with some characters of several
bytes and some broken ones) or, once in 40, `END`. One that a grammar's mask forbids gives way to one that it
allows, and so does one that the request rules out: by allowed tokens, bad words, `min_tokens`, a budget of
reasoning, or by biases and penalties that make a difference of `DECISIVE`. Of temperature it knows zero and
more; weaker biases, top_k, top_p and min_p change nothing. The log-probabilities that it tells are those of
numbers that follow from the draw (`logits`), so that they go astray where the tokens would; those of a
prompt's tokens are of the draws before them, without a seed.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config import EngineConfig
from ..cores.arrays import Float32, Int64
from ..cores.batch import Batch, ranges
from ..cores.extras import Extras
from ..cores.inputs import PromptPart, StepInputs
from ..errors import UsageError
from ..messages import Logprobs, PromptLogprobs, RunStep, Sampled, SampleStep, Sampling
from .capacity import capacity
from .logprobs import Told, join, tell
from .masks import Flags, Mask, Masks, flags, masks_of
from .processors import Wishes

UInt64 = NDArray[np.uint64]

END = 256
"""The end token; the ids below it are bytes, those above are marks that only prompts have."""

VOCAB_SIZE = 260

DECISIVE = 50.0
"""What a token's logit must be below the highest, after all wishes, so that the token is ruled out."""

_WORD = (1 << 64) - 1
_CHAIN = 0xD1342543DE82EF95
_UNCHAIN = pow(_CHAIN, -1, 1 << 64)
_TOKEN = 0x9E3779B97F4A7C15
_PLACE = 0xBF58476D1CE4E5B9
_GROUP = 0x94D049BB133111EB
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

    def __init__(self, config: EngineConfig, limit: int, windows: Sequence[int] = (0,)) -> None:
        """`windows` has an entry for each group of layers."""
        self.windows = tuple(windows)
        self.num_blocks, self.max_model_len = capacity(config, limit, 8 * config.block_size, self.windows)
        self._batch = Batch(config.max_num_seqs, self.max_model_len, config.block_size, len(windows))
        self._powers = _powers(_CHAIN, self.max_model_len + 1)
        self._roots = _powers(_UNCHAIN, self.max_model_len + 1)
        self._num_fills = 0
        self._is_asleep = False
        self._held: StepInputs | None = None
        self.reset()

    def reset(self) -> None:
        """Forget every request; the cache then holds garbage that no request has written."""
        self._held = None
        self._batch.reset()
        self._fill()

    def _fill(self) -> None:
        self._num_fills += 1
        garbage = np.arange(self.num_blocks * self._batch.block_size, dtype=np.uint64)
        self._cache = mix(garbage * np.uint64(_PLACE) + np.uint64(self._num_fills))

    def command(self, action: str, argument: str) -> None:
        """Sleep or wake up: the cache is lost. Raises UsageError for a profile, of which it has none."""
        if action not in ("sleep", "wake_up"):
            raise UsageError(f"{action}: the hash model has no kernels whose time could be measured")
        self._is_asleep = action == "sleep"
        self._fill()

    def execute(self, step: RunStep) -> Sampled | None:
        """A token for each sampling row of the step, in row order; None when it waits for `sample`.

        Raises AssertionError for a step that breaks the protocol (see `Batch.apply`) or writes
        outside the cache; after that only `reset` is possible.
        """
        assert not self._is_asleep, "a step for a device that is asleep"
        assert self._held is None, "the last step was not sampled"
        inputs = self._batch.apply(step)
        assert (inputs.block_table < self.num_blocks).all(), "a block id outside the cache"
        if inputs.input_ids.size:
            self._write(inputs)
        if step.waits:
            self._held = inputs
            return None
        return self._sampled(inputs, {})

    def sample(self, step: SampleStep) -> Sampled:
        """The tokens of the step that waits, under its masks."""
        inputs, self._held = self._held, None
        assert inputs is not None, "no step waits"
        return self._sampled(inputs, masks_of(step, inputs))

    def check(self) -> None:
        """Raise AssertionError when the batch is inconsistent."""
        self._batch.check()

    def _write(self, inputs: StepInputs) -> None:
        """Compute the cells of the step's tokens from the cell before each row's first."""
        begins = inputs.query_start_loc[:-1]
        lengths = np.diff(inputs.query_start_loc)
        firsts = inputs.positions[begins]
        nth = inputs.positions - np.repeat(firsts, lengths) + 1
        places = inputs.positions.astype(np.uint64) * np.uint64(_PLACE)
        own = inputs.input_ids.astype(np.uint64) * np.uint64(_TOKEN) + places
        late = np.flatnonzero(firsts)
        for group, slots in enumerate(inputs.slot_mapping):
            before = np.full(len(firsts), _START, np.uint64)
            before[late] = self._cells(inputs, group, late, firsts[late] - 1)
            terms = self._roots[nth] * mix(own + np.uint64(group * _GROUP & _WORD))
            sums = np.cumsum(terms)
            base = before - (sums[begins] - terms[begins])
            self._cache[slots] = self._powers[nth] * (np.repeat(base, lengths) + sums)

    def _cells(self, inputs: StepInputs, group: int, rows: NDArray[Any], positions: NDArray[Any]) -> UInt64:
        """What the cache holds for these positions of these rows, through the group's block table."""
        index, offset = np.divmod(positions, self._batch.block_size)
        blocks = inputs.block_table[group, rows, index]
        assert (blocks >= 0).all(), "a token sees what fell out of its window"
        cells: UInt64 = self._cache[blocks * self._batch.block_size + offset]
        return cells

    def _sampled(self, inputs: StepInputs, masks: Masks) -> Sampled:
        prompts = tuple(self._told_of(part, inputs) for part in inputs.prompts)
        if not inputs.position.size:
            self._batch.append(())
            return Sampled(b"", prompt_logprobs=prompts)
        draws = self._draws(inputs, inputs.sample_rows, inputs.position)
        draws = mix(
            draws + np.where(inputs.temperature > 0, mix(inputs.seed.astype(np.uint64)), np.uint64(0))
        )
        tokens = _token(draws, inputs.input_ids[inputs.logits_indices])
        extras = inputs.extras
        wishing = {place for place, each in extras.items() if each.alters}
        for place in sorted(wishing.union(masks)):
            allowed = (
                wished(extras[place], masks.get(place))
                if place in wishing
                else flags(masks[place], VOCAB_SIZE)
            )
            tokens[place] = obedient(int(tokens[place]), int(draws[place]), allowed)
        told = self._told(inputs, draws, tokens)
        self._batch.append(tokens)
        return Sampled(tokens.astype("<i4").tobytes(), None, told, prompts)

    def _told(self, inputs: StepInputs, draws: UInt64, tokens: NDArray[np.int32]) -> Logprobs | None:
        """The log-probabilities of the rows that want some."""
        told: list[Told | None] = [None] * len(tokens)
        for place, extras in inputs.extras.items():
            if extras.tells:
                row = logits(int(draws[place]))
                told[place] = tell(row, int(tokens[place]), extras.num_logprobs, extras.logprob_tokens)
        return join(told)

    def _told_of(self, part: PromptPart, inputs: StepInputs) -> PromptLogprobs:
        """The log-probabilities of a part of a prompt."""
        row = int(np.searchsorted(inputs.query_start_loc, part.begin, "right")) - 1
        lengths = inputs.positions[part.begin : part.begin + part.targets.size] + 1
        draws = mix(self._draws(inputs, np.full(lengths.size, row), lengths))
        told = [
            tell(logits(draw), target, part.num_top)
            for draw, target in zip(draws.tolist(), part.targets.tolist(), strict=True)
        ]
        return PromptLogprobs(part.request, part.first, join(told) or Logprobs())

    def _draws(self, inputs: StepInputs, rows: Int64, lengths: Int64) -> UInt64:
        """A number from all that each of these rows of the step can see of its first so many tokens."""
        sums = lengths.astype(np.uint64)
        for group, window in enumerate(self.windows):
            counts = np.minimum(lengths, window) if window else lengths
            positions = ranges(lengths - counts, counts)
            cells = self._cells(inputs, group, np.repeat(rows, counts), positions)
            seen = mix(cells + positions.astype(np.uint64) * np.uint64(_PLACE))
            sums = sums + np.add.reduceat(seen, np.cumsum(counts) - counts)
        return sums


class Guide(Protocol):
    """The grammar of one answer, as the oracle needs it."""

    def allowed(self) -> Flags:
        """Whether each token may come next, bool [VOCAB_SIZE]."""

    def accept(self, token: int, /) -> object:
        """The next token of the answer."""


def naive_tokens(
    prompt: Collection[int],
    max_tokens: int,
    sampling: Sampling,
    eos_ids: Collection[int] = (END,),
    ignore_eos: bool = False,
    windows: Sequence[int] = (0,),
    guide: Guide | None = None,
) -> list[int]:
    """What the HashModel must generate after `prompt`: at most `max_tokens` ids, an end token included.

    Straight from the token ids, without a cache: the oracle of the tests.
    """
    return [
        token for token, _ in naive_draws(prompt, max_tokens, sampling, eos_ids, ignore_eos, windows, guide)
    ]


def naive_draws(
    prompt: Collection[int],
    max_tokens: int,
    sampling: Sampling,
    eos_ids: Collection[int] = (END,),
    ignore_eos: bool = False,
    windows: Sequence[int] = (0,),
    guide: Guide | None = None,
) -> list[tuple[int, int]]:
    """The same tokens, each with its draw."""
    sight, made = Sight(windows), list[tuple[int, int]]()
    seed = _mix((sampling.seed or 0) & _WORD) if sampling.temperature > 0 else 0
    last = 0
    for last in prompt:
        sight.see(last)
    while len(made) < max_tokens:
        draw = _mix(sight.sum + seed)
        last = int(_token(np.array([draw], np.uint64), np.array([last]))[0])
        if guide is not None:
            last = obedient(last, draw, guide.allowed())
            guide.accept(last)
        made.append((last, draw))
        if last in eos_ids and not ignore_eos:
            break
        sight.see(last)
    return made


def naive_prompt_draws(prompt: Collection[int], windows: Sequence[int] = (0,)) -> list[int]:
    """The draws of the prompt's tokens but the first, as `prompt_logprobs` tells of them."""
    sight, draws = Sight(windows), list[int]()
    for token in prompt:
        sight.see(token)
        draws.append(_mix(sight.sum))
    return draws[:-1]


class Sight:
    """What a request can see of its tokens, one after the other."""

    def __init__(self, windows: Sequence[int]) -> None:
        self._windows = windows
        self._cells = [_START] * len(windows)
        self._seen = [[0] for _ in windows]  # sums of what the first so many positions show
        self._length = 0

    def see(self, token: int) -> None:
        """One more token."""
        position = self._length
        for group, sums in enumerate(self._seen):
            own = _mix(token * _TOKEN + position * _PLACE + group * _GROUP)
            self._cells[group] = (_CHAIN * self._cells[group] + own) & _WORD
            sums.append(sums[-1] + _mix(self._cells[group] + position * _PLACE))
        self._length += 1

    @property
    def sum(self) -> int:
        """The sum of all that is visible, and the length."""
        firsts = [max(0, self._length - window) if window else 0 for window in self._windows]
        visible = sum(sums[-1] - sums[first] for sums, first in zip(self._seen, firsts, strict=True))
        return visible + self._length


def obedient(token: int, draw: int, allowed: Flags) -> int:
    """The token if it is allowed (bool [VOCAB_SIZE]), else one that is, or the token when none is."""
    free = np.flatnonzero(allowed)
    return token if allowed[token] or not free.size else int(free[(draw >> 16) % free.size])


def wished(extras: Extras, mask: Mask | None) -> Flags:
    """Which tokens the wishes leave, bool [VOCAB_SIZE], as if all were equally likely before."""
    row = np.empty(VOCAB_SIZE, np.float32)
    wishes = Wishes(np.zeros(VOCAB_SIZE, np.float32), extras, mask)
    wishes.restrict(row)
    wishes.finish(row)
    left: Flags = row > row.max() - DECISIVE
    return left


def logits(draw: int) -> Float32:
    """The numbers whose log-probabilities are told with a draw, float32 [VOCAB_SIZE], from 0 to 16."""
    numbers = mix(np.arange(1, VOCAB_SIZE + 1, dtype=np.uint64) * np.uint64(_TOKEN) + np.uint64(draw))
    return (numbers >> np.uint64(44)).astype(np.float32) / np.float32(1 << 16)


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
