"""A vocabulary of some 500 tokens, and a model of random weights over it."""

import random
from collections.abc import Iterator
from functools import cache

import numpy as np

from actorllm.structured import XGrammars, spec

MERGES = [
    b'{"',
    b'":',
    b'",',
    b'"}',
    b'"]',
    b'", "',
    b'": "',
    b'": ',
    b"{}",
    b"[]",
    b"}}",
    b"]]",
    b"},",
    b"],",
    b"[{",
    b'["',
    b", ",
    b"  ",
    b"    ",
    b"\n  ",
    b"\n    ",
    b"true",
    b"false",
    b"null",
    b"0.",
    b"00",
    b"10",
    b"-1",
    b"e1",
    b"\\n",
    b"\\u",
    b"\\u00",
    b'\\"',
    b"\\\\",
    b"\xc3\xa9",
    b"\xe6\x97\xa5",
    b"\xf0\x9f\x98\x80",
    b"\xe6\x97",
    b"</",
    b"the",
    b"th",
    b"er",
    b"in",
    b"ab",
    b"abc",
    b"bc",
    b"a1",
    b"-0",
    b".5",
    b"T0",
    b"Z",
    b'"a"',
    b'"b"',
    b'a"',
    b'b"',
]

END, OTHER_END, THINK, TOOL = "<end>", "<turn>", "</think>", "<tool>"


@cache
def pieces() -> tuple[bytes, ...]:
    words = [bytes([byte]) for byte in range(256)] + MERGES
    words += [bytes([first, second]) for first in range(48, 58) for second in range(48, 58)]
    words += [bytes([first, second]) for first in b"aeist" for second in b"nrlsx"]
    return (*words, b"", b"", END.encode(), OTHER_END.encode(), THINK.encode(), TOOL.encode())


SIZE = len(pieces())
EOS = SIZE - 4, SIZE - 3
SPECIAL = frozenset(range(SIZE - 4, SIZE))
PADDED = SIZE + 21


def new_grammars() -> XGrammars:
    return XGrammars(pieces, PADDED, lambda: SPECIAL, EOS)


def masks_of(grammars: XGrammars, *requests: int) -> bytes:
    """The masks of requests that all go on."""
    masks, faults = grammars.fill(requests)
    assert not faults
    return masks


def allowed(mask: bytes) -> np.ndarray:
    """A row as bits, one for each id."""
    return np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")


def sampled(grammars: XGrammars, text: str, seed: int, limit: int = 600) -> bytes | None:
    """An output of random weights, without its end token; None when it has not ended within the limit.

    Whatever is drawn is as likely as its neighbours: a flat distribution over what the grammar allows,
    except for end tokens, which come as soon as they may in half of the cases.
    """
    draw = random.Random(seed)
    grammars.open(seed, text)
    output: list[int] = []
    try:
        for _ in range(limit):
            bits = allowed(masks_of(grammars, seed))
            assert not bits[SIZE:].any(), b"".join(pieces()[each] for each in output)
            ids = np.flatnonzero(bits)
            ends = [token for token in EOS if bits[token]]
            token = draw.choice(ends) if ends and draw.random() < 0.5 else int(draw.choice(ids))
            assert token in EOS or token not in SPECIAL
            fault = grammars.accept(seed, [token])
            assert fault is None, (b"".join(pieces()[each] for each in output), fault)
            if token in EOS:
                return b"".join(pieces()[each] for each in output)
            output.append(token)
        return None
    finally:
        grammars.close(seed)


def outputs(given: dict[str, object], count: int, limit: int = 600) -> Iterator[str]:
    """The texts of those of `count` seeds that ended."""
    grammars = new_grammars()
    text = spec(given)
    grammars.compile(text)
    for seed in range(count):
        output = sampled(grammars, text, seed, limit)
        if output is not None:
            yield output.decode()


def fits(given: dict[str, object], output: str | bytes) -> bool:
    """Whether a grammar accepts an output, byte by byte, and then its end."""
    grammars = new_grammars()
    text = spec(given)
    grammars.compile(text)
    return accepts(grammars, text, output)


def accepts(grammars: XGrammars, text: str, output: str | bytes) -> bool:
    data = output.encode() if isinstance(output, str) else output
    grammars.open(0, text)
    try:
        return grammars.accept(0, [*data, EOS[0]]) is None
    finally:
        grammars.close(0)
