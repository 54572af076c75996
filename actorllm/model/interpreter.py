"""Runs a program with torch and the reference kernels, one operation after the other.

Activations have the dtype of the weights; the residual stream is float32, which costs nothing at the
sizes where time matters and keeps a model in bfloat16 much closer to one in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

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

from ..cores.batch import StepInputs
from .loader import Weights
from .program import HIDDEN, Attend, Embed, Gate, Head, Linear, Norm, Program

_GATES = {"silu": silu_and_mul, "gelu_tanh": gelu_tanh_and_mul}


@dataclass(frozen=True, slots=True)
class _Step:
    """What the operations of one step share.

    input_ids     int [N]
    ropes         for each rotary embedding the cosines and sines of each token, float32 [N, 1, head_dim]
    slot_mapping  for each group of layers where keys and values go, int64 [N]
    attention     for each group how attention is batched
    wanted        int64 [S], the tokens whose logits are wanted
    cache         for each slab [num_blocks, block_size, 2, num_kv_heads, head_dim]
    buffers       what operations have written, by name
    """

    input_ids: Tensor
    ropes: Sequence[tuple[Tensor, Tensor]]
    slot_mapping: Sequence[Tensor]
    attention: Sequence[AttentionPlan]
    wanted: Tensor
    cache: Sequence[Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)


class Interpreter:
    """A program with its weights, for positions below `length`; without state between steps."""

    def __init__(self, program: Program, weights: Weights, length: int) -> None:
        self._program = program
        self._weights = weights
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
        step = self._step(inputs, cache)
        buffers = step.buffers
        for operation in self._program.operations:
            match operation:
                case Embed():
                    self._embed(operation, step)
                case Norm():
                    target = buffers[operation.target].dtype if operation.adds else self._dtype
                    _store(
                        operation, buffers, self._norm(buffers[operation.source], operation.weight, target)
                    )
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
                    logits = self._head(operation, step)
                case _:
                    assert_never(operation)
        return logits

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
            wanted=torch.from_numpy(inputs.logits_indices),
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

    def _head(self, operation: Head, step: _Step) -> Tensor:
        hidden = step.buffers[HIDDEN]
        if not step.wanted.numel():
            return hidden.new_empty((0, self._program.vocab_size), dtype=self._dtype)
        normed = self._norm(hidden.index_select(0, step.wanted), operation.norm, self._dtype)
        logits = linear(normed, self._weights.linears[(operation.weight,)])
        return soft_cap(logits, operation.soft_cap) if operation.soft_cap else logits


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
