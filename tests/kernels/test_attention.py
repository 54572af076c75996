"""Attention over the paged cache against float64; and queries that know no neighbours, however they come."""

from collections.abc import Iterator

import numpy as np
import pytest
from actorllm_kernels.cpu.library import Cache, Kernels
from numpy.typing import NDArray

from .attending import Attention, Case, Request, Row, Turn, exact, quarter_turns, random_request, rounded
from .programs import Floats, same_bits

CASES = {
    "no groups, long": Case(2, 1, 64, 16, (1500, 64, 1, 2)),
    "small heads": Case(1, 2, 8, 32, (700, 65, 3)),
    "three a head": Case(2, 3, 64, 16, (600, 513, 512, 511)),
    "seven a head": Case(1, 7, 128, 16, (530, 63)),
    "twelve a head, a cap": Case(1, 12, 16, 64, (600, 17), soft_cap=30.0),
    "sixteen a head": Case(1, 16, 16, 32, (600, 64)),
    "heads of 80, a small cap": Case(2, 2, 80, 16, (513, 200), soft_cap=2.0),
    "heads of 256, a window of 512": Case(1, 4, 256, 16, (1200, 100), window=512),
    "a window of 9": Case(2, 2, 64, 16, (700, 30, 9, 10), window=9),
    "a window of 100, a cap": Case(1, 3, 64, 32, (700, 150), window=100, soft_cap=5.0),
    "a window of 1": Case(1, 2, 16, 16, (80, 600), window=1),
    "a window of 65": Case(1, 1, 64, 64, (640,), window=65),
    "a window of 600": Case(1, 2, 16, 16, (1500, 1200), window=600),
}
each_cache = pytest.mark.parametrize("cache", Cache, ids=lambda cache: cache.name)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def requests_of(case: Case) -> list[Request]:
    return [random_request(case, length, seed) for seed, length in enumerate(case.lengths)]


def some_positions(length: int) -> NDArray[np.int64]:
    """Those about the borders, and some others."""
    borders = [at + by for at in (0, 64, 512, 576, 1024, length) for by in (-2, -1, 0, 1)]
    drawn = np.random.default_rng(length).integers(0, length, 60).tolist()
    return np.array(sorted({at for at in borders + drawn if 0 <= at < length}))


# -- schedules: steps that compute whole requests, in any order -------------------------------------------


def in_chunks(requests: list[Request], seed: int) -> Iterator[list[Row]]:
    """Chunks of any size, of some of the requests, in any order."""
    rng = np.random.default_rng(seed)
    computed = [0] * len(requests)
    while unfinished := [at for at, request in enumerate(requests) if computed[at] < len(request)]:
        rows: list[Row] = []
        for at in rng.permutation(unfinished)[: rng.integers(1, len(unfinished) + 1)].tolist():
            size = int(rng.choice([1, 1, 2, 3, 7, 16, 64, 100, 300, 512]))
            end = min(len(requests[at]), computed[at] + size)
            rows.append((requests[at], computed[at], end))
            computed[at] = end
        yield rows


def token_by_token(requests: list[Request], tail: int) -> Iterator[list[Row]]:
    """All but the last tokens at once, and these one by one, all requests together."""
    begins = [max(0, len(request) - tail) for request in requests]
    if rows := [(request, 0, begin) for request, begin in zip(requests, begins, strict=True) if begin]:
        yield rows
    for by in range(tail):
        last = zip(requests, begins, strict=True)
        yield [(request, at + by, at + by + 1) for request, at in last if at + by < len(request)]


def run(
    attention: Attention, requests: list[Request], steps: Iterator[list[Row]], threads: int
) -> list[Floats]:
    """What each request gives in all."""
    for request in requests:
        request.blocks = []
    parts: dict[int, list[Floats]] = {id(request): [] for request in requests}
    for rows in steps:
        for (request, _, _), part in zip(rows, attention.step(rows, threads), strict=True):
            parts[id(request)].append(part)
    return [np.concatenate(parts[id(request)]) for request in requests]


@pytest.mark.slow
@each_cache
@each_case
def test_attention_is_that_of_float64_and_queries_stand_alone(
    kernels: Kernels, case: Case, cache: Cache
) -> None:
    turn = quarter_turns(case.size, max(case.lengths))
    requests, attention = requests_of(case), Attention(kernels, case, turn, cache)
    every = attention.step([(request, 0, len(request)) for request in requests])
    for request, got in zip(requests, every, strict=True):
        positions = some_positions(len(request))
        expected = exact(case, request, turn, positions, cache=cache)
        errors = got[positions] - expected.values
        assert (np.abs(errors) <= expected.bound).all()
        assert np.sqrt(((errors / expected.noise) ** 2).mean()) < 1.1
    ways = [
        (token_by_token(requests, 9), 1),
        (token_by_token(requests, 9), 2),
        (in_chunks(requests, 1), 1),
        (in_chunks(requests, 2), 2),
        (in_chunks(requests[:1], 3), 2),
    ]
    for seed, (steps, threads) in enumerate(ways):
        attention.forget(seed)
        some = requests[:1] if seed == len(ways) - 1 else requests
        for got, whole in zip(run(attention, some, steps, threads), every, strict=False):
            assert same_bits(got, whole)


@pytest.mark.slow
@each_cache
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("size", [12, 64, 80])
def test_heads_are_normed_turned_and_scaled(kernels: Kernels, size: int, normed: bool, cache: Cache) -> None:
    """By any angle and scale, and not to the last bit: of each pair of q and k 4 numbers may round otherwise,
    which none of some million pairs comes near if float32 errs by 2^-20.
    """
    case = Case(2, 2, size, 16, (90, 30, 1), scaled=0.3 / np.sqrt(size), soft_cap=20.0 * normed)
    rng = np.random.default_rng(4)
    angles = np.outer(np.arange(90), 10000.0 ** -(np.arange(size // 2) / (size // 2)))
    q_norm, k_norm = (rng.uniform(0.5, 2, size).astype(np.float32) for _ in range(2))
    turn = Turn(
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
        (q_norm, k_norm) if normed else None,
        eps=1e-3,
    )
    attention, requests = Attention(kernels, case, turn, cache), requests_of(case)
    for request in requests:
        request.rows[:, :-2] *= np.float32(1.234)  # no longer values of bfloat16, but v
    every = attention.step([(request, 0, len(request)) for request in requests], 2)
    for request, got in zip(requests, every, strict=True):
        expected = exact(case, request, turn, np.arange(len(request)), flips=4, cache=cache)
        assert (np.abs(got - expected.values) <= expected.bound).all()
        error = np.sqrt(((got - expected.values) ** 2).mean() / (expected.noise**2).mean())
        assert error < 2.0


@each_cache
@pytest.mark.parametrize(("size", "soft_cap"), [(16, 0.0), (16, 200.0), (256, 0.0)])
@pytest.mark.parametrize("at", [0, 63, 64, 511, 512, 600, 1055])
def test_a_score_far_above_all_others_takes_all(
    kernels: Kernels, at: int, size: int, soft_cap: float, cache: Cache
) -> None:
    """All numbers of q and of the key are the largest there are, of the most that a head may have."""
    case = Case(1, 3, size, 16, (1056,), soft_cap=soft_cap)
    turn = Turn(np.ones((1056, size // 2), np.float32), np.zeros((1056, size // 2), np.float32))
    request = random_request(case, 1056, 1)
    request.rows[:, :3] = 16
    request.rows[:, 3] = np.where(np.arange(1056)[:, None] == at, 16, -16)
    got = Attention(kernels, case, turn, cache).step([(request, 0, 1056)])[0]
    value, _ = rounded(request.rows[at, 4].astype(np.float64), 127, cache)
    allowed = (2.0**-22 * np.abs(value) + 1e-30) * (cache is Cache.INT8)  # it is a code times a float32
    assert (np.abs(got[at:] - value) <= allowed).all()


@each_cache
def test_what_is_not_finite_stays_with_its_request(kernels: Kernels, cache: Cache) -> None:
    """Its keys and values lie in the cache as zeros: another one does not see them, but reads them."""
    case = Case(1, 2, 16, 16, (20,))
    attention = Attention(kernels, case, quarter_turns(16, 32), cache)
    broken, other = random_request(case, 20, 1), random_request(case, 5, 2)
    broken.rows[:, :, ::3] = np.nan
    broken.rows[:, :, 1::3] = np.inf
    broken.rows[:, :, 2::3] = np.copysign(np.float32(3e38), broken.rows[:, :, 2::3])
    alone = attention.step([(other, 0, 5)])[0]
    attention.step([(broken, 0, 20)])
    other.blocks = broken.blocks[:1]  # it writes 5 of the 16 slots
    assert np.isfinite(alone).all()
    assert same_bits(attention.step([(other, 0, 5)])[0], alone)
