from dataclasses import replace
from typing import Any

import pytest

from actorllm.checkpoint.architecture import Architecture, LayerGroup, tensor_shapes
from actorllm.checkpoint.configuration import from_config
from actorllm.checkpoint.rope import RopeScaling
from actorllm.errors import ModelCorrupt, UnsupportedModel

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(has_head: bool = True, stored: str = "F32", **changes: Any) -> Architecture:
    config = {key: value for key, value in (BASE | changes).items() if value is not ...}
    return from_config(config, "config.json", stored, has_head)


def test_a_llama() -> None:
    assert read() == Architecture(
        family="llama",
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_layers=3,
        num_heads=8,
        num_kv_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )


def test_heads_without_groups_and_of_another_size() -> None:
    a = read(num_key_value_heads=..., head_dim=32)
    assert (a.num_kv_heads, a.head_dim) == (8, 32)


@pytest.mark.parametrize(
    ("changes", "biases"),
    [
        ({}, (False, False, False)),
        ({"attention_bias": True}, (True, True, False)),
        ({"mlp_bias": True}, (False, False, True)),
        ({"model_type": "mistral", "attention_bias": True, "mlp_bias": True}, (False, False, False)),
        ({"model_type": "qwen2"}, (True, False, False)),
        ({"model_type": "qwen3"}, (False, False, False)),
        ({"model_type": "qwen3", "attention_bias": True}, (True, True, False)),
    ],
)
def test_each_family_has_its_biases(changes: dict[str, Any], biases: tuple[bool, bool, bool]) -> None:
    a = read(**changes)
    assert (a.attention_bias, a.attention_out_bias, a.mlp_bias) == biases


def test_qwen3_has_head_norms_and_a_head_size_of_its_own() -> None:
    a = read(model_type="qwen3")
    assert (a.qk_norm, a.head_dim) == (True, 128)
    assert read(model_type="qwen3", head_dim=16).head_dim == 16
    assert not read(model_type="qwen2").qk_norm


def test_embeddings_are_tied_by_configuration_or_for_want_of_a_head() -> None:
    assert read(tie_word_embeddings=True).tie_word_embeddings
    assert read(has_head=False).tie_word_embeddings
    assert not read(tie_word_embeddings=False).tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 32}, None),
        ({"model_type": "mistral", "sliding_window": 32}, 32),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 32}, None),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True}, 32),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 32,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            None,
        ),
    ],
)
def test_sliding_windows(changes: dict[str, Any], window: int | None) -> None:
    assert read(**changes).sliding_window == window


def test_qwen_may_have_windows_in_its_last_layers() -> None:
    a = read(model_type="qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1)
    assert a.layer_windows == (0, 8, 8)
    assert a.layer_groups == (LayerGroup(0, (0,)), LayerGroup(8, (1,)), LayerGroup(8, (2,)))
    assert a.windows == (0, 8, 8)


GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 8,
    "sliding_window": 32,
    "query_pre_attn_scalar": 64,
}


def test_a_gemma() -> None:
    a = read(**GEMMA)
    assert (a.family, a.head_dim, a.qk_norm, a.tie_word_embeddings, a.norm_offset) == (
        "gemma3", 256, True, True, 1.0
    )  # fmt: skip
    assert (a.rope_theta, a.local_rope_theta, a.rope_scaling) == (1e6, 1e4, None)
    assert (a.attention_scale, a.attention_soft_cap, a.final_soft_cap) == (0.125, 0.0, 0.0)
    assert a.layer_windows == (32, 32, 32, 32, 32, 0, 32, 32)
    assert a.windows == (0, *[32] * 7)
    assert read(**GEMMA, attn_logit_softcapping=50.0).attention_soft_cap == 50.0
    assert read(**GEMMA, final_logit_softcapping=30.0).final_soft_cap == 30.0


def test_the_kinds_of_layers_in_the_old_and_the_new_place() -> None:
    kinds = ["sliding_attention", "full_attention"] * 4
    new_rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    old: dict[str, Any] = {
        "sliding_window_pattern": 2,
        "rope_theta": 5e5,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    a = read(**GEMMA, layer_types=kinds, rope_parameters=new_rope)
    assert a == read(**GEMMA, **old)
    assert a.layer_windows == (32, 0) * 4
    assert (a.rope_theta, a.local_rope_theta) == (5e5, 5e3)
    assert a.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    assert a.max_position_embeddings == 128  # stated with the scaling in it
    assert a.layer_groups == (LayerGroup(0, (1, 3, 5, 7)), LayerGroup(32, (0, 2, 4, 6)))


def test_groups_are_as_large_as_the_fewest_layers_of_a_window() -> None:
    a = replace(read(**GEMMA), layer_windows=(32, 0, 32, 32, 0, 32, 32, 32))
    assert a.layer_groups == (
        LayerGroup(0, (1, 4)),
        LayerGroup(32, (0, 2)),
        LayerGroup(32, (3, 5)),
        LayerGroup(32, (6, 7)),
    )
    assert replace(a, max_position_embeddings=32).layer_groups == (LayerGroup(0, tuple(range(8))),)
    assert read(model_type="mistral", sliding_window=16).layer_groups == (LayerGroup(16, (0, 1, 2)),)


def test_the_dtype_has_two_spellings_and_may_be_missing() -> None:
    assert read(dtype=..., torch_dtype="float16").dtype == "float16"
    assert read(dtype="torch.float32").dtype == "float32"
    assert read(dtype=..., stored="BF16").dtype == "bfloat16"


def test_rope_in_the_old_and_the_new_place() -> None:
    old = read(rope_theta=5e5, rope_scaling=LLAMA3)
    new = read(rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    assert old == new
    assert old.rope_theta == 5e5
    assert old.rope_scaling == RopeScaling(
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    assert old.max_position_embeddings == 128


def test_linear_rope_stretches_the_context() -> None:
    a = read(rope_scaling={"type": "linear", "factor": 4.0})
    assert a.rope_scaling == RopeScaling(kind="linear", factor=4.0)
    assert a.max_position_embeddings == 512


@pytest.mark.parametrize(
    ("changes", "attention_factor"),
    [
        ({}, 1.1386294361119891),  # 0.1 * ln 4 + 1
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, 1.2772588722239782 / 1.1386294361119891),
    ],
)
def test_yarn(changes: dict[str, Any], attention_factor: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    a = read(rope_scaling=scaling | changes)
    assert a.rope_scaling is not None
    assert a.rope_scaling.attention_factor == pytest.approx(attention_factor, rel=1e-12)
    assert (a.rope_scaling.beta_fast, a.rope_scaling.beta_slow) == (32.0, 1.0)
    assert a.max_position_embeddings == 512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "phi3"},
            "architecture 'phi3'; supported are llama, mistral, qwen2, qwen3, gemma3_text",
        ),
        (
            {"model_type": "gemma3", "vision_config": {}},
            "gemma3 with a vision part; supported is .* gemma3_text",
        ),
        ({"model_type": ...}, "architecture None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "no causal language model"),
        ({"hidden_act": "gelu"}, "activation 'gelu'; supported is silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantisation 'gptq'; supported are"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope'; supported are linear"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn'; supported are float32, float16, bfloat16"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "bidirectional attention"),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
            },
            "rope scaling in the layers with a sliding window",
        ),
        (
            {"model_type": "gemma3_text", "hidden_activation": "silu"},
            "activation 'silu'; supported is gelu_pytorch_tanh",
        ),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "config.json: hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size must be a number, not 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"vocab_size": 1.5}, "vocab_size must be a positive integer"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"quantization_config": "int4"}, "quantization_config must be an object"),
        ({"rope_scaling": 3}, "rope_scaling must be an object"),
        ({"rope_scaling": LLAMA3 | {"factor": None}}, "factor is missing"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "layer_types must have"),
        ({"model_type": "gemma3_text", "layer_types": ["chunked_attention"] * 3}, "layer_types must have"),
        ({"num_key_value_heads": 3}, "8 heads of 8 over 3 key-value heads"),
    ],
)
def test_what_cannot_be_is_corrupt(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelCorrupt, match=message):
        read(**changes)


def test_tensor_shapes_follow_the_architecture() -> None:
    shapes = tensor_shapes(read(attention_bias=True, head_dim=16))
    assert shapes["model.embed_tokens.weight"] == (320, 64)
    assert shapes["lm_head.weight"] == (320, 64)
    assert shapes["model.layers.2.self_attn.q_proj.weight"] == (128, 64)
    assert shapes["model.layers.2.self_attn.k_proj.weight"] == (32, 64)
    assert shapes["model.layers.2.self_attn.o_proj.weight"] == (64, 128)
    assert shapes["model.layers.2.self_attn.o_proj.bias"] == (64,)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 96)
    assert "model.layers.0.mlp.down_proj.bias" not in shapes
    assert len(shapes) == 3 + 3 * (2 + 7 + 4)


def test_gemma_has_two_norms_more_a_layer() -> None:
    shapes = tensor_shapes(read(**GEMMA))
    assert shapes["model.layers.7.pre_feedforward_layernorm.weight"] == (64,)
    assert shapes["model.layers.7.post_feedforward_layernorm.weight"] == (64,)
    assert len(shapes) == 2 + 8 * (4 + 2 + 7)
