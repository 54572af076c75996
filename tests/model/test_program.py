"""What a model file says, and that it needs no torch."""

import subprocess
import sys

import pytest

from actorllm.checkpoint import FAMILIES, Architecture, tensor_shapes
from actorllm.model.families import PROGRAMS, program_of
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
    modules = "program, families, decoder, llama, gemma, rope, capacity"
    program = f"import sys; from actorllm.model import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_family_has_a_program() -> None:
    assert sorted(PROGRAMS) == sorted(FAMILIES)


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


GEMMA = LLAMA | {
    "family": "gemma3",
    "num_layers": 5,
    "max_position_embeddings": 64,
    "hidden_size": 9,
    "layer_windows": (8, 8, 0, 8, 0),
    "local_rope_theta": 100.0,
    "attention_scale": 0.25,
    "norm_offset": 1.0,
    "final_soft_cap": 30.0,
    "qk_norm": True,
}


def test_a_gemma_layer_by_layer() -> None:
    program = program_of(Architecture(**GEMMA))  # type: ignore[arg-type]
    prefix = "model.layers.3."
    assert program.operations[0] == Embed("model.embed_tokens.weight", 3.0)
    assert program.operations[31:41] == (
        Norm(HIDDEN, f"{prefix}input_layernorm.weight", "normed", 1.0),
        Linear("normed", tuple(f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"), "qkv"),
        Attend(
            "qkv",
            "attended",
            layer=0,
            group=2,
            scale=0.25,
            q_norm=f"{prefix}self_attn.q_norm.weight",
            k_norm=f"{prefix}self_attn.k_norm.weight",
            offset=1.0,
            rope=1,
            window=8,
        ),
        Linear("attended", (f"{prefix}self_attn.o_proj.weight",), "normed"),
        Norm("normed", f"{prefix}post_attention_layernorm.weight", HIDDEN, 1.0, adds=True),
        Norm(HIDDEN, f"{prefix}pre_feedforward_layernorm.weight", "normed", 1.0),
        Linear("normed", (f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"), "gate_up"),
        Gate("gate_up", "gated", "gelu_tanh"),
        Linear("gated", (f"{prefix}mlp.down_proj.weight",), "normed"),
        Norm("normed", f"{prefix}post_feedforward_layernorm.weight", HIDDEN, 1.0, adds=True),
    )
    assert program.operations[51:] == (Head("model.norm.weight", "model.embed_tokens.weight", 1.0, 30.0),)
    assert (program.num_slabs, program.ropes) == (2, (((1.0,), 1.0), ((1.0,), 1.0)))


def attends(**changes: object) -> list[tuple[int, int, int, int]]:
    """Of each layer: group, slab, window, rope."""
    program = program_of(Architecture(**GEMMA | changes))  # type: ignore[arg-type]
    found = [operation for operation in program.operations if isinstance(operation, Attend)]
    return [(each.group, each.layer, each.window, each.rope) for each in found]


def test_layers_lie_in_groups_of_one_window() -> None:
    assert attends() == [(1, 0, 8, 1), (1, 1, 8, 1), (0, 0, 0, 0), (2, 0, 8, 1), (0, 1, 0, 0)]
    assert attends(layer_windows=(0, 8, 0, 0, 0)) == [
        (0, 0, 0, 0),
        (4, 0, 8, 1),
        (1, 0, 0, 0),
        (2, 0, 0, 0),
        (3, 0, 0, 0),
    ]


def test_a_window_that_no_request_outgrows_makes_no_group_but_keeps_its_rope() -> None:
    assert attends(max_position_embeddings=8) == [
        (0, layer, 0, rope) for layer, rope in enumerate((1, 1, 0, 1, 0))
    ]


@pytest.mark.parametrize("architecture", [LLAMA, LLAMA | {"qk_norm": True, "mlp_bias": True}, GEMMA])
def test_a_program_names_every_weight_of_a_checkpoint_once(architecture: dict[str, object]) -> None:
    shape = Architecture(**architecture)  # type: ignore[arg-type]
    names: list[str] = []
    for operation in program_of(shape).operations:
        match operation:
            case Embed() | Norm():
                names.append(operation.weight)
            case Linear():
                names += [*operation.weights, *operation.biases]
            case Attend():
                names += [name for name in (operation.q_norm, operation.k_norm) if name is not None]
            case Head():
                names.append(operation.norm)
    assert sorted(names) == sorted(tensor_shapes(shape))
