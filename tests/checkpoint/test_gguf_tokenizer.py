"""Vocabularies made by hand; and llama.cpp's own vectors, if ACTORLLM_GGUF_VECTORS names a directory.

The vectors are the files `ggml-vocab-*.gguf`, `.gguf.inp` and `.gguf.out` of llama.cpp's `models` directory.
They are not part of this repository; without them that one test is skipped.
"""

import heapq
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorllm.checkpoint.gguf import GGUFFile
from actorllm.checkpoint.gguf_tokenizer import convert
from actorllm.errors import ModelCorrupt, UnsupportedModel

from .files import CONTROL, NORMAL, USER_DEFINED, Vocabulary, byte_level, sentencepiece, write_gguf

MERGES = ["1 2", "12 3", "123 4", "Ġ 123", "( a", "Ċ Ċ", "' S", "a b"]
BYTES = byte_level(*(merge.replace(" ", "") for merge in MERGES), "zq")
TEXTS = ("1234", " 123", "(ab", "\n\n", "x'S")
GPT2 = ("1234", "Ġ123", "( ab", "ĊĊ", "x ' S")
SMOLLM = ("1 2 3 4", "Ġ 1 2 3", "( ab", "ĊĊ", "x ' S")
EXPECTED = {
    "gpt-2": GPT2,
    "mpt": GPT2,
    "smollm": SMOLLM,
    "starcoder": SMOLLM,
    "refact": SMOLLM,
    "command-r": SMOLLM,
    "llama-bpe": ("123 4", "Ġ 123", "(a b", "ĊĊ", "x 'S"),
    "qwen2": ("1 2 3 4", "Ġ 1 2 3", "(a b", "ĊĊ", "x 'S"),
    "deepseek-coder": ("1 2 3 4", "Ġ 1 2 3", "( ab", "Ċ Ċ", "x ' S"),
    "falcon": ("123 4", "Ġ 123", "( ab", "ĊĊ", "x ' S"),
}


def file(path: Path, **options: Any) -> GGUFFile:
    return GGUFFile(write_gguf(path / "vocab.gguf", tensors={"t": np.zeros(32, np.float32)}, **options))


def byte_file(path: Path, pre: str | None = "gpt-2", **options: Any) -> GGUFFile:
    return file(path, vocabulary=BYTES, merges=MERGES, pre=pre, **options)


def tokens(tokenizer: Any, text: str) -> list[str]:
    return [tokenizer.id_to_token(number) for number in tokenizer.encode(text, add_special_tokens=False).ids]


@pytest.mark.parametrize("pre", EXPECTED)
def test_each_pre_tokenizer_cuts_as_its_name_says(tmp_path: Path, pre: str) -> None:
    tokenizer = convert(byte_file(tmp_path, pre))
    found = [tokens(tokenizer, text) for text in TEXTS]
    assert found == [expected.split() for expected in EXPECTED[pre]]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize("pre", EXPECTED)
def test_only_some_compose_characters(tmp_path: Path, pre: str) -> None:
    ids = convert(byte_file(tmp_path, pre)).encode("e\u0301", add_special_tokens=False).ids
    composed = pre in ("qwen2", "command-r", "mpt")
    assert ids == list(("é" if composed else "e\u0301").encode())


def test_ids_are_those_of_the_file(tmp_path: Path) -> None:
    tokenizer = convert(byte_file(tmp_path))
    assert tokenizer.encode("a").ids == [97]
    assert tokenizer.encode("12").ids == [256]
    assert tokenizer.get_vocab_size() == len(BYTES)


def test_a_word_without_merges_is_a_token_in_llama_bpe_only(tmp_path: Path) -> None:
    assert tokens(
        convert(byte_file(tmp_path, "llama-bpe", settings={"tokenizer.ggml.bos_token_id": 1})), "zq"
    ) == ["zq"]
    assert tokens(convert(byte_file(tmp_path, "qwen2")), "zq") == ["z", "q"]


@pytest.mark.parametrize("pre", [None, "default", "tekken", "qwen35"])
def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path, pre: str | None) -> None:
    with pytest.raises(UnsupportedModel, match=rf"the pre-tokenizer {pre!r}; supported are gpt-2, .*smollm"):
        convert(byte_file(tmp_path, pre))


def test_an_unknown_kind_of_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="vocabulary of the kind 'bert'; supported are gpt2 and llama"):
        convert(file(tmp_path, model="bert"))


def test_special_tokens_are_found_within_a_text(tmp_path: Path) -> None:
    vocabulary = [*BYTES, ("<tool>", USER_DEFINED, 0.0)]
    tokenizer = convert(file(tmp_path, vocabulary=vocabulary, merges=MERGES))
    assert tokens(tokenizer, "a<|end|>b<tool>") == ["a", "<|end|>", "b", "<tool>"]
    ids = tokenizer.encode("a<|end|>b<tool>").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab<tool>"


def test_bos_and_eos_are_added_where_the_metadata_say_so(tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.bos_token_id": 65, "tokenizer.ggml.eos_token_id": 265}
    plain = convert(byte_file(tmp_path, settings=ends))
    assert plain.encode("a").ids == [97]
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    framed = convert(byte_file(tmp_path, settings=ends | both))
    assert framed.encode("a").ids == [65, 97, 265]
    assert framed.encode("a", add_special_tokens=False).ids == [97]
    assert convert(byte_file(tmp_path, "llama-bpe", settings=ends)).encode("a").ids == [65, 97]
    without = {"tokenizer.ggml.add_bos_token": False}
    assert convert(byte_file(tmp_path, "llama-bpe", settings=ends | without)).encode("a").ids == [97]


def test_contradictions_in_a_vocabulary_are_corrupt(tmp_path: Path) -> None:
    with pytest.raises(ModelCorrupt, match="the same token twice"):
        convert(file(tmp_path, vocabulary=byte_level("he", "he")))
    with pytest.raises(ModelCorrupt, match="'alone' is no merge of two tokens"):
        convert(file(tmp_path, merges=["alone"]))
    with pytest.raises(ModelCorrupt, match=r"Token `xx` out of vocabulary"):
        convert(file(tmp_path, merges=["x x"]))
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.ggml\.merges is missing"):
        convert(file(tmp_path, merges=None))
    with pytest.raises(ModelCorrupt, match="257 tokens, but 1 token types"):
        convert(
            file(
                tmp_path,
                vocabulary=byte_level("he", controls=()),
                settings={"tokenizer.ggml.token_type": [1]},
            )
        )
    with pytest.raises(ModelCorrupt, match="bos is to be added, but there is no bos_token_id"):
        convert(file(tmp_path, settings={"tokenizer.ggml.add_bos_token": True}))


PIECES: list[tuple[str, float]] = [
    *((char, -100.0 - n) for n, char in enumerate("▁abcdé日")),
    ("▁a", -1.0),
    ("bc", -2.0),
    ("ab", -3.0),
    ("▁▁", -4.0),
    ("bcd", -5.0),
    ("▁ab", -6.0),
    ("dd", -7.0),
    ("▁abcd", -8.0),
    ("cd", -9.0),
]


def spm_file(path: Path, *extra: tuple[str, int, float], **settings: Any) -> GGUFFile:
    keys = {
        f"tokenizer.ggml.{name}_token_id": number for number, name in enumerate(("unknown", "bos", "eos"))
    }
    vocabulary: Vocabulary = [*sentencepiece(*PIECES), *extra]
    return file(
        path, model="llama", pre="default", merges=None, vocabulary=vocabulary, settings=keys | settings
    )


def reference(text: str, vocabulary: Vocabulary) -> list[str]:
    """sentencepiece's algorithm in full: of all neighbours that make a token, join the best-scored first."""
    scores = {token: score for token, kind, score in vocabulary if kind == NORMAL}
    symbols: list[str | None] = [*text.replace(" ", "▁")]

    def best() -> tuple[float, int, int] | None:
        places = [n for n, symbol in enumerate(symbols) if symbol is not None]
        pairs = [
            (-scores[f"{symbols[left]}{symbols[right]}"], left, right)
            for left, right in pairwise(places)
            if f"{symbols[left]}{symbols[right]}" in scores
        ]
        return heapq.nsmallest(1, pairs)[0] if pairs else None

    while (pair := best()) is not None:
        _, left, right = pair
        symbols[left], symbols[right] = f"{symbols[left]}{symbols[right]}", None
    found: list[str] = []
    for symbol in filter(None, symbols):
        found += [symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "▁a"),
        ("abc", "▁a bc"),  # ▁a goes first, so ▁ab is out of reach
        ("abcd", "▁abcd"),  # ▁a, bc, bcd, and these two
        (" a", "▁ ▁a"),
        ("  a", "▁▁ ▁a"),
        ("ddd", "▁ dd d"),
        ("é日", "▁ é 日"),
        ("aß", "▁a <0xC3> <0x9F>"),
        ("", ""),
    ],
)
def test_sentencepiece_joins_the_best_score_first(tmp_path: Path, text: str, expected: str) -> None:
    tokenizer = convert(spm_file(tmp_path))
    assert tokens(tokenizer, text) == expected.split()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_agrees_with_its_algorithm_on_random_texts(tmp_path: Path) -> None:
    tokenizer = convert(spm_file(tmp_path))
    rng = np.random.default_rng(11)
    for _ in range(300):
        text = "".join(rng.choice([*"aabbccdd  éß日"], rng.integers(1, 16)))
        assert tokens(tokenizer, text) == reference(" " + text, sentencepiece(*PIECES)), text


def test_sentencepiece_adds_bos_and_a_space_before_each_stretch_of_text(tmp_path: Path) -> None:
    tokenizer = convert(spm_file(tmp_path, ("<x>", CONTROL, 0.0)))
    assert tokenizer.encode("a<x>a").tokens == ["<s>", "▁a", "<x>", "▁a"]
    assert tokenizer.encode("a", add_special_tokens=False).tokens == ["▁a"]


def test_sentencepiece_without_prefix(tmp_path: Path) -> None:
    settings = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    tokenizer = convert(spm_file(tmp_path, **settings))
    assert tokenizer.encode("ab a").tokens == ["ab", "▁a"]
    assert tokenizer.decode(tokenizer.encode(" ab").ids) == " ab"


def test_sentencepiece_takes_whole_runs_that_are_tokens_of_their_own(tmp_path: Path) -> None:
    runs = (("\n\n", USER_DEFINED, -1000.0), ("  ", USER_DEFINED, -1000.0), ("   ", USER_DEFINED, -1000.0))
    tokenizer = convert(spm_file(tmp_path, *runs, **{"tokenizer.ggml.add_space_prefix": False}))
    assert tokenizer.encode("a   b\n\n a").tokens == ["<s>", "a", "   ", "b", "\n\n", "▁a"]
    text = "a  b     a\n\n\n a"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text


def test_sentencepiece_without_scores_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.ggml\.scores must have a score for each token"):
        convert(spm_file(tmp_path, **{"tokenizer.ggml.scores": None}))


def vectors() -> list[Path]:
    directory = os.environ.get("ACTORLLM_GGUF_VECTORS")
    return sorted(Path(directory).glob("ggml-vocab-*.gguf.out")) if directory else []


@pytest.mark.slow
@pytest.mark.skipif(not vectors(), reason="ACTORLLM_GGUF_VECTORS names no directory with llama.cpp's vectors")
@pytest.mark.parametrize("out", vectors(), ids=lambda path: path.name)
def test_llama_cpp_vectors_are_met_or_the_vocabulary_is_refused(out: Path) -> None:
    try:
        tokenizer = convert(GGUFFile(out.with_suffix("")))
    except UnsupportedModel:
        return
    texts = out.with_suffix(".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = out.read_text().splitlines()
    assert len(lines) >= 40
    for text, line in zip(texts, lines, strict=False):
        assert tokenizer.encode(text, add_special_tokens=False).ids == [int(n) for n in line.split()], text
