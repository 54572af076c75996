"""Whether a value that a caller gave is what it must be; each raises InvalidRequest that names the field."""

from typing import Any

from .errors import InvalidRequest


def plain(text: str) -> str:
    """The same text as a `str`, of which messages are made, when it was of a class derived from it."""
    return str.__str__(text)


def name(value: Any, name: str, most: int) -> str:
    """Printable text of at most so many characters."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}", name)
    if len(value) > most or not value.isprintable():
        text = f"{name} must be at most {most} printable characters, not {value[:40]!r}"
        raise InvalidRequest(text, name)
    return plain(value)


def number(value: Any, name: str, low: float, high: float, *, open_below: bool = False) -> float:
    """A number in [low, high], or in (low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {type(value).__name__}", name)
    inside = low < value <= high if open_below else low <= value <= high
    if not inside:
        bracket = "(" if open_below else "["
        raise InvalidRequest(f"{name} must be in {bracket}{low:g}, {high:g}], not {value}", name)
    return float(value)


def number_or_none(
    value: Any, name: str, low: float, high: float, *, open_below: bool = False
) -> float | None:
    """The same, or None."""
    return None if value is None else number(value, name, low, high, open_below=open_below)


def integer(value: Any, name: str, low: int, high: int = 2**31 - 1) -> int:
    """An integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {type(value).__name__}", name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {value}", name)
    return int(value)


def integer_or_none(value: Any, name: str, low: int, high: int = 2**31 - 1) -> int | None:
    """The same, or None."""
    return None if value is None else integer(value, name, low, high)


def texts(value: Any, name: str, most: int, longest: int) -> tuple[str, ...]:
    """A string, or at most so many of them; none is empty or longer than so many characters."""
    given = (value,) if isinstance(value, str) else _sequence(value, name)
    if len(given) > most:
        raise InvalidRequest(f"{name} has {len(given)} strings; at most {most}", name)
    for text in given:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"{name} must be non-empty strings, not {text!r}", name)
        if len(text) > longest:
            reason = f"{name} has a string of {len(text)} characters; at most {longest}"
            raise InvalidRequest(reason, name)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            reason = f"{name} has half of a surrogate pair in {text!r}; leave it out"
            raise InvalidRequest(reason, name) from error
    return tuple(map(plain, given))


def tokens(value: Any, name: str, most: int | None = None) -> tuple[int, ...]:
    """Token ids, at most so many."""
    given = _sequence(value, name)
    if most is not None and len(given) > most:
        raise InvalidRequest(f"{name} has {len(given)} tokens; at most {most}", name)
    return tuple(integer(token, name, 0) for token in given)


def _sequence(value: Any, name: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} must be a list, not {type(value).__name__}", name)
    return tuple(value)
