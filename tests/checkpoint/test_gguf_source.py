from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from actorllm.checkpoint.gguf_source import GGUFSource
from actorllm.checkpoint.rope import RopeScaling
from actorllm.errors import ModelCorrupt, ModelError, UnsupportedModel
from actorllm.messages import Sampling

from .files import CONTROL, HEAD_DIM, HEADS, HIDDEN, NORMAL, byte_level, matrices, write_gguf

VOCAB = 258


def write(path: Path, **options: Any) -> GGUFSource:
    return GGUFSource(write_gguf(path / "tiny.gguf", **options))


def weights_of(vocab: int = VOCAB) -> dict[str, Any]:
    return matrices(vocab, np.random.default_rng(5))


def test_the_architecture_is_read_from_the_metadata(tmp_path: Path) -> None:
    a = write(tmp_path, settings={"llama.rope.freq_base": 5000.0}).architecture
    assert (a.family, a.vocab_size, a.hidden_size, a.intermediate_size) == ("llama", VOCAB, 32, 64)
    assert (a.num_layers, a.num_heads, a.num_kv_heads, a.head_dim) == (2, 4, 2, 8)
    assert (a.rms_norm_eps, a.rope_theta, a.rope_scaling) == (1e-5, 5000.0, None)
    assert (a.max_position_embeddings, a.sliding_window, a.dtype) == (64, None, "float32")
    assert (a.tie_word_embeddings, a.attention_bias, a.mlp_bias, a.qk_norm) == (True, False, False, False)


def test_weights_have_the_names_of_hugging_face(tmp_path: Path) -> None:
    tensors = weights_of() | {"output.weight": np.ones((VOCAB, HIDDEN), np.float32)}
    source = write(tmp_path, tensors=tensors)
    assert not source.architecture.tie_word_embeddings
    weights = source.weights()
    assert len(weights) == len(tensors)
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
        "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    }.items():
        assert weights[ours].name == ours
        assert weights[ours].shape == tensors[theirs].shape
        np.testing.assert_array_equal(weights[ours].to_float32(), tensors[theirs])


def interleave(matrix: Any, heads: int) -> Any:
    """Rows as ggml has them: row 2i + j of a head is row i + j * half of Hugging Face's."""
    half = matrix.shape[0] // heads // 2
    order = [head * 2 * half + i + j * half for head in range(heads) for i in range(half) for j in range(2)]
    return matrix[order]


def test_q_and_k_of_llama_get_their_rows_back_in_order(tmp_path: Path) -> None:
    tensors = weights_of()
    q, k = tensors["blk.0.attn_q.weight"], tensors["blk.0.attn_k.weight"]
    stored = {"blk.0.attn_q.weight": interleave(q, 4), "blk.0.attn_k.weight": interleave(k, 2)}
    weights = write(tmp_path, tensors=tensors | stored).weights()
    np.testing.assert_array_equal(weights["model.layers.0.self_attn.q_proj.weight"].to_float32(), q)
    np.testing.assert_array_equal(weights["model.layers.0.self_attn.k_proj.weight"].to_float32(), k)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_q_and_k_of_qwen_stay_as_they_are(tmp_path: Path, arch: str) -> None:
    tensors = weights_of()
    if arch == "qwen3":
        tensors |= {
            f"blk.{n}.attn_{x}_norm.weight": np.ones(HEAD_DIM, np.float32) for n in (0, 1) for x in "qk"
        }
    source = write(tmp_path, arch=arch, tensors=tensors)
    assert source.architecture.family == arch
    assert source.architecture.qk_norm is (arch == "qwen3")
    weights = source.weights()
    stored = weights["model.layers.1.self_attn.q_proj.weight"].to_float32()
    np.testing.assert_array_equal(stored, tensors["blk.1.attn_q.weight"])
    assert ("model.layers.1.self_attn.k_norm.weight" in weights) is (arch == "qwen3")


def gemma(path: Path, **settings: Any) -> GGUFSource:
    norms = {f"blk.{n}.{name}_norm.weight": 32 for n in (0, 1) for name in ("post_attention", "post_ffw")}
    norms |= {f"blk.{n}.attn_{x}_norm.weight": HEAD_DIM for n in (0, 1) for x in "qk"}
    rng = np.random.default_rng(9)
    tensors = {name: rng.standard_normal(size).astype(np.float32) for name, size in norms.items()}
    settings = {f"gemma3.{key}": value for key, value in settings.items()}
    keys = {"gemma3.attention.sliding_window": 16, "gemma3.rope.freq_base": 1e6}
    return write(path, arch="gemma3", tensors=weights_of() | tensors, settings=keys | settings)


def test_gemma_has_its_one_in_the_norms_and_four_of_them(tmp_path: Path) -> None:
    source = gemma(tmp_path)
    assert source.architecture.norm_offset == 0.0
    weights = source.weights()
    for ours, theirs in {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        "self_attn.q_norm": "attn_q_norm",
    }.items():
        stored = source.file.bytes_of(source.file.tensors[f"blk.1.{theirs}.weight"]).view("<f4")
        assert np.array_equal(weights[f"model.layers.1.{ours}.weight"].to_float32(), stored)


def test_the_numbers_of_gemma(tmp_path: Path) -> None:
    a = gemma(tmp_path).architecture
    assert (a.family, a.qk_norm, a.layer_windows, a.windows) == ("gemma3", True, (16, 16), (16,))
    assert (a.rope_theta, a.local_rope_theta, a.final_soft_cap) == (1e6, 1e4, 0.0)
    assert a.attention_scale == 8**-0.5
    keys = {
        "attention.sliding_window_pattern": 2,
        "rope.freq_base_swa": 500.0,
        "final_logit_softcapping": 30.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    a = gemma(tmp_path, **keys).architecture
    assert (a.layer_windows, a.local_rope_theta, a.final_soft_cap) == ((16, 0), 500.0, 30.0)
    assert (a.rope_scaling, a.max_position_embeddings) == (RopeScaling(kind="linear", factor=8.0), 64)


def test_the_largest_gemma_scales_scores_by_its_width(tmp_path: Path) -> None:
    a = gemma(tmp_path, block_count=62, **{"attention.key_length": 16}).architecture
    assert a.attention_scale == (32 // 4) ** -0.5
    assert [layer for layer, window in enumerate(a.layer_windows) if not window] == list(range(5, 62, 6))
    assert [len(group.layers) for group in a.layer_groups] == [10] + [10] * 5 + [2]


def test_biases_show_in_the_architecture(tmp_path: Path) -> None:
    biases = {
        f"blk.{n}.attn_{x}.bias": np.ones(32 if x == "q" else 16, np.float32) for n in (0, 1) for x in "qkv"
    }
    source = write(tmp_path, arch="qwen2", tensors=weights_of() | biases)
    assert source.architecture.attention_bias
    assert not source.architecture.attention_out_bias
    assert source.weights()["model.layers.1.self_attn.k_proj.bias"].shape == (16,)


def test_the_dtype_is_what_most_of_the_layers_are(tmp_path: Path) -> None:
    embedding = {"token_embd.weight": gguf.GGMLQuantizationType.Q8_0}
    assert write(tmp_path, quantised=embedding).architecture.dtype == "float32"
    layers = [name for name in weights_of() if name.startswith("blk") and "norm" not in name]
    sixteen_bits = dict.fromkeys(layers, gguf.GGMLQuantizationType.BF16)
    assert write(tmp_path, quantised=embedding | sixteen_bits).architecture.dtype == "bfloat16"
    quantised = write(tmp_path, quantised=dict.fromkeys(layers, gguf.GGMLQuantizationType.Q4_1))
    assert quantised.architecture.dtype == "Q4_1"
    assert quantised.weights()["model.layers.0.mlp.up_proj.weight"].data.shape == (64, 20)


def test_ends_are_united(tmp_path: Path) -> None:
    vocabulary = byte_level("he", controls=("<a>", "<b>", "<c>", "<|im_end|>"))
    keys = {f"tokenizer.ggml.{name}_token_id": 257 + n for n, name in enumerate(("eos", "eot", "eom"))}
    source = write(tmp_path, vocabulary=vocabulary, settings=keys)
    assert source.eos_token_ids == {257, 258, 259}


def test_an_end_of_turn_without_a_key_is_known_by_its_text(tmp_path: Path) -> None:
    vocabulary = byte_level("he", controls=("<|end_of_text|>", "<|eot_id|>"))
    vocabulary += [("<|im_end|>", NORMAL, 0.0), ("<|other|>", CONTROL, 0.0)]
    source = write(tmp_path, vocabulary=vocabulary, settings={"tokenizer.ggml.eos_token_id": 257})
    assert source.eos_token_ids == {257, 258}


def test_sampling_defaults_come_from_the_general_keys(tmp_path: Path) -> None:
    assert write(tmp_path).sampling_defaults == Sampling()
    keys = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.sampling.min_p": 0.25}
    assert write(tmp_path, settings=keys).sampling_defaults == Sampling(temperature=0.5, top_k=20, min_p=0.25)


def test_special_tokens_and_templates_reach_the_chat(tmp_path: Path) -> None:
    keys = {
        "tokenizer.ggml.bos_token_id": 104,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": "{{ bos_token }}:{{ messages[0]['content'] }}:{{ eos_token }}",
        "tokenizer.chat_template.tool_use": "tools",
    }
    tokenizer = write(tmp_path, settings=keys).tokenizer()
    assert tokenizer.eos_token_id == 257
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "h:hi:<|end|>"
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}], tools=[{"name": "f"}]) == "tools"


@pytest.mark.parametrize(
    ("settings", "expected", "length"),
    [
        ({}, None, 64),
        ({"llama.rope.scaling.type": "none"}, None, 64),
        ({"llama.rope.scale_linear": 2.0}, RopeScaling(kind="linear", factor=2.0), 128),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            RopeScaling(kind="linear", factor=4.0),
            256,
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32,
            },
            RopeScaling(
                kind="yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                attention_factor=1.1386294361119891,
            ),
            128,
        ),
    ],
)
def test_rope_scaling(
    tmp_path: Path, settings: dict[str, Any], expected: RopeScaling | None, length: int
) -> None:
    architecture = write(tmp_path, settings=settings).architecture
    assert architecture.rope_scaling == expected
    assert architecture.max_position_embeddings == length


def test_rope_factors_are_a_tensor_that_becomes_part_of_the_architecture(tmp_path: Path) -> None:
    factors = np.array([1.0, 1.5, 4.0, 8.0], np.float32)
    source = write(tmp_path, tensors=weights_of() | {"rope_freqs.weight": factors})
    assert source.architecture.rope_scaling == RopeScaling(kind="factors", factors=(1.0, 1.5, 4.0, 8.0))
    assert source.architecture.max_position_embeddings == 64
    assert not any("rope" in name for name in source.weights())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "gemma2"}, "architecture 'gemma2'; supported are llama, qwen2, qwen3, gemma3"),
        (
            {"arch": "gemma3", "settings": {"gemma3.attention.sliding_window_pattern": [1, 0]}},
            "layers of no regular pattern",
        ),
        (
            {"settings": {"llama.rope.scaling.type": "longrope"}},
            "rope scaling 'longrope'; supported are linear",
        ),
        ({"settings": {"llama.expert_count": 8}}, "mixture of experts"),
        ({"settings": {"split.count": 3}}, "several files"),
        ({"settings": {"llama.rope.dimension_count": 4}}, "part of each head"),
        ({"settings": {"llama.attention.head_count_kv": [2, 1]}}, "layers of different shapes"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        write(tmp_path, **options)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf: llama\.block_count is missing"):
        write(tmp_path, settings={"llama.block_count": None})


@pytest.mark.parametrize(
    "settings",
    [
        {"llama.block_count": 4_000_000_000},
        {"llama.block_count": "two"},
        {"llama.rope.scaling.type": [1, 2]},
        {"llama.attention.sliding_window": "text"},
        {"llama.expert_count": [1, 2]},
        {"split.count": ["a"]},
        {"general.sampling.temp": "hot"},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.token_type": 5},
        {"tokenizer.ggml.merges": "h e"},
        {"tokenizer.ggml.pre": [1, 2]},
        {"tokenizer.ggml.model": ["gpt2"]},
        {"tokenizer.ggml.eos_token_id": "end"},
        {"tokenizer.ggml.add_bos_token": 2},
        {"tokenizer.chat_template": [1]},
    ],
)
def test_a_key_of_the_wrong_kind_is_named(tmp_path: Path, settings: dict[str, Any]) -> None:
    def read_all() -> None:
        source = write(tmp_path, settings=settings)
        source.tokenizer()
        assert not source.eos_token_ids

    (key,) = settings
    with pytest.raises(ModelCorrupt, match=f"{key} must be|4000000000 layers"):
        read_all()


def test_damaged_headers_raise_nothing_but_model_errors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "whole.gguf")
    whole, rng = path.read_bytes(), np.random.default_rng(4)
    outcomes = set()
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(4, 6000)] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            GGUFSource(path).tokenizer()
            outcomes.add("read")
        except ModelError as error:
            outcomes.add(type(error).__name__)
    assert {"read", "ModelCorrupt"} <= outcomes


def test_a_missing_weight_and_one_of_another_shape_are_named(tmp_path: Path) -> None:
    tensors = weights_of()
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(ModelCorrupt, match=r"weight model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        write(tmp_path, tensors=tensors).weights()
    tensors["blk.1.ffn_up.weight"] = np.zeros((64, 16), np.float32)
    with pytest.raises(ModelCorrupt, match=r"up_proj\.weight has the shape \(64, 16\), not \(64, 32\)"):
        write(tmp_path, tensors=tensors).weights()


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    tensors = weights_of() | {"blk.0.ffn_gate_inp.weight": np.ones((2, HEADS), np.float32)}
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_gate_inp\.weight has no place"):
        write(tmp_path, tensors=tensors).weights()
