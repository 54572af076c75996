from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actorllm.cores.blocks import Blocks


def allocated(blocks: Blocks, contents: Sequence[bytes | None]) -> list[int]:
    """New blocks with these contents, held once."""
    held = blocks.allocate(len(contents))
    for block, content in zip(held, contents, strict=True):
        if content is not None:
            blocks.publish(block, content)
    return held


def find(blocks: Blocks, contents: Sequence[bytes]) -> list[int]:
    """The blocks of the longest prefix of the contents that is there."""
    found = []
    for content in contents:
        block = blocks.lookup(content)
        if block is None:
            break
        found.append(block)
    return found


def test_blocks_are_taken_in_ascending_order_at_first() -> None:
    blocks = Blocks(4)
    assert blocks.allocate(3) == [0, 1, 2]
    assert blocks.num_free == 1


def test_freed_blocks_are_taken_again_head_first() -> None:
    blocks = Blocks(4)
    blocks.free(blocks.allocate(3))
    assert blocks.allocate(4) == [0, 1, 2, 3]


def test_uncached_blocks_are_taken_before_cached_ones() -> None:
    blocks = Blocks(4)
    blocks.free(allocated(blocks, [b"a", b"b", None, None]))
    assert blocks.allocate(2) == [2, 3]
    assert find(blocks, [b"a", b"b"]) == [0, 1]
    assert blocks.num_evicted == 0


def test_of_a_cached_prefix_the_tail_is_evicted_first() -> None:
    blocks = Blocks(3)
    blocks.free(allocated(blocks, [b"a", b"b", b"c"]))
    assert blocks.allocate(1) == [2]
    assert find(blocks, [b"a", b"b", b"c"]) == [0, 1]
    assert blocks.num_evicted == 1


def test_the_least_recently_used_content_is_evicted_first() -> None:
    blocks = Blocks(3)
    for content in (b"a", b"b", b"c"):
        blocks.free(allocated(blocks, [content]))
    blocks.share([0])
    blocks.free([0])
    assert blocks.allocate(3) == [1, 2, 0]


def test_a_hit_ends_at_the_first_content_that_is_missing() -> None:
    blocks = Blocks(3)
    allocated(blocks, [b"a", b"b", b"c"])
    assert find(blocks, [b"a", b"b", b"x", b"c"]) == [0, 1]
    assert find(blocks, [b"x", b"a"]) == []


def test_a_shared_block_is_free_when_its_last_holder_leaves() -> None:
    blocks = Blocks(2)
    held = allocated(blocks, [b"a"])
    blocks.share(held)
    blocks.free(held)
    assert (blocks.num_free, blocks.num_free_among(held)) == (1, 0)
    blocks.free(held)
    assert (blocks.num_free, blocks.num_free_among(held)) == (2, 1)


def test_the_first_of_two_blocks_with_one_content_is_found() -> None:
    blocks = Blocks(3)
    allocated(blocks, [b"a", b"a"])
    assert find(blocks, [b"a"]) == [0]
    assert blocks.num_indexed == 1


def test_clearing_frees_and_forgets_everything() -> None:
    blocks = Blocks(2)
    allocated(blocks, [b"a", None])
    blocks.clear()
    blocks.check([])
    assert (blocks.num_free, blocks.num_indexed, blocks.allocate(2)) == (2, 0, [0, 1])


def test_freeing_what_nobody_holds_is_an_error() -> None:
    blocks = Blocks(2)
    held = blocks.allocate(1)
    blocks.free(held)
    with pytest.raises(AssertionError, match="block 0 is freed but nobody holds it"):
        blocks.free(held)


def test_check_finds_a_reference_without_a_holder() -> None:
    blocks = Blocks(2)
    blocks.allocate(1)
    with pytest.raises(AssertionError, match="references and holders differ"):
        blocks.check([])


CONTENTS = [bytes([number]) for number in range(6)]


class BlocksMachine(RuleBasedStateMachine):
    """Blocks beside a model of plain lists: `empty` and `cached` are taken from their ends and starts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(5)
        self.empty = [4, 3, 2, 1, 0]
        self.cached: list[int] = []
        self.content: dict[int, bytes] = {}
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, 3))
    def allocate(self, count: int) -> None:
        if count > len(self.empty) + len(self.cached):
            return
        expected = []
        for _ in range(count):
            block = self.empty.pop() if self.empty else self.cached.pop(0)
            self.content.pop(block, None)
            expected.append(block)
        assert self.blocks.allocate(count) == expected
        self.tables.append(expected)

    @rule(contents=st.lists(st.sampled_from(CONTENTS), max_size=3))
    def share_what_is_found(self, contents: list[bytes]) -> None:
        by_content = {content: block for block, content in self.content.items()}
        expected = []
        for content in contents:
            if content not in by_content:
                break
            expected.append(by_content[content])
        assert find(self.blocks, contents) == expected
        assert self.blocks.num_free_among(expected) == sum(block in self.cached for block in expected)
        if len(set(expected)) == len(expected):
            self.blocks.share(expected)
            self.cached = [block for block in self.cached if block not in expected]
            self.tables.append(expected)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), content=st.sampled_from(CONTENTS))
    def publish(self, data: st.DataObject, content: bytes) -> None:
        block = data.draw(st.sampled_from([block for table in self.tables for block in table]))
        if block not in self.content:
            self.blocks.publish(block, content)
            if content not in self.content.values():
                self.content[block] = content

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.blocks.free(table)
        for block in table[::-1]:
            if not any(block in other for other in self.tables):
                (self.cached if block in self.content else self.empty).append(block)

    @invariant()
    def agrees(self) -> None:
        self.blocks.check(self.tables)
        assert self.blocks.num_free == len(self.empty) + len(self.cached)
        assert self.blocks.num_indexed == len(self.content)


TestBlocksMachine = pytest.mark.slow(BlocksMachine.TestCase)
TestBlocksMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
