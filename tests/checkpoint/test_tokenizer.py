from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

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


def decoded_by(decoder: Any, *pieces: str) -> Tokenizer:
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=pieces[0]))
    backend.decoder = decoder
    return Tokenizer(backend, NO_CHAT)


@pytest.mark.parametrize(
    ("decoder", "kinds"),
    [
        (None, "none"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.CTC(), "CTC"),
        (decoders.Fuse(), "Fuse"),
        (decoders.Replace("a", "b"), "Replace"),
        (decoders.Replace(tokenizers.Regex("▁+"), " "), "Replace"),
        (decoders.Sequence([decoders.Metaspace(), decoders.BPEDecoder()]), "Metaspace [+] BPEDecoder"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Replace("a", "b")]), "Replace [+] Replace"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]), "Replace [+] Strip"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.CTC()]), "ByteLevel [+] CTC"),
    ],
)
def test_another_decoder_is_refused(decoder: Any, kinds: str) -> None:
    supported = "supported are byte-level, sentencepiece and WordPiece"
    with pytest.raises(UnsupportedModel, match=f"the tokenizer's decoder {kinds}; {supported}"):
        decoded_by(decoder, "a").load()


def test_a_decoder_may_strip_the_whole_text() -> None:
    assert decoded_by(decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]), "Ġa").pieces == (
        b" a",
    )


def test_pieces_of_a_wordpiece_vocabulary() -> None:
    words = ["[UNK]", "hello", "##ing", "##", "#", "##b##c", ".", "n't", "'s", "do not", "a ' b"]
    spaced = b" [UNK]| hello|ing|| #|b##c| .| n't| 's| do not| a ' b"
    tidy = b" [UNK]| hello|ing|| #|b##c|.|n't|'s| don't| a'b"
    assert b"|".join(decoded_by(decoders.WordPiece(cleanup=False), *words).pieces) == spaced
    assert b"|".join(decoded_by(decoders.WordPiece(), *words).pieces) == tidy
    pieces = decoded_by(decoders.WordPiece(prefix="+", cleanup=False), "a", "+a", "##a").pieces
    assert pieces == (b" a", b"a", b" ##a")
    assert (
        decoded_by(decoders.WordPiece(), *words).decode(range(11)) == "[UNK] helloing #b##c.n't's don't a'b"
    )


def test_words_bring_their_space_but_a_text_does_not_begin_with_one() -> None:
    tokenizer = decoded_by(decoders.WordPiece(), "##ing", "sing", ".")
    assert b"".join(tokenizer.pieces[number] for number in (1, 0, 1, 2)) == b" singing sing."
    assert tokenizer.decode([1, 0, 1, 2]) == "singing sing."
    assert tokenizer.decode([0, 1]) == "##ing sing"


@pytest.mark.parametrize("mark", ["▁", "_"])
def test_spaces_of_a_sentencepiece_vocabulary(mark: str) -> None:
    words = ["▁", "▁▁▁", "▁a▁", "a", " ", "é▁"]
    for decoder in (decoders.Metaspace(replacement=mark), decoders.Replace(mark, " ")):
        tokenizer = decoded_by(decoder, *(word.replace("▁", mark) for word in words))
        assert tokenizer.pieces == (b" ", b"   ", b" a ", b"a", b" ", "é ".encode())


def test_byte_tokens_may_be_written_small() -> None:
    steps = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    pieces = decoded_by(steps, "<0xc3>", "<0xA9>", "<0x00>", "<0xG0>", "<0x0>", "a<0x00>").pieces
    assert pieces == (b"\xc3", b"\xa9", b"\0", b"<0xG0>", b"<0x0>", b"a<0x00>")


def test_marks_in_added_tokens_of_a_sentencepiece_vocabulary_are_spaces() -> None:
    """As in Gemma's vocabulary, whose runs of spaces are added tokens, too."""
    tokenizer = sentencepiece([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.backend.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("▁▁▁▁"), AddedToken("a  b")])
    vocabulary = tokenizer.backend.get_vocab()
    ids = [vocabulary[token] for token in ("▁▁", "▁▁▁▁", "a  b")]
    assert [tokenizer.pieces[number] for number in ids] == [b"  ", b"    ", b"a  b"]
    assert tokenizer.decode(ids) == "      a  b"


def test_an_added_token_of_a_byte_level_vocabulary_is_its_content() -> None:
    """The library takes it for bytes, if it can be read as such."""
    tokenizer = byte_level()
    tokenizer.backend.add_tokens([AddedToken("õõ", normalized=False), AddedToken("ĠĠ", normalized=False)])
    ids = tokenizer.encode("õõĠĠ")
    assert [tokenizer.pieces[number] for number in ids] == ["õõ".encode(), "ĠĠ".encode()]
    assert tokenizer.decode(ids) == "\ufffd\ufffd  "


def test_a_piece_that_is_not_all_in_the_byte_alphabet_is_its_text() -> None:
    pieces = ["Ġé", "é é", "\u00a0", "é\u00ad", "日Ġ", "Ġa\n"]
    tokenizer = decoded_by(decoders.ByteLevel(), *pieces)
    assert tokenizer.pieces == (b" \xe9", *(piece.encode() for piece in pieces[1:]))
    assert tokenizer.decode(range(1, 6)) == "".join(pieces[1:])


def test_a_text_may_be_given_a_first_space() -> None:
    vocabulary = {"<unk>": 0, "▁": 1, "b": 2, "é": 3}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    marks = decoders.Replace("▁", " ")
    backend.decoder = decoders.Sequence([marks, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = Tokenizer(backend, NO_CHAT)
    ids = tokenizer.encode("bé  b")
    assert ids == [1, 2, 3, 1, 1, 2]
    assert b"".join(tokenizer.pieces[number] for number in ids).decode() == " bé  b"
    assert tokenizer.decode(ids) == "bé  b"


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
