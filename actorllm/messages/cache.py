"""What the Scheduler and the KVPool say to each other, and what the pool tells of its prefix cache."""

from .base import message


@message(56)
class Media:
    """Content that is no text: it takes the place of the tokens from `offset` on; `digest` names it."""

    offset: int
    length: int
    digest: bytes


@message(55)
class CacheKey:
    """What besides its tokens the KV of a request depends on; it shares with equal keys only.

    `salt` separates callers that must not learn what others asked; `adapter` is the version of the LoRA
    adapter (0: none). With `skip_reading` nothing is taken from the cache, but what is computed is kept.
    """

    salt: str = ""
    adapter: int = 0
    media: tuple[Media, ...] = ()
    skip_reading: bool = False


@message(54)
class Keyed:
    """The key of a request, in the first Reserve that names it."""

    request: int
    key: CacheKey


@message(48)
class Reserve:
    """Scheduler to KVPool: these requests want to compute tokens in this step; most important first.

    Parallel columns, one entry a want: `requests` (int64); `num_computed` (int32), tokens whose KV is
    confirmed; `num_scheduled` (int32), tokens sent to the workers so far; `debts` (int32), tokens it
    would compute; `num_tokens` (int32) how many of `tokens` (int32), newly confirmed ids, are its.
    `num_running` wants come from running requests and stand first. `nothing_in_flight` tells the pool
    that waiting cannot help. `keys` are those of wants that the pool does not know and that have one.
    """

    step: int
    epoch: int
    token_budget: int
    num_running: int
    nothing_in_flight: bool
    requests: bytes
    num_computed: bytes
    num_scheduled: bytes
    debts: bytes
    num_tokens: bytes
    tokens: bytes
    keys: tuple[Keyed, ...] = ()


@message(49)
class Reserved:
    """KVPool to Scheduler: exactly one for each Reserve.

    Parallel columns, one entry a grant: `requests` (int64), `num_cached` (int32) tokens found in the
    prefix cache, `num_tokens` (int32) granted to compute, `num_blocks` (int32) how many of `blocks`
    (int32) are new in its tables (cached ones too, first): as many for each group of layers, group after
    group, -1 for what is out of a group's window. `preempted` and `refused` are int64 columns.
    `is_full` says that there were too few free blocks for the next of the waiting.
    """

    step: int
    epoch: int
    requests: bytes
    num_cached: bytes
    num_tokens: bytes
    num_blocks: bytes
    blocks: bytes
    preempted: bytes = b""
    refused: bytes = b""
    is_full: bool = False


@message(50)
class Release:
    """Scheduler to KVPool: these requests have ended.

    Parallel columns: `requests` (int64), `num_computed` (int32), `num_tokens` (int32) how many of
    `tokens` (int32), the ids confirmed since the pool last heard, are its.
    """

    requests: bytes
    num_computed: bytes
    num_tokens: bytes
    tokens: bytes


@message(51)
class ResetPool:
    """Scheduler to KVPool: what was in the blocks is lost; all are free, nothing is cached."""

    epoch: int


@message(52)
class ResetPrefixCache:
    """Scheduler to KVPool: nothing that was computed up to now may be found again. Who runs goes on."""


@message(60)
class PoolReset:
    """KVPool to Scheduler: a ResetPool or a ResetPrefixCache is done."""

    epoch: int


@message(57)
class BlocksStored:
    """These full blocks can be found now: `block_hashes` (16 bytes each) follow on `parent_block_hash`.

    The parent of a request's first block is empty, or the hash of its salt and adapter. `token_ids` (int32
    column) are the blocks' tokens, `block_size` each; `group` is the group of layers.
    """

    parent_block_hash: bytes
    block_hashes: bytes
    token_ids: bytes
    block_size: int
    group: int = 0


@message(58)
class BlocksRemoved:
    """The blocks with these hashes (16 bytes each) can no longer be found."""

    block_hashes: bytes
    group: int = 0


@message(59)
class CacheCleared:
    """No block can be found."""


@message(53)
class CacheEvents:
    """KVPool to subscribers: what has become of the prefix cache, in order. `sequence` counts from 0."""

    sequence: int
    events: tuple[BlocksStored | BlocksRemoved | CacheCleared, ...]
