"""Sets of characters as sorted ranges of code points; what no text may have is in none of them."""

import re
from functools import cache

Charset = tuple[tuple[int, int], ...]
"""Inclusive ranges in ascending order, with gaps between them."""

LAST = 0x10FFFF

_STRIDE = 0x1000
"""Characters that are looked at in one go, between which other threads may run."""


def charset(*ranges: tuple[int, int]) -> Charset:
    """The characters of these ranges, in any order, which may overlap; without NUL and surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return _cut(_cut(tuple(merged), 0, 0), 0xD800, 0xDFFF)


def of(text: str) -> Charset:
    """The characters of a text."""
    return charset(*((ord(char), ord(char)) for char in text))


def union(*sets: Charset) -> Charset:
    """What is in any of them."""
    return charset(*(piece for each in sets for piece in each))


def minus(whole: Charset, part: Charset) -> Charset:
    """What is in the first and not in the second."""
    kept: list[tuple[int, int]] = []
    index = 0
    for low, high in whole:
        while index < len(part) and part[index][1] < low:
            index += 1
        ahead = index
        while ahead < len(part) and part[ahead][0] <= high:
            if part[ahead][0] > low:
                kept.append((low, part[ahead][0] - 1))
            low = part[ahead][1] + 1
            ahead += 1
        index = max(index, ahead - 1)
        if low <= high:
            kept.append((low, high))
    return tuple(kept)


def _cut(whole: Charset, low: int, high: int) -> Charset:
    kept: list[tuple[int, int]] = []
    for first, last in whole:
        if high < first or last < low:
            kept.append((first, last))
            continue
        if first < low:
            kept.append((first, low - 1))
        if last > high:
            kept.append((high + 1, last))
    return tuple(kept)


ALL = charset((0, LAST))
DIGITS = charset((0x30, 0x39))
WORDS = union(DIGITS, charset((0x41, 0x5A), (0x61, 0x7A)), of("_"))
SPACES = of(" \t\n\r\f\v")
LINES = minus(ALL, of("\n\r\u2028\u2029"))
"""What `.` matches in Python as well as in JavaScript."""


@cache
def unicode_class(letter: str) -> Charset:
    r"""All that \d, \w or \s can mean, in Python's `re` or in JavaScript."""
    pattern = re.compile(f"\\{letter}+")
    found = [(0xFEFF, 0xFEFF)] if letter == "s" else []
    for first in range(0, LAST, _STRIDE):
        text = "".join(map(chr, range(first, first + _STRIDE)))
        found += [(first + match.start(), first + match.end() - 1) for match in pattern.finditer(text)]
    return charset(*found)
