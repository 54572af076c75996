"""What a model file says, and that it needs no torch."""

import subprocess
import sys

import pytest

from actorllm.checkpoint import Architecture
from actorllm.model.families import program_of
from actorllm.model.program import HIDDEN, Attend, Embed, Gate, Head, Linear, Norm

LLAMA = {
    "family": "llama",
    "vocab_size": 5,
    "hidden_size": 4,
    "intermediate_size": 3,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 1,
    "head_dim": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 8,
    "tie_word_embeddings": True,
}


@pytest.mark.slow
def test_a_program_needs_no_torch() -> None:
    modules = "program, families, llama, rope, capacity"
    program = f"import sys; from actorllm.model import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_llama_layer_by_layer() -> None:
    program = program_of(Architecture(**LLAMA))  # type: ignore[arg-type]
    prefix = "model.layers.1."
    assert program.operations[0] == Embed("model.embed_tokens.weight")
    assert program.operations[9:17] == (
        Norm(HIDDEN, f"{prefix}input_layernorm.weight", "normed"),
        Linear("normed", tuple(f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"), "qkv"),
        Attend("qkv", "attended", layer=1, group=0, scale=2**-0.5),
        Linear("attended", (f"{prefix}self_attn.o_proj.weight",), HIDDEN, adds=True),
        Norm(HIDDEN, f"{prefix}post_attention_layernorm.weight", "normed"),
        Linear("normed", (f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"), "gate_up"),
        Gate("gate_up", "gated"),
        Linear("gated", (f"{prefix}mlp.down_proj.weight",), HIDDEN, adds=True),
    )
    assert program.operations[17:] == (Head("model.norm.weight", "model.embed_tokens.weight"),)
    assert program.widths == {
        HIDDEN: 4, "normed": 4, "qkv": 12, "attended": 8, "gate_up": 6, "gated": 3
    }  # fmt: skip
    assert (program.num_slabs, program.eps, program.ropes) == (2, 1e-5, (((1.0,), 1.0),))


def test_what_differs_between_llamas() -> None:
    changes = {"qk_norm": True, "attention_bias": True, "sliding_window": 7, "tie_word_embeddings": False}
    program = program_of(Architecture(**LLAMA | changes))  # type: ignore[arg-type]
    prefix = "model.layers.0.self_attn."
    qkv, attend, out = program.operations[2:5]
    assert isinstance(qkv, Linear)
    assert qkv.biases == (f"{prefix}q_proj.bias", f"{prefix}k_proj.bias", f"{prefix}v_proj.bias")
    assert isinstance(attend, Attend)
    assert (attend.q_norm, attend.k_norm) == (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight")
    assert (attend.window, attend.offset, attend.soft_cap) == (7, 0.0, 0.0)
    assert isinstance(out, Linear)
    assert out.biases == ()
    assert program.operations[-1] == Head("model.norm.weight", "lm_head.weight")
