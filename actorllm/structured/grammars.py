"""The adapter over xgrammar: compiled grammars, one matcher per request, one batched fill per step."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic, thread_time
from typing import Any

import numpy as np

from ..errors import InvalidRequest
from .source import field_of, source
from .spec import FIELD

COMPILE_THREADS = 4
"""Threads that xgrammar itself uses for one grammar."""

LONG_BATCH = 0.05
"""Seconds of a batch beyond which its rows are filled one by one the next time, and timed."""

SLOW = 0.25
"""Seconds of a processor for one token or one mask that are held against a grammar."""

MAX_SLOW = 3
MAX_SECONDS = 2.0
"""How often a request's grammar may be slow, and for how long in all."""

_NO_WAY = "nothing can follow: the grammar has no end there"
_TOO_SLOW = "write it so that no text is derived in several ways, and without rules that repeat an empty text"


@dataclass(slots=True)
class _Row:
    """One request: `matcher` is None once it has ended or failed; `marker` is None once it has come.

    `fault` says why it has failed; `suspect` is whether its next mask is timed on its own.
    """

    matcher: Any
    marker: bytes | None
    tail: bytes = b""
    fault: str | None = None
    suspect: bool = False
    num_slow: int = 0
    slow_seconds: float = 0.0

    def fail(self, fault: str) -> None:
        self.matcher, self.fault = None, fault

    def spend(self, seconds: float) -> None:
        """Count what its matcher has taken, and fail when that is too much."""
        if seconds <= SLOW:
            return
        self.num_slow += 1
        self.slow_seconds += seconds
        if self.num_slow >= MAX_SLOW or self.slow_seconds >= MAX_SECONDS:
            average = round(1000 * self.slow_seconds / self.num_slow)
            self.fail(f"the grammar takes too long: {average} ms a token; {_TOO_SLOW}")


class XGrammars:
    """Grammars by their spec text, and the requests that are bound to them.

    pieces         gives the bytes of each token, by id: those of a Tokenizer
    vocab_size     the model's: bits of a row
    special_ids    gives the special tokens' ids: none of them is ever allowed inside constrained text
    eos_token_ids  the tokens that end an answer: allowed exactly where the grammar is complete
    clock          seconds of a processor that the calling thread has had
    wall           seconds that have gone by

    `compile`, `size` and `forget` may be called from any thread, several at once. `open` and `close` are for
    one thread, and never wait. `accept` and `fill` take microseconds for most grammars, and seconds for some:
    they are for one other thread, one call at a time; requests may be opened and closed meanwhile. The
    constructor does no work; the first `compile` asks for the pieces and imports xgrammar, which takes
    seconds.

    A request whose grammar is slow too often has failed: some take ever longer with each token, since there
    are ever more ways in which the answer can be derived.
    """

    def __init__(
        self,
        pieces: Callable[[], Sequence[bytes]],
        vocab_size: int,
        special_ids: Callable[[], Collection[int]],
        eos_token_ids: Collection[int],
        compile_threads: int = COMPILE_THREADS,
        clock: Callable[[], float] = thread_time,
        wall: Callable[[], float] = monotonic,
    ) -> None:
        self._all_pieces = pieces
        self._special_ids = special_ids
        self._vocab_size = vocab_size
        self._words = -(-vocab_size // 32)
        self._last_word = np.int32((1 << (vocab_size % 32)) - 1 if vocab_size % 32 else -1)
        self._eos = frozenset(token for token in eos_token_ids if 0 <= token < vocab_size)
        no_end = np.full(self._words, 0xFFFFFFFF, dtype="<u4")
        for token in self._eos:
            no_end[token // 32] &= 0xFFFFFFFF ^ (1 << token % 32)
        self._no_end = no_end.view("<i4")
        self._compile_threads = compile_threads
        self._clock = clock
        self._wall = wall
        self._lock = Lock()
        self._compiler: Any = None
        self._new_matcher: Any = None
        self._batch: Any = None
        self._pieces: Sequence[bytes] = ()
        self._plain: list[bytes] = []
        self._compiled: dict[str, tuple[Any, bytes | None]] = {}
        self._rows: dict[int, _Row] = {}

    def compile(self, spec: str) -> None:
        """Get the grammar of this spec text ready, and keep it until `forget`.

        For worker threads: this takes milliseconds to seconds. Raises InvalidRequest where there is no such
        grammar, with the line and column, the JSON path or the position of what is wrong.
        """
        if not self._eos:
            raise InvalidRequest(
                f"{FIELD} needs a token that ends the answer, and this model has none; leave it out", FIELD
            )
        given = json.loads(spec)
        kind, text = source(given)
        compiler = self._get_compiler()
        method = compiler.compile_structural_tag if kind == "tag" else compiler.compile_grammar
        try:
            compiled = method(text)
        except (RuntimeError, ValueError, TypeError) as error:  # by its errors, or its bindings'
            field = field_of(given)
            raise InvalidRequest(f"{field} cannot be compiled: {_reason(error)}", field) from error
        self._check_begins(compiled, field_of(given))
        marker: str | None = given.get("start_after")
        self._compiled[spec] = compiled, None if marker is None else marker.encode()

    def _check_begins(self, compiled: Any, field: str) -> None:
        """Raises for a grammar without a first token, such as one that only refers to itself."""
        mask = np.zeros((1, self._words), dtype="<i4")
        needed = self._new_matcher(compiled).fill_next_token_bitmask(mask)
        mask[0, -1] &= self._last_word
        if needed and not mask.any():
            text = "derives no text that ends, of this model's tokens; give each rule a way that does"
            raise InvalidRequest(f"{field} {text}", field)

    def size(self, spec: str) -> int:
        """Bytes of a compiled grammar. Raises KeyError for one that is not kept."""
        return int(self._compiled[spec][0].memory_size_bytes)

    def forget(self, spec: str) -> None:
        """Let go of a compiled grammar, if it is kept; requests that are bound to it stay so."""
        self._compiled.pop(spec, None)

    def open(self, request: int, spec: str) -> None:
        """Bind a request to a compiled grammar, at its start. Raises KeyError for one that is not kept."""
        compiled, marker = self._compiled[spec]
        self._rows[request] = _Row(self._new_matcher(compiled), marker)

    def accept(self, request: int, tokens: Sequence[int]) -> str | None:
        """Take the next tokens of a request's answer; None when they fit, else why they do not, now and ever
        after.

        Without a grammar, and after an end token, all fits. Before the marker of `start_after` all fits, too;
        when it ends within a token, the rest of that token's bytes must fit the grammar.
        """
        row = self._rows.get(request)
        if row is None:
            return None
        for token in tokens:
            if row.matcher is None:
                break
            start = self._clock()
            if row.marker is not None:
                self._search(row, row.marker, token)
            else:
                self._follow(row, token)
            if row.matcher is not None:
                row.spend(self._clock() - start)
        return row.fault

    def _search(self, row: _Row, marker: bytes, token: int) -> None:
        if token in self._eos:
            row.matcher = None
            return
        text = row.tail + (self._pieces[token] if 0 <= token < len(self._pieces) else b"")
        start = text.find(marker)
        if start < 0:
            row.tail = text[max(0, len(text) - len(marker) + 1) :]
            return
        row.marker, row.tail = None, b""
        rest = text[start + len(marker) :]
        if rest and not row.matcher.accept_string(rest):
            shown = rest.decode(errors="replace")[:100]
            row.fail(f"the marker ended within a token, whose rest {shown!r} does not fit the grammar")

    def _follow(self, row: _Row, token: int) -> None:
        fits = token in self._eos or (0 <= token < len(self._plain) and self._plain[token] != b"")
        if not fits or not row.matcher.accept_token(token):
            row.fail(f"token {token} does not fit the grammar")
        elif row.matcher.is_terminated():
            row.matcher = None

    def fill(self, requests: Sequence[int]) -> tuple[bytes, dict[int, str]]:
        """The bitmasks of the requests' next tokens: of each ceil(vocab_size / 32) little-endian int32 words,
        in order; a bit is 1 where the token is allowed. And the requests that have failed now, with the
        reason: that no token can continue them, or that their grammars are too slow.

        All bits are 1, also those beyond vocab_size, of a request that has no grammar, or that has ended or
        failed. So are those of one whose marker has not come, but for the tokens that would end the answer
        before it has been under the grammar. In all other rows the ids without a piece are 0, also those
        beyond the tokenizer's, and the bits beyond vocab_size.
        """
        masks = np.full((len(requests), self._words), -1, dtype="<i4")
        bound: dict[int, _Row] = {}
        for index, request in enumerate(requests):
            row = self._rows.get(request)
            if row is None or row.matcher is None:
                continue
            if row.marker is None:
                bound[index] = row
            else:
                masks[index] = self._no_end
        faults: dict[int, str] = {}
        if bound:
            self._fill_bound(masks, bound)
            masks[list(bound), -1] &= self._last_word  # xgrammar sets bits beyond the vocabulary at times
            for index, row in bound.items():
                if row.fault is None and not masks[index].any():
                    row.fail(_NO_WAY)
                if row.fault is not None:
                    faults[requests[index]] = row.fault
                    masks[index] = -1
        return masks.tobytes(), faults

    def _fill_bound(self, masks: "np.ndarray[Any, Any]", bound: dict[int, _Row]) -> None:
        """Suspects one by one, which are timed; the rest as a batch, all suspects when that takes long."""
        alone = {index: row for index, row in bound.items() if row.suspect or len(bound) == 1}
        for index, row in alone.items():
            start = self._clock()
            row.matcher.fill_next_token_bitmask(masks, index)
            seconds = self._clock() - start
            row.suspect = seconds > LONG_BATCH
            row.spend(seconds)
        batch = {index: row for index, row in bound.items() if index not in alone}
        if batch:
            begin = self._wall()
            matchers = [row.matcher for row in batch.values()]
            self._batch.batch_fill_next_token_bitmask(matchers, masks, list(batch))
            long = self._wall() - begin > LONG_BATCH
            for row in batch.values():
                row.suspect = long

    def close(self, request: int) -> None:
        """Let go of a request, if it is known."""
        self._rows.pop(request, None)

    def _get_compiler(self) -> Any:
        with self._lock:
            if self._compiler is None:
                import xgrammar

                pieces = self._all_pieces()
                special = frozenset(self._special_ids()) | self._eos  # none is allowed as the text that it is
                plain = [
                    b"" if token in special else piece
                    for token, piece in enumerate(pieces[: self._vocab_size])
                ]
                vocabulary = xgrammar.TokenizerInfo(
                    plain,
                    xgrammar.VocabType.RAW,
                    vocab_size=self._vocab_size,
                    stop_token_ids=sorted(self._eos),
                )
                self._compiler = xgrammar.GrammarCompiler(
                    vocabulary, max_threads=self._compile_threads, cache_enabled=False
                )
                self._new_matcher = xgrammar.GrammarMatcher
                self._batch = xgrammar.BatchGrammarMatcher()
                self._pieces, self._plain = pieces, plain
            return self._compiler


def _reason(error: Exception) -> str:
    """The text of an error of xgrammar's, without the time and the source line before it."""
    return re.sub(r"^(\[[\d:]+\] )?\S*?\.(cc|h):\d+: ", "", str(error)).strip()[:500]
