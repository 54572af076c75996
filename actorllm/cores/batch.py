"""The persistent batch: what a worker keeps of its requests between steps, and a step's inputs.

A RunStep is a diff. The batch applies it to arrays that were allocated once, one row (slot) a request,
and builds the inputs of the model with array operations. All inputs are one-dimensional over the tokens
of all rows, without padding; a row of them is a request of the step, in the order of `RunStep.rows`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..messages import NewRow, RunStep
from ..processors import LogitsProcessor
from .arrays import Float32, Int32, Int64
from .extras import Extras, wants_extras
from .inputs import PromptPart, StepInputs


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Counts of a batch: requests and tokens held, blocks in their tables, steps applied since reset."""

    num_rows: int
    num_tokens: int
    num_blocks: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class _Decoding:
    """What stays the same from step to step while the same rows decode, one token each."""

    rows: bytes
    num_tokens: bytes
    samples: bytes
    slots: Int64
    numbers: Int64
    query_start_loc: Int32
    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seed: Int64
    requests: Int64
    extras: Mapping[int, Extras]

    def fits(self, step: RunStep) -> bool:
        """Whether the step is of these rows, and each decodes a token."""
        return (
            step.rows == self.rows
            and step.num_tokens == self.num_tokens
            and step.samples == self.samples
            and not (step.new or step.finished)
        )


@dataclass(slots=True)
class _Prompt:
    """A prompt of `length` tokens; the log-probabilities of the first `told` have been asked for."""

    told: int
    length: int
    num_top: int


class Batch:
    """The requests of a worker, one slot each, and their block tables.

    `apply` a step, run the model on what it returns, `append` the tokens that were sampled; then the
    next step. A broken protocol raises AssertionError and leaves the batch undefined until `reset`.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_groups: int = 1,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self._processors = processors
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.num_groups = num_groups
        width = -(-max_model_len // block_size)
        self._token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
        self._block_table = np.zeros((num_groups, max_num_seqs, width), np.int32)
        self._num_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_computed = np.zeros(max_num_seqs, np.int64)
        self._num_blocks = np.zeros(max_num_seqs, np.int64)
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int32)
        self._top_p = np.zeros(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.int64)
        self.reset()

    def __len__(self) -> int:
        return len(self._slots)

    def reset(self) -> None:
        """Forget every request."""
        self._slots: dict[int, int] = {}
        self._free = list(range(len(self._num_tokens)))[::-1]
        self._extras: dict[int, Extras] = {}
        self._prompts: dict[int, _Prompt] = {}
        self._sampling: Int64 = np.zeros(0, np.int64)
        self._decoding: _Decoding | None = None
        self._num_steps = 0
        for column in (self._num_tokens, self._num_computed, self._num_blocks, self._block_table):
            column.fill(0)

    def apply(self, step: RunStep) -> StepInputs:
        """Take the diff of a step, count its tokens as computed, and return its inputs.

        Raises AssertionError for: tokens of the last step not appended, an unknown, doubled or surplus
        row, a new row that computes nothing, no tokens or more than the row has, sampling before its
        last token, a block table too short for its context or too long for the model.
        """
        assert not self._sampling.size, "the tokens of the last step were not appended"
        decoding = self._decoding
        if decoding is not None and decoding.fits(step):
            if step.blocks or any(step.num_blocks):
                self._extend(decoding.slots, _column(step.num_blocks, "<i4"), _column(step.blocks, "<i4"))
            inputs = self._decode(decoding)
            slots = decoding.slots
        else:
            slots, inputs = self._change(step)
        self._num_computed[slots] = inputs.seq_lens
        self._sampling = slots[inputs.sample_rows]
        self._num_steps += 1
        return inputs

    def append(self, tokens: Int32 | Sequence[int]) -> None:
        """Append to each sampling row of the last step its token (int32 [S], in row order)."""
        slots = self._sampling
        assert len(tokens) == slots.size, f"{len(tokens)} tokens for {slots.size} sampling rows"
        self._token_ids[slots, self._num_tokens[slots]] = tokens
        self._num_tokens[slots] += 1
        if self._extras:
            for slot, token in zip(slots.tolist(), tokens, strict=True):
                if slot in self._extras:
                    self._extras[slot].append(int(token))
        self._sampling = slots[:0]

    def check(self) -> None:
        """Raise AssertionError when slots, lengths and block tables do not agree."""
        held = np.array(sorted(self._slots.values()), np.int64)
        everything = sorted([*self._slots.values(), *self._free])
        assert everything == list(range(len(self._num_tokens))), "a slot is lost or doubled"
        tokens, computed, blocks = (
            column[held] for column in (self._num_tokens, self._num_computed, self._num_blocks)
        )
        assert (computed <= tokens).all(), "more tokens computed than known"
        assert (computed <= blocks * self.block_size).all(), "computed tokens outside the block table"
        assert (tokens <= self.max_model_len).all(), "a request is longer than the model allows"
        free = np.array(self._free, np.int64)
        assert not self._num_blocks[free].any(), "a free slot holds blocks"
        unused = np.arange(self._block_table.shape[2]) >= self._num_blocks[:, None]
        assert not self._block_table[:, unused].any(), "a block id stands after a row's last block"
        assert set(self._sampling.tolist()) <= set(held.tolist()), "a free slot awaits a token"

    def statistics(self) -> BatchStatistics:
        """Counts of what is held now."""
        return BatchStatistics(
            num_rows=len(self._slots),
            num_tokens=int(self._num_tokens.sum()),
            num_blocks=int(self._num_blocks.sum()),
            num_steps=self._num_steps,
        )

    def _change(self, step: RunStep) -> tuple[Int64, StepInputs]:
        """Any step: the slots of its rows, and its inputs."""
        for request in np.frombuffer(step.finished, "<i8").tolist():
            self._leave(request)
        for row in step.new:
            self._join(row)
        requests = np.frombuffer(step.rows, "<i8").tolist()
        assert len(set(requests)) == len(requests), f"step {step.step} names a row twice"
        assert {row.request for row in step.new} <= set(requests), "a new row computes nothing"
        slots = np.fromiter(map(self._slot, requests), np.int64, len(requests))
        self._extend(slots, _column(step.num_blocks, "<i4"), _column(step.blocks, "<i4"))
        num_tokens = _column(step.num_tokens, "<i4")
        inputs = self._inputs(np.array(requests, np.int64), slots, num_tokens, _column(step.samples, "u1"))
        decodes = slots.size and (num_tokens == 1).all() and inputs.sample_rows.size == slots.size
        self._decoding = self._remember(step, slots, inputs) if decodes else None
        return slots, inputs

    def _remember(self, step: RunStep, slots: Int64, inputs: StepInputs) -> _Decoding:
        return _Decoding(
            step.rows,
            step.num_tokens,
            step.samples,
            slots,
            inputs.sample_rows,
            inputs.query_start_loc,
            inputs.temperature,
            inputs.top_k,
            inputs.top_p,
            inputs.min_p,
            inputs.seed,
            inputs.requests,
            inputs.extras,
        )

    def _decode(self, decoding: _Decoding) -> StepInputs:
        """The inputs of the rows that decoded in the step before, too."""
        slots = decoding.slots
        positions = self._num_computed[slots]
        seq_lens = positions + 1
        longest = int(seq_lens.max())
        assert (seq_lens == self._num_tokens[slots]).all(), "a row is scheduled beyond its tokens"
        assert (positions < self._num_blocks[slots] * self.block_size).all(), (
            "a row is scheduled beyond its block table"
        )
        assert longest < self.max_model_len, "a row samples beyond the model's length"
        block, offset = np.divmod(positions, self.block_size)
        return StepInputs(
            input_ids=self._token_ids[slots, positions],
            positions=positions,
            slot_mapping=self._block_table[:, slots, block].astype(np.int64) * self.block_size + offset,
            query_start_loc=decoding.query_start_loc,
            seq_lens=seq_lens.astype(np.int32),
            block_table=self._block_table[:, slots, : -(-longest // self.block_size)],
            sample_rows=decoding.numbers,
            logits_indices=decoding.numbers,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            min_p=decoding.min_p,
            seed=decoding.seed,
            position=seq_lens,
            requests=decoding.requests,
            extras=decoding.extras,
        )

    def _slot(self, request: int) -> int:
        slot = self._slots.get(request)
        assert slot is not None, f"request {request} is not in the batch"
        return slot

    def _leave(self, request: int) -> None:
        slot = self._slot(request)
        del self._slots[request]
        self._block_table[:, slot, : self._num_blocks[slot]] = 0
        self._num_tokens[slot] = self._num_computed[slot] = self._num_blocks[slot] = 0
        self._extras.pop(slot, None)
        self._prompts.pop(slot, None)
        self._free.append(slot)

    def _join(self, row: NewRow) -> None:
        tokens = np.frombuffer(row.tokens, "<i4")
        assert row.request not in self._slots, f"request {row.request} is in the batch already"
        assert self._free, f"no slot is free for request {row.request}"
        assert 0 <= row.num_computed < len(tokens), f"request {row.request} has nothing to compute"
        assert len(tokens) <= self.max_model_len, f"request {row.request} is longer than the model allows"
        sampling = row.sampling
        assert sampling.seed is not None or sampling.temperature == 0, f"request {row.request} has no seed"
        slot = self._slots[row.request] = self._free.pop()
        self._token_ids[slot, : len(tokens)] = tokens
        self._num_tokens[slot] = len(tokens)
        self._num_computed[slot] = row.num_computed
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._seed[slot] = sampling.seed or 0
        if wants_extras(sampling, self._processors):
            self._extras[slot] = Extras(sampling, tokens, row.num_prompt, self._processors)
        if sampling.prompt_logprobs is not None and row.num_told < row.num_prompt:
            self._prompts[slot] = _Prompt(max(1, row.num_told), row.num_prompt, sampling.prompt_logprobs)

    def _extend(self, slots: Int64, num_blocks: Int64, blocks: Int64) -> None:
        assert len(num_blocks) == len(slots), "num_blocks is not one a row"
        assert (num_blocks >= 0).all(), "a negative number of blocks"
        assert num_blocks.sum() == len(blocks), "the numbers of blocks do not add up"
        assert not (num_blocks % self.num_groups).any(), "the groups of a row get different numbers of blocks"
        each, held = num_blocks // self.num_groups, self._num_blocks[slots]
        assert (held + each <= self._block_table.shape[2]).all(), "a block table overflows"
        rows, places = np.repeat(slots, each), ranges(held, each)
        begins = np.cumsum(num_blocks) - num_blocks
        for group, table in enumerate(self._block_table):
            table[rows, places] = blocks[ranges(begins + group * each, each)]
        self._num_blocks[slots] = held + each

    def _inputs(self, requests: Int64, slots: Int64, num_tokens: Int64, samples: Int64) -> StepInputs:
        assert len(num_tokens) == len(samples) == len(slots), "num_tokens or samples is not one a row"
        assert (num_tokens > 0).all(), "a row without tokens"
        seq_lens = self._num_computed[slots] + num_tokens
        assert (seq_lens <= self._num_tokens[slots]).all(), "a row is scheduled beyond its tokens"
        covered = self._num_blocks[slots] * self.block_size
        assert (seq_lens <= covered).all(), "a row is scheduled beyond its block table"
        ends = np.cumsum(num_tokens)
        rows = np.flatnonzero(samples)
        drawing = slots[rows]
        assert (seq_lens[rows] == self._num_tokens[drawing]).all(), "a row samples before its last token"
        assert (seq_lens[rows] < self.max_model_len).all(), "a row samples beyond the model's length"
        owner = np.repeat(slots, num_tokens)
        positions = ranges(self._num_computed[slots], num_tokens)
        block, offset = np.divmod(positions, self.block_size)
        width = -(-int(seq_lens.max(initial=0)) // self.block_size)
        return StepInputs(
            input_ids=self._token_ids[owner, positions],
            positions=positions,
            slot_mapping=self._block_table[:, owner, block].astype(np.int64) * self.block_size + offset,
            query_start_loc=np.concatenate(([0], ends)).astype(np.int32),
            seq_lens=seq_lens.astype(np.int32),
            block_table=self._block_table[:, slots, :width],
            sample_rows=rows,
            logits_indices=ends[rows] - 1,
            temperature=self._temperature[drawing],
            top_k=self._top_k[drawing],
            top_p=self._top_p[drawing],
            min_p=self._min_p[drawing],
            seed=self._seed[drawing],
            position=seq_lens[rows],
            requests=requests[rows],
            extras=self._extras_of(drawing),
            prompts=self._parts(requests, slots, ends - num_tokens, seq_lens) if self._prompts else (),
        )

    def _extras_of(self, slots: Int64) -> dict[int, Extras]:
        if not self._extras:
            return {}
        return {
            place: self._extras[slot] for place, slot in enumerate(slots.tolist()) if slot in self._extras
        }

    def _parts(self, requests: Int64, slots: Int64, begins: Int64, seq_lens: Int64) -> tuple[PromptPart, ...]:
        """What the step's tokens say of the prompts' next tokens: each token speaks of the one after it."""
        parts: list[PromptPart] = []
        for request, slot, begin, length in zip(
            requests.tolist(), slots.tolist(), begins.tolist(), seq_lens.tolist(), strict=True
        ):
            prompt = self._prompts.get(slot)
            if prompt is None:
                continue
            first, last = prompt.told, min(length + 1, prompt.length)
            if first < last:
                begin += first - 1 - int(self._num_computed[slot])
                targets = self._token_ids[slot, first:last].copy()
                parts.append(PromptPart(request, first, begin, targets, prompt.num_top))
                prompt.told = last
            if last == prompt.length:
                del self._prompts[slot]
        return tuple(parts)


def _column(column: bytes, dtype: str) -> Int64:
    """A column of a message as int64 (so that sums and products of its numbers cannot overflow)."""
    numbers: NDArray[Any] = np.frombuffer(column, dtype)
    return numbers.astype(np.int64)


def ranges(starts: Int64, lengths: Int64) -> Int64:
    """starts[0], starts[0] + 1, ... (lengths[0] numbers), then the same for the next row, and so on."""
    shifts = starts - (np.cumsum(lengths) - lengths)
    numbers: Int64 = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
    return numbers
