"""Tiny model files for the tests of this directory."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from actorllm.checkpoint.tokenizer import byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 32, 64, 4, 2, 8, 2
ALPHABET = byte_alphabet()
DEFAULT_MERGES = ["h e"]

Vocabulary = list[tuple[str, int, float]]
"""Tokens with their types and scores."""


def byte_level(*extra: str, controls: tuple[str, ...] = ("<|end|>",)) -> Vocabulary:
    """The 256 bytes in their order (ids 0 to 255), then `extra` tokens, then control tokens."""
    tokens = [ALPHABET[byte] for byte in range(256)]
    normal = [(token, NORMAL, 0.0) for token in [*tokens, *extra]]
    return normal + [(token, CONTROL, 0.0) for token in controls]


def sentencepiece(*extra: tuple[str, float]) -> Vocabulary:
    """<unk>, <s>, </s> (ids 0 to 2), the 256 bytes (3 to 258), then `extra` tokens with their scores."""
    special: Vocabulary = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    raw: Vocabulary = [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    return special + raw + [(token, NORMAL, score) for token, score in extra]


def matrices(
    vocab: int, rng: np.random.Generator, kv_heads: int = KV_HEADS
) -> dict[str, NDArray[np.float32]]:
    """Random weights of a two-layer llama, by ggml's names."""
    q, kv = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (q, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, q),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INTERMEDIATE),
        }
    shapes["output_norm.weight"] = (HIDDEN,)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    vocabulary: Vocabulary | None = None,
    merges: list[str] | None = DEFAULT_MERGES,
    model: str = "gpt2",
    pre: str | None = "gpt-2",
    tensors: dict[str, NDArray[np.float32]] | None = None,
    quantised: dict[str, gguf.GGMLQuantizationType] | None = None,
    settings: dict[str, Any] | None = None,
) -> Path:
    """A whole little model. `settings` add metadata keys or, with None, leave one out."""
    vocabulary = vocabulary or byte_level("he")
    values: dict[str, Any] = {
        f"{arch}.block_count": LAYERS,
        f"{arch}.context_length": 64,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": INTERMEDIATE,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _, _ in vocabulary],
        "tokenizer.ggml.token_type": [kind for _, kind, _ in vocabulary],
        "tokenizer.ggml.scores": [score for _, _, score in vocabulary],
        "tokenizer.ggml.merges": merges,
    } | (settings or {})
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        _add(writer, key, value)
    if tensors is None:
        tensors = matrices(len(vocabulary), np.random.default_rng(0))
    for name, data in tensors.items():
        kind = (quantised or {}).get(name, gguf.GGMLQuantizationType.F32)
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_safetensors(path: Path, tensors: dict[str, tuple[str, NDArray[Any]]]) -> Path:
    """A safetensors file of (dtype, bits) by name."""
    header, data = {}, b""
    for name, (dtype, bits) in tensors.items():
        begin = len(data)
        data += bits.tobytes()
        header[name] = {"dtype": dtype, "shape": list(bits.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
