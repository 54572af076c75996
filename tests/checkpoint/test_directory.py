"""Directories that transformers itself has written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from actorllm.checkpoint import open_checkpoint
from actorllm.checkpoint.tokenizer import byte_alphabet
from actorllm.errors import InvalidRequest, ModelCorrupt, UnsupportedModel
from actorllm.messages import Sampling

pytestmark = pytest.mark.slow  # for the import of transformers
SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
Save = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a random model of some family; its directory and its state as float32 arrays."""
    import torch
    import transformers

    def build(family: str = "Llama", dtype: str = "float32", shard: str = "1GB", **changes: Any) -> Any:
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**(SIZES | changes))
        model = getattr(transformers, f"{family}ForCausalLM")(config).to(getattr(torch, dtype))
        model.save_pretrained(tmp_path, max_shard_size=shard)
        write_tokenizer(tmp_path)
        state = {name: value.float().numpy() for name, value in model.state_dict().items()}
        return tmp_path, state

    return build


def write_tokenizer(path: Path) -> None:
    vocabulary = {char: byte for byte, char in byte_alphabet().items()}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", "<|im_end|>")])
    backend.save(str(path / "tokenizer.json"))


def put(path: Path, **values: Any) -> None:
    """Change a JSON file."""
    old = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(old | values))


@pytest.mark.parametrize(
    ("family", "dtype", "changes"),
    [
        ("Llama", "float32", {}),
        ("Llama", "bfloat16", {"tie_word_embeddings": True}),
        ("Llama", "float16", {"attention_bias": True, "mlp_bias": True}),
        ("Mistral", "bfloat16", {"head_dim": 16, "sliding_window": 32}),
        ("Qwen2", "float32", {}),
        ("Qwen3", "bfloat16", {"head_dim": 8}),
    ],
)
def test_weights_are_those_of_transformers(
    save: Save, family: str, dtype: str, changes: dict[str, Any]
) -> None:
    path, state = save(family, dtype, **changes)
    checkpoint = open_checkpoint(str(path))
    assert (checkpoint.architecture.family, checkpoint.architecture.dtype) == (family.lower(), dtype)
    weights = checkpoint.weights()
    tied = checkpoint.architecture.tie_word_embeddings
    assert tied is changes.get("tie_word_embeddings", False)
    assert set(weights) == set(state) - ({"lm_head.weight"} if tied else set())
    for name, tensor in weights.items():
        np.testing.assert_array_equal(tensor.to_float32(), state[name])


def test_shards(save: Save) -> None:
    path, state = save(shard="20KB")
    assert len(list(path.glob("model-*.safetensors"))) > 1
    weights = open_checkpoint(str(path)).weights()
    assert set(weights) == set(state)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(tensor.to_float32(), state[name])


def test_the_architecture_of_a_configuration_that_transformers_wrote(save: Save) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    a = open_checkpoint(str(save(rope_parameters=rope)[0])).architecture
    assert (a.num_layers, a.num_heads, a.num_kv_heads, a.head_dim, a.vocab_size) == (2, 4, 2, 8, 264)
    assert (a.rope_theta, a.max_position_embeddings) == (5e5, 128)
    assert a.rope_scaling is not None
    assert (a.rope_scaling.kind, a.rope_scaling.original_max_position_embeddings) == ("llama3", 64)


def test_ends_are_united(save: Save) -> None:
    path, _ = save()
    put(path / "config.json", eos_token_id=5)
    put(path / "generation_config.json", eos_token_id=[6, 7])
    put(path / "tokenizer_config.json", eos_token={"content": "</s>", "lstrip": False})
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.eos_token_ids == {5, 6, 7, 257}
    put(path / "config.json", eos_token_id=["x"])
    with pytest.raises(ModelCorrupt, match="eos_token_id must be token ids"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, Sampling()),
        ({"temperature": 0.7, "top_p": 0.8, "top_k": 20}, Sampling(temperature=0.7, top_p=0.8, top_k=20)),
        ({"do_sample": False, "temperature": 0.6}, Sampling(temperature=0.6)),
        ({"do_sample": False}, Sampling()),
        ({"min_p": 0.1, "top_k": -1, "temperature": None}, Sampling(min_p=0.1)),
    ],
)
def test_sampling_defaults(save: Save, generation: dict[str, Any], expected: Sampling) -> None:
    path, _ = save()
    (path / "generation_config.json").write_text(json.dumps(generation))
    assert open_checkpoint(str(path)).sampling_defaults == expected


def test_the_tokenizer_and_its_special_tokens(save: Save) -> None:
    path, _ = save()
    put(path / "special_tokens_map.json", bos_token="<s>", eos_token={"content": "</s>"})
    put(
        path / "tokenizer_config.json", eos_token="<|im_end|>", chat_template="{{ bos_token }}{{ eos_token }}"
    )
    tokenizer = open_checkpoint(str(path)).tokenizer()
    assert tokenizer.encode("hi</s>") == [104, 105, 257]
    assert tokenizer.vocab_size == 264
    assert tokenizer.pieces[256:] == (b"<s>", b"</s>", b"<|im_end|>", b"", b"", b"", b"", b"")
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<s><|im_end|>"


def test_templates_in_all_their_places(save: Save) -> None:
    path, _ = save()
    question = [{"role": "user", "content": "x"}]

    def render(**variables: Any) -> str:
        return open_checkpoint(str(path)).tokenizer().render_chat(question, **variables)

    with pytest.raises(InvalidRequest, match="no chat template"):
        render()
    named = [{"name": "default", "template": "from a list"}, {"name": "tool_use", "template": "with tools"}]
    put(path / "tokenizer_config.json", chat_template=named)
    assert (render(), render(tools=[{}])) == ("from a list", "with tools")
    (path / "chat_template.jinja").write_text("from a file")
    assert (render(), render(tools=[{}])) == ("from a file", "with tools")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("tools from a file")
    assert render(tools=[{}]) == "tools from a file"


def test_templates_render_as_transformers_renders_them(save: Save) -> None:
    from transformers import PreTrainedTokenizerFast

    path, _ = save()
    template = (
        "{{ bos_token }}\n{% for m in messages %}\n  {% if m.role == 'user' %}\n"
        "U: {{ m.content | tojson }}\n  {% else %}\nA: {% generation %}{{ m.content }}{% endgeneration %}\n"
        "  {% endif %}\n{% endfor %}\n{% if tools %}{{ tools | tojson(indent=1) }}{% endif %}"
        "{% if add_generation_prompt %}A:{% endif %}"
    )
    put(path / "tokenizer_config.json", chat_template=template, bos_token="<s>", eos_token="</s>")
    theirs: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(path / "tokenizer.json"), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    messages = [{"role": "user", "content": 'ü <"x">'}, {"role": "assistant", "content": "yes"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    ours = open_checkpoint(str(path)).tokenizer()
    choices: list[dict[str, Any]] = [{}, {"tools": tools}]
    for variables in choices:
        expected = theirs.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **variables
        )
        assert ours.render_chat(messages, **variables) == expected
    assert ours.encode("hi</s> there") == theirs("hi</s> there")["input_ids"]


def test_a_vocabulary_without_tokenizer_json_goes_through_transformers(save: Save) -> None:
    path, _ = save()
    (path / "tokenizer.json").unlink()
    vocabulary = {char: byte for byte, char in byte_alphabet().items()} | {"<|endoftext|>": 256, "hi": 257}
    (path / "vocab.json").write_text(json.dumps(vocabulary))
    (path / "merges.txt").write_text("#version: 0.2\nh i\n")
    put(path / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    tokenizer = open_checkpoint(str(path)).tokenizer()
    assert tokenizer.encode("hi!") == [257, 33]
    assert tokenizer.pieces[257] == b"hi"


def test_damage_is_named(save: Save) -> None:
    path, _ = save()
    checkpoint = open_checkpoint(str(path))
    (path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json"):
        checkpoint.tokenizer()
    put(path / "config.json", num_hidden_layers=3)
    with pytest.raises(
        ModelCorrupt, match=r"the weight model\.layers\.2\.input_layernorm\.weight is missing"
    ):
        open_checkpoint(str(path)).weights()
    put(path / "config.json", num_hidden_layers=2, intermediate_size=64)
    with pytest.raises(ModelCorrupt, match=r"gate_proj\.weight has the shape \(48, 32\), not \(64, 32\)"):
        open_checkpoint(str(path)).weights()
    put(path / "config.json", model_type="gpt_neox")
    with pytest.raises(UnsupportedModel, match="the architecture 'gpt_neox'"):
        open_checkpoint(str(path))
