"""Contents of blocks, and the longest prefix that all groups of layers hold."""

import pytest

from actorllm.cores.blocks import Blocks
from actorllm.cores.prefix import NONE, Groups, extend
from actorllm.messages import CacheKey, Media

TOKENS = list(range(12))


def contents(key: CacheKey | None = None, tokens: list[int] = TOKENS) -> list[bytes]:
    """What the full blocks of four tokens contain."""
    made: list[bytes] = []
    extend(made, tokens, 4, key)
    return made


def test_a_content_depends_on_all_before_it_and_not_on_how_it_came() -> None:
    whole = contents()
    assert len(set(whole)) == 3
    bit_by_bit: list[bytes] = []
    for length in range(13):
        extend(bit_by_bit, TOKENS[:length], 4)
    assert bit_by_bit == whole
    assert contents(tokens=[9, *TOKENS[1:]])[1:] != whole[1:]
    assert contents(tokens=[*TOKENS[:11], 99])[:2] == whole[:2]


@pytest.mark.parametrize(
    ("key", "shared"),
    [
        (CacheKey(), 3),
        (CacheKey(salt="a"), 0),
        (CacheKey(adapter=1), 0),
        (CacheKey(media=(Media(0, 2, b"cat"),)), 0),
        (CacheKey(media=(Media(3, 1, b"cat"),)), 0),
        (CacheKey(media=(Media(4, 1, b"cat"),)), 1),
        (CacheKey(media=(Media(9, 50, b"cat"),)), 2),
        (CacheKey(media=(Media(12, 1, b"cat"),)), 3),
    ],
)
def test_a_key_separates_from_where_it_matters(key: CacheKey, shared: int) -> None:
    own, plain = contents(key), contents()
    assert own[:shared] == plain[:shared]
    assert not set(own[shared:]) & set(plain)
    assert contents(key) == own


@pytest.mark.parametrize(
    "other",
    [
        CacheKey("a", 2, (Media(4, 3, b"cat"),)),
        CacheKey("b", 1, (Media(4, 3, b"cat"),)),
        CacheKey("a", 1, (Media(4, 3, b"dog"),)),
        CacheKey("a", 1, (Media(5, 3, b"cat"),)),
    ],
)
def test_each_part_of_a_key_counts(other: CacheKey) -> None:
    assert contents(CacheKey("a", 1, (Media(4, 3, b"cat"),)))[1:] != contents(other)[1:]


@pytest.mark.parametrize(
    ("windows", "num_tokens", "held"),
    [
        ((0,), 9, 3),
        ((0,), 0, 0),
        ((5,), 100, 2),
        ((6,), 100, 3),
        ((2,), 3, 1),
        ((0, 5), 16, 6),
        ((5, 5), 4, 2),
    ],
)
def test_blocks_that_a_request_holds(windows: tuple[int, ...], num_tokens: int, held: int) -> None:
    assert Groups(windows, 4).num_held(num_tokens) == held


@pytest.mark.parametrize(
    ("windows", "num_blocks", "longest"),
    [((0,), 5, 20), ((0, 0), 5, 8), ((0, 5), 5, 12), ((5, 0), 1, 0), ((5,), 2, 2**31), ((5,), 1, 4)],
)
def test_the_longest_request_that_fits(windows: tuple[int, ...], num_blocks: int, longest: int) -> None:
    assert Groups(windows, 4).longest(num_blocks) == longest


def held(groups: Groups, stored: dict[int, str]) -> Blocks:
    """Blocks where group `g` holds the contents whose places have an x in `stored[g]`."""
    blocks = Blocks(20)
    for group, places in stored.items():
        for place, mark in enumerate(places):
            if mark == "x":
                (block,) = blocks.allocate(1)
                blocks.publish(block, groups.key(bytes([place]), group))
    return blocks


@pytest.mark.parametrize(
    ("windows", "stored", "length"),
    [
        ((0,), {0: "xxx"}, 3),
        ((0,), {0: "x-x"}, 1),
        ((0,), {0: "-xx"}, 0),
        ((5,), {0: "--x"}, 3),
        ((5,), {0: "x-x"}, 3),
        ((6,), {0: "x-x"}, 1),
        ((6,), {0: "-xx"}, 3),
        ((2,), {0: "-x-"}, 2),
        ((0, 5), {0: "xxx", 1: "-x-"}, 2),
        ((0, 5), {0: "x--", 1: "-xx"}, 0),
        ((5, 6), {0: "-x-x", 1: "xxx-"}, 2),
        ((5, 6), {0: "x-x-", 1: "xx-x"}, 1),
    ],
)
def test_a_hit_needs_what_the_next_token_sees_in_each_group(
    windows: tuple[int, ...], stored: dict[int, str], length: int
) -> None:
    groups = Groups(windows, 4)
    places = max(map(len, stored.values()))
    hits = groups.hits(held(groups, stored), [bytes([place]) for place in range(places)])
    assert [len(group) for group in hits] == [length] * len(windows)
    for group, window in enumerate(windows):
        seen = [not window or (place + 1) * 4 > length * 4 - window + 1 for place in range(length)]
        assert [block != NONE for block in hits[group]] == seen
