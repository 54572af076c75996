"""Numbers within bounds, as EBNF text over their decimal digits."""

from decimal import Decimal

MAX_DIGITS = 19
"""Digits of an integer that nothing bounds, which are those of 64 bits."""

MAX_BOUND_DIGITS = 100
"""Digits of an integer's bounds."""

EXACT_DIGITS = 15
"""Decimal digits that every double keeps."""

INTEGER = f'"-"? ("0" | [1-9] [0-9]{{0,{MAX_DIGITS - 1}}})'
NUMBER = f'({INTEGER}) ("." [0-9]{{1,17}})? ([eE] [+\\-]? [0-9]{{1,2}})?'
"""All of them are finite as doubles."""


class RangeError(ValueError):
    """There is no number within the bounds, or they are out of reach; the text says which."""


def integers(low: int | None, high: int | None) -> str:
    """The integers from `low` to `high`. Raises RangeError."""
    if low is None and high is None:
        return INTEGER
    if max(abs(low or 0), abs(high or 0)) >= 10**MAX_BOUND_DIGITS:
        raise RangeError(f"a bound has more than {MAX_BOUND_DIGITS} digits")
    least = min(0, high or 0) - 10**MAX_DIGITS + 1 if low is None else low
    most = max(0, low or 0) + 10**MAX_DIGITS - 1 if high is None else high
    if least > most:
        raise RangeError(f"no integer is from {least} to {most}")
    parts = []
    if least < 0:
        parts.append(f'"-" ({_naturals(max(1, -most), -least)})')
    if most >= 0:
        parts.append(_naturals(max(0, least), most))
    return " | ".join(parts)


def multiples(step: int, low: int | None, high: int | None, most: int) -> list[int]:
    """The multiples of `step` from `low` to `high`. Raises RangeError for none, or more than `most`."""
    if low is None or high is None:
        raise RangeError("multipleOf is possible only together with a minimum and a maximum")
    first = -(-low // step) * step
    count = max(0, (high - first) // step + 1)
    if not 0 < count <= most:
        number = count if count < 10**MAX_DIGITS else "too many"
        raise RangeError(f"{number} numbers are possible; there must be 1 to {most}")
    return list(range(first, high + 1, step))


def numbers(low: Decimal | None, high: Decimal | None, over: bool, under: bool) -> str:
    """The numbers from `low` to `high` in plain decimals; `over`, `under`: without the bound itself.

    Raises RangeError for an empty range, and for bounds of more digits than a double surely keeps.
    """
    if low is None and high is None:
        return NUMBER
    for bound in (low, high):
        if bound and (bound.adjusted() >= EXACT_DIGITS or _places(bound) > EXACT_DIGITS):
            raise RangeError(f"the bound {bound} has more than {EXACT_DIGITS} digits")
    known = max(len(str(int(abs(bound)))) for bound in (low, high) if bound is not None)
    limit = Decimal(10) ** (9 if known < 9 else EXACT_DIGITS) - 1
    least, over = (-limit, False) if low is None else (low, over)
    most, under = (limit, False) if high is None else (high, under)
    if least > most or (least == most and (over or under)):
        raise RangeError("no number is within the bounds")
    places = EXACT_DIGITS - max(len(str(int(abs(least)))), len(str(int(abs(most)))))
    places = min(places, max(6, _places(least), _places(most)) + 1)
    if places < max(_places(least), _places(most)) + (over or under):
        raise RangeError(f"the bounds have more than {EXACT_DIGITS} digits together")
    parts = []
    if least < 0:
        negative = _decimals(max(Decimal(0), -most), -least, under and most <= 0, over, places)
        parts += [f'"-" ({negative})'] if negative else []
    if most > 0 or (most == 0 and not under):
        positive = _decimals(max(Decimal(0), least), most, over and least >= 0, under, places)
        parts += [positive] if positive else []
    return " | ".join(parts)


def _naturals(low: int, high: int) -> str:
    parts = []
    for size in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (size - 1) if size > 1 else 0)
        last = min(high, 10**size - 1)
        parts.append(_between(str(first), str(last)))
    return " | ".join(parts)


def _between(low: str, high: str) -> str:
    """Digits of the same length from `low` to `high`."""
    size = len(low)
    if size == 0:
        return '""'
    if set(low) == {"0"} and set(high) == {"9"}:
        return _digits(size, size)
    if low[0] == high[0]:
        return f'"{low[0]}" ({_between(low[1:], high[1:])})'
    parts = [f'"{low[0]}" ({_between(low[1:], "9" * (size - 1))})']
    if int(low[0]) + 1 < int(high[0]):
        parts.append(f"{_digit(int(low[0]) + 1, int(high[0]) - 1)} {_digits(size - 1, size - 1)}")
    parts.append(f'"{high[0]}" ({_between("0" * (size - 1), high[1:])})')
    return " | ".join(parts)


def _decimals(low: Decimal, high: Decimal, over: bool, under: bool, places: int) -> str:
    """From 0 <= low <= high; empty text for none."""
    first, last = int(low), int(high)
    parts = []
    if first == last:
        inside = _fraction(_tail(low), _tail(high), over, under, places)
        parts += [f'"{first}" ({inside})'] if inside else []
        return " | ".join(parts)
    inside = _fraction(_tail(low), None, over, False, places)
    parts += [f'"{first}" ({inside})'] if inside else []
    if first + 1 < last:
        fraction = f' ("." {_digits(1, places)})?' if places else ""
        parts.append(f"({_naturals(first + 1, last - 1)}){fraction}")
    inside = _fraction("", _tail(high), False, under, places)
    parts += [f'"{last}" ({inside})'] if inside else []
    return " | ".join(parts)


def _fraction(low: str, high: str | None, over: bool, under: bool, places: int) -> str:
    """With its point, or nothing where the fraction may be zero; `high` None is 1."""
    parts = []
    if not low and not over and not (under and high == ""):
        parts.append('""')
    inside = _digits_within(low, high, over, under, places)
    if inside:
        parts.append(f'"." ({inside})')
    return " | ".join(parts)


def _digits_within(low: str, high: str | None, over: bool, under: bool, places: int) -> str:
    """At least one digit, at most `places`, of a fraction within the bounds, which have no trailing zeros."""
    if places == 0:
        return ""
    first, last = int(low[:1] or 0), 9 if high is None else int(high[:1] or 0)
    parts = []
    for digit in range(first, last + 1):
        if first < digit < last:
            continue
        lower, above = (low[1:], over) if digit == first else ("", False)
        upper, below = (high[1:], under) if digit == last and high is not None else (None, False)
        if not lower and not above and not (below and upper == ""):
            parts.append(f'"{digit}"')
        rest = _digits_within(lower, upper, above, below, places - 1)
        parts += [f'"{digit}" ({rest})'] if rest else []
    if first + 1 < last:
        parts.append(f"{_digit(first + 1, last - 1)} {_digits(0, places - 1)}")
    return " | ".join(parts)


def _tail(value: Decimal) -> str:
    _, _, fraction = f"{value:f}".partition(".")
    return fraction.rstrip("0")


def _places(value: Decimal) -> int:
    return len(_tail(value))


def _digit(low: int, high: int) -> str:
    return f"[{low}-{high}]"


def _digits(low: int, high: int) -> str:
    return f"[0-9]{{{low},{high}}}" if high else '""'
