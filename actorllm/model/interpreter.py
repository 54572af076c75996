"""Runs a program with torch and the reference kernels, one operation after the other.

Activations have the dtype of the weights; the residual stream is float32, which costs nothing at the
sizes where time matters and keeps a model in bfloat16 much closer to one in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import assert_never

import numpy as np
import torch
from actorllm_kernels.reference import (
    AttentionPlan,
    embedding,
    gelu_tanh_and_mul,
    linear,
    paged_attention,
    plan_attention,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
    soft_cap,
    write_kv,
)
from torch import Tensor

from ..cores.inputs import StepInputs
from .loader import Weights
from .program import HIDDEN, Attend, Embed, Gate, Head, Linear, Norm, Operation, Program

AT_ONCE = 64
"""Tokens of the invariant mode whose steps exist at once, each with a mask as long as its context."""

_GATES = {"silu": silu_and_mul, "gelu_tanh": gelu_tanh_and_mul}


@dataclass(frozen=True, slots=True)
class _Step:
    """What the operations of one step share.

    input_ids     int [N]
    ropes         for each rotary embedding the cosines and sines of each token, float32 [N, 1, head_dim]
    slot_mapping  for each group of layers where keys and values go, int64 [N]
    attention     for each group how attention is batched
    cache         for each slab [num_blocks, block_size, 2, num_kv_heads, head_dim]
    buffers       what operations have written, by name
    """

    input_ids: Tensor
    ropes: Sequence[tuple[Tensor, Tensor]]
    slot_mapping: Sequence[Tensor]
    attention: Sequence[AttentionPlan]
    cache: Sequence[Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)


class Interpreter:
    """A program with its weights, for positions below `length`; keeps what the last step left in `hidden`.

    When `invariant`, no bit of a token's logits depends on what else is in its step. Torch and its libraries
    choose the order of a sum by the shapes, strides and alignment of what they are given. So each token then
    is a step of its own, on tensors of its own, and all of that follows from its position alone. An operation
    is done for AT_ONCE tokens before the next, as its weights stay in the cache.
    """

    def __init__(self, program: Program, weights: Weights, length: int, invariant: bool = False) -> None:
        self._program = program
        self._weights = weights
        self._invariant = invariant
        self._hidden = torch.zeros(0)
        self._last = Head("", "")
        self._dtype = weights.dtype
        self._ropes = [rope_tables(frequencies, factor, length) for frequencies, factor in program.ropes]
        attends = [operation for operation in program.operations if isinstance(operation, Attend)]
        windows = {operation.group: operation.window for operation in attends}
        self._windows = [windows[group] for group in range(len(windows))]

    def forward(self, inputs: StepInputs, cache: Tensor) -> Tensor:
        """Logits [S, vocab_size], in the model's dtype, of the step's `logits_indices`.

        Writes the keys and values of its tokens into `cache` [num_slabs, num_blocks, block_size, 2,
        num_kv_heads, head_dim].
        """
        parts = split_tokens(inputs) if self._invariant else iter([inputs])
        hidden: list[Tensor] = []
        while some := list(islice(parts, AT_ONCE)):
            hidden += self._run(some, cache)
        self._hidden = torch.cat(hidden)
        return self.logits_of(torch.from_numpy(inputs.logits_indices))

    def _run(self, parts: Sequence[StepInputs], cache: Tensor) -> list[Tensor]:
        """What the layers make of some steps, [N, hidden_size] each."""
        steps = [self._step(part, cache) for part in parts]
        for operation in self._program.operations:
            for step in steps:
                self._apply(operation, step)
        return [step.buffers[HIDDEN] for step in steps]

    def logits_of(self, indices: Tensor) -> Tensor:
        """Logits [n, vocab_size] of tokens of the last step, by their index in N (int64 [n])."""
        if not self._invariant:
            return self._logits_of(indices)
        return torch.cat([self._logits_of(index) for index in torch.split(indices, 1)])

    def _logits_of(self, indices: Tensor) -> Tensor:
        head = self._last
        if not indices.numel():
            return self._hidden.new_empty((0, self._program.vocab_size), dtype=self._dtype)
        normed = self._norm(self._hidden.index_select(0, indices), head.norm, self._dtype)
        logits = linear(normed, self._weights.linears[(head.weight,)])
        return soft_cap(logits, head.soft_cap) if head.soft_cap else logits

    def _apply(self, operation: Operation, step: _Step) -> None:
        buffers = step.buffers
        match operation:
            case Embed():
                self._embed(operation, step)
            case Norm():
                target = buffers[operation.target].dtype if operation.adds else self._dtype
                _store(operation, buffers, self._norm(buffers[operation.source], operation.weight, target))
            case Linear():
                bias = self._weights.biases.get(operation.biases)
                weight = self._weights.linears[operation.weights]
                _store(operation, buffers, linear(buffers[operation.source], weight, bias))
            case Attend():
                buffers[operation.target] = self._attend(operation, step)
            case Gate():
                gate = _GATES[operation.activation]
                buffers[operation.target] = gate(buffers[operation.source])
            case Head():
                self._last = operation
            case _:
                assert_never(operation)

    def _step(self, inputs: StepInputs, cache: Tensor) -> _Step:
        positions = torch.from_numpy(inputs.positions)
        program = self._program
        return _Step(
            input_ids=torch.from_numpy(inputs.input_ids),
            ropes=[
                (cos.index_select(0, positions), sin.index_select(0, positions)) for cos, sin in self._ropes
            ],
            slot_mapping=torch.from_numpy(inputs.slot_mapping).unbind(0),
            attention=[
                plan_attention(
                    torch.from_numpy(inputs.query_start_loc),
                    torch.from_numpy(inputs.seq_lens),
                    torch.from_numpy(table.clip(min=0)),
                    cache.shape[2],
                    cache.dtype,
                    program.num_heads // program.num_kv_heads,
                    window,
                )
                for table, window in zip(inputs.block_table, self._windows, strict=True)
            ],
            cache=cache.unbind(0),
        )

    def _norm(self, x: Tensor, weight: str, dtype: torch.dtype) -> Tensor:
        return rms_norm(x, self._weights.norms[weight], self._program.eps, dtype)

    def _embed(self, operation: Embed, step: _Step) -> None:
        rows = embedding(step.input_ids, self._weights.embeddings[operation.weight]).float()
        if operation.scale != 1.0:
            rows *= torch.tensor(operation.scale, dtype=self._dtype).item()
        step.buffers[HIDDEN] = rows

    def _attend(self, operation: Attend, step: _Step) -> Tensor:
        program = self._program
        num_heads, num_kv_heads, head_dim = program.num_heads, program.num_kv_heads, program.head_dim
        source = step.buffers[operation.source]
        qkv = source.view(source.shape[0], -1, head_dim)
        query, key, _ = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], 1)
        for heads, name in ((query, operation.q_norm), (key, operation.k_norm)):
            if name is not None:
                heads.copy_(self._norm(heads, name, self._dtype))
        rotary_embedding(qkv[:, :-num_kv_heads], *step.ropes[operation.rope])
        key_value = qkv[:, num_heads:].view(-1, 2, num_kv_heads, head_dim)
        cache = step.cache[operation.layer]
        write_kv(key_value, cache, step.slot_mapping[operation.group])
        plan = step.attention[operation.group]
        return paged_attention(query, cache, plan, operation.scale, operation.soft_cap)


def split_tokens(inputs: StepInputs) -> Iterator[StepInputs]:
    """A step for each token, in order, as far as the layers are concerned."""
    begins = np.array([0, 1], np.int32)
    owners = np.repeat(np.arange(len(inputs.seq_lens)), np.diff(inputs.query_start_loc))
    for token, row in enumerate(owners.tolist()):
        one = slice(token, token + 1)
        positions = inputs.positions[one]
        yield replace(
            inputs,
            input_ids=inputs.input_ids[one],
            positions=positions,
            slot_mapping=inputs.slot_mapping[:, one],
            query_start_loc=begins,
            seq_lens=positions.astype(np.int32) + np.int32(1),
            block_table=inputs.block_table[:, row : row + 1],
        )


def _store(operation: Norm | Linear, buffers: dict[str, Tensor], value: Tensor) -> None:
    if operation.adds:
        buffers[operation.target] += value
    else:
        buffers[operation.target] = value


def rope_tables(frequencies: Sequence[float], factor: float, length: int) -> tuple[Tensor, Tensor]:
    """(cos, sin) for positions below `length`, float32 [length, 1, head_dim], as kernels want them.

    `frequencies` are radians per position of each pair. Both halves of the last dimension are alike, but
    in the first half of `sin` the sign is negated. Both are multiplied by `factor`.
    """
    angles = torch.outer(torch.arange(length).double(), torch.tensor(frequencies, dtype=torch.float64))
    cos, sin = (angles.cos() * factor).float(), (angles.sin() * factor).float()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
