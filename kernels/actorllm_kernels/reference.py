"""The operations of a model step in plain torch: what every other implementation must mean.

Tensors of a step are one-dimensional over its N tokens, row after row, without padding. The KV cache of
a layer is one tensor [num_blocks, block_size, 2, num_kv_heads, head_dim], keys before values, so that a
token is written and a block is read in one piece. Activations have the model's dtype; norms and the
rotary embedding are computed in float32.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

QUERY_CHUNK = 128
"""Query tokens of one row that attention takes at once."""


def embedding(input_ids: Tensor, weight: Tensor) -> Tensor:
    """Rows `input_ids` (int [N]) of `weight` [V, H]: [N, H]."""
    return weight.index_select(0, input_ids)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x [N, I] @ weight [O, I] transposed + bias [O]: [N, O]; `weight` may be packed."""
    if weight.is_mkldnn:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


def pack_linear(weight: Tensor) -> Tensor:
    """The weight [O, I] as `linear` multiplies it fastest; of use to `linear` alone.

    In bfloat16 that is oneDNN's blocked layout: with few rows the product takes half the time. Returns
    `weight` itself for other dtypes, and where oneDNN has no bfloat16.
    """
    if weight.dtype != torch.bfloat16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The value x / sqrt(mean(x ** 2) + eps) * weight over the last dimension, rounded once, to `dtype`.

    `weight` is float32. The formula: Zhang and Sennrich, "Root mean square layer normalization", 2019.
    """
    x = x.float()
    mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    normed: Tensor = x * mean.add_(eps).rsqrt_()
    return normed.mul_(weight).to(dtype)


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(gate) * up of x [N, 2 * I], gate before up: [N, I]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """gelu(gate) * up of x [N, 2 * I], gate before up: [N, I].

    The approximation with tanh: Hendrycks and Gimpel, "Gaussian error linear units", arXiv 1606.08415.
    """
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """The value cap * tanh(x / cap), computed in float32, in the dtype of `x`."""
    capped: Tensor = (x.float() / cap).tanh_().mul_(cap)
    return capped.to(x.dtype)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the pairs (i, i + head_dim / 2) of every head of x [N, heads, head_dim], in place.

    `cos` and `sin` are float32 [N, 1, head_dim], both halves alike but for the sign: the first half of
    `sin` is negated. Su et al., "RoFormer", arXiv 2104.09864, with the pairs laid out as in GPT-NeoX.
    """
    wide = x.float()
    turned = wide.roll(x.shape[-1] // 2, dims=-1)
    x.copy_(wide.mul_(cos).addcmul_(turned, sin))


def write_kv(key_value: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Write the keys and values [N, 2, num_kv_heads, head_dim] to their slots (int64 [N]) of `cache`.

    A slot is block id * block_size + offset. Changes `cache` in place.
    """
    cache.flatten(0, 1).index_copy_(0, slot_mapping, key_value)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows of a step that one batched attention serves: G rows with T query tokens each.

    tokens  int64 [G * T] their tokens in N, or None when they are all tokens of the step in order
    blocks  int64 [G * B] their block ids; a row with fewer blocks is filled up with any
    mask    [G, 1, S * T, B * block_size] in the model's dtype, 0 where a token sees a key, else -inf; it
            repeats for each of the S query heads that share a key-value head
    unseen  int64 places in G * B * block_size that no token of their row sees: what is there, even NaN,
            is of others
    """

    num_rows: int
    tokens: Tensor | None
    blocks: Tensor
    mask: Tensor
    unseen: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How the attention of a step is batched; the same for all its layers."""

    groups: tuple[AttentionGroup, ...]


def plan_attention(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    block_size: int,
    dtype: torch.dtype,
    queries_per_kv: int,
    window: int = 0,
) -> AttentionPlan:
    """Group the rows of a step by query length and, within a factor of two, by length of context.

    `query_start_loc` [R + 1], `seq_lens` [R] (context after the step) and `block_table` [R, B] are
    integers on the CPU; `queries_per_kv` is num_heads / num_kv_heads. The token at position p sees the
    keys at p - window + 1 to p, or with a window of 0 all up to p; the table may have any block where no
    token sees it. A row of more than QUERY_CHUNK tokens counts as several rows, so that the early ones
    need not look at the keys of the late ones.
    """
    row, begins, query_lens, lens = _chunks(query_start_loc.long(), seq_lens.long())
    num_blocks = (lens + block_size - 1) // block_size
    buckets = torch.ceil(torch.log2(num_blocks.double())).long()
    kinds, kind_of = torch.unique(torch.stack((query_lens, buckets), 1), dim=0, return_inverse=True)
    groups = []
    for kind, (query_len, _) in enumerate(kinds.tolist()):
        own = (kind_of == kind).nonzero().squeeze(1)
        table = block_table[row[own], : int(num_blocks[own].max())].long()
        offsets = torch.arange(query_len)
        positions = (lens[own] - query_len)[:, None] + offsets
        mask = _mask(positions, table.shape[1] * block_size, dtype, window)
        mask = mask.expand(-1, queries_per_kv, -1, -1).reshape(len(own), 1, -1, mask.shape[-1])
        tokens = None if len(kinds) == 1 else (begins[own][:, None] + offsets).flatten()
        unseen = _unseen(positions, table.shape[1] * block_size, window)
        groups.append(AttentionGroup(len(own), tokens, table.flatten(), mask, unseen))
    return AttentionPlan(tuple(groups))


def _chunks(query_start_loc: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut rows into chunks: the row of each chunk, its first token in N, its length, its context."""
    query_lens = query_start_loc.diff()
    counts = (query_lens + QUERY_CHUNK - 1) // QUERY_CHUNK
    row = torch.repeat_interleave(torch.arange(len(counts)), counts)
    nth = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    left = query_lens[row] - nth * QUERY_CHUNK
    lengths = left.clamp(max=QUERY_CHUNK)
    return row, query_start_loc[row] + nth * QUERY_CHUNK, lengths, seq_lens[row] - left + lengths


def paged_attention(
    query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, cap: float = 0.0
) -> Tensor:
    """Causal softmax attention of query [N, num_heads, head_dim] over the cache of one layer.

    Heads share keys in groups: query head h uses key-value head h // (num_heads / num_kv_heads). The
    step's own keys and values are in the cache already. Scores go through `soft_cap` unless `cap` is 0.
    Returns [N, num_heads * head_dim].
    """
    if len(plan.groups) == 1:
        return _attend(query, cache, plan.groups[0], scale, cap)
    out = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
    for group in plan.groups:
        assert group.tokens is not None, "a group of several names its tokens"
        out.index_copy_(0, group.tokens, _attend(query[group.tokens], cache, group, scale, cap))
    return out


def _attend(query: Tensor, cache: Tensor, group: AttentionGroup, scale: float, cap: float) -> Tensor:
    """Attention of one group: the query heads of one key-value head count as more query tokens."""
    num_heads, head_dim = query.shape[1:]
    num_kv_heads, rows = cache.shape[3], group.num_rows
    shared = num_heads // num_kv_heads
    held = cache.index_select(0, group.blocks)
    held.flatten(0, 1).index_fill_(0, group.unseen, 0)  # a weight of 0 times NaN would be NaN
    key, value = held.view(rows, -1, 2, num_kv_heads, head_dim).unbind(2)
    query = query.view(rows, -1, num_kv_heads, shared, head_dim).permute(0, 2, 3, 1, 4)
    length = query.shape[3]
    query = query.reshape(rows, num_kv_heads, shared * length, head_dim)
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    if cap:
        scores = soft_cap((query @ key.transpose(2, 3)).float() * scale, cap) + group.mask
        out = scores.softmax(dim=-1).to(value.dtype) @ value
    else:
        out = F.scaled_dot_product_attention(query, key, value, group.mask, scale=scale)
    out = out.view(rows, num_kv_heads, shared, length, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * length, num_heads * head_dim)


def _unseen(positions: Tensor, num_keys: int, window: int) -> Tensor:
    """Places of [G, num_keys] that no query at `positions` [G, T], which ascend, sees: int64."""
    keys = torch.arange(num_keys)
    unseen = keys > positions[:, -1:]
    if window:
        unseen |= keys <= positions[:, :1] - window
    return unseen.flatten().nonzero().squeeze(1)


def _mask(positions: Tensor, num_keys: int, dtype: torch.dtype, window: int) -> Tensor:
    """[G, 1, T, num_keys] of 0 and -inf for queries at `positions` [G, T]."""
    distance = positions[:, None, :, None] - torch.arange(num_keys)
    hidden = distance < 0
    if window:
        hidden |= distance >= window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
