import numpy as np
import pytest
import torch

from actorllm.checkpoint import Architecture, RawTensor, tensor_shapes
from actorllm.model.loader import load_weights, resolve_dtype

ARCHITECTURE = Architecture(
    family="llama",
    vocab_size=5,
    hidden_size=4,
    intermediate_size=3,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=2,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position_embeddings=8,
    tie_word_embeddings=False,
    attention_bias=True,
    qk_norm=True,
)


def tensors() -> dict[str, RawTensor]:
    """Every tensor, of random float32 numbers."""
    random = np.random.default_rng(0)
    return {
        name: RawTensor(name, shape, "F32", random.standard_normal(shape, np.float32))
        for name, shape in tensor_shapes(ARCHITECTURE).items()
    }


@pytest.mark.parametrize(
    ("wanted", "stored", "dtype"),
    [
        ("auto", "float32", torch.float32),
        ("auto", "bfloat16", torch.bfloat16),
        ("auto", "float16", torch.bfloat16),
        ("auto", "Q4_1", torch.bfloat16),
        ("float16", "float32", torch.float16),
        ("float32", "Q4_1", torch.float32),
        ("bfloat16", "float32", torch.bfloat16),
    ],
)
def test_auto_is_float32_only_for_float32(wanted: str, stored: str, dtype: torch.dtype) -> None:
    assert resolve_dtype(wanted, stored) == dtype


def test_matrices_that_are_multiplied_together_lie_one_below_the_other() -> None:
    stored = tensors()
    weights = load_weights(ARCHITECTURE, stored, torch.float32)
    layer = weights.layers[1]
    fused = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "o": ("self_attn.o_proj",),
        "down": ("mlp.down_proj",),
    }
    for name, parts in fused.items():
        wanted = np.concatenate([stored[f"model.layers.1.{part}.weight"].stored for part in parts])
        assert np.array_equal(getattr(layer, name).numpy(), wanted)
    assert layer.qkv_bias is not None
    biases = [stored[f"model.layers.1.self_attn.{part}_proj.bias"].stored for part in "qkv"]
    assert np.array_equal(layer.qkv_bias.numpy(), np.concatenate(biases))
    assert layer.o_bias is layer.gate_up_bias is layer.down_bias is None
    assert np.array_equal(weights.head.numpy(), stored["lm_head.weight"].stored)


def test_matrices_and_biases_have_the_dtype_and_norms_stay_float32() -> None:
    weights = load_weights(ARCHITECTURE, tensors(), torch.bfloat16)
    layer = weights.layers[0]
    for tensor in (weights.embed, weights.head, layer.qkv, layer.qkv_bias, layer.o, layer.gate_up):
        assert tensor is not None
        assert tensor.dtype == torch.bfloat16
    for tensor in (weights.norm, layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm):
        assert tensor is not None
        assert tensor.dtype == torch.float32
    assert weights.dtype == torch.bfloat16
