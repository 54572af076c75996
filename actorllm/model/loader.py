"""From the tensors of a checkpoint to the weights of a program: another dtype, and some fused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from actorllm_kernels.reference import pack_linear
from torch import Tensor

from ..checkpoint.tensor import RawTensor
from .program import Attend, Embed, Head, Linear, Norm, Program


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a program, for the interpreter.

    dtype       of matrices and biases, and so of the activations
    embeddings  [V, H], by name
    linears     [O, I], packed for `linear`, by the names of the matrices that stand one below the other;
                has the values of an embedding where the head is tied to it
    biases      [O], by the names of the biases that stand one below the other
    norms       float32, with the offset added, by name
    """

    dtype: torch.dtype
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    linears: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    biases: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)


def load_weights(program: Program, tensors: Mapping[str, RawTensor], dtype: torch.dtype) -> Weights:
    """The weights that a program names: matrices and biases in `dtype`, norms in float32.

    `tensors` are all those, by their names. One at a time is expanded to float32.
    """
    weights = Weights(dtype)
    for operation in program.operations:
        match operation:
            case Embed():
                weights.embeddings[operation.weight] = _stack(tensors, [operation.weight], dtype)
            case Norm():
                weights.norms[operation.weight] = _norm(tensors, operation.weight, operation.offset)
            case Linear():
                names = operation.weights
                weights.linears[names] = pack_linear(_stack(tensors, names, dtype))
                if operation.biases:
                    weights.biases[operation.biases] = _stack(tensors, operation.biases, dtype)
            case Attend():
                for name in filter(None, (operation.q_norm, operation.k_norm)):
                    weights.norms[name] = _norm(tensors, name, operation.offset)
            case Head():
                weights.norms[operation.norm] = _norm(tensors, operation.norm, operation.offset)
                tied = weights.embeddings.get(operation.weight)
                head = _stack(tensors, [operation.weight], dtype) if tied is None else tied
                weights.linears[(operation.weight,)] = pack_linear(head)
    return weights


def _norm(tensors: Mapping[str, RawTensor], name: str, offset: float) -> Tensor:
    return _stack(tensors, [name], torch.float32) + offset


def _stack(tensors: Mapping[str, RawTensor], names: Sequence[str], dtype: torch.dtype) -> Tensor:
    """The tensors of these names, one below the other."""
    parts = [tensors[name] for name in names]
    rows = [part.shape[0] for part in parts]
    stacked = torch.empty((sum(rows), *parts[0].shape[1:]), dtype=dtype)
    for part, place in zip(parts, torch.split(stacked, rows), strict=True):
        place.copy_(torch.from_numpy(part.to_float32()))
    return stacked
