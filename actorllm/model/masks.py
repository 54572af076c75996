"""The masks of grammars: which rows of a step have one, and which tokens they allow.

Masks repeat from row to row and from step to step (within a string nearly everything is allowed), so what
is made of them is kept for a while.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cores.arrays import Float32, Int64
from ..cores.inputs import StepInputs
from ..messages import SampleStep, unpack_ids

Mask = NDArray[Any]
"""ceil(V / 32) words of 32 bits: token i may be drawn where bit i % 32 of word i // 32 is 1."""

Flags = NDArray[np.bool_]
"""Whether each token may be drawn, bool [V]."""

Masks = Mapping[int, Mask]
"""Masks by the place in S of their sampling rows."""

KEPT = 32
"""Masks of which what was made is kept: a quarter of a megabyte each, with the largest vocabularies one."""

FEW = 8
"""Of so many tokens a mask allows one at most when its tokens are worth to be looked at alone."""

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_OCTETS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))  # of each byte of a mask, its 8 ceilings


def masks_of(step: SampleStep, inputs: StepInputs) -> Masks:
    """The masks of the sampling rows that have one."""
    requests = unpack_ids(step.requests)
    if not requests:
        return {}
    rows = np.frombuffer(step.masks, "<i4").reshape(len(requests), -1)
    masks = dict(zip(requests, rows, strict=True))
    sampling = enumerate(inputs.requests.tolist())
    return {place: masks[request] for place, request in sampling if request in masks}


def allows(mask: Mask, token: int) -> bool:
    """Whether the token may be drawn; one beyond the mask's last word may not."""
    word = token >> 5
    return word < len(mask) and bool(int(mask[word]) >> (token & 31) & 1)


def flags(mask: Mask, size: int) -> Flags:
    """Whether each of `size` tokens may be drawn; those beyond the mask's last word may not."""
    return _flags(_octets(mask), size)


def packed(allowed: Flags) -> Mask:
    """The mask of such flags, int32 in little endian."""
    octets = np.zeros(-(-allowed.size // 32) * 4, np.uint8)
    octets[: -(-allowed.size // 8)] = np.packbits(allowed, bitorder="little")
    return octets.view("<i4")


def ceilings(mask: Mask, size: int) -> Float32:
    """What the logits [size] may be at most: -inf where a mask forbids a token, +inf elsewhere. Read-only.

    Tokens beyond the mask's last word are forbidden.
    """
    return _ceilings(_octets(mask), size)


def few(mask: Mask, size: int) -> Int64 | None:
    """The tokens below `size` that the mask allows, ascending; None if they are many. Read-only."""
    return _few(_octets(mask), size)


def _octets(mask: Mask) -> bytes:
    return mask.astype(mask.dtype.newbyteorder("<"), copy=False).tobytes()


def _flags(octets: bytes, size: int) -> Flags:
    bits = np.unpackbits(np.frombuffer(octets, np.uint8), count=size, bitorder="little")
    return bits.view(np.bool_)


@lru_cache(KEPT)
def _ceilings(octets: bytes, size: int) -> Float32:
    highest = np.full(-(-size // 8) * 8, -np.inf, np.float32)
    known = np.frombuffer(octets, np.uint8)[: highest.size // 8]
    np.take(_OCTETS, known, axis=0, out=highest[: known.size * 8].reshape(-1, 8), mode="clip")
    highest.setflags(write=False)
    return highest[:size]


@lru_cache(KEPT)
def _few(octets: bytes, size: int) -> Int64 | None:
    tokens = np.flatnonzero(_flags(octets, size))
    if tokens.size * FEW > size:
        return None
    tokens.setflags(write=False)
    return tokens
