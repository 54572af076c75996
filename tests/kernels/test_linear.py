"""Products against float64, within what rounding the left side may cost; and rows that know no neighbours."""

import numpy as np
import pytest
from actorllm_kernels.cpu.codes import Codes
from actorllm_kernels.cpu.library import Activation, Form, Kernels

from .programs import Doubles, Floats, Product, Weight, code_weight, float_weight, random_weight, same_bits

INTEGERS = {Activation.INT8: 127, Activation.INT16: 32639}
"""What the largest number of a block of 32 columns becomes."""

ROWS = (*range(1, 18), 33, 64, 130)
MOST = max(ROWS)
PAIRS = [
    *((form, activation) for form in Form if form < Form.BF16 for activation in INTEGERS),
    (Form.BF16, Activation.BF16),
    (Form.F16, Activation.F32),
    (Form.F32, Activation.F32),
]
each_pair = pytest.mark.parametrize(
    ("form", "activation"), PAIRS, ids=[f"{form.name}-{activation.name}" for form, activation in PAIRS]
)


def random_rows(rows: int, columns: int, seed: int = 1) -> Floats:
    """Normal numbers with a few outliers, as activations have them; some blocks and a row are zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * 10 ** rng.uniform(-2, 2, (rows, 1))
    x *= np.where(rng.random((rows, columns)) < 0.01, 30, 1)
    x[rows // 3] = 0
    x[:, : min(32, columns // 2)] *= rng.random((rows, 1)) < 0.8
    return x.astype(np.float32)


def steps(x: Floats, activation: Activation) -> Doubles:
    """What an integer is worth, for each number."""
    size, columns = np.abs(x.astype(np.float64)), x.shape[1]
    blocks = np.pad(size, ((0, 0), (0, -columns % 32))).reshape(len(x), -1, 32)
    result: Doubles = np.repeat(blocks.max(2) / INTEGERS[activation], 32, 1)[:, :columns]
    return result


def bound(x: Floats, weight: Weight, activation: Activation) -> Doubles:
    """How far a product may be off.

    Integers: each number by half a step of its block (a hundredth more for what float32 does to the
    quotient), a step being the block's largest number / 127 or / 32639. bfloat16: 2^-8 of each number.
    And float32: each sum is rounded once for every column, or twice for every span of columns and a few
    times for what is made once; each time by 2^-24 of the sum of magnitudes at most.
    """
    size = np.abs(x.astype(np.float64))
    columns = x.shape[1]
    if activation in INTEGERS:
        left, roundings = 0.505 * steps(x, activation), columns / 16 * 2 + 8
    elif activation is Activation.BF16:
        left, roundings = 2.0**-8 * size, columns + 4
    else:
        left, roundings = np.zeros_like(size), columns + 4
    sums: Doubles = (size + left) @ weight.magnitude.T
    result: Doubles = left @ np.abs(weight.values).T + roundings * 2.0**-24 * sums + 1e-30
    return result


@each_pair
@pytest.mark.parametrize(("outputs", "columns"), [(40, 96), (7, 32), (200, 352), (33, 272)])
def test_products_are_those_of_float64_and_rows_stand_alone(
    kernels: Kernels, form: Form, activation: Activation, outputs: int, columns: int
) -> None:
    if form >= Form.BF16:
        columns -= 5
    elif form.wants[0] == 1:
        columns -= columns % 32
    weight = random_weight(form, outputs, columns)
    x = random_rows(MOST, columns)
    product = Product(kernels, weight.packed, activation, MOST, width=columns)
    every = product(x)
    exact = x.astype(np.float64) @ weight.values.T
    allowed = bound(x, weight, activation)
    assert (np.abs(every - exact) <= allowed).all()
    for rows in ROWS:
        for threads in (1, 2):
            assert same_bits(product(x[:rows], threads), every[:rows])
    for row in (0, 5, 16, 43, 129):
        assert same_bits(product(x[row : row + 1]), every[row : row + 1])
    assert same_bits(product(x[::-1].copy(), 2), every[::-1].copy())


@each_pair
def test_errors_are_those_of_rounding_and_no_larger(
    kernels: Kernels, form: Form, activation: Activation
) -> None:
    """Rounding is off by step / sqrt(12) on average, and the errors of the columns add up as squares."""
    weight, x = random_weight(form, 200, 352), random_rows(MOST, 352)
    if activation in INTEGERS:
        step = steps(x, activation)
    else:
        step = np.abs(x) * (2.0**-7 if activation is Activation.BF16 else 2.0**-19)
    expected = step**2 / 12 @ (weight.values**2).T + 1e-30
    errors = Product(kernels, weight.packed, activation, MOST)(x) - x.astype(np.float64) @ weight.values.T
    assert np.sqrt((errors**2 / expected).mean()) < (1.03 if activation in INTEGERS else 1)


@each_pair
def test_a_bias_and_what_stands_there_are_added_last(
    kernels: Kernels, form: Form, activation: Activation
) -> None:
    weight, x = random_weight(form, 40, 64), random_rows(9, 64)
    rng = np.random.default_rng(2)
    bias, onto = (rng.standard_normal(shape).astype(np.float32) for shape in (40, (9, 40)))
    plain = Product(kernels, weight.packed, activation, 9)(x)
    biased = Product(kernels, weight.packed, activation, 9, bias=bias)
    added = Product(kernels, weight.packed, activation, 9, adds=True)
    both = Product(kernels, weight.packed, activation, 9, bias=bias, adds=True)
    for threads in (1, 2):
        assert same_bits(biased(x, threads), plain + bias)
        assert same_bits(added(x, threads, onto), plain + onto)
        assert same_bits(both(x, threads, onto), (plain + bias) + onto)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("activation", INTEGERS)
def test_the_largest_integers_do_not_overflow(
    kernels: Kernels, bits: int, group: int, activation: Activation
) -> None:
    """Codes of 0 and the largest, rows of the largest integers of each sign: the sums are exact."""
    rng = np.random.default_rng(3)
    most = INTEGERS[activation]
    codes = rng.integers(0, 2, (32, 32)).astype(np.uint8) * np.uint8(2**bits - 1)
    codes[:4] = 2**bits - 1
    parameters = [np.full((32, 32 // group), value, np.float32) for value in (1, 0)]
    numbers = [-most, most, 1 - most, most - 129, 127, -128, 126]
    x = rng.choice([number for number in numbers if abs(number) <= most], (24, 32)).astype(np.float32)
    x[:3], x[3:6] = most, -most
    x[:, 0] = most
    weight = code_weight(Codes(bits, group, codes, *parameters))
    exact = x.astype(np.int64) @ codes.astype(np.int64).T
    # each span of columns becomes one float32, and so does their sum
    spans = np.abs(x.reshape(24, -1, group)).sum(2).max() * (2**bits - 1)
    step = max(1.0, np.spacing(np.float32(spans)) * (32 // group))
    got = Product(kernels, weight.packed, activation, 24)(x)
    assert (np.abs(got - exact) <= (step if step > 1 else 0)).all()


@pytest.mark.parametrize("activation", INTEGERS)
def test_numbers_near_the_smallest_are_nearly_zero(kernels: Kernels, activation: Activation) -> None:
    weight = random_weight(Form.CODES_8_32, 16, 64)
    x = np.ones((5, 64), np.float32)
    x[:, 32:] = np.array([0, 1e-45, 1e-39, 1e-36, 1e-33], np.float32)[:, None]
    x[:, 40] = 0
    got = Product(kernels, weight.packed, activation, 5)(x)
    assert (np.abs(got - got[0]) <= 1e-24).all()


@each_pair
def test_a_row_of_what_is_not_finite_spoils_no_other(
    kernels: Kernels, form: Form, activation: Activation
) -> None:
    weight, x = random_weight(form, 40, 64), random_rows(12, 64)
    product = Product(kernels, weight.packed, activation, 12)
    fine = product(x)
    for value in (np.nan, np.inf, -np.inf, 3e38):
        x[5], x[9, 33] = value, value
        spoilt = product(x, 2)
        others = [row for row in range(12) if row not in (5, 9)]
        assert same_bits(spoilt[others], fine[others])


def test_the_likeliest_output_is_the_first_of_the_largest(kernels: Kernels) -> None:
    """As numpy finds it: ties, zeros of both signs, infinities and NaN among them, in one task or in many."""
    for outputs in (7, 33, 1000):
        weight = float_weight(Form.F32, 2 * np.eye(outputs, dtype=np.float32))
        rows = np.random.default_rng(5).integers(-3, 1, (70, outputs)).astype(np.float32)
        rows[1], rows[2], rows[3] = -0.0, -3e38, -1e30
        rows[3, outputs // 2] = -1e29
        rows[4, -1] = rows[5, 0] = 3e38
        product = Product(kernels, weight.packed, Activation.F32, 70, wanted=True)
        for threads in (1, 2):
            for count in (1, 6, 70):
                got = product(rows[:count], threads)
                ranks = product.ranks[:count]
                assert np.array_equal(~ranks.astype(np.uint32), got.argmax(1))
        rows[6, outputs // 3] = np.nan
        product(rows, 2)
        assert int(product.ranks[6]) >> 32 == 0xFFFFFFFF
