"""Weights as unsigned integer codes, the one form that the CPU's integer kernels read.

Quantisations of ggml that are linear in their codes come down to it without loss (`from_ggml`); weights in
floating point are rounded to it (`quantise`).
"""

from dataclasses import dataclass

import numpy as np

from .ggml import LAYOUTS, Bytes, Floats

CHUNK = 1 << 18
"""Weights that are worked on at once, in whole rows: temporaries stay in a core's cache."""

STEPS = (14.6, 14.93, 15.27, 15.6)
"""Of 4 bits: how many steps from the smallest value of a group to the largest the candidates have."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix [O, K] as integers: value[o, k] = codes[o, k] * scale[o, k // group] + offset[o, k // group].

    bits    4 (codes < 16) or 8 (codes < 256)
    group   columns that share a scale and an offset: 16 or 32
    codes   uint8 [O, K], one code a byte whatever `bits` is; K is a multiple of `group`
    scale   float32 [O, K / group]; may be negative
    offset  float32 [O, K / group]
    """

    bits: int
    group: int
    codes: Bytes
    scale: Floats
    offset: Floats

    def __post_init__(self) -> None:
        _check(self.bits, self.group)
        rows, columns = self.codes.shape
        if columns % self.group:
            raise ValueError(f"{columns} columns are not a multiple of the group of {self.group}")
        wanted = (rows, columns // self.group)
        if self.scale.shape != wanted or self.offset.shape != wanted:
            raise ValueError(
                f"codes of {self.codes.shape} in groups of {self.group} want scale and offset of {wanted}, "
                f"not {self.scale.shape} and {self.offset.shape}"
            )
        dtypes = [str(each.dtype) for each in (self.codes, self.scale, self.offset)]
        if dtypes != ["uint8", "float32", "float32"]:
            raise ValueError(
                f"codes, scale and offset are uint8, float32 and float32, not {', '.join(dtypes)}"
            )


def values(codes: Codes) -> Floats:
    """What `codes` mean, float32 [O, K]: code * scale, then + offset, each rounded to float32."""
    rows, groups = codes.scale.shape
    result = codes.codes.astype(np.float32).reshape(rows, groups, codes.group)
    with np.errstate(invalid="ignore"):  # a scale may be infinite or NaN, as it was in its file
        result *= codes.scale[:, :, None]
        result += codes.offset[:, :, None]
    return result.reshape(codes.codes.shape)


def widen(codes: Codes, bits: int, group: int) -> Codes:
    """The same values in `bits` (as many or more) and in groups of `group` (as large or smaller).

    Shares its arrays with `codes` where they need not change. Raises ValueError where it would narrow.
    """
    _check(bits, group)
    if bits < codes.bits or group > codes.group:
        raise ValueError(
            f"codes of {codes.bits} bits in groups of {codes.group} do not widen "
            f"to {bits} bits in groups of {group}"
        )
    if group == codes.group:
        return Codes(bits, group, codes.codes, codes.scale, codes.offset)
    scale, offset = (np.repeat(each, codes.group // group, axis=1) for each in (codes.scale, codes.offset))
    return Codes(bits, group, codes.codes, scale, offset)


def from_ggml(dtype: str, data: Bytes) -> Codes | None:
    """The rows of a GGUF tensor, uint8 [O, bytes a row], with exactly their values; None for a `dtype` that
    is not linear in its codes. Scales that are infinite or NaN stay so.

    Q4_0, Q4_1, Q4_K: 4 bits, groups of 32; Q2_K, Q3_K: 4 bits, groups of 16; Q5_0, Q5_1, Q5_K, Q8_0: 8 bits,
    groups of 32; Q6_K: 8 bits, groups of 16. `data` may be memory-mapped: it is read once, in chunks of rows.
    Raises ValueError where a row is not a whole number of blocks.
    """
    layout = LAYOUTS.get(dtype)
    if layout is None:
        return None
    rows, width = data.shape
    if width % layout.size:
        raise ValueError(f"{dtype}: a row of {width} bytes is not a multiple of its blocks of {layout.size}")
    blocks, per_block = width // layout.size, layout.weights // layout.group
    codes = np.empty((rows, blocks, layout.weights), np.uint8)
    scale, offset = (np.empty((rows, blocks, per_block), np.float32) for _ in range(2))
    with np.errstate(invalid="ignore"):
        for part in _chunks(rows, blocks * layout.weights):
            packed = np.ascontiguousarray(data[part]).reshape(part.stop - part.start, blocks, layout.size)
            layout.unpack(packed, codes[part], scale[part], offset[part])
    codes, groups = codes.reshape(rows, blocks * layout.weights), (rows, blocks * per_block)
    return Codes(layout.bits, layout.group, codes, scale.reshape(groups), offset.reshape(groups))


def quantise(values: Floats, bits: int, group: int = 32) -> Codes:
    """`values`, float32 [O, K], rounded to codes of 4 or 8 bits; K is padded to a multiple of `group`.

    Scale and offset are values of float16, fixed before the codes: what is stored is what was measured.

    8 bits: symmetric; scale = absmax / 127, offset = -128 * scale, code = round(value / scale) + 128.
    No value is off by more than half a scale.
    4 bits: affine; the smallest value of a group is code 0 and the largest 15, unless a candidate of STEPS
    has a smaller squared error (see `_affine`). A group all of one value c is exact if c is a value of
    float16, and otherwise off by at most 2^-22 |c| or 2^-25, whichever is more.

    Padding is zeros, rounded like the rest of its group: with 4 bits they are only nearly zero, and whoever
    multiplies by them has zeros on the other side. Raises ValueError, saying where, for a value that is NaN
    or infinite, and for a group whose scale or offset float16 cannot hold.
    """
    _check(bits, group)
    rows, columns = values.shape
    groups = -(-columns // group)
    codes = np.empty((rows, groups, group), np.uint8)
    scale, offset = (np.empty((rows, groups), np.float32) for _ in range(2))
    fit = _affine if bits == 4 else _symmetric
    for part in _chunks(rows, groups * group):
        chunk = np.zeros((part.stop - part.start, groups * group), np.float32)
        chunk[:, :columns] = values[part]
        with np.errstate(all="ignore"):  # whatever is not finite shows in scale and offset
            fit(chunk.reshape(-1, group), codes[part], scale[part], offset[part])
        fine = np.isfinite(scale[part]) & np.isfinite(offset[part])
        if not fine.all():
            row, at = (int(index) for index in np.argwhere(~fine)[0])
            raise _unfit(values, part.start + row, slice(at * group, min((at + 1) * group, columns)))
    return Codes(bits, group, codes.reshape(rows, groups * group), scale, offset)


def _check(bits: int, group: int) -> None:
    if bits not in (4, 8) or group not in (16, 32):
        raise ValueError(
            f"codes have 4 or 8 bits in groups of 16 or 32, not {bits} bits in groups of {group}"
        )


def _chunks(rows: int, columns: int) -> list[slice]:
    """Slices of rows, of about CHUNK weights each."""
    step = max(1, CHUNK // max(1, columns))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _unfit(values: Floats, row: int, columns: slice) -> ValueError:
    """Why the group of `columns` in `row` has no finite scale and offset."""
    for column, value in enumerate(values[row, columns].tolist(), columns.start):
        if not np.isfinite(value):
            return ValueError(
                f"the weight at row {row}, column {column} is {value}: only finite weights have codes"
            )
    return ValueError(
        f"row {row}, columns {columns.start} to {columns.stop - 1}: weights as large as "
        f"{np.abs(values[row, columns]).max():g} have no scale and offset in float16"
    )


# Of the functions that follow, _symmetric and _affine round `v`, float32 [R * n, group], to codes, uint8
# [R, n, group], scale and offset, float32 [R, n], and may overwrite it.


def _half(x: Floats) -> Floats:
    """`x` rounded to float16."""
    return x.astype(np.float16).astype(np.float32)


def _symmetric(v: Floats, codes: Bytes, scale: Floats, offset: Floats) -> None:
    """8 bits: see `quantise`.

    Where float16 rounds a scale down so far that the largest value is more than half a step beyond the last
    code, which only happens below its normal range, the scale is the next larger float16.
    """
    largest = np.maximum(v.max(1), -v.min(1))
    step = (largest / np.float32(127)).astype(np.float16)
    short = step.astype(np.float32) * np.float32(127.5) < largest
    step[short] = np.nextafter(step[short], np.float16(np.inf))
    scale[...] = step.reshape(scale.shape)
    offset[...] = (step * np.float16(-128)).reshape(scale.shape)  # infinite where float16 cannot hold it
    v /= np.where(step == 0, np.float16(1), step).astype(np.float32)[:, None]
    np.rint(v, out=v)
    v += np.float32(128)
    codes[...] = v.reshape(codes.shape)


def _affine(v: Floats, codes: Bytes, scale: Floats, offset: Floats) -> None:
    """4 bits: of a few candidates, each group's scale and offset are those with the smallest squared error.

    The search is that of make_qkx2_quants in llama.cpp's ggml-quants.c, with equal weights and fewer steps:
    values are rounded with code 0 at the smallest and a scale of range / each of STEPS, and least squares
    gives the scale and the offset that suit these codes best. On normal, uniform and Laplace weights, in
    groups of 32, it leaves 82 % of the squared error of plain rounding between min and max; ggml's 16 steps
    leave 81 %.
    """
    u = np.ascontiguousarray(v.T)  # sums over a group add whole rows of this
    low, high = u.min(0), u.max(0)
    u -= low
    span = high - low
    spare = (np.empty_like(u), np.empty_like(u))
    best_offset = _half(low)
    best_scale = _half(
        np.where(span > 0, span / np.float32(15), low - best_offset)
    )  # one value: offset + scale
    best_error = _error(u, best_scale, best_offset - low, spare[0])
    for steps in STEPS:
        fit_scale, fit_offset = _least_squares(u, span / np.float32(steps), spare)
        fit_scale, fit_offset = _half(fit_scale), _half(fit_offset + low)
        error = _error(u, fit_scale, fit_offset - low, spare[0])
        better = error < best_error
        for best, fit in ((best_scale, fit_scale), (best_offset, fit_offset), (best_error, error)):
            np.copyto(best, fit, where=better)
    scale[...] = best_scale.reshape(scale.shape)
    offset[...] = best_offset.reshape(scale.shape)
    codes[...] = _nearest(u, best_scale, best_offset - low, spare[0]).T.reshape(codes.shape)


def _nearest(u: Floats, scale: Floats, offset: Floats, out: Floats) -> Floats:
    """The codes 0 to 15 nearest to `u` [group, R * n], as floats in `out`, which is returned."""
    np.subtract(u, offset, out=out)
    out *= np.float32(1) / np.where(scale == 0, np.float32(1), scale)
    np.rint(out, out=out)
    np.maximum(out, np.float32(0), out=out)
    return np.minimum(out, np.float32(15), out=out)


def _error(u: Floats, scale: Floats, offset: Floats, spare: Floats) -> Floats:
    """The squared error, [R * n], of each group of `u` [group, R * n] at its nearest codes."""
    rounded = _nearest(u, scale, offset, spare)
    rounded *= scale
    rounded += offset
    rounded -= u
    rounded *= rounded
    error: Floats = rounded.sum(0)
    return error


def _least_squares(u: Floats, scale: Floats, spare: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The scale and offset, [R * n] each, that suit best the codes at which `scale` and no offset round
    `u` [group, R * n]; NaN for a group whose codes are all equal.
    """
    q, product = _nearest(u, scale, np.zeros_like(scale), spare[0]), spare[1]
    n = np.float32(len(u))
    sum_q, sum_u = q.sum(0), u.sum(0)
    sum_qu = np.multiply(q, u, out=product).sum(0)
    sum_qq = np.multiply(q, q, out=product).sum(0)
    slope: Floats = (n * sum_qu - sum_q * sum_u) / (n * sum_qq - sum_q * sum_q)
    return slope, (sum_u - slope * sum_q) / n
