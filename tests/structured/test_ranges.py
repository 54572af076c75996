"""Numbers within bounds, against the comparison of numbers."""

import random
import re
from decimal import Decimal

import pytest

from actorllm.structured.ranges import RangeError, integers, numbers


def matcher(text: str) -> "re.Pattern[str]":
    """These rules have only literals of digits, classes, counts, groups and choices, as a regex has."""
    literals = re.sub(r'"([^"]*)"', lambda found: re.escape(found.group(1)) or "(?:)", text)
    return re.compile(literals.replace(" ", ""))


@pytest.mark.slow
def test_integers_are_those_within_the_bounds() -> None:
    draw = random.Random(1)
    for _ in range(400):
        low, high = sorted(
            draw.randint(-(10 ** draw.randint(0, 5)), 10 ** draw.randint(0, 5)) for _ in range(2)
        )
        least, most = draw.choice([low, None]), draw.choice([high, None])
        pattern = matcher(integers(least, most))
        for value in [
            low - 1,
            low,
            low + 1,
            high - 1,
            high,
            high + 1,
            *draw.sample(range(-(10**6), 10**6), 10),
        ]:
            within = (least is None or value >= least) and (most is None or value <= most)
            assert bool(pattern.fullmatch(str(value))) == within, (least, most, value)


def decimal(draw: random.Random) -> Decimal:
    whole = draw.randint(-(10 ** draw.randint(0, 5)), 10 ** draw.randint(0, 5))
    return Decimal(whole).scaleb(-draw.randint(0, 4))


@pytest.mark.slow
def test_numbers_are_those_within_the_bounds() -> None:
    draw = random.Random(2)
    for _ in range(300):
        low = decimal(draw)
        high = low + Decimal(draw.randint(1, 300)) / 10 ** draw.randint(0, 3)
        least, most = draw.choice([low, None]), draw.choice([high, None])
        over, under = draw.random() < 0.5, draw.random() < 0.5
        pattern = matcher(numbers(least, most, over, under))
        tiny = Decimal(1) / 10**5
        for value in [
            low,
            low - tiny,
            low + tiny,
            high,
            high - tiny,
            high + tiny,
            *(decimal(draw) for _ in range(9)),
        ]:
            above = least is None or value > least or (value == least and not over)
            below = most is None or value < most or (value == most and not under)
            for text in {f"{value:f}", f"{value:.6f}"} - {"-0", "-0.000000"}:
                if abs(value) < 10**8:
                    assert bool(pattern.fullmatch(text)) == (above and below), (
                        least,
                        most,
                        over,
                        under,
                        text,
                    )


def test_what_nothing_bounds_is_finite() -> None:
    assert matcher(integers(None, None)).fullmatch("-" + "9" * 19)
    assert not matcher(integers(None, None)).fullmatch("1" * 20)
    assert matcher(numbers(None, None, False, False)).fullmatch("-1.5e-99")
    assert not matcher(numbers(None, None, False, False)).fullmatch("1e999")


@pytest.mark.parametrize(
    ("low", "high", "over"),
    [("1", "1", True), ("2", "1", False), ("1e15", None, False), ("0.1234567890123456", None, False)],
)
def test_bounds_that_cannot_be(low: str, high: str | None, over: bool) -> None:
    with pytest.raises(RangeError):
        numbers(Decimal(low), None if high is None else Decimal(high), over, False)
