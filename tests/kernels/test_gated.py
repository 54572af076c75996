"""Two products and their gate in one operation: the very bits of three."""

import numpy as np
import pytest
from actorllm_kernels.cpu.library import Activation, Form, Gate, Kernels, Kind, Op, Shape, Step

from .programs import THREADS, Floats, Product, Weight, aligned, padded, random_weight, same_bits
from .test_linear import PAIRS, random_rows

HIDDEN, ODD, ROWS = 64, 70, 130
"""The width in the middle is no multiple of 32."""


def gated(
    kernels: Kernels, weights: tuple[Weight, ...], activations: tuple[Activation, ...], gate: Gate, x: Floats
) -> Floats:
    """down(gate(one(x)) * other(x)) of the weights one, other, down; on both threads."""
    one, other, down = (weight.packed for weight in weights)
    first, second = activations
    rows = len(x)
    source, target = aligned((rows, HIDDEN)), aligned((rows, padded(down.outputs, 32)))
    source[...] = x
    left, made = (
        aligned((-(-rows // 16) * blocks * kernels.activation_bytes(activation),), np.uint8)
        for blocks, activation in ((HIDDEN // 32, first), (-(-ODD // 32), second))
    )
    ops = [
        Op(
            kind=Kind.ACTIVATE,
            next_weights=one.form,
            next_activation=first,
            width=HIDDEN,
            source=source.ctypes.data,
            source_stride=HIDDEN,
            target=left.ctypes.data,
        ),
        Op(
            kind=Kind.GATED,
            weights=one.form,
            activation=first,
            next_weights=down.form,
            next_activation=second,
            left=0,
            gate=gate,
            width=HIDDEN,
            outputs=one.outputs,
            packed=one.data.ctypes.data,
            packed_up=other.data.ctypes.data,
            source=left.ctypes.data,
            target=made.ctypes.data,
        ),
        Op(
            kind=Kind.LINEAR,
            weights=down.form,
            activation=second,
            left=1,
            width=down.columns,
            outputs=down.outputs,
            packed=down.data.ctypes.data,
            source=made.ctypes.data,
            target=target.ctypes.data,
            target_stride=target.shape[1],
        ),
    ]
    kernels.open(ops, Shape(), THREADS).step(Step(num_tokens=rows), THREADS)
    return target[:, : down.outputs].copy()


@pytest.mark.parametrize("gate", [Gate.SILU, Gate.GELU_TANH], ids=lambda gate: gate.name)
@pytest.mark.parametrize(
    ("form", "activation"), PAIRS, ids=[f"{form.name}-{activation.name}" for form, activation in PAIRS]
)
def test_gated_products_are_those_of_three_operations(
    kernels: Kernels, form: Form, activation: Activation, gate: Gate
) -> None:
    one, other = (random_weight(form, ODD, HIDDEN, seed) for seed in (1, 2))
    other_form, other_activation = PAIRS[1]
    for next_form, next_activation in ((form, activation), (other_form, other_activation)):
        down = random_weight(next_form, 40, 96, 3)  # of which the last 26 columns meet zeros
        x = random_rows(ROWS, HIDDEN)
        both = [Product(kernels, weight.packed, activation, ROWS)(x) for weight in (one, other)]
        wide = np.zeros((ROWS, 2 * 96), np.float32)
        wide[:, :ODD], wide[:, 96 : 96 + ODD] = both
        expected = Product(kernels, down.packed, next_activation, ROWS, gate=gate)(wide)
        for rows in (1, 3, 48, 49, ROWS):
            got = gated(kernels, (one, other, down), (activation, next_activation), gate, x[:rows])
            assert same_bits(got, expected[:rows])
