"""A small random model with a vocabulary of bytes and some pieces of words, as a file."""

from pathlib import Path

import numpy as np

from ..checkpoint.files import ALPHABET, byte_level, matrices, write_gguf

PIECES = (
    *("he", "the", "ing", " and", "://", '{"', '":', "},", "null", "true", "fals", "e,", "12", "00"),
    *("é", "ß", "日", "本", "😀", "ab", "aba", "bab", "\n\n", "  ", "[[", "]]", "0.", "e+", "\\u", "-0"),
    *(', "', '"}', "yes", "no"),
)

END = 256 + len(PIECES)
"""The id of its end token; those of the bytes and the pieces lie below."""


def small_model(path: Path, *, context: int = 512, seed: int = 0, template: str | None = None) -> Path:
    """Random weights of a llama that can read and write any text; `template` is for its chats."""
    pieces = ["".join(ALPHABET[byte] for byte in piece.encode()) for piece in PIECES]
    vocabulary = byte_level(*pieces)
    tensors = matrices(len(vocabulary), np.random.default_rng(seed))
    tensors["token_embd.weight"] *= 0.3
    settings: dict[str, object] = {"llama.context_length": context, "tokenizer.ggml.eos_token_id": END}
    if template is not None:
        settings["tokenizer.chat_template"] = template
    return write_gguf(path / f"small-{seed}.gguf", vocabulary=vocabulary, tensors=tensors, settings=settings)
