"""What a model and a sampler need for one step, as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .arrays import Float32, Int32, Int64
from .extras import Extras


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Tokens of a prompt whose log-probabilities are wanted with the `num_top` likeliest of each place.

    `targets` (int32) are the request's tokens from number `first` on. The logits that speak of them are those
    of the step's tokens from index `begin` in N on.
    """

    request: int
    first: int
    begin: int
    targets: Int32
    num_top: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model and the sampler need for one step of N tokens in R rows, S of which sample.

    Each of the G groups of layers has blocks of its own.

    input_ids       int32 [N] token ids, row after row
    positions       int64 [N] index of each token in its request
    slot_mapping    int64 [G, N] where its KV goes: block id * block_size + offset
    query_start_loc int32 [R + 1] where each row's tokens begin in N
    seq_lens        int32 [R] tokens of context after this step
    block_table     int32 [G, R, B] block ids of each row, 0 after its last, -1 for one that fell out of
                    the group's window; B serves the longest context
    sample_rows     int64 [S] rows that sample
    logits_indices  int64 [S] index in N of each one's last token
    temperature     float32 [S], and so top_p, min_p; top_k int32 [S] (0 is off); seed int64 [S]
    position        int64 [S] index in its request of the token that is sampled
    requests        int64 [S] the requests of the rows that sample
    extras          what some of those rows ask besides, by their place in S
    prompts         parts of prompts whose log-probabilities are wanted
    """

    input_ids: Int32
    positions: Int64
    slot_mapping: Int64
    query_start_loc: Int32
    seq_lens: Int32
    block_table: Int32
    sample_rows: Int64
    logits_indices: Int64
    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seed: Int64
    position: Int64
    requests: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    extras: Mapping[int, Extras] = field(default_factory=dict)
    prompts: tuple[PromptPart, ...] = ()
