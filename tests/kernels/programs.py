"""Programs of a few operations by hand, and what they need in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from actorllm_kernels.cpu.codes import Codes, quantise
from actorllm_kernels.cpu.library import Activation, Form, Gate, Kernels, Kind, Op, Shape, Step
from actorllm_kernels.cpu.packing import Packed, pack_codes, pack_floats
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

THREADS = 2


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def aligned(shape: Sequence[int], dtype: Any = np.float32) -> NDArray[Any]:
    """Zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.zeros(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    array: NDArray[Any] = whole[start : start + size].view(dtype).reshape(shape)
    return array


def bfloat16(values: Any) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16s, halves to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def widened(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def same_bits(one: Floats, other: Floats) -> bool:
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


# -- weights ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix packed, and what it means: codes * scale + offset, or floats (then the offset is zero)."""

    packed: Packed
    values: Doubles
    magnitude: Doubles
    """|code * scale| + |offset|: what float32 sums are made of."""


def random_weight(form: Form, outputs: int, columns: int, seed: int = 0) -> Weight:
    """Weights of a form, normal, with 40 dB between the outputs."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((outputs, columns)) * 10 ** rng.uniform(-1, 1, (outputs, 1))
    floats = values.astype(np.float32)
    if form >= Form.BF16:
        return float_weight(form, floats)
    spans, zero = form.wants
    bits, group = (4 if "_4_" in form.name else 8), 32 // spans
    codes = quantise(floats, bits, group)
    # scales that no float16 has, or that one has
    scale = codes.scale if form.name.endswith("HALF") else codes.scale * np.float32(1.0001)
    offset = scale * np.float32(-zero) if zero else halves(codes.offset * np.float32(0.93))
    weight = code_weight(Codes(bits, group, codes.codes, scale, offset), columns)
    assert weight.packed.form is form
    return weight


def halves(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)


def code_weight(codes: Codes, columns: int | None = None) -> Weight:
    """What codes mean in their first `columns` columns."""
    shape = codes.codes.shape
    scale, offset = (
        np.repeat(part.astype(np.float64), codes.group, 1) for part in (codes.scale, codes.offset)
    )
    product = codes.codes * scale
    wanted = slice(None), slice(0, columns or shape[1])
    return Weight(pack_codes(codes), (product + offset)[wanted], (np.abs(product) + np.abs(offset))[wanted])


def float_weight(form: Form, floats: Floats) -> Weight:
    if form is Form.BF16:
        bits = bfloat16(floats)
        packed, values = pack_floats(bits), widened(bits).astype(np.float64)
    else:
        stored = floats.astype({Form.F16: np.float16, Form.F32: np.float32}[form])
        packed, values = pack_floats(stored), stored.astype(np.float64)
    return Weight(packed, values, np.abs(values))


# -- products -----------------------------------------------------------------------------------------


class Product:
    """A product with one weight: `activate` and `linear`, with what stands before the product."""

    def __init__(
        self,
        kernels: Kernels,
        packed: Packed,
        activation: Activation,
        rows: int,
        *,
        width: int | None = None,
        bias: Floats | None = None,
        norm: Floats | None = None,
        eps: float = 0.0,
        gate: Gate = Gate.NONE,
        adds: bool = False,
        wanted: bool = False,
    ) -> None:
        self.ranks = np.zeros(rows, np.uint64)
        """Of each row of a product that is wanted: its largest output, and where it is."""
        self._wanted = np.arange(rows)
        self._width = packed.columns if width is None else width
        self._outputs = packed.outputs
        self._source = aligned((rows, padded(2 * self._width, 32)))
        self._target = aligned((rows, padded(packed.outputs, 16) + 16))
        blocks = -(-self._width // 32)
        self._left = aligned((-(-rows // 16) * blocks * kernels.activation_bytes(activation),), np.uint8)
        bias, norm = self._vector(bias), self._vector(norm)
        self._running = kernels.open(
            [
                Op(
                    kind=Kind.ACTIVATE,
                    wanted=wanted,
                    next_weights=packed.form,
                    next_activation=activation,
                    width=self._width,
                    gate=gate,
                    eps=eps,
                    bias=_address(norm),
                    source=self._source.ctypes.data,
                    source_stride=self._source.shape[1],
                    target=self._left.ctypes.data,
                ),
                Op(
                    kind=Kind.LINEAR,
                    weights=packed.form,
                    activation=activation,
                    left=0,
                    wanted=wanted,
                    width=packed.columns,
                    adds=adds,
                    outputs=packed.outputs,
                    packed=packed.data.ctypes.data,
                    bias=_address(bias),
                    source=self._left.ctypes.data,
                    target=self._target.ctypes.data,
                    target_stride=self._target.shape[1],
                ),
            ],
            Shape(),
            THREADS,
            (packed, bias, norm, self._source, self._target, self._left),
        )

    def __call__(self, x: Floats, num_threads: int = 1, onto: Floats | None = None) -> Floats:
        """[rows, outputs]. Asserts that nothing is written beyond them."""
        rows, columns = x.shape
        self._source[...] = np.nan
        self._source[:rows, :columns] = x
        self._target[...] = np.nan
        if onto is not None:
            self._target[:rows, : self._outputs] = onto
        step = Step(
            num_tokens=rows,
            num_wanted=rows,
            wanted=self._wanted.ctypes.data,
            likeliest=self.ranks.ctypes.data,
        )
        self._running.step(step, num_threads)
        assert np.isnan(self._target[rows:]).all(), "written below the rows"
        assert np.isnan(self._target[:, self._outputs :]).all(), "written beside the outputs"
        return self._target[:rows, : self._outputs].copy()

    @staticmethod
    def _vector(values: Floats | None) -> Floats | None:
        """With zeros behind, as the compiler gives it."""
        if values is None:
            return None
        vector: Floats = aligned((padded(len(values), 32),))
        vector[: len(values)] = values
        return vector


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else int(array.ctypes.data)
