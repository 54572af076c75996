"""Text to tokens and back, over a `tokenizers.Tokenizer` from wherever the checkpoint had it."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModel
from .chat import ChatTemplate

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """What a model reads and writes. Threads may share one.

    backend     does the work; truncation and padding are switched off
    chat        the model's chat templates
    eos_token   the text of the token that ends a sequence, or None
    model_size  rows of the model's embedding: ids beyond the vocabulary, up to here, have empty pieces
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        chat: ChatTemplate,
        eos_token: str | None = None,
        model_size: int = 0,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.chat = chat
        self._model_size = model_size
        eos = None if eos_token is None else backend.token_to_id(eos_token)
        self.eos_token_id: int | None = eos
        self._lock = Lock()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Special tokens written out in the text become those tokens either way;
        `add_special_tokens` is about those that the model wants around every text.
        """
        # this call leaves the interpreter to other threads, and keeps no offsets
        encoding = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of a whole sequence; ids without a token add nothing.

        This is the text of tokens that stand by themselves. It differs from that of `pieces`, which goes on
        with what was before, where the tokenizer treats the beginning of a text in a way of its own: it has
        no space there (sentencepiece, WordPiece). And if a run of byte tokens is not UTF-8 as a whole,
        sentencepiece's decoder makes U+FFFD of every byte in it, also of the whole characters.
        """
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def render_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation, to be encoded with add_special_tokens=False. Raises InvalidRequest."""
        return self.chat.render(messages, add_generation_prompt, continue_final_message, **variables)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id that may come: the length of `pieces`."""
        return len(self.pieces)

    def load(self) -> None:
        """Make now what is made at first use. Raises UnsupportedModel for unknown decoders."""
        _ = self.pieces, self.special_ids, self.longest_piece

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes that each token adds to a text, by id. Raises UnsupportedModel for unknown decoders.

        What a token adds does not depend on where it stands: the space that begins a word is there in the
        first token too.
        """
        with self._lock:
            return self._pieces

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest piece."""
        return max(map(len, self.pieces))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens: those that `skip_special_tokens` skips."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, content in added.items() if content.special)

    @cached_property
    def _pieces(self) -> tuple[bytes, ...]:
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        to_bytes = _piece_reader(self.backend)
        added = {token: entry.content for token, entry in self.backend.get_added_tokens_decoder().items()}
        pieces = [b""] * max(self._model_size, 1 + max(vocabulary.values(), default=-1))
        for piece, token in vocabulary.items():
            pieces[token] = to_bytes(piece)
        for token, content in added.items():
            pieces[token] = content.encode() if isinstance(to_bytes, _ByteLevel) else to_bytes(content)
        return tuple(pieces)


def byte_alphabet() -> dict[int, str]:
    """The character that stands for each byte in byte-level vocabularies (the table of GPT-2):
    printable Latin-1 stands for itself, the other 68 bytes for U+0100 and upwards, in order.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in sorted(plain)} | {
        byte: chr(0x100 + rank) for rank, byte in enumerate(others)
    }


class _ByteLevel:
    """Vocabularies in the byte alphabet. Added tokens are not in it: their content is their text."""

    def __init__(self) -> None:
        alphabet = {ord(char): byte for byte, char in byte_alphabet().items()}
        self._bytes = defaultdict(lambda: 0x100, alphabet)

    def __call__(self, piece: str) -> bytes:
        try:
            return piece.translate(self._bytes).encode("latin-1")
        except UnicodeEncodeError:  # a piece that is not in the byte alphabet stands for itself
            return piece.encode()


class _SentencePiece:
    """Vocabularies with a mark (▁) for the space, and maybe with tokens for bytes (<0x0A>)."""

    def __init__(self, mark: str, byte_fallback: bool) -> None:
        self._mark = mark
        forms = ("<0x{:02X}>", "<0x{:02x}>") if byte_fallback else ()
        self._bytes = {form.format(byte): bytes([byte]) for form in forms for byte in range(256)}

    def __call__(self, piece: str) -> bytes:
        return self._bytes.get(piece) or piece.replace(self._mark, " ").encode()


class _WordPiece:
    """Vocabularies of words, and of parts (with a prefix, ##) that go on with a word.

    Every word brings the space before it. `cleans_up` leaves it out before punctuation and English
    contractions; the decoder looks for these in one token at a time, and so do we.
    """

    def __init__(self, prefix: str, cleans_up: bool) -> None:
        self._prefix = prefix
        self._cleaned = _CLEANED if cleans_up else {}

    def __call__(self, piece: str) -> bytes:
        goes_on = piece.startswith(self._prefix)
        text = piece.removeprefix(self._prefix) if goes_on else f" {piece}"
        for untidy, tidy in self._cleaned.items():
            text = text.replace(untidy, tidy)
        return text.encode()


# what the library's WordPiece decoder does, in its order
_CLEANED = {f" {mark}": mark for mark in ".?!,"} | {
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " do not": " don't",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}


def _piece_reader(backend: "tokenizers.Tokenizer") -> Callable[[str], bytes]:
    """What makes bytes of a piece, for the tokenizer's decoder.

    What a decoder takes off both ends of the whole text is not taken off: that text is only a part.
    """
    decoder = backend.decoder
    state: Any = {"type": "none"} if decoder is None else json.loads(bytes(decoder.__getstate__()))
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    marked = [step for step in steps if step["type"] not in ("ByteFallback", "Fuse", "Strip")]
    match [] if _strips_tokens(kinds) else marked:
        case [{"type": "ByteLevel"}]:
            return _ByteLevel()
        case [{"type": "WordPiece", "prefix": prefix, "cleanup": cleans_up}]:
            return _WordPiece(prefix, cleans_up)
        case [
            {"type": "Metaspace", "replacement": mark}
            | {"type": "Replace", "pattern": {"String": mark}, "content": " "}
        ]:
            return _SentencePiece(mark, "ByteFallback" in kinds)
    raise UnsupportedModel(
        f"the tokenizer's decoder {' + '.join(kinds)}; supported are byte-level, sentencepiece and WordPiece"
    )


def _strips_tokens(kinds: list[str]) -> bool:
    """Whether the decoder strips tokens one by one, and not the whole text, when they are one."""
    return "Strip" in kinds and not {"ByteLevel", "Fuse"} & {*kinds[: kinds.index("Strip")]}
