"""Codes against gguf's own dequantisation, and rounding against its bounds."""

from collections.abc import Callable

import numpy as np
import pytest
from actorllm_kernels.cpu.codes import Codes, from_ggml, quantise, values, widen
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

KINDS = {
    # dtype: (bits, group, largest code, bytes of a block at which a float16 lies)
    "Q4_0": (4, 32, 15, (0,)),
    "Q4_1": (4, 32, 15, (0, 2)),
    "Q5_0": (8, 32, 31, (0,)),
    "Q5_1": (8, 32, 31, (0, 2)),
    "Q8_0": (8, 32, 255, (0,)),
    "Q2_K": (4, 16, 3, (80, 82)),
    "Q3_K": (4, 16, 7, (108,)),
    "Q4_K": (4, 32, 15, (0, 2)),
    "Q5_K": (8, 32, 31, (0, 2)),
    "Q6_K": (8, 16, 63, (208,)),
}
SIMPLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # those that gguf can quantise to
each_kind = pytest.mark.parametrize("dtype", KINDS)


def random_blocks(dtype: str, rows: int, blocks: int, halves: Floats | None = None, seed: int = 0) -> Bytes:
    """Rows of blocks of random bytes, with `halves` (default: random ones) in turn as their float16s."""
    rng = np.random.default_rng(seed)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]][1]
    data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in KINDS[dtype][3]:
        if halves is None:
            drawn = rng.standard_normal((rows, blocks)) * 2.0 ** rng.integers(-24, 8, (rows, blocks))
        else:
            drawn = np.resize(np.roll(halves, at), (rows, blocks))
        data[..., at : at + 2] = drawn.astype(np.float16)[..., None].view(np.uint8)
    return data.reshape(rows, blocks * size)


def taken(dtype: str, data: Bytes) -> Codes:
    codes = from_ggml(dtype, data)
    assert codes is not None
    return codes


def assert_same(dtype: str, data: Bytes) -> Codes:
    """The values of `data` are those of gguf, to the last bit.

    One rounding to float32 would be allowed. It is the same one: code * scale is exact on both sides, and so
    is the sum where the offset is a multiple of the scale; where it is another product, both round the same
    exact sum once. (Zeros may differ in sign, which == does not see.)
    """
    codes = taken(dtype, data)
    bits, group, largest, _ = KINDS[dtype]
    assert (codes.bits, codes.group) == (bits, group)
    assert codes.codes.max() <= largest < 1 << bits
    assert codes.scale.shape == codes.offset.shape == (len(data), codes.codes.shape[1] // group)
    np.testing.assert_array_equal(values(codes), dequantize(data, GGMLQuantizationType[dtype]))
    return codes


@each_kind
def test_random_bytes_mean_what_gguf_makes_of_them(dtype: str) -> None:
    codes = assert_same(dtype, random_blocks(dtype, rows=7, blocks=5))
    assert codes.codes.max() == KINDS[dtype][2]
    assert codes.codes.min() == 0


@pytest.mark.parametrize("dtype", SIMPLE)
def test_weights_that_gguf_quantised(dtype: str) -> None:
    weights = np.random.default_rng(1).standard_normal((5, 192), dtype=np.float32)
    codes = assert_same(dtype, quantize(weights, GGMLQuantizationType[dtype]))
    assert np.abs(values(codes) - weights).max() < 0.5


@each_kind
def test_zero_negative_tiny_and_large_scales(dtype: str) -> None:
    halves = np.array([0.0, -0.0, -1.5, 2.0**-24, -(2.0**-24), 65504.0, -65504.0, 1.0], np.float32)
    assert_same(dtype, random_blocks(dtype, rows=3, blocks=8, halves=halves))


@each_kind
@pytest.mark.parametrize("byte", [0, 0x7F, 0x80, 0xFF])
def test_extreme_codes_and_factors(dtype: str, byte: int) -> None:
    data = random_blocks(dtype, rows=2, blocks=3, halves=np.array([1.99902344, -0.33325195], np.float32))
    size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]][1]
    halves = {at + i for at in KINDS[dtype][3] for i in range(2)}
    data.reshape(-1, size)[:, [i for i in range(size) if i not in halves]] = byte
    assert_same(dtype, data)


@each_kind
def test_scales_and_offsets_are_exact_products(dtype: str) -> None:
    """A float16 times a factor of up to 8 bits has up to 19 significant bits; one rounded anywhere has 24."""
    codes = taken(dtype, random_blocks(dtype, rows=9, blocks=9, seed=2))
    for each in (codes.scale, codes.offset):
        assert not np.any(np.frexp(each)[0] * 2**19 % 1)


@each_kind
def test_infinite_and_nan_scales_stay(dtype: str) -> None:
    halves = np.array([np.nan, 1.0, np.inf, 1.0, -np.inf, 1.0], np.float32)
    data = random_blocks(dtype, rows=1, blocks=6, halves=halves)
    codes = taken(dtype, data)
    for each in (codes.scale, values(codes)):
        fine: list[bool] = [bool(np.isfinite(block).all()) for block in each.reshape(6, -1)]
        assert fine == [False, True] * 3


@each_kind
def test_rows_do_not_depend_on_the_chunks_they_are_read_in(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random_blocks(dtype, rows=11, blocks=2)
    whole = taken(dtype, data)
    weights = whole.codes.shape[1]
    for chunk in (1, 3 * weights, 100 * weights):
        monkeypatch.setattr("actorllm_kernels.cpu.codes.CHUNK", chunk)
        parts = taken(dtype, data)
        np.testing.assert_array_equal(parts.codes, whole.codes)
        np.testing.assert_array_equal(parts.scale, whole.scale)
        np.testing.assert_array_equal(parts.offset, whole.offset)


@each_kind
def test_rows_may_be_read_only_strided_or_none(dtype: str) -> None:
    data = random_blocks(dtype, rows=6, blocks=2)
    data.setflags(write=False)
    np.testing.assert_array_equal(taken(dtype, data[::2]).codes, taken(dtype, data).codes[::2])
    assert taken(dtype, data[:0]).codes.shape == (0, taken(dtype, data).codes.shape[1])
    assert taken(dtype, data[:, :0]).codes.shape == (6, 0)


@pytest.mark.parametrize("dtype", ["IQ4_NL", "IQ2_XXS", "TQ1_0", "MXFP4", "Q8_K", "F16"])
def test_other_types_have_no_codes(dtype: str) -> None:
    assert from_ggml(dtype, np.zeros((1, 1024), np.uint8)) is None


def test_half_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="Q4_K: a row of 145 bytes is not a multiple of its blocks of 144"):
        from_ggml("Q4_K", np.zeros((2, 145), np.uint8))


def normal(rng: np.random.Generator) -> Floats:
    return (rng.standard_normal((6, 256)) * 0.02).astype(np.float32)


def uniform(rng: np.random.Generator) -> Floats:
    return rng.uniform(0.5, 1.0, (6, 256)).astype(np.float32)


def outlier(rng: np.random.Generator) -> Floats:
    weights = normal(rng)
    weights[:, ::32] = 3
    return weights


def tiny(rng: np.random.Generator) -> Floats:
    """Scales below float16's normal range, and below its smallest value."""
    return normal(rng) * np.logspace(0, -8, 6, dtype=np.float32)[:, None]


each_weights = pytest.mark.parametrize("weights", [normal, uniform, outlier, tiny])
each_group = pytest.mark.parametrize("group", [16, 32])
Weights = Callable[[np.random.Generator], Floats]


def is_half(x: Floats) -> bool:
    return bool((x == x.astype(np.float16)).all())


@each_group
@each_weights
def test_eight_bits_are_within_half_a_step(weights: Weights, group: int) -> None:
    v = weights(np.random.default_rng(3))
    codes = quantise(v, 8, group)
    assert (codes.bits, codes.group, codes.codes.shape) == (8, group, v.shape)
    assert is_half(codes.scale)
    np.testing.assert_array_equal(codes.offset, -128 * codes.scale)
    step = np.repeat(codes.scale, group, axis=1)
    # the quotient that is rounded to a code has itself been rounded to float32, by at most 2^-17 below 256
    assert (np.abs(values(codes) - v) <= step * (0.5 + 2.0**-17)).all()
    absmax = np.abs(v).reshape(6, -1, group).max(2)
    assert (np.abs(codes.scale - absmax / 127) <= np.maximum(absmax / 127 * 2.0**-10, 2.0**-24)).all()


def plain(v: Floats, group: int) -> Floats:
    """4 bits by rounding between min and max, with scale and offset in float16."""
    grouped = v.reshape(len(v), -1, group)
    low = grouped.min(2, keepdims=True)
    step = ((grouped.max(2, keepdims=True) - low) / np.float32(15)).astype(np.float16).astype(np.float32)
    offset = low.astype(np.float16).astype(np.float32)
    q = np.rint((grouped - offset) / np.where(step == 0, np.float32(1), step)).clip(0, 15)
    rounded: Floats = (q * step + offset).reshape(v.shape)
    return rounded


def squared(v: Floats, rounded: Floats, group: int) -> NDArray[np.float64]:
    """The squared error of each group."""
    error: NDArray[np.float64] = np.square(rounded.astype(np.float64) - v).reshape(len(v), -1, group).sum(2)
    return error


@each_group
@each_weights
def test_four_bits_are_no_worse_than_plain_rounding_in_any_group(weights: Weights, group: int) -> None:
    v = weights(np.random.default_rng(4))
    codes = quantise(v, 4, group)
    assert (codes.bits, codes.group, codes.codes.shape) == (4, group, v.shape)
    assert codes.codes.max() <= 15
    assert is_half(codes.scale)
    assert is_half(codes.offset)
    ours, theirs = squared(v, values(codes), group), squared(v, plain(v, group), group)
    # errors were compared in float32: of 32 terms, each within 2^-24 of the weights as well as of itself
    assert (ours <= theirs * (1 + 1e-4) + group * (np.abs(v).max() * 2.0**-24) ** 2).all()


@pytest.mark.parametrize("weights", [normal, uniform])
def test_the_search_gains_over_plain_rounding(weights: Weights) -> None:
    v = weights(np.random.default_rng(5))
    ratio = squared(v, values(quantise(v, 4)), 32).sum() / squared(v, plain(v, 32), 32).sum()
    assert 0.7 < ratio < 0.86


def test_four_bit_codes_are_the_nearest() -> None:
    v = normal(np.random.default_rng(6))
    codes = quantise(v, 4)
    scale, offset = (np.repeat(x, 32, axis=1) for x in (codes.scale, codes.offset))
    every = np.abs(np.arange(16, dtype=np.float32) * scale[..., None] + offset[..., None] - v[..., None])
    chosen = np.abs(values(codes) - v)
    assert (chosen <= every.min(-1) + 1e-6 * np.abs(scale)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_are_exact(bits: int) -> None:
    codes = quantise(np.zeros((3, 64), np.float32), bits)
    assert not values(codes).any()
    assert not codes.scale.any()


def test_groups_of_one_value_in_four_bits() -> None:
    exact = np.array([1.0, -2.5, 65504.0, 2.0**-24, 0.333251953125], np.float32)
    np.testing.assert_array_equal(
        values(quantise(np.repeat(exact[:, None], 32, 1), 4)), exact[:, None].repeat(32, 1)
    )
    others = np.array([0.1, -0.1, 1 / 3, 1234.567, -1e-3, 1e-7, 3e-8], np.float32)
    got = values(quantise(np.repeat(others[:, None], 32, 1), 4))
    bound = np.maximum(np.abs(others) * 2.0**-22, 2.0**-25)[:, None]
    assert (np.abs(got - others[:, None]) <= bound).all()


def test_sixteen_even_steps_are_exact_in_four_bits() -> None:
    v = np.resize(np.arange(16, dtype=np.float32) * 0.25 - 1, (2, 32))
    np.testing.assert_array_equal(values(quantise(v, 4)), v)


@pytest.mark.parametrize("bits", [4, 8])
@each_group
def test_padding_is_zeros(bits: int, group: int) -> None:
    v = normal(np.random.default_rng(7))[:, :70]
    codes = quantise(v, bits, group)
    padded = np.zeros((6, -(-70 // group) * group), np.float32)
    padded[:, :70] = v
    same = quantise(padded, bits, group)
    assert codes.codes.shape == padded.shape
    np.testing.assert_array_equal(codes.codes, same.codes)
    np.testing.assert_array_equal(values(codes), values(same))
    assert (np.abs(values(codes)[:, 70:]) <= np.abs(codes.scale[:, -1:])).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_leaves_its_argument_and_does_not_depend_on_chunks(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = normal(np.random.default_rng(8))
    v.setflags(write=False)
    whole = quantise(v, bits)
    monkeypatch.setattr("actorllm_kernels.cpu.codes.CHUNK", 512)
    parts = quantise(np.asfortranarray(v), bits)
    np.testing.assert_array_equal(parts.codes, whole.codes)
    np.testing.assert_array_equal(parts.scale, whole.scale)
    np.testing.assert_array_equal(parts.offset, whole.offset)
    assert quantise(v[:0], bits).codes.shape == (0, 256)
    assert quantise(v[:, :0], bits).codes.shape == (6, 0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(bits: int, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorllm_kernels.cpu.codes.CHUNK", 512)  # of several chunks, not the first
    v = normal(np.random.default_rng(9))
    v[4, 77] = bad
    with pytest.raises(ValueError, match=f"row 4, column 77 is {bad}"):
        quantise(v, bits)


@pytest.mark.parametrize(("bits", "large"), [(4, 7e4), (8, 7e4), (4, 3e38), (8, 3e38)])
def test_values_beyond_float16_are_named(bits: int, large: float) -> None:
    v = np.zeros((3, 70), np.float32)
    v[1, 66] = -large
    with pytest.raises(ValueError, match=r"row 1, columns 64 to 69: weights as large as"):
        quantise(v, bits)


@each_kind
def test_widening_keeps_the_values(dtype: str) -> None:
    codes = taken(dtype, random_blocks(dtype, rows=3, blocks=2))
    wanted = values(codes).view(np.uint32)
    for bits in (4, 8):
        for group in (16, 32):
            if bits < codes.bits or group > codes.group:
                with pytest.raises(ValueError, match="do not widen"):
                    widen(codes, bits, group)
                continue
            wide = widen(codes, bits, group)
            assert (wide.bits, wide.group) == (bits, group)
            np.testing.assert_array_equal(values(wide).view(np.uint32), wanted)


@pytest.mark.parametrize(("bits", "group"), [(5, 32), (8, 64)])
def test_only_some_bits_and_groups_exist(bits: int, group: int) -> None:
    refused = f"not {bits} bits in groups of {group}"
    v = np.zeros((2, 64), np.float32)
    with pytest.raises(ValueError, match=refused):
        quantise(v, bits, group)
    with pytest.raises(ValueError, match=refused):
        widen(quantise(v, 4), bits, group)


def test_codes_of_a_wrong_shape_or_dtype_are_refused() -> None:
    codes, scale = np.zeros((2, 64), np.uint8), np.zeros((2, 2), np.float32)
    Codes(4, 32, codes, scale, scale)
    with pytest.raises(ValueError, match="48 columns are not a multiple of the group of 32"):
        Codes(4, 32, codes[:, :48], scale, scale)
    with pytest.raises(ValueError, match=r"want scale and offset of \(2, 4\)"):
        Codes(4, 16, codes, scale, scale)
    with pytest.raises(ValueError, match="not uint8, float64, float32"):
        Codes(4, 32, codes, scale.astype(np.float64), scale)
