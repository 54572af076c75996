"""From the tensors of a checkpoint to the weights of a model: another dtype, and some fused."""

from collections.abc import Mapping, Sequence

import torch
from actorllm_kernels import pack_linear
from torch import Tensor

from ..checkpoint.architecture import Architecture
from ..checkpoint.tensor import RawTensor
from .llama import LlamaLayer, LlamaWeights


def resolve_dtype(wanted: str, stored: str) -> torch.dtype:
    """The dtype to compute in: `wanted`, or for auto float32 where the checkpoint is, else bfloat16."""
    name = wanted if wanted != "auto" else "float32" if stored == "float32" else "bfloat16"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def load_weights(
    architecture: Architecture, tensors: Mapping[str, RawTensor], dtype: torch.dtype
) -> LlamaWeights:
    """The weights of a decoder: matrices (packed for `linear`) and biases in `dtype`, norms in float32.

    `tensors` are all that `tensor_shapes(architecture)` names, of those shapes, by their Hugging Face
    names. One at a time is expanded to float32.
    """
    embed = _stack(tensors, ["model.embed_tokens.weight"], dtype)
    return LlamaWeights(
        embed=embed,
        layers=tuple(_layer(architecture, tensors, n, dtype) for n in range(architecture.num_layers)),
        norm=_stack(tensors, ["model.norm.weight"], torch.float32),
        head=pack_linear(
            embed if architecture.tie_word_embeddings else _stack(tensors, ["lm_head.weight"], dtype)
        ),
    )


def _layer(
    architecture: Architecture, tensors: Mapping[str, RawTensor], number: int, dtype: torch.dtype
) -> LlamaLayer:
    prefix = f"model.layers.{number}."

    def matrix(*names: str) -> Tensor:
        return pack_linear(_stack(tensors, [f"{prefix}{name}_proj.weight" for name in names], dtype))

    def bias(there: bool, *names: str) -> Tensor | None:
        return _stack(tensors, [f"{prefix}{name}_proj.bias" for name in names], dtype) if there else None

    def norm(name: str) -> Tensor:
        return _stack(tensors, [f"{prefix}{name}.weight"], torch.float32)

    qkv = ("self_attn.q", "self_attn.k", "self_attn.v")
    return LlamaLayer(
        input_norm=norm("input_layernorm"),
        qkv=matrix(*qkv),
        qkv_bias=bias(architecture.attention_bias, *qkv),
        q_norm=norm("self_attn.q_norm") if architecture.qk_norm else None,
        k_norm=norm("self_attn.k_norm") if architecture.qk_norm else None,
        o=matrix("self_attn.o"),
        o_bias=bias(architecture.attention_out_bias, "self_attn.o"),
        post_norm=norm("post_attention_layernorm"),
        gate_up=matrix("mlp.gate", "mlp.up"),
        gate_up_bias=bias(architecture.mlp_bias, "mlp.gate", "mlp.up"),
        down=matrix("mlp.down"),
        down_bias=bias(architecture.mlp_bias, "mlp.down"),
    )


def _stack(tensors: Mapping[str, RawTensor], names: Sequence[str], dtype: torch.dtype) -> Tensor:
    """The tensors of these names, one below the other."""
    parts = [tensors[name] for name in names]
    rows = [part.shape[0] for part in parts]
    stacked = torch.empty((sum(rows), *parts[0].shape[1:]), dtype=dtype)
    for part, place in zip(parts, torch.split(stacked, rows), strict=True):
        place.copy_(torch.from_numpy(part.to_float32()))
    return stacked
