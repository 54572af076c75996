from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from actorllm.checkpoint import ChatTemplate, Tokenizer
from actorllm.checkpoint.tokenizer import byte_alphabet
from actorllm.errors import UnsupportedModel

NO_CHAT = ChatTemplate({}, {})


def byte_level(size: int = 0, eos: str | None = None) -> Tokenizer:
    vocabulary = {char: byte for byte, char in byte_alphabet().items()}
    vocabulary |= {"Ġw": 256, "Ã©": 257}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "w"), ("Ã", "©")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<end é>", special=True, normalized=False), AddedToken("<tool>")])
    return Tokenizer(backend, NO_CHAT, eos, size)


def sentencepiece(steps: list[Any]) -> Tokenizer:
    pieces = ["<unk>", "▁a", "▁▁", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(steps)
    return Tokenizer(backend, NO_CHAT)


def test_the_byte_alphabet_is_gpt2s() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet.values())) == 256
    assert [alphabet[ord(char)] for char in "aZ!~ \n\0"] == [*"aZ!~ĠĊĀ"]
    assert (alphabet[0x7F], alphabet[0xA0], alphabet[0xAD], alphabet[0xFF]) == ("ġ", "ł", "Ń", "ÿ")


def test_pieces_of_a_byte_level_vocabulary() -> None:
    tokenizer = byte_level()
    assert tokenizer.pieces[:256] == tuple(bytes([byte]) for byte in range(256))
    assert tokenizer.pieces[256:] == (b" w", "é".encode(), "<end é>".encode(), b"<tool>")
    assert tokenizer.vocab_size == 260
    assert tokenizer.special_ids == {258}


def test_the_pieces_of_a_text_join_to_its_bytes() -> None:
    tokenizer = byte_level()
    text = "héllo w\n<end é>日 <tool>"
    ids = tokenizer.encode(text)
    assert {256, 258, 259} < set(ids)
    assert b"".join(tokenizer.pieces[number] for number in ids).decode() == text


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)],
        [decoders.ByteFallback(), decoders.Metaspace()],
    ],
)
def test_pieces_of_a_sentencepiece_vocabulary(steps: list[Any]) -> None:
    tokenizer = sentencepiece(steps)
    assert tokenizer.pieces[1:4] == (b" a", b"  ", b"b")
    assert tokenizer.pieces[4:] == tuple(bytes([byte]) for byte in range(256))


def test_byte_pieces_are_text_without_byte_fallback() -> None:
    assert sentencepiece([decoders.Replace("▁", " ")]).pieces[4 + 10] == b"<0x0A>"


def test_ids_beyond_the_vocabulary_have_empty_pieces() -> None:
    tokenizer = byte_level(size=300)
    assert tokenizer.vocab_size == 300
    assert set(tokenizer.pieces[260:]) == {b""}
    assert tokenizer.decode([104, 299, 105]) == "hi"


def test_another_decoder_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(
        UnsupportedModel, match="decoder WordPiece; supported are byte-level and sentencepiece"
    ):
        _ = Tokenizer(backend, NO_CHAT).pieces
    with pytest.raises(UnsupportedModel, match="decoder none"):
        _ = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), NO_CHAT).pieces


def test_decoding_with_and_without_special_tokens() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("hi<end é>")
    assert tokenizer.decode(ids[:2]) == "hi"
    assert tokenizer.decode([*ids, 259], skip_special_tokens=True) == "hi<tool>"


def test_the_end_is_known_by_its_text() -> None:
    assert byte_level(eos="<end é>").eos_token_id == 258
    assert byte_level(eos="<nowhere>").eos_token_id is None
    assert byte_level().eos_token_id is None


def test_truncation_and_padding_of_the_file_do_not_count(tmp_path: Path) -> None:
    backend = byte_level().backend
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    assert Tokenizer(backend, NO_CHAT).encode("hello") == list(b"hello")


def test_threads_may_share_a_tokenizer() -> None:
    tokenizer = byte_level()
    texts = [f"text {n} w é" * 50 for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        encoded = list(pool.map(tokenizer.encode, texts))
        pieces = list(pool.map(lambda _: tokenizer.pieces, texts))
    assert encoded == [tokenizer.encode(text) for text in texts]
    assert all(view is pieces[0] for view in pieces)
