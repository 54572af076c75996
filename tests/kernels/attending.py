"""One layer of attention over a paged cache by hand, and what it should give, in float64."""

from collections.abc import Sequence
from ctypes import POINTER, c_void_p, cast
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from actorllm_kernels.cpu.library import Cache, Heads, Kernels, Kind, Op, Shape, Step
from numpy.typing import NDArray

from .programs import THREADS, Doubles, Floats, aligned, bfloat16, padded, widened


@dataclass(frozen=True, slots=True)
class Case:
    """Heads, the cache, what is seen, and how long requests are."""

    keys: int
    group: int
    size: int
    block: int
    lengths: tuple[int, ...]
    window: int = 0
    soft_cap: float = 0.0
    scaled: float = 0.0
    """What scores are multiplied with; 0: a power of two near 1 / sqrt(size), which rounds nothing."""

    @property
    def heads(self) -> int:
        return self.keys * self.group

    @property
    def scale(self) -> float:
        return self.scaled or float(2.0 ** -round(np.log2(self.size) / 2))


@dataclass(slots=True)
class Request:
    """Rows of q, k and v, [length, heads + 2 * keys, size], and where its blocks are."""

    rows: Floats
    blocks: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Turn:
    """A rotary embedding, [positions, size / 2] each, and norms of the heads of q and k, if there are."""

    cosines: Floats
    sines: Floats
    norms: tuple[Floats, Floats] | None = None
    eps: float = 0.0


def quarter_turns(size: int, positions: int) -> Turn:
    """Each pair is turned by a random number of quarters at each position: nothing is rounded."""
    quarters = np.random.default_rng(9).integers(0, 4, (positions, size // 2))
    cosines, sines = (np.array(table, np.float32)[quarters] for table in ((1, 0, -1, 0), (0, 1, 0, -1)))
    return Turn(cosines, sines)


def random_request(case: Case, length: int, seed: int) -> Request:
    """Values of bfloat16. Keys differ in size, so that the largest score comes early or late."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((length, case.heads + 2 * case.keys, case.size))
    rows[:, case.heads : case.heads + case.keys] *= 10 ** rng.uniform(-0.5, 0.5, (length, 1, 1))
    return Request(widened(bfloat16(rows)))


Row = tuple[Request, int, int]
"""Tokens [begin, end) of a request."""


class Attention:
    """Rotates, attends and joins one layer, over a cache that is full of what others have left."""

    def __init__(self, kernels: Kernels, case: Case, turn: Turn, cache: Cache = Cache.BF16) -> None:
        tokens = sum(case.lengths)
        self._case = case
        self._num_blocks = tokens // case.block + 2 * len(case.lengths) + 2
        heads = Heads(case.heads, case.keys, case.size, padded(case.size, 16), case.block, cache)
        width = (case.heads + 2 * case.keys) * case.size
        self._source = aligned((tokens, padded(width, 32)))
        self._queries = aligned((tokens, case.heads, kernels.query_bytes(heads)), np.uint8)
        self._target = aligned((tokens, padded(case.heads * case.size, 32) + 32))
        part = kernels.cache_bytes(heads) // case.keys
        self._cache = aligned((self._num_blocks, case.keys, part), np.uint8)
        scales = 2 * case.block * 4 * (cache is Cache.INT8)
        self._numbers, self._scales = self._cache[..., : part - scales], self._cache[..., part - scales :]
        self._kind = cache
        self._kept: list[Any] = [turn]
        self._free: list[int] = []
        common = {"window": case.window, "soft_cap": case.soft_cap}
        q_norm, k_norm = (self._vector(norm) for norm in turn.norms or (None, None))
        rotate = Op(
            kind=Kind.ROTATE,
            window=case.window,
            scale=case.scale,
            eps=turn.eps,
            bias=q_norm,
            k_norm=k_norm,
            source=self._source.ctypes.data,
            source_stride=self._source.shape[1],
            target=self._queries.ctypes.data,
        )
        attend, join = (
            Op(
                kind=kind,
                **common,
                left=0,
                source=self._queries.ctypes.data,
                target=self._target.ctypes.data,
                target_stride=self._target.shape[1],
            )
            for kind in (Kind.ATTEND, Kind.JOIN)
        )
        tables = [(c_void_p * 1)(table.ctypes.data) for table in (turn.cosines, turn.sines)]
        shape = Shape(
            heads,
            self._cache.nbytes,
            self._cache.ctypes.data,
            *(cast(table, POINTER(c_void_p)) for table in tables),
        )
        self._kept += [tables, shape]
        self._running = kernels.open([rotate, attend, join], shape, THREADS)
        self.forget(0)

    def forget(self, seed: int) -> None:
        """All blocks are free, and hold what is finite; block 0 stays so."""
        rng = np.random.default_rng(seed)
        self._cache[...] = rng.integers(0, 1 << 8, self._cache.shape, dtype=np.uint8)
        if self._kind is Cache.BF16:
            self._numbers.view(np.uint16)[...] &= 0xFF7F
        self._scales.view(np.uint32)[...] &= 0xFF7FFFFF
        self._free = (rng.permutation(self._num_blocks - 1) + 1).tolist()

    def step(self, rows: Sequence[Row], num_threads: int = 1) -> list[Floats]:
        """What each row gives, [tokens, heads, size]. Asserts that nothing is written beside it."""
        case, lengths = self._case, [end - begin for _, begin, end in rows]
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        total = int(starts[-1])
        tables = [self._table(*row) for row in rows]
        table = np.full((1, len(rows), max(map(len, tables))), -1, np.int32)
        for place, blocks in zip(table[0], tables, strict=True):
            place[: len(blocks)] = blocks
        positions = np.concatenate([np.arange(begin, end) for _, begin, end in rows])
        owner = np.repeat(np.arange(len(rows)), lengths)
        slots = (
            table[0, owner, positions // case.block].astype(np.int64) * case.block + positions % case.block
        )
        assert (slots >= 0).all()
        whole = np.concatenate([request.rows[begin:end] for request, begin, end in rows]).reshape(total, -1)
        self._source[...] = np.nan
        self._source[:total, : whole.shape[1]] = whole
        self._target[...] = np.nan
        seen = np.array([end for _, _, end in rows], np.int32)
        columns = [np.zeros(total, np.int32), positions, slots, starts, seen, table, np.zeros(0, np.int64)]
        step = Step(total, len(rows), 0, table.shape[2], *(column.ctypes.data for column in columns))
        self._running.step(step, num_threads)
        width = case.heads * case.size
        assert np.isnan(self._target[total:]).all(), "written below the tokens"
        assert np.isnan(self._target[:, width:]).all(), "written beside the heads"
        out = self._target[:total, :width].reshape(total, case.heads, case.size)
        return [out[begin:end].copy() for begin, end in pairwise(starts.tolist())]

    def _table(self, request: Request, begin: int, end: int) -> list[int]:
        """Its blocks up to `end`; those that no token from `begin` on sees go to others."""
        case = self._case
        while len(request.blocks) * case.block < end:
            request.blocks.append(self._free.pop())
        if case.window:
            for place in range(max(0, begin - case.window + 1) // case.block):
                if request.blocks[place] >= 0:
                    self._fill(request.blocks[place])
                    self._free.append(request.blocks[place])
                    request.blocks[place] = -1
        return request.blocks[: -(-end // case.block)]

    def _fill(self, block: int) -> None:
        """With the largest numbers that there are."""
        self._numbers[block] = 0x7F if self._kind is Cache.BF16 else 0xFF
        self._scales.view(np.float32)[block] = np.finfo(np.float32).max

    def _vector(self, values: Floats | None) -> int | None:
        if values is None:
            return None
        vector = aligned((padded(len(values), 32),))
        vector[: len(values)] = values
        self._kept.append(vector)
        return int(vector.ctypes.data)


# -- in float64 ---------------------------------------------------------------------------------------


def turned(rows: Doubles, turn: Turn, norm: Floats | None) -> Doubles:
    """Heads [length, n, size], normed and turned."""
    if norm is not None:
        rows = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + turn.eps) * norm
    half = rows.shape[-1] // 2
    low, high = rows[..., :half], rows[..., half:]
    cosines, sines = (table[: len(rows), None].astype(np.float64) for table in (turn.cosines, turn.sines))
    result: Doubles = np.concatenate((low * cosines - high * sines, high * cosines + low * sines), -1)
    return result


@dataclass(frozen=True, slots=True)
class Exact:
    """For some positions, [n, heads, size]: attention, how far it may be off, and on average."""

    values: Doubles
    bound: Doubles
    noise: Doubles


def exact(
    case: Case,
    request: Request,
    turn: Turn,
    positions: NDArray[np.int64],
    flips: int = 0,
    cache: Cache = Cache.BF16,
) -> Exact:
    """Attention of q, k and v rounded as they are for this cache; what is after that in float64.

    The kernels may be off by what float32 does: to a score 2^-24 of the sum of its products' sizes, `size`
    times; to a weight as much as to the score, and 2^-18 for exp, tanh and a maximum that moves; to sums over
    the keys 2^-24 for each. And they round the softmax weights: to bfloat16 by 2^-8 of each, on average by
    less than half of that; for values in bytes, each times its value's scale, by half of a unit, on average
    by 1 / sqrt(12) of one, where 32639 units are the largest of 64 keys. On average they add up as squares.
    Of a pair of q and k so many numbers (`flips`) may have been rounded to the other neighbour, 2^-7 of the
    largest away, and in bytes each number of q, 2^-14 of it.
    """
    rows, heads, norms = request.rows.astype(np.float64), case.heads, turn.norms or (None, None)
    q = turned(rows[:, :heads], turn, norms[0])[positions] * case.scale
    k = turned(rows[:, heads : heads + case.keys], turn, norms[1])
    (q, _), (k, _) = rounded(q, 32639, cache), rounded(k, 127, cache)
    v, scales = rounded(rows[:, heads + case.keys :], 127, cache)
    key = np.arange(len(rows))
    seen = key <= positions[:, None]
    if case.window:
        seen &= key > positions[:, None] - case.window
    parts = [np.zeros((len(positions), heads, case.size)) for _ in range(3)]
    for head in range(heads):
        kv = head // case.group
        weights, slack = _weigh(case, q[:, head], k[:, kv], seen, flips)
        error, noise = _rounding(weights, v[:, kv], scales[:, kv], cache)
        parts[0][:, head] = weights @ v[:, kv]
        parts[1][:, head] = error + slack * (weights @ np.abs(v[:, kv]))
        parts[2][:, head] = noise
    return Exact(*parts)


def rounded(heads: Doubles, most: int, cache: Cache) -> tuple[Doubles, Doubles]:
    """Heads [..., size] as a cache has them or wants them; in bytes, or 16 bits, with their scales."""
    floats = heads.astype(np.float32)
    if cache is Cache.BF16:
        return widened(bfloat16(floats)).astype(np.float64), np.ones((*heads.shape[:-1], 1))
    size = np.abs(floats).max(-1, keepdims=True)
    scales = (size / np.float32(most)).astype(np.float64)
    return np.rint(floats * (np.float32(most) / size)) * scales, scales


def _weigh(
    case: Case, q: Doubles, k: Doubles, seen: NDArray[np.bool_], flips: int
) -> tuple[Doubles, Doubles]:
    """The softmax weights, and how far float32 and flips may shift them, of their size."""
    scores = q @ k.T
    slack = case.size * 2.0**-24 * (np.abs(q) @ np.abs(k).T)
    flipped = flips * 2.0**-7 + bool(flips) * case.size * 2.0**-14
    slack += flipped * np.outer(np.abs(q).max(1), np.abs(k).max(1))
    if case.soft_cap:
        scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        slack += 2.0**-20 * case.soft_cap
    scores[~seen] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    slack = np.expm1(2 * np.where(seen, slack, 0).max(1, keepdims=True)) + 2.0**-18 + len(k) * 2.0**-23
    return weights, slack


def _rounding(weights: Doubles, v: Doubles, scales: Doubles, cache: Cache) -> tuple[Doubles, Doubles]:
    """What rounding the weights does to each number at most, and on average."""
    if cache is Cache.BF16:
        return 2.0**-8 * (weights @ np.abs(v)), 2.0**-9 * np.sqrt(weights**2 @ v**2)
    error, squares = (np.zeros((len(weights), v.shape[1])) for _ in range(2))
    for chunk in (slice(begin, begin + 64) for begin in range(0, len(v), 64)):
        unit = (weights[:, chunk] * scales[chunk].T).max(1, keepdims=True) / 32639
        codes = v[chunk] / scales[chunk]
        counts = (weights[:, chunk] > 0).astype(np.float64)
        error += unit / 2 * (counts @ np.abs(codes))
        squares += unit**2 / 12 * (counts @ codes**2)
    return error, np.sqrt(np.maximum(squares, 1e-30))  # nothing rounds zeros
