"""Weights in the layout of the CPU kernels: strips of 32 outputs, in blocks of 32 columns.

A strip has two halves of 16 outputs, each the lane of a vector, so that a product sums nothing across
lanes. The layouts are those that src/linear.h reads.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import Codes
from .library import Form

LANES = 16
STRIP = 32
"""Outputs of a strip."""
GROUP = 32
"""Columns of a block."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix [outputs, columns], packed: `data` is uint8 [strips, blocks, bytes of a block]."""

    form: Form
    outputs: int
    columns: int
    data: NDArray[np.uint8]


def pack_codes(codes: Codes) -> Packed:
    """Integer codes with their scales and offsets; in 16 bits, and without offsets, where nothing is lost.

    With an odd number of groups of 16 the columns are filled up with codes that mean zero.
    """
    if codes.codes.shape[1] % GROUP:
        codes = _fill_up(codes)
    form, dtype, codes = _form(codes)
    outputs, columns = codes.codes.shape
    strips, blocks = -(-outputs // STRIP), columns // GROUP
    lanes = (strips, 2, LANES, blocks)
    quads = _by_lanes(codes.codes, strips).reshape(*lanes, 8, 4).transpose(0, 3, 1, 4, 2, 5)
    if codes.bits == 4:
        quads = quads[:, :, :, :4] | quads[:, :, :, 4:] << 4
    parameters = [
        np.ascontiguousarray(
            _by_lanes(part, strips).reshape(strips, STRIP, blocks, -1).transpose(0, 2, 3, 1).astype(dtype)
        )
        for part in ((codes.scale,) if form.wants[1] else (codes.scale, codes.offset))
    ]
    parts = (quads, *(part.view(np.uint8) for part in parameters))
    data = np.concatenate([part.reshape(strips, blocks, -1) for part in parts], axis=2)
    return Packed(form, outputs, columns, data)


def pack_floats(weight: NDArray[Any]) -> Packed:
    """A matrix [O, K] of float32, float16 or uint16 (the bits of bfloat16)."""
    outputs, columns = weight.shape
    strips, blocks = -(-outputs // STRIP), -(-columns // GROUP)
    whole = np.zeros((strips * STRIP, blocks * GROUP), weight.dtype)
    whole[:outputs, :columns] = weight
    if weight.dtype == np.uint16:
        form = Form.BF16
        laid = whole.reshape(strips, 2, LANES, blocks, GROUP // 2, 2).transpose(0, 3, 1, 4, 2, 5)
    else:
        form = {"float16": Form.F16, "float32": Form.F32}[str(weight.dtype)]
        laid = whole.reshape(strips, 2, LANES, blocks, GROUP).transpose(0, 3, 1, 4, 2)
    data = np.ascontiguousarray(laid).reshape(strips, blocks, -1).view(np.uint8)
    return Packed(form, outputs, columns, data)


def _form(codes: Codes) -> tuple[Form, type[Any], Codes]:
    """The form that keeps these codes, how it stores scales and offsets, and the codes for it."""
    centred = _centred(codes)
    if codes.group == 16:
        if centred is not None and codes.bits == 8:
            return Form.CENTRED_8_16, np.float32, centred
        return (Form.CODES_4_16 if codes.bits == 4 else Form.CODES_8_16), np.float32, codes
    if not _fit_halves(codes.scale) or not (centred or _fit_halves(codes.offset)):
        return (Form.CODES_4_32 if codes.bits == 4 else Form.CODES_8_32), np.float32, codes
    if centred is not None:
        form = Form.CENTRED_4_32_HALF if codes.bits == 4 else Form.CENTRED_8_32_HALF
        return form, np.float16, centred
    return (Form.CODES_4_32_HALF if codes.bits == 4 else Form.CODES_8_32_HALF), np.float16, codes


def _fit_halves(part: NDArray[np.float32]) -> bool:
    with np.errstate(over="ignore"):
        return np.array_equal(part.astype(np.float16).astype(np.float32), part)


def _centred(codes: Codes) -> Codes | None:
    """The same values in codes of which the middle one means 0; None where the groups do not allow it."""
    middle = 1 << codes.bits - 1
    used = np.flatnonzero(codes.scale)
    if not used.size:
        return None
    with np.errstate(all="ignore"):
        zero = -codes.offset.flat[used[0]] / codes.scale.flat[used[0]]
        if not (0 <= zero <= middle and zero == int(zero)):
            return None
        if not np.array_equal(codes.offset, codes.scale * np.float32(-zero)):
            return None
    shift = middle - int(zero)
    if int(codes.codes.max()) + shift >= 2 * middle:
        return None
    return Codes(codes.bits, codes.group, codes.codes + np.uint8(shift), codes.scale, codes.offset)


def _by_lanes(part: NDArray[Any], strips: int) -> NDArray[Any]:
    """Rows filled up with zeros to whole strips."""
    missing = strips * STRIP - part.shape[0]
    return np.pad(part, ((0, missing), (0, 0))) if missing else part


def _fill_up(codes: Codes) -> Codes:
    columns, groups = GROUP - codes.codes.shape[1] % GROUP, 1
    return Codes(
        codes.bits,
        codes.group,
        np.pad(codes.codes, ((0, 0), (0, columns))),
        np.pad(codes.scale, ((0, 0), (0, groups))),
        np.pad(codes.offset, ((0, 0), (0, groups))),
    )
