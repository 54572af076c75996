import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm.messages import pack, pack_ids, unpack, unpack_ids


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_a_column_gives_its_numbers_back(numbers: list[int]) -> None:
    assert unpack(pack(numbers)) == unpack(pack(iter(numbers))) == numbers
    assert unpack_ids(pack_ids(numbers)) == numbers


def test_columns_are_little_endian() -> None:
    assert pack([1, -2]) == b"\x01\0\0\0\xfe\xff\xff\xff"
    assert pack_ids([2**40 + 1]) == b"\x01\0\0\0\0\x01\0\0"
    assert pack([]) == pack_ids(()) == b""


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_a_number_outside_of_int32(number: int) -> None:
    with pytest.raises(OverflowError):
        pack([0, number])
    assert unpack_ids(pack_ids([number])) == [number]
    with pytest.raises(OverflowError):
        pack_ids([number << 32])


def test_a_column_that_ends_within_a_number() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack(b"abc")
