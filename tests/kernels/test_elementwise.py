"""Embedding, norms and gates. What stands before a product is seen through one with ones, which is exact."""

from collections.abc import Callable

import numpy as np
import pytest
from actorllm_kernels.cpu.codes import from_ggml, values
from actorllm_kernels.cpu.library import Activation, Form, Gate, Kernels, Kind, Op, Shape, Step
from actorllm_kernels.cpu.packing import Packed, pack_codes

from .programs import (
    THREADS,
    Doubles,
    Floats,
    Product,
    aligned,
    float_weight,
    padded,
    random_weight,
    same_bits,
)
from .test_codes import KINDS, random_blocks

EXTREMES = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-38,
    -1e-38,
    1e-20,
    88,
    -88,
    200,
    -200,
    1e4,
    -1e4,
    1e13,
    -1e13,
    3e38,
    -3e38,
]


def embedded(kernels: Kernels, packed: Packed, ids: list[int], scale: float, threads: int) -> Floats:
    target = aligned((len(ids), padded(packed.columns, 32)))
    op = Op(
        kind=Kind.EMBED,
        weights=packed.form,
        scale=scale,
        width=packed.columns,
        packed=packed.data.ctypes.data,
        target=target.ctypes.data,
        target_stride=target.shape[1],
    )
    column = np.array(ids, np.int32)
    kernels.open([op], Shape(), THREADS).step(
        Step(num_tokens=len(ids), input_ids=column.ctypes.data), threads
    )
    return target[:, : packed.columns].copy()


@pytest.mark.parametrize("form", Form, ids=lambda form: form.name)
def test_an_embedding_has_the_values_of_its_row(kernels: Kernels, form: Form) -> None:
    columns = 96 if form < Form.BF16 else 91
    weight = random_weight(form, 43, columns)
    ids = [0, 42, 15, 16, 31, 32, 7, 7, 1]
    rows = weight.values[ids].astype(np.float32)
    for threads in (1, 2):
        got = embedded(kernels, weight.packed, ids, 1.0, threads)
        allowed = 2.0**-23 * weight.magnitude[ids] * (form < Form.BF16)
        assert (np.abs(got - weight.values[ids]) <= allowed).all()
        scaled = embedded(kernels, weight.packed, ids, 16.97, threads)
        assert same_bits(scaled, got * np.float32(16.97))
    if form >= Form.BF16:
        assert same_bits(got, rows)


@pytest.mark.parametrize("dtype", KINDS)
def test_an_embedding_in_codes_of_ggml_is_exact(kernels: Kernels, dtype: str) -> None:
    codes = from_ggml(dtype, random_blocks(dtype, 20, 2))
    assert codes is not None
    got = embedded(kernels, pack_codes(codes), [19, 0, 3], 1.0, 1)
    assert np.array_equal(got[:, : codes.codes.shape[1]], values(codes)[[19, 0, 3]])


# -- gates --------------------------------------------------------------------------------------------


def one(width: int) -> Packed:
    return float_weight(Form.F32, np.eye(width, dtype=np.float32)).packed


def silu(x: Doubles) -> Doubles:
    with np.errstate(over="ignore"):
        result: Doubles = x / (1 + np.exp(-x))
    return result


def gelu_tanh(x: Doubles) -> Doubles:
    result: Doubles = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


GATES: dict[Gate, Callable[[Doubles], Doubles]] = {Gate.SILU: silu, Gate.GELU_TANH: gelu_tanh}
"""What they are, in float64."""


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_gates_are_those_of_float64(kernels: Kernels, gate: Gate) -> None:
    """To 2^-21 of the value, besides e^-87 of x, since exp stops there; and where 1 + tanh cancels, to 2^-22
    of x.
    """
    rng = np.random.default_rng(5)
    x = np.concatenate((rng.standard_normal((40, 52)) * 10 ** rng.uniform(-3, 2, (40, 1)), np.zeros((1, 52))))
    x[-1, : len(EXTREMES)] = EXTREMES
    up = rng.standard_normal(x.shape)
    up[-1] = 1
    x, up = (part.astype(np.float32).astype(np.float64) for part in (x, up))
    product = Product(kernels, one(52), Activation.F32, 41, gate=gate)
    whole = np.concatenate((x, up), 1).astype(np.float32)
    for threads in (1, 2):
        got = product(whole, threads)
        exact = GATES[gate](x) * up
        slack = 2.0**-21 * np.abs(exact) + 1.7e-38 * np.abs(x * up) + 1e-44
        if gate is Gate.GELU_TANH:
            slack += 2.0**-22 * np.abs(x * up)
        assert (np.abs(got - exact) <= slack).all()
        for row in (0, 7, 40):
            assert same_bits(product(whole[row : row + 1], threads), got[row : row + 1])


def test_a_gate_rounds_only_its_result(kernels: Kernels) -> None:
    """In front of integers: what is rounded is gate * up, whole."""
    rng = np.random.default_rng(6)
    whole = rng.standard_normal((5, 2 * 64)).astype(np.float32)
    weight = random_weight(Form.CODES_4_16, 24, 64)
    gated = Product(kernels, one(64), Activation.F32, 5, gate=Gate.SILU)(whole)
    for activation in (Activation.INT8, Activation.INT16):
        plain = Product(kernels, weight.packed, activation, 5)(gated)
        fused = Product(kernels, weight.packed, activation, 5, gate=Gate.SILU)(whole)
        assert same_bits(fused, plain)


# -- norms --------------------------------------------------------------------------------------------


def normed(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    result: Doubles = x / np.sqrt((x**2).mean(1, keepdims=True) + eps) * weight
    return result


@pytest.mark.parametrize("width", [1, 15, 16, 52, 576, 2050])
def test_norms_are_those_of_float64(kernels: Kernels, width: int) -> None:
    """To 2^-21 of the value, before a product and added to a row; with rows that are zero, tiny and huge."""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((9, width)) * 10 ** rng.uniform(-6, 6, (9, 1))).astype(np.float32)
    x[3], x[4] = 0, 1e-20
    weight, onto = (rng.standard_normal(shape).astype(np.float32) for shape in (width, (9, width)))
    exact = normed(x.astype(np.float64), weight.astype(np.float64), 1e-6)
    got = Product(kernels, one(width), Activation.F32, 9, norm=weight, eps=1e-6)(x)
    assert (np.abs(got - exact) <= 2.0**-21 * np.abs(exact) + 1e-38).all()
    for adds in (False, True):
        whole = added(kernels, x, weight, onto, adds, 2)
        assert np.array_equal(whole, got + onto if adds else got)
        assert same_bits(added(kernels, x[5:6], weight, onto[5:6], adds, 1), whole[5:6])


def added(kernels: Kernels, x: Floats, weight: Floats, onto: Floats, adds: bool, threads: int) -> Floats:
    rows, width = x.shape
    source, target = (aligned((rows, padded(width, 32))) for _ in range(2))
    factors = aligned((padded(width, 32),))
    source[...], target[...] = np.nan, np.nan
    source[:, :width], target[:, :width], factors[:width] = x, onto, weight
    op = Op(
        kind=Kind.NORM,
        adds=adds,
        eps=1e-6,
        width=width,
        bias=factors.ctypes.data,
        source=source.ctypes.data,
        source_stride=source.shape[1],
        target=target.ctypes.data,
        target_stride=target.shape[1],
    )
    kernels.open([op], Shape(), THREADS).step(Step(num_tokens=rows), threads)
    assert np.isnan(target[:, width:]).all(), "written beside the row"
    return target[:, :width].copy()
