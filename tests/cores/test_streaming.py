"""Text that comes token by token is the text of all tokens at once, in every kind of vocabulary.

It is also what `tokenizers` decodes, but for three things that these tests spell out: what it does with the
beginning of a text (`alone` of each vocabulary), with byte tokens that are no UTF-8 (`fell_back`), and with
added tokens of a byte-level vocabulary that read like bytes (tests/checkpoint/test_tokenizer.py).
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise, product
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models

from actorllm.checkpoint import ChatTemplate, Tokenizer
from actorllm.checkpoint.tokenizer import byte_alphabet
from actorllm.cores.text import Decoder

CHARACTERS = [
    "a",
    " ",
    "é",
    "e\u0301",
    "€",
    "日本",
    "😀",
    "👩\u200d🚀",
    "\u0c15\u0c4d",
    "\ufffd",
    "\U0010ffff",
]
BROKEN = [b"\xff", b"\xc3", b"\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90"]
SPECIAL = ["<s>", "</s>", "<end of turn>"]
PLAIN = ["<tool>", "two words"]


@dataclass(frozen=True)
class Kind:
    """A vocabulary. `bytes_at` is the id of the token for byte 0, or None if there are no such tokens.

    `alone(tokens)` is what `tokenizers` makes of these tokens, as the vocabulary spells them, alone.
    """

    tokenizer: Tokenizer
    bytes_at: int | None
    alone: Callable[[list[str]], str]

    @property
    def first_special(self) -> int:
        return min(self.tokenizer.special_ids)

    def ids(self, data: bytes) -> list[int]:
        assert self.bytes_at is not None
        return [self.bytes_at + byte for byte in data]


def built(model: Any, decoder: Any, *added: str) -> Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoder
    backend.add_tokens([AddedToken(token, normalized=False) for token in (*PLAIN, *added)])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return Tokenizer(backend, ChatTemplate({}, {}))


def byte_level() -> Kind:
    alphabet = byte_alphabet()
    words = [b" the", b"\xf0\x9f", b"\x98\x80", b" \xe6", b"\x97\xa5\xe6\x9c", b"\n\n", b"a\xcc", b"\x81\xff"]
    vocabulary = {char: byte for byte, char in alphabet.items()}
    for word in words:
        vocabulary["".join(alphabet[byte] for byte in word)] = len(vocabulary)
    numbers = {char: byte for byte, char in alphabet.items()}

    def alone(tokens: list[str]) -> str:
        data = [
            token.encode() if token in SPECIAL + PLAIN else bytes(numbers[char] for char in token)
            for token in tokens
        ]
        return b"".join(data).decode("utf-8", "replace")

    return Kind(built(models.BPE(vocab=vocabulary, merges=[]), decoders.ByteLevel()), 0, alone)


def sentencepiece(decoder: Any, alone: Callable[[list[str]], str]) -> Kind:
    words = ["<unk>", "▁", "▁▁▁", "▁a", "b", "▁▁x", "é", "日本", "😀", "\u0301", "▁<0x41>", "<0x4G>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + words
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    return Kind(built(model, decoder, "▁▁", "  "), 0, alone)


def fell_back(tokens: list[str]) -> list[str]:
    """Runs of byte tokens as `tokenizers` decodes them: all of a run, or U+FFFD for each byte of it."""
    texts: list[str] = []
    for is_byte, run in groupby(
        tokens, lambda token: len(token) == 6 and token != "<0x4G>" and token[:3] == "<0x"
    ):
        if not is_byte:
            texts += run
            continue
        data = bytes(int(token[3:5], 16) for token in run)
        try:
            texts.append(data.decode())
        except UnicodeDecodeError:
            texts += ["\ufffd"] * len(data)
    return texts


def spaced(tokens: list[str]) -> str:
    return "".join(text.replace("▁", " ") for text in fell_back(tokens))


def without_first_marks(tokens: list[str]) -> str:
    texts = fell_back(tokens)
    return (
        "".join([texts[0].replace("▁", ""), *(text.replace("▁", " ") for text in texts[1:])]) if texts else ""
    )


WORDS = [
    "hello",
    "##ing",
    "##",
    "#",
    "##b##c",
    ".",
    "!",
    ",",
    "?",
    "'",
    "n't",
    "'s",
    "'ve",
    "'re",
    "'m",
    "do",
    "not",
]
WORDS += ["##.", "日", "##😀", "\u0301", "##\u0301", "é", "a.b"]


def word_piece(cleans_up: bool) -> Kind:
    def tidy(text: str) -> str:
        is_tidied = cleans_up and text.removeprefix(" ") in {*".!,?", "n't", "'s", "'ve", "'re", "'m"}
        return text.removeprefix(" ") if is_tidied else text

    def alone(tokens: list[str]) -> str:
        first, *others = tokens or [""]
        return first + "".join(tidy(word[2:] if word[:2] == "##" else f" {word}") for word in others)

    vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    model = models.WordPiece(vocab=vocabulary, unk_token="[UNK]")
    return Kind(built(model, decoders.WordPiece(cleanup=cleans_up)), None, alone)


MARKS = decoders.Replace("▁", " ")
LLAMA = decoders.Sequence([MARKS, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
GEMMA = decoders.Sequence([MARKS, decoders.ByteFallback(), decoders.Fuse()])
METASPACE = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
METASPACE_ONLY = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])

KINDS: dict[str, Callable[[], Kind]] = {
    "byte-level": byte_level,
    "llama": lambda: sentencepiece(LLAMA, lambda tokens: spaced(tokens).removeprefix(" ")),
    "gemma": lambda: sentencepiece(GEMMA, spaced),
    "metaspace": lambda: sentencepiece(METASPACE, without_first_marks),
    "metaspace without prefix": lambda: sentencepiece(METASPACE_ONLY, spaced),
    "wordpiece": lambda: word_piece(False),
    "tidy wordpiece": lambda: word_piece(True),
}


@cache
def kind_of(name: str) -> Kind:
    return KINDS[name]()


def sequence(kind: Kind, seed: random.Random) -> list[int]:
    """Tokens of all sorts. Every second sequence has byte tokens only for whole characters."""
    ids: list[int] = []
    is_broken, after_bytes = seed.random() < 0.5, 0 if kind.bytes_at is None else 256
    for _ in range(seed.randrange(24)):
        choice = seed.random()
        if choice < 0.3 and kind.bytes_at is not None:
            ids += kind.ids(seed.choice(CHARACTERS).encode())
        elif choice < 0.5 and kind.bytes_at is not None and is_broken:
            ids += kind.ids(seed.choice([*BROKEN, seed.randbytes(1)]))
        elif choice < 0.65:
            ids.append(seed.choice(sorted(kind.tokenizer.special_ids)))
        else:
            ids.append(seed.randrange(after_bytes, kind.tokenizer.vocab_size + 1))
    return ids


def cut(ids: Sequence[int], seed: random.Random) -> list[Sequence[int]]:
    places = sorted(seed.choices(range(len(ids) + 1), k=seed.randrange(len(ids) + 2)))
    return [ids[begin:end] for begin, end in pairwise([0, *places, len(ids)])]


def streamed(decoder: Decoder, chunks: Iterable[Sequence[int]]) -> str:
    return "".join(map(decoder.feed, chunks)) + decoder.finish()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_streamed_text_is_that_of_all_tokens_at_once(name: str) -> None:
    kind, seed = kind_of(name), random.Random(name)
    pieces, special = kind.tokenizer.pieces, kind.tokenizer.special_ids
    for _ in range(2000):
        ids, skip = sequence(kind, seed), seed.random() < 0.5
        shown = [token for token in ids if token < len(pieces) and not (skip and token in special)]
        whole = b"".join(pieces[token] for token in shown).decode("utf-8", "replace")
        assert streamed(Decoder(kind.tokenizer, [], skip), [ids]) == whole
        assert streamed(Decoder(kind.tokenizer, [], skip), cut(ids, seed)) == whole
        assert streamed(Decoder(kind.tokenizer, [], skip), [[token] for token in ids]) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_library_decodes_the_same_but_for_what_is_spelled_out(name: str) -> None:
    kind, seed = kind_of(name), random.Random(name)
    special, backend = kind.tokenizer.special_ids, kind.tokenizer.backend
    first, num_equal = backend.get_vocab()["<tool>"], 0
    for _ in range(2000):
        ids, skip = sequence(kind, seed), seed.random() < 0.5
        names = [backend.id_to_token(token) for token in ids if not (skip and token in special)]
        alone = kind.alone([token for token in names if token is not None])
        assert kind.tokenizer.decode(ids, skip_special_tokens=skip) == alone
        # what follows another token is no beginning: if it is UTF-8, too, it is our text
        if "\ufffd" not in alone:
            text = streamed(Decoder(kind.tokenizer, [first], skip), cut(ids, seed))
            assert kind.tokenizer.decode([first, *ids], skip_special_tokens=skip) == "<tool>" + text
            num_equal += 1
    assert num_equal > 300


def test_invalid_bytes_come_out_as_in_the_library_if_nothing_valid_is_beside_them() -> None:
    for name in ("llama", "gemma", "metaspace"):
        kind = kind_of(name)
        b = kind.tokenizer.backend.get_vocab()["b"]
        for data in (b"\xff", b"\x80\x80\xff", b"\xc3"):
            ids = [b, *kind.ids(data), b]
            assert streamed(Decoder(kind.tokenizer, [], True), [ids]) == kind.tokenizer.decode(ids)
        ids = [b, *kind.ids("é".encode() + b"\xff"), b]
        assert streamed(Decoder(kind.tokenizer, [], True), [ids]) == "bé\ufffdb"
        assert kind.tokenizer.decode(ids) == "b\ufffd\ufffd\ufffdb"


def cuts(ids: Sequence[int]) -> Iterable[list[Sequence[int]]]:
    """Every way to cut these ids into chunks."""
    for choice in product([False, True], repeat=max(0, len(ids) - 1)):
        places = [at for at, is_cut in enumerate(choice, 1) if is_cut]
        yield [ids[begin:end] for begin, end in pairwise([0, *places, len(ids)])]


HALVED = ["é", "\u0080", "\u07ff", "€", "\u0800", "\ud7ff", "\uffff", "😀", "\U00010000", "\U0010ffff"]
WITH_BYTES = ["byte-level", "llama", "gemma", "metaspace"]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", WITH_BYTES)
def test_a_character_that_the_prompt_began_comes_out_whole_and_alone(name: str, skip: bool) -> None:
    """At every byte of a character, with special tokens before, between and behind, in every cut."""
    kind = kind_of(name)
    special = kind.first_special
    mark = "" if skip else SPECIAL[0]
    for char, between in product(HALVED, [0, 1, 3]):
        data = char.encode()
        for at in range(1, len(data)):
            prompt = [*kind.ids(b"PROMPT"), special, *kind.ids(data[:at]), *[special] * between]
            rest = [*kind.ids(data[at:]), special, *kind.ids(b"x")]
            is_joined = skip or between == 0
            begins = char if is_joined else "\ufffd" * (len(data) - at)
            for chunks in cuts(rest):
                assert streamed(Decoder(kind.tokenizer, prompt[-8:], skip), chunks) == begins + mark + "x"


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", WITH_BYTES)
def test_a_character_that_only_the_prompt_began_leaves_nothing(name: str, skip: bool) -> None:
    kind = kind_of(name)
    special, mark = kind.first_special, "" if skip else SPECIAL[0]
    outputs = [
        (kind.ids(b"x"), "x"),
        (kind.ids("é€".encode()), "é€"),
        (kind.ids(b"\xff\xc3x"), "\ufffd\ufffdx"),
        ([special, *kind.ids("é".encode())], mark + "é"),
        ([special, kind.tokenizer.vocab_size, special], mark + mark),
        ([], ""),
    ]
    for char, (output, text) in product(HALVED, outputs):
        data = char.encode()
        for at in range(1, len(data)):
            prompt = kind.ids(b"PROMPT" + data[:at])
            for chunks in cuts(output):
                assert streamed(Decoder(kind.tokenizer, prompt[-8:], skip), chunks) == text


def test_the_prompt_may_be_known_from_the_middle_of_a_character() -> None:
    """What is known of the prompt are its last tokens, wherever these begin."""
    kind, text = kind_of("byte-level"), "P日😀é€"
    ids = kind.ids(text.encode())
    whole = [0, *(len(text[:count].encode()) for count in range(1, len(text) + 1))]
    for end in range(1, len(ids)):
        begun = max(at for at in whole if at <= end)
        for begin in range(begun + 1 if begun < end else end):
            decoder = Decoder(kind.tokenizer, ids[begin:end], True)
            assert streamed(decoder, [[token] for token in ids[end:]]) == text.encode()[begun:].decode()


@pytest.mark.parametrize("name", ["wordpiece", "tidy wordpiece"])
def test_spaces_between_special_tokens_are_left_out_on_demand(name: str) -> None:
    tokenizer = kind_of(name).tokenizer
    words = ["hello", "<s>", "</s>", "##ing", "<s>", "<s>", "<end of turn>", "hello", "<tool>", "</s>"]
    vocabulary = tokenizer.backend.get_vocab()
    ids = [vocabulary[word] for word in words]
    last = [ids[1]]  # that of the prompt makes no difference
    spaces = " hello <s> </s>ing <s> <s> <end of turn> hello <tool> </s>"
    closed = " hello <s></s>ing <s><s><end of turn> hello <tool> </s>"
    for chunks in cuts(ids):
        assert streamed(Decoder(tokenizer, last, False), chunks) == spaces
        decoder = Decoder(tokenizer, last, False, spaces_between_special_tokens=False)
        assert streamed(decoder, chunks) == closed
        decoder = Decoder(tokenizer, last, True, spaces_between_special_tokens=False)
        assert streamed(decoder, chunks) == " helloing hello <tool>"
    decoder = Decoder(tokenizer, last, False, spaces_between_special_tokens=False)
    assert streamed(decoder, [ids[1:3]]) == " <s></s>"


@pytest.mark.parametrize("name", WITH_BYTES)
def test_other_vocabularies_have_no_spaces_between_special_tokens(name: str) -> None:
    kind, seed = kind_of(name), random.Random(name)
    for _ in range(500):
        ids, skip = sequence(kind, seed), seed.random() < 0.5
        decoder = Decoder(kind.tokenizer, [], skip, spaces_between_special_tokens=False)
        assert streamed(decoder, cut(ids, seed)) == streamed(Decoder(kind.tokenizer, [], skip), [ids])


@pytest.mark.parametrize("name", KINDS)
def test_nothing_comes_after_the_end(name: str) -> None:
    kind = kind_of(name)
    for ids in ([0], [kind.first_special], kind.ids("€".encode())[1:2] if kind.bytes_at is not None else [1]):
        decoder = Decoder(kind.tokenizer, kind.ids(b"\xe2") if kind.bytes_at is not None else [], False)
        decoder.feed(ids)
        decoder.finish()
        assert decoder.finish() == ""
