from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from actorllm.checkpoint.tensor import RawTensor, view

K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")


def raw(dtype: str, data: NDArray[Any], shape: tuple[int, ...], heads: int = 0) -> RawTensor:
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return RawTensor("w", shape, dtype, view(flat, dtype, shape), heads)


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    bits = np.array([[0x3F80, 0xC000], [0x0000, 0x3E20]], np.uint16)
    tensor = raw("BF16", bits, (2, 2))
    assert tensor.data.dtype == np.uint16
    np.testing.assert_array_equal(tensor.to_float32(), np.array([[1.0, -2.0], [0.0, 0.15625]], np.float32))


def test_float16_and_float32_keep_their_values() -> None:
    values = np.array([[1.5, -0.25], [65504.0, 0.0]])
    for dtype, kind in (("F16", np.float16), ("F32", np.float32)):
        tensor = raw(dtype, values.astype(kind), (2, 2))
        assert tensor.data.dtype == kind
        assert tensor.to_float32().dtype == np.float32
        np.testing.assert_array_equal(tensor.to_float32(), values)


def test_the_values_are_a_copy_that_may_be_written() -> None:
    tensor = raw("F32", np.ones((2, 2), np.float32), (2, 2))
    tensor.to_float32()[:] = 5
    np.testing.assert_array_equal(tensor.data, np.ones((2, 2)))


def test_q8_0_by_hand() -> None:
    block = np.float16(0.5).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
    tensor = raw("Q8_0", np.frombuffer(block, np.uint8), (1, 32))
    assert tensor.data.shape == (1, 34)
    np.testing.assert_array_equal(tensor.to_float32(), np.arange(-16, 16).reshape(1, 32) * 0.5)


def test_q4_1_by_hand() -> None:
    nibbles = bytes(low | (15 - low) << 4 for low in range(16))
    block = np.float16(2.0).tobytes() + np.float16(-1.0).tobytes() + nibbles
    tensor = raw("Q4_1", np.frombuffer(block, np.uint8), (1, 32))
    expected = [2.0 * n - 1.0 for n in [*range(16), *range(15, -1, -1)]]
    assert tensor.to_float32().tolist() == [expected]


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_a_round_trip_is_as_close_as_the_quantisation_allows(dtype: str) -> None:
    values = np.random.default_rng(3).uniform(-1, 1, (6, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[dtype]
    tensor = raw(dtype, gguf.quants.quantize(values, kind), (6, 64))
    bits = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5}.get(dtype, 8)
    assert tensor.to_float32().shape == (6, 64)
    assert np.abs(tensor.to_float32() - values).max() < 2.0 / 2**bits * 1.05


@pytest.mark.parametrize("dtype", K_QUANTS)
def test_other_quantisations_are_what_gguf_makes_of_them(dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(1).integers(0, 64, (3, 2 * size), dtype=np.uint8)
    tensor = raw(dtype, blocks, (3, 2 * block))
    assert tensor.data.shape == (3, 2 * size)
    values = tensor.to_float32()
    assert values.shape == (3, 2 * block)
    assert np.ptp(values) > 0
    np.testing.assert_array_equal(values, gguf.quants.dequantize(blocks, kind))


def test_interleaved_rows_go_back_to_halves() -> None:
    # Two heads of 6 rows; ggml pairs neighbours, Hugging Face rows half a head apart.
    halves = np.arange(12, dtype=np.float32).reshape(12, 1) * np.ones((1, 2), np.float32)
    interleaved = halves[[0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]]
    np.testing.assert_array_equal(raw("F32", interleaved, (12, 2), heads=2).to_float32(), halves)
    np.testing.assert_array_equal(raw("F32", interleaved, (12, 2)).to_float32(), interleaved)


def test_interleaved_rows_move_as_wholes_when_quantised_and_so_do_biases() -> None:
    halves = np.random.default_rng(2).standard_normal((8, 32)).astype(np.float32)
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    packed = gguf.quants.quantize(halves, gguf.GGMLQuantizationType.Q8_0)
    tensor = raw("Q8_0", packed[order], (8, 32), heads=2)
    np.testing.assert_array_equal(tensor.data, packed)
    bias = raw("F32", halves[order, 0], (8,), heads=2)
    np.testing.assert_array_equal(bias.to_float32(), halves[:, 0])
