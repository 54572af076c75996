"""The decoder of llama, SmolLM2, mistral, qwen2 and qwen3: one file, for they differ in biases and norms.

Activations have the dtype of the weights; the residual stream is float32, which costs nothing at the
sizes where time matters and keeps a model in bfloat16 much closer to one in float32.
"""

from dataclasses import dataclass

import torch
from actorllm_kernels import (
    AttentionPlan,
    embedding,
    linear,
    paged_attention,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
    write_kv,
)
from torch import Tensor

from ..checkpoint.architecture import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer:
    """The weights of a layer: matrices [outputs, inputs] and biases in the model's dtype, norms in float32.

    The rows of `qkv` are those of q, k and v; the rows of `gate_up` those of gate and up. Matrices may be
    packed for `linear`.
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """All weights. `head` has the values of `embed` where the embeddings are tied, and may be packed."""

    embed: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the matrices, and so of the activations."""
        return self.embed.dtype


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What all layers of a step share.

    cos, sin      float32 [N, 1, head_dim], the rotary embedding of each token
    slot_mapping  int64 [N], where its keys and values go
    attention     how attention is batched
    """

    cos: Tensor
    sin: Tensor
    slot_mapping: Tensor
    attention: AttentionPlan


class Llama:
    """A decoder with its weights, without state."""

    def __init__(self, architecture: Architecture, weights: LlamaWeights) -> None:
        self.architecture = architecture
        self.weights = weights
        self._num_heads = architecture.num_heads
        self._num_kv_heads = architecture.num_kv_heads
        self._head_dim = architecture.head_dim
        self._eps = architecture.rms_norm_eps
        self._scale = architecture.head_dim**-0.5

    def forward(self, input_ids: Tensor, context: ForwardContext, cache: Tensor, wanted: Tensor) -> Tensor:
        """Logits [S, vocab_size], in the model's dtype, of the tokens `wanted` (int64 [S]) of the N.

        `input_ids` are int [N]. Writes their keys and values into `cache` [num_layers, num_blocks,
        block_size, 2, num_kv_heads, head_dim].
        """
        weights = self.weights
        hidden = embedding(input_ids, weights.embed).float()
        for layer, layer_cache in zip(weights.layers, cache.unbind(0), strict=True):
            hidden += self._attention(layer, self._norm(hidden, layer.input_norm), context, layer_cache)
            hidden += self._mlp(layer, self._norm(hidden, layer.post_norm))
        if not wanted.numel():
            return hidden.new_empty((0, self.architecture.vocab_size), dtype=weights.dtype)
        return linear(self._norm(hidden.index_select(0, wanted), weights.norm), weights.head)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, weight, self._eps, self.weights.dtype)

    def _attention(self, layer: LlamaLayer, x: Tensor, context: ForwardContext, cache: Tensor) -> Tensor:
        qkv = linear(x, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, self._head_dim)
        query, key, _ = torch.split(qkv, [self._num_heads, self._num_kv_heads, self._num_kv_heads], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query.copy_(self._norm(query, layer.q_norm))
            key.copy_(self._norm(key, layer.k_norm))
        rotary_embedding(qkv[:, : -self._num_kv_heads], context.cos, context.sin)
        key_value = qkv[:, self._num_heads :].view(-1, 2, self._num_kv_heads, self._head_dim)
        write_kv(key_value, cache, context.slot_mapping)
        attended = paged_attention(query, cache, context.attention, self._scale)
        return linear(attended, layer.o, layer.o_bias)

    def _mlp(self, layer: LlamaLayer, x: Tensor) -> Tensor:
        gate_up = linear(x, layer.gate_up, layer.gate_up_bias)
        return linear(silu_and_mul(gate_up), layer.down, layer.down_bias)
