"""Text from tokens, as far as it is certain, and the strings that end it."""

import codecs
from collections.abc import Sequence
from typing import Protocol


class Vocabulary(Protocol):
    """What the tokens of a model mean.

    `pieces[id]` is what the token adds to the text, in bytes: a word's leading space is a space there,
    and a byte of a longer character is that byte. It is the same wherever the token stands, also at the
    beginning of an answer, which goes on with its prompt. `special_ids` are the control tokens.
    """

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each token id."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that `skip_special_tokens` hides."""


class Decoder:
    """The text of one request's output tokens, given out as soon as it is certain.

    All that is given out, put together, is what `bytes.decode("utf-8", errors="replace")` makes of
    all the bytes, with one exception: when the prompt ends within a character and the output goes on
    with that character, the text begins with the whole character. When the output does not, the
    bytes left over from the prompt give nothing. Token ids beyond the vocabulary give nothing either.
    Bytes that are no UTF-8 come out as U+FFFD, a character like any other: stop strings may contain it.

    spaces_between_special_tokens  False: the space that begins a special token is left out if another one
                                   stands directly before it in the output. Only WordPiece vocabularies have
                                   such spaces; with others, or with special tokens hidden, nothing changes.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_tail: Sequence[int],
        skip_special_tokens: bool,
        *,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        nothing = frozenset[int]()
        self._pieces = vocabulary.pieces
        self._hidden = vocabulary.special_ids if skip_special_tokens else nothing
        self._close = nothing if spaces_between_special_tokens else vocabulary.special_ids
        self._after_close = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = _unfinished(self._bytes(prompt_tail))
        self._undecided = b""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Absorb tokens and return the text that is certain now and was not before."""
        data = self._closed_up(token_ids) if self._close else self._bytes(token_ids)
        return self._joined(data) if self._unfinished else self._utf8.decode(data)

    def finish(self) -> str:
        """No more tokens will come: the text of what was held back."""
        undecided, self._undecided, self._unfinished = self._undecided, b"", b""
        return self._utf8.decode(undecided, final=True)

    def _bytes(self, token_ids: Sequence[int]) -> bytes:
        pieces, hidden = self._pieces, self._hidden
        return b"".join([pieces[token] for token in token_ids if token < len(pieces) and token not in hidden])

    def _closed_up(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of tokens, without spaces between special ones."""
        parts = []
        for token in token_ids:
            piece = self._bytes((token,))
            closes = token in self._close
            parts.append(piece.removeprefix(b" ") if closes and self._after_close else piece)
            self._after_close = closes
        return b"".join(parts)

    def _joined(self, data: bytes) -> str:
        """Text of output that may go on with the prompt's last character; we hold it until we know."""
        data = self._undecided + data
        missing = _length(self._unfinished[0]) - len(self._unfinished)
        try:
            character = codecs.getincrementaldecoder("utf-8")("strict").decode(
                self._unfinished + data[:missing]
            )
        except UnicodeDecodeError:
            character, missing = "", 0
        if len(data) < missing:
            self._undecided = data
            return ""
        self._unfinished = self._undecided = b""
        return character + self._utf8.decode(data[missing:])


def _unfinished(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a character and do not finish it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _length(lead: int) -> int:
    """How many bytes the character has that begins with the byte `lead` (0xC2 or more)."""
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces.

    Of all places in the text where a stop string stands, the one that ends first wins; of several that
    end there, the one that begins first. So how the text is cut into pieces changes nothing. The text
    before it is shown, and with `include` the stop string itself. Held back is only the longest end of
    the text that could still become a stop string; with `include` nothing, as it is shown either way.
    Empty stop strings are ignored.

    The stop strings form an Aho-Corasick automaton (Aho and Corasick, "Efficient string matching",
    1975): one state for each beginning of a stop string, and each character is looked at once.
    """

    def __init__(self, stop: tuple[str, ...], include: bool) -> None:
        self._automaton = _Automaton(stop)
        self._include = include
        self._state = 0
        self._held = ""
        self._found: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Absorb text; return what can be shown now, and the stop string that ended it, or None.

        After a stop string there is nothing more to show, whatever is fed.
        """
        if self._found is not None:
            return "", self._found
        automaton, state = self._automaton, self._state
        whole = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            state = automaton.step(state, char)
            found = automaton.ending[state]
            if found is not None:
                self._held, self._found = "", found
                return whole[: end if self._include else end - len(found)], found
        safe = len(whole) - (0 if self._include else automaton.depth[state])
        self._state, self._held = state, whole[safe:]
        return whole[:safe], None

    def finish(self) -> str:
        """No more text will come: what was held back. No stop string is in it, or `feed` had found it."""
        held, self._held, self._state = self._held, "", 0
        return held


class _Automaton:
    """States are beginnings of stop strings; 0 is the empty one.

    `depth` is a beginning's length, `ending` the longest stop string that stands at its end, or None.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        self.ending: list[str | None] = [None]
        for string in filter(None, stop):
            self._add(string)
        self._link()

    def step(self, state: int, char: str) -> int:
        """The state of the longest beginning that ends the text, after one more character."""
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.ending.append(None)
            state = self._next[state][char]
        self.ending[state] = string

    def _link(self) -> None:
        """Point each beginning to the longest other one that is its end; shorter ones first."""
        waiting = list(self._next[0].values())
        for state in waiting:
            for char, longer in self._next[state].items():
                self._fallback[longer] = self.step(self._fallback[state], char)
                waiting.append(longer)
            if self.ending[state] is None:
                self.ending[state] = self.ending[self._fallback[state]]
