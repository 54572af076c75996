import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm.cores.repetition import Circles
from actorllm.messages import Repetition


def repeats(answer: list[int], rule: Repetition) -> bool:
    """What is said of the last token of the answer."""
    circles = Circles(rule)
    return [False, *map(circles.feed, answer)][-1]


@pytest.mark.parametrize(
    ("answer", "rule", "found"),
    [
        ([1, 1], Repetition(1, 1, 2), True),
        ([1, 1], Repetition(1, 1, 3), False),
        ([1, 2, 1, 2], Repetition(2, 1, 2), True),
        ([1, 2, 1, 2], Repetition(1, 1, 2), False),
        ([1, 2, 1, 2, 3], Repetition(2, 1, 2), False),
        ([7, 7, 1, 2, 1, 2, 1, 2], Repetition(4, 2, 3), True),
        ([1, 1, 1, 1], Repetition(4, 2, 2), True),
        ([1, 1], Repetition(4, 2, 2), False),
        ([], Repetition(4, 1, 2), False),
    ],
)
def test_a_pattern_is_found_at_the_end(answer: list[int], rule: Repetition, found: bool) -> None:
    assert repeats(answer, rule) is found


@given(
    st.lists(st.integers(0, 1), max_size=14),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(2, 4),
)
def test_it_finds_what_one_sees(answer: list[int], least: int, more: int, count: int) -> None:
    rule = Repetition(least + more, least, count)
    seen = any(
        answer[len(answer) - size * count :] == answer[len(answer) - size :] * count
        for size in range(least, least + more + 1)
        if size * count <= len(answer)
    )
    assert repeats(answer, rule) is seen
