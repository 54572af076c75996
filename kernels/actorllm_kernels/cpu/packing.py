"""Weights in the layout of the CPU kernels: strips of 16 outputs, in blocks of 32 columns.

In a strip every lane of a vector is another output, so that a product sums nothing across lanes. The
layouts are those that src/linear.h reads.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import Codes
from .library import Form

LANES = 16
GROUP = 32


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix [outputs, columns], packed: `data` is uint8 [strips, blocks, bytes of a block]."""

    form: Form
    outputs: int
    columns: int
    data: NDArray[np.uint8]


def pack_codes(codes: Codes) -> Packed:
    """Integer codes with their scales and offsets; in 16 bits where these lose nothing by it.

    With an odd number of groups of 16 the columns are filled up with codes that mean zero.
    """
    if codes.codes.shape[1] % GROUP:
        codes = _fill_up(codes)
    outputs, columns = codes.codes.shape
    strips, blocks = -(-outputs // LANES), columns // GROUP
    quads = _by_lanes(codes.codes, strips).reshape(strips, LANES, blocks, 8, 4).transpose(0, 2, 3, 1, 4)
    if codes.bits == 4:
        quads = quads[:, :, :4] | quads[:, :, 4:] << 4
    parameters = np.stack(
        [
            _by_lanes(part, strips).reshape(strips, LANES, blocks, -1).transpose(0, 2, 3, 1)
            for part in (codes.scale, codes.offset)
        ],
        axis=2,
    )
    form, dtype = _form(codes)
    data = np.concatenate(
        (
            quads.reshape(strips, blocks, -1),
            np.ascontiguousarray(parameters.astype(dtype)).view(np.uint8).reshape(strips, blocks, -1),
        ),
        axis=2,
    )
    return Packed(form, outputs, columns, data)


def pack_floats(weight: NDArray[Any]) -> Packed:
    """A matrix [O, K] of float32, float16 or uint16 (the bits of bfloat16)."""
    outputs, columns = weight.shape
    strips, blocks = -(-outputs // LANES), -(-columns // GROUP)
    whole = np.zeros((strips * LANES, blocks * GROUP), weight.dtype)
    whole[:outputs, :columns] = weight
    if weight.dtype == np.uint16:
        form = Form.BF16
        laid = whole.reshape(strips, LANES, blocks, GROUP // 2, 2).transpose(0, 2, 3, 1, 4)
    else:
        form = {"float16": Form.F16, "float32": Form.F32}[str(weight.dtype)]
        laid = whole.reshape(strips, LANES, blocks, GROUP).transpose(0, 2, 3, 1)
    data = np.ascontiguousarray(laid).reshape(strips, blocks, -1).view(np.uint8)
    return Packed(form, outputs, columns, data)


def _form(codes: Codes) -> tuple[Form, type[Any]]:
    if codes.group == 16:
        return (Form.CODES_4_16 if codes.bits == 4 else Form.CODES_8_16), np.float32
    with np.errstate(over="ignore"):
        halves = all(
            np.array_equal(part.astype(np.float16).astype(np.float32), part)
            for part in (codes.scale, codes.offset)
        )
    if halves:
        return (Form.CODES_4_32_HALF if codes.bits == 4 else Form.CODES_8_32_HALF), np.float16
    return (Form.CODES_4_32 if codes.bits == 4 else Form.CODES_8_32), np.float32


def _by_lanes(part: NDArray[Any], strips: int) -> NDArray[Any]:
    """Rows filled up with zeros to whole strips."""
    missing = strips * LANES - part.shape[0]
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
