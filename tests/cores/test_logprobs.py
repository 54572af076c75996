import struct

import pytest

from actorllm.cores.logprobs import Candidates, concatenate, join, split
from actorllm.messages import Logprobs, pack


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


SOME = Logprobs(pack([2, 0, 1]), pack([5, 6, 7]), floats(-1, -2, -3), pack([1, 2, 9]))
PARTS = [
    Candidates(pack([5, 6]), floats(-1, -2), pack([1, 2])),
    None,
    Candidates(pack([7]), floats(-3), pack([9])),
]


def test_each_token_has_its_own_candidates() -> None:
    assert split(SOME) == PARTS
    assert join(PARTS) == SOME


def test_without_any_there_is_nothing() -> None:
    assert join([]) is None
    assert join([None, None]) is None
    assert split(Logprobs()) == []


def test_they_stand_one_after_the_other() -> None:
    twice = concatenate([SOME, SOME])
    assert split(twice) == PARTS * 2
    assert concatenate([]) == Logprobs()


def test_columns_that_differ_in_length_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="differ in length"):
        split(Logprobs(pack([2]), pack([5]), floats(-1), pack([1])))
