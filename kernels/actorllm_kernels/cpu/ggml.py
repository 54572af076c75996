"""The blocks of ggml's quantisations that are linear in their codes, taken apart.

The layouts are those of ggml-common.h in llama.cpp, and the order of the weights that of the dequantize_row
functions of its ggml-quants.c. Quantisations with a table of values (IQ*, TQ*, MXFP4) are not here.

Nothing is lost. A scale is a float16 (11 significant bits) times a signed integer of at most 8 bits; an
offset is a scale times a power of two, or another such product. float32 has 24 bits, and its exponents reach
far below the smallest product, 2^-24. Even code * scale is exact in float32, if only just in Q6_K, which
has 6 + 7 + 11 bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Layout(NamedTuple):
    """A block: `size` bytes for `weights` codes of `bits` in groups of `group`.

    `unpack` reads blocks, uint8 [R, n, size], and writes codes, uint8 [R, n, weights], scale and offset,
    float32 [R, n, weights / group]; all are contiguous.
    """

    size: int
    weights: int
    bits: int
    group: int
    unpack: Callable[[Bytes, Bytes, Floats, Floats], None]


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, with an axis for the groups: float32 [R, n, 1]."""
    return blocks[..., at : at + 2].view("<f2").astype(np.float32)


def _planes(packed: Bytes, bits: int, span: int, out: Bytes) -> Bytes:
    """Fields of `bits` bits: of each `span` bytes of `packed` [R, n, bytes] all lowest fields, then all next
    ones, and so on, in `out` [R, n, bytes * 8 / bits], which is returned.
    """
    rows, blocks, size = packed.shape
    source = packed.reshape(rows, blocks, size // span, span)
    fields = out.reshape(rows, blocks, size // span, 8 // bits, span)
    for field in range(8 // bits):
        np.right_shift(source, np.uint8(field * bits), out=fields[..., field, :])
    return np.bitwise_and(out, np.uint8((1 << bits) - 1), out=out)


def _add_high(codes: Bytes, high: Bytes, shift: int) -> None:
    """Puts `high`, which is overwritten, above the lowest `shift` bits of `codes`."""
    np.left_shift(high, np.uint8(shift), out=high)
    np.bitwise_or(codes, high, out=codes)


def _q4_0(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    scale[...] = _halves(blocks, 0)
    np.multiply(scale, np.float32(-8), out=offset)
    _planes(blocks[..., 2:], 4, 16, codes)


def _q4_1(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    scale[...], offset[...] = _halves(blocks, 0), _halves(blocks, 2)
    _planes(blocks[..., 4:], 4, 16, codes)


def _q5_0(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    scale[...] = _halves(blocks, 0)
    np.multiply(scale, np.float32(-16), out=offset)
    _planes(blocks[..., 6:], 4, 16, codes)
    _add_high(codes, np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little"), 4)


def _q5_1(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    scale[...], offset[...] = _halves(blocks, 0), _halves(blocks, 2)
    _planes(blocks[..., 8:], 4, 16, codes)
    _add_high(codes, np.unpackbits(blocks[..., 4:8], axis=-1, bitorder="little"), 4)


def _q8_0(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    scale[...] = _halves(blocks, 0)
    np.multiply(scale, np.float32(-128), out=offset)
    np.bitwise_xor(blocks[..., 2:], np.uint8(128), out=codes)  # int8 + 128, in the bits of a byte


def _q2_k(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    np.multiply(_halves(blocks, 80), blocks[..., :16] & np.uint8(15), out=scale)
    np.multiply(-_halves(blocks, 82), blocks[..., :16] >> np.uint8(4), out=offset)
    _planes(blocks[..., 16:80], 2, 32, codes)


def _q3_k(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    """A weight is its two low bits, less 4 where its bit of the mask is clear: its three bits, less 4."""
    factors = _planes(blocks[..., 96:104], 4, 8, np.empty(scale.shape, np.uint8))
    _add_high(factors, _planes(blocks[..., 104:108], 2, 4, np.empty(scale.shape, np.uint8)), 4)
    np.multiply(_halves(blocks, 108), factors.astype(np.float32) - np.float32(32), out=scale)
    np.multiply(scale, np.float32(-4), out=offset)
    _planes(blocks[..., 32:96], 2, 32, codes)
    _add_high(codes, _planes(blocks[..., :32], 1, 32, np.empty_like(codes)), 2)


def _k_scales(blocks: Bytes, scale: Floats, offset: Floats) -> None:
    """Of Q4_K and Q5_K: eight factors and eight minima of 6 bits each in bytes 4 to 15.

    The first four of each are the low bits of bytes 4 to 7 and 8 to 11, whose top two bits are those of the
    last four; the rest of these are the nibbles of bytes 12 to 15.
    """
    first = blocks[..., 4:12]
    low, top = first & np.uint8(63), (first >> np.uint8(2)) & np.uint8(48)
    last = blocks[..., 12:16]
    factors = np.concatenate((low[..., :4], top[..., :4] | (last & np.uint8(15))), axis=-1)
    minima = np.concatenate((low[..., 4:], top[..., 4:] | (last >> np.uint8(4))), axis=-1)
    np.multiply(_halves(blocks, 0), factors, out=scale)
    np.multiply(-_halves(blocks, 2), minima, out=offset)


def _q4_k(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    _k_scales(blocks, scale, offset)
    _planes(blocks[..., 16:], 4, 32, codes)


def _q5_k(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    _k_scales(blocks, scale, offset)
    _planes(blocks[..., 48:], 4, 32, codes)
    _add_high(codes, _planes(blocks[..., 16:48], 1, 32, np.empty_like(codes)), 4)


def _q6_k(blocks: Bytes, codes: Bytes, scale: Floats, offset: Floats) -> None:
    np.multiply(_halves(blocks, 208), blocks[..., 192:208].view(np.int8), out=scale)
    np.multiply(scale, np.float32(-32), out=offset)
    _planes(blocks[..., :128], 4, 64, codes)
    _add_high(codes, _planes(blocks[..., 128:192], 2, 32, np.empty_like(codes)), 4)


LAYOUTS = {
    "Q4_0": Layout(18, 32, 4, 32, _q4_0),
    "Q4_1": Layout(20, 32, 4, 32, _q4_1),
    "Q5_0": Layout(22, 32, 8, 32, _q5_0),
    "Q5_1": Layout(24, 32, 8, 32, _q5_1),
    "Q8_0": Layout(34, 32, 8, 32, _q8_0),
    "Q2_K": Layout(84, 256, 4, 16, _q2_k),
    "Q3_K": Layout(110, 256, 4, 16, _q3_k),
    "Q4_K": Layout(144, 256, 4, 32, _q4_k),
    "Q5_K": Layout(176, 256, 8, 32, _q5_k),
    "Q6_K": Layout(210, 256, 8, 16, _q6_k),
}
