"""Little models with real logits."""

from pathlib import Path

import pytest

from ..checkpoint.files import sentencepiece, write_gguf
from .build import TEMPLATE

SETTINGS = {"llama.context_length": 512, "tokenizer.chat_template": TEMPLATE}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with random weights, whose tokens are the bytes, `he` (256) and the end (257)."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    return write_gguf(path, settings={**SETTINGS, "tokenizer.ggml.eos_token_id": 257})


@pytest.fixture(scope="session")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose tokenizer puts <s> (1) and a space before every text."""
    path = tmp_path_factory.mktemp("spaced") / "spaced.gguf"
    vocabulary = sentencepiece(("\u2581", -1.0), ("a", -2.0), ("b", -2.0), ("\u2581a", -0.5))
    settings = {
        **SETTINGS,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }
    return write_gguf(path, vocabulary=vocabulary, merges=None, model="llama", pre=None, settings=settings)
