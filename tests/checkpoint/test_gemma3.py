"""The known model gemma3-270m. The expected ids are those of transformers' own conversion of the file."""

import pytest

from actorllm.checkpoint import Checkpoint, open_checkpoint
from actorllm.checkpoint.fetch import MODELS, cached

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        cached(MODELS["gemma3-270m"]) is None, reason="`actorllm fetch gemma3-270m` was not run"
    ),
]


@pytest.fixture(scope="module")
def gemma3() -> Checkpoint:
    return open_checkpoint("gemma3-270m")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [9259, 1902]),
        (" leading ", [5830, 236743]),
        ("  two  spaces\n\n\nlines\t\tx", [138, 13498, 138, 35220, 109, 8721, 255969, 236781]),
        ("日本語の文章 😀 e\u0301", [94951, 236945, 30886, 163543, 545, 238288]),
        ("1234567", [236770, 236778, 236800, 236812, 236810, 236825, 236832]),
        ("<start_of_turn>user\nHi<end_of_turn>\n", [105, 2364, 107, 10979, 106, 107]),
        ("\u0007 \U00013000", [245, 236743, 478, 385, 366, 366]),
        ("<table>\ufb01</table>", [168, 240811, 176]),
    ],
)
def test_known_ids(gemma3: Checkpoint, text: str, ids: list[int]) -> None:
    tokenizer = gemma3.tokenizer()
    assert tokenizer.encode(text) == [2, *ids]
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert b"".join(tokenizer.pieces[number] for number in ids) == text.encode()
    assert tokenizer.decode(ids) == text


def test_the_architecture(gemma3: Checkpoint) -> None:
    a = gemma3.architecture
    assert (a.family, a.vocab_size, a.hidden_size, a.intermediate_size) == ("gemma3", 262144, 640, 2048)
    assert (a.num_layers, a.num_heads, a.num_kv_heads, a.head_dim) == (18, 4, 1, 256)
    assert (a.rope_theta, a.local_rope_theta, a.attention_scale) == (1e6, 1e4, 0.0625)
    assert (a.norm_offset, a.rms_norm_eps, a.tie_word_embeddings) == (0.0, 1e-6, True)
    assert [layer for layer, window in enumerate(a.layer_windows) if window != 512] == [5, 11, 17]
    assert [group.layers for group in a.layer_groups][:2] == [(5, 11, 17), (0, 1, 2)]
    assert a.windows == (0, 512, 512, 512, 512, 512)
    assert gemma3.eos_token_ids == {1, 106}


def test_every_weight_is_there(gemma3: Checkpoint) -> None:
    assert len(gemma3.weights()) == 2 + 18 * 13
