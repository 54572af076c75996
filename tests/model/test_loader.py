from dataclasses import replace

import numpy as np
import pytest
import torch

from actorllm.checkpoint import Architecture, RawTensor, tensor_shapes
from actorllm.model.dtypes import resolve_dtype
from actorllm.model.families import program_of
from actorllm.model.loader import load_weights
from actorllm.model.program import Norm, Program

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
PROGRAM = program_of(ARCHITECTURE)


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
        ("auto", "float32", "float32"),
        ("auto", "bfloat16", "bfloat16"),
        ("auto", "float16", "bfloat16"),
        ("auto", "Q4_1", "bfloat16"),
        ("float16", "float32", "float16"),
        ("float32", "Q4_1", "float32"),
        ("bfloat16", "float32", "bfloat16"),
    ],
)
def test_auto_is_float32_only_for_float32(wanted: str, stored: str, dtype: str) -> None:
    assert resolve_dtype(wanted, stored) == dtype


def test_matrices_that_are_multiplied_together_lie_one_below_the_other() -> None:
    stored = tensors()
    weights = load_weights(PROGRAM, stored, torch.float32)
    layer = "model.layers.1."
    fused = [
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("mlp.gate_proj", "mlp.up_proj"),
        ("self_attn.o_proj",),
        ("mlp.down_proj",),
    ]
    for parts in fused:
        names = tuple(f"{layer}{part}.weight" for part in parts)
        wanted = np.concatenate([stored[name].stored for name in names])
        assert np.array_equal(weights.linears[names].numpy(), wanted)
    biases = tuple(f"{layer}self_attn.{part}_proj.bias" for part in "qkv")
    assert np.array_equal(
        weights.biases[biases].numpy(), np.concatenate([stored[name].stored for name in biases])
    )
    assert [names for names in weights.biases if names[0].startswith(layer)] == [biases]
    head = weights.linears[("lm_head.weight",)]
    assert np.array_equal(head.numpy(), stored["lm_head.weight"].stored)


def test_matrices_and_biases_have_the_dtype_and_norms_stay_float32() -> None:
    weights = load_weights(PROGRAM, tensors(), torch.bfloat16)
    assert weights.dtype == torch.bfloat16
    for tensor in (*weights.embeddings.values(), *weights.linears.values(), *weights.biases.values()):
        assert tensor.dtype == torch.bfloat16
    assert len(weights.norms) == 2 * 4 + 1
    for norm in weights.norms.values():
        assert norm.dtype == torch.float32


def test_every_weight_of_a_checkpoint_is_in_the_program() -> None:
    weights = load_weights(PROGRAM, tensors(), torch.float32)
    fused = (*weights.linears, *weights.biases)
    names = [*weights.embeddings, *weights.norms, *(name for names in fused for name in names)]
    assert sorted(names) == sorted(tensor_shapes(ARCHITECTURE))


def test_a_tied_head_has_the_values_of_the_embedding() -> None:
    embed = "model.embed_tokens.weight"
    weights = load_weights(
        program_of(replace(ARCHITECTURE, tie_word_embeddings=True)), tensors(), torch.float32
    )
    assert weights.linears[(embed,)] is weights.embeddings[embed]


def test_a_norm_has_its_offset_added() -> None:
    name = "model.norm.weight"
    program = Program((Norm("x", name, "y", offset=1.0),), {}, 0, 1, 1, 2, 5, 1e-5, ())
    stored = tensors()
    wanted = stored[name].stored + np.float32(1)
    assert np.array_equal(load_weights(program, stored, torch.bfloat16).norms[name].numpy(), wanted)
