"""The real default model. The expected ids are those of its tokenizer on the Hugging Face hub."""

import time

import numpy as np
import pytest

from actorllm.checkpoint import Checkpoint, open_checkpoint

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [19556, 905]),
        ("<|im_start|>user\n", [1, 4093, 198]),
        ("", []),
    ],
)
def test_known_ids(smollm2: Checkpoint, text: str, ids: list[int]) -> None:
    tokenizer = smollm2.tokenizer()
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


def test_digits_stand_alone_and_pieces_join_to_the_text(smollm2: Checkpoint) -> None:
    tokenizer = smollm2.tokenizer()
    text = "In 2024, it's 3.14 — naïve 日本語 🙂\n\n\tdef f():  pass<|im_end|>"
    ids = tokenizer.encode(text)
    pieces = [tokenizer.pieces[number] for number in ids]
    assert b"".join(pieces).decode() == text
    assert [piece for piece in pieces if piece.isdigit()] == [b"2", b"0", b"2", b"4", b"3", b"1", b"4"]
    assert ids[-1] == 2
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.removesuffix("<|im_end|>")


def test_the_chat_template(smollm2: Checkpoint) -> None:
    prompt = smollm2.tokenizer().render_chat([{"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_architecture(smollm2: Checkpoint) -> None:
    a = smollm2.architecture
    assert (a.family, a.vocab_size, a.hidden_size, a.intermediate_size) == ("llama", 49152, 576, 1536)
    assert (a.num_layers, a.num_heads, a.num_kv_heads, a.head_dim) == (30, 9, 3, 64)
    assert (a.rms_norm_eps, a.rope_theta, a.max_position_embeddings) == (1e-5, 100000.0, 8192)
    assert (a.tie_word_embeddings, a.dtype) == (True, "Q4_1")
    assert smollm2.name == "smollm2-135m"
    assert smollm2.eos_token_ids == {2}


def test_the_weights_are_all_there_and_sane(smollm2: Checkpoint) -> None:
    weights = smollm2.weights()
    assert len(weights) == 2 + 30 * 9
    norm = weights["model.norm.weight"].to_float32()
    assert norm.shape == (576,)
    q = weights["model.layers.0.self_attn.q_proj.weight"]
    assert (q.dtype, q.shape, q.data.shape) == ("Q4_1", (576, 576), (576, 360))
    assert 0.01 < np.std(q.to_float32()) < 1


def test_opening_is_fast(smollm2: Checkpoint) -> None:
    start = time.perf_counter()
    again = open_checkpoint(str(smollm2.path))
    assert time.perf_counter() - start < 0.3
    assert again.architecture == smollm2.architecture
