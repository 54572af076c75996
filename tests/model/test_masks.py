"""The masks of grammars: what they allow, and that looking at little of a row gives the same distribution."""

import numpy as np
import pytest

from actorllm.messages import SampleStep, Sampling, pack_ids
from actorllm.model.masks import allows, ceilings, few, flags, masks_of, packed
from actorllm.model.sampler import sample

from .sampling import distribution, random, rows_of
from .test_processors import mask_of

INF = float("inf")


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_masks_are_words_of_bits(size: int, dtype: type[np.int32]) -> None:
    choose = np.random.default_rng(size)
    tokens = np.flatnonzero(choose.random(size) < 0.1).tolist()
    mask = mask_of(tokens, size).view(dtype)
    mask.flags.writeable = False
    assert ceilings(mask, size).tolist() == [INF if token in tokens else -INF for token in range(size)]
    assert [token for token in range(size + 40) if allows(mask, token)] == tokens
    for length in (1, size, size + 40):
        told = flags(mask, length)
        assert told.dtype == np.bool_
        assert told.tolist() == [token in tokens for token in range(length)]
    assert packed(flags(mask, size)).tobytes() == mask.tobytes()
    found = few(mask, size)
    assert (None if found is None else found.tolist()) == (tokens if 8 * len(tokens) <= size else None)


def test_of_many_tokens_no_list_is_made() -> None:
    assert few(mask_of(range(13), 100), 100) is None
    found = few(mask_of(range(12), 100), 100)
    assert found is not None
    assert found.tolist() == list(range(12))


def test_bits_beyond_the_tokens_mean_nothing() -> None:
    found = few(mask_of([3, 63], 64), 60)
    assert found is not None
    assert found.tolist() == [3]


def test_each_sampling_row_gets_the_mask_of_its_request() -> None:
    inputs = rows_of([Sampling(temperature=0.0)] * 3)
    object.__setattr__(inputs, "requests", np.array([7, 8, 9], np.int64))
    masks = np.array([[1, 2], [3, 4]], "<i4").tobytes()
    found = masks_of(SampleStep(1, 0, pack_ids([9, 7]), masks), inputs)
    assert {place: mask.tolist() for place, mask in found.items()} == {0: [3, 4], 2: [1, 2]}
    assert masks_of(SampleStep(1, 0, b"", b""), inputs) == {}


SIZE = 400
SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_k=3, seed=2),
    Sampling(temperature=1.5, top_p=0.8, min_p=0.05, seed=3),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("count", [1, 2, 10, 50, 51, 399])
def test_few_tokens_are_drawn_as_they_would_be_among_all(sampling: Sampling, count: int) -> None:
    """A bias of nothing keeps a row from being spared: it is worked on as a whole."""
    logits = random(1, SIZE)
    allowed = np.random.default_rng(count).permutation(SIZE)[:count]
    mask = mask_of(sorted(allowed.tolist()), SIZE)
    inputs = rows_of([sampling])
    forced = np.full((1, SIZE), -np.inf, np.float32)
    forced[0, allowed] = logits[0, allowed]
    spared = distribution(logits, inputs, masks={0: mask})
    assert np.abs(spared - distribution(forced, inputs)).max() < 1e-6
    token = int(sample(logits, inputs, masks={0: mask}).tokens[0])
    assert spared[0, token] > 0


def test_the_likeliest_token_is_taken_where_it_is_allowed_and_else_the_likeliest_that_is() -> None:
    logits = random(2, SIZE)
    best, second = np.argsort(-logits[1])[:2].tolist()
    masks = {
        0: mask_of(range(SIZE), SIZE),
        1: mask_of([token for token in range(SIZE) if token != best], SIZE),
    }
    drawn = sample(logits, rows_of([Sampling(temperature=0.0)] * 2), masks=masks)
    assert drawn.tokens.tolist() == [int(logits[0].argmax()), second]


def test_where_few_allowed_tokens_have_no_chance_one_of_them_comes_all_the_same() -> None:
    logits = random(1, SIZE)
    logits[0, [5, 6]] = -np.inf
    drawn = sample(logits, rows_of([Sampling(temperature=1.0, seed=4)]), masks={0: mask_of([5, 6], SIZE)})
    assert drawn.tokens[0] in (5, 6)
