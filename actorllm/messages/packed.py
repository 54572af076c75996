"""Columns of integers as bytes: a tuple of 4096 token ids decodes 200 times slower than its bytes do.

Columns are little-endian: int32 (`pack`, `unpack`) for token ids, counts and block ids, int64
(`pack_ids`, `unpack_ids`) for request ids, float32 (`unpack_floats`) for log-probabilities.
"""

import struct
import sys
from array import array
from collections.abc import Iterable
from typing import Any

RequestId = int
"""(origin << 40) | counter: unique over front ends, and cheap to compare, hash and send."""


def request_id(origin: int, counter: int) -> RequestId:
    """The id of the request number `counter` (< 2**40) of front end `origin` (< 2**23)."""
    return (origin << 40) | counter


def pack(numbers: Iterable[int]) -> bytes:
    """int32 column. Raises OverflowError for what is no number of int32."""
    return _pack("i", numbers)


def unpack(column: bytes) -> list[int]:
    """The numbers of an int32 column. Raises ValueError when its length is not a multiple of 4."""
    return _unpack("i", column)


def pack_ids(numbers: Iterable[RequestId]) -> bytes:
    """int64 column. Raises OverflowError for what is no number of int64."""
    return _pack("q", numbers)


def unpack_ids(column: bytes) -> list[RequestId]:
    """The numbers of an int64 column. Raises ValueError when its length is not a multiple of 8."""
    return _unpack("q", column)


def unpack_floats(column: bytes) -> list[float]:
    """The numbers of a float32 column. Raises ValueError when its length is not a multiple of 4."""
    return _unpack("f", column)


def _pack(code: str, numbers: Iterable[int]) -> bytes:
    column = tuple(numbers)
    if not column:
        return b""
    try:
        return struct.pack(f"<{len(column)}{code}", *column)
    except struct.error as error:
        raise OverflowError(str(error)) from error


def _unpack(code: str, column: bytes) -> list[Any]:
    numbers = array(code)
    numbers.frombytes(column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
