"""Cache events: in order, and as few as the runs of blocks allow."""

from actorllm.cores.cachelog import CacheLog
from actorllm.cores.prefix import Groups, extend, root
from actorllm.messages import BlocksRemoved, BlocksStored, CacheCleared, CacheEvents, CacheKey, pack

TOKENS = list(range(20))
CONTENTS: list[bytes] = []
extend(CONTENTS, TOKENS, 4)
GROUPS = Groups((0, 8), 4)


def test_runs_of_blocks_are_one_event_each() -> None:
    log = CacheLog()
    log.stored(CONTENTS, TOKENS, [0, 1, 3], 4, 1, None)
    first, second = pack(TOKENS[:8]), pack(TOKENS[12:16])
    assert log.poll() == CacheEvents(
        0,
        (
            BlocksStored(b"", b"".join(CONTENTS[:2]), first, 4, 1),
            BlocksStored(CONTENTS[2], CONTENTS[3], second, 4, 1),
        ),
    )
    assert log.poll() is None


def test_the_first_block_follows_on_its_key() -> None:
    log, key = CacheLog(), CacheKey(salt="mine")
    log.stored(CONTENTS, TOKENS, [0], 4, 0, key)
    assert log.poll() == CacheEvents(0, (BlocksStored(root(key), CONTENTS[0], pack(TOKENS[:4]), 4),))
    assert len(root(key)) == 16


def test_what_is_removed_stands_before_what_is_stored_after_it() -> None:
    log = CacheLog()
    log.removed(GROUPS.key(CONTENTS[1], 0))
    log.removed(GROUPS.key(CONTENTS[0], 0))
    log.removed(GROUPS.key(CONTENTS[0], 1))
    log.stored(CONTENTS, TOKENS, [4], 4, 0, None)
    log.cleared()
    told = (
        BlocksRemoved(CONTENTS[1] + CONTENTS[0], 0),
        BlocksRemoved(CONTENTS[0], 1),
        BlocksStored(CONTENTS[3], CONTENTS[4], pack(TOKENS[16:]), 4, 0),
        CacheCleared(),
    )
    assert log.poll() == CacheEvents(0, told)
    log.cleared()
    assert log.poll() == CacheEvents(1, (CacheCleared(),))
