"""What the Scheduler and the KVPool say to each other."""

from .base import message


@message(48)
class Reserve:
    """Scheduler to KVPool: these requests want to compute tokens in this step; most important first.

    Parallel columns, one entry a want: `requests` (int64); `num_computed` (int32), tokens whose KV is
    confirmed; `num_scheduled` (int32), tokens sent to the workers so far; `debts` (int32), tokens it
    would compute; `num_tokens` (int32) how many of `tokens` (int32), newly confirmed ids, are its.
    `num_running` wants come from running requests and stand first. `nothing_in_flight` tells the pool
    that waiting cannot help.
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


@message(49)
class Reserved:
    """KVPool to Scheduler: exactly one for each Reserve.

    Parallel columns, one entry a grant: `requests` (int64), `num_cached` (int32) tokens found in the
    prefix cache, `num_tokens` (int32) granted to compute, `num_blocks` (int32) how many of `blocks`
    (int32) are new in its table (cached ones too, first). `preempted` and `refused` are int64 columns.
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
