"""Grammars for simulations: what comes next depends on all that came before, so that nothing can be lost.

A grammar is a text `salt:length`: tokens are forbidden by a hash of the salt and of the whole answer so far,
about two of three, and after `length` tokens only the end token is allowed, which is forbidden before; behind
it everything is. One that begins with `bad` cannot be compiled. One that begins with `torn` allows
everything, and then the token behind the first `length` does not fit, whatever it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRequest
from ..model.hash import END, VOCAB_SIZE, mix
from ..model.masks import packed

WORDS = -(-VOCAB_SIZE // 32)
BAD, TORN = "bad", "torn"
UNFIT = "does not fit the grammar"
LARGE = 12 << 20
"""Bytes a character of a grammar, so that few are kept."""

NOT_READY = "the grammar is still being compiled"
CROWDED = "grammars are being compiled already; come again when some are ready"
"""How the faults of grammars that come too late begin, and of those that are too many end."""

REFUSED = "this grammar was made to fail"
_TOKENS = np.arange(VOCAB_SIZE, dtype=np.uint64)


@dataclass(slots=True)
class Rules:
    """How far an answer has come in its grammar."""

    state: int
    left: int
    is_torn: bool = False
    is_over: bool = False

    @classmethod
    def of(cls, grammar: str) -> "Rules":
        """At the beginning of an answer."""
        salt, _, length = grammar.partition(":")
        return cls(_mixed(int.from_bytes(salt.encode()[:8])), int(length), grammar.startswith(TORN))

    def allowed(self) -> NDArray[np.bool_]:
        """Whether each token may come next, bool [VOCAB_SIZE]."""
        if self.is_over or self.is_torn:
            return np.ones(VOCAB_SIZE, np.bool_)
        if not self.left:
            only_end: NDArray[np.bool_] = _TOKENS == END
            return only_end
        draws = mix(_TOKENS + np.uint64(self.state))
        some: NDArray[np.bool_] = (draws % np.uint64(3) == 0) & (_TOKENS < END)
        return some

    def accept(self, token: int) -> bool:
        """Take the next token; whether it may come."""
        if self.is_over:
            return True
        if not self.allowed()[token] or (self.is_torn and not self.left):
            return False
        self.is_over = token == END
        self.left -= 1
        self.state = _mixed(self.state + token + 1)
        return True

    def mask(self) -> bytes:
        """What is allowed, as in a SampleStep."""
        return packed(self.allowed()).tobytes()


class SimulatedGrammars:
    """What compiles and matches them. Raises AssertionError for whatever no Grammar may do.

    `compiled` are the grammars that are kept, each of which takes `unit` bytes a character; `rows` are the
    open matchers.
    """

    def __init__(self, unit: int = 100) -> None:
        self._unit = unit
        self.compiled: set[str] = set()
        self.rows: dict[int, Rules] = {}

    def compile(self, grammar: str) -> None:
        """Keep it. Raises InvalidRequest for one that is bad."""
        if grammar.startswith(BAD):
            raise InvalidRequest(REFUSED, "structured_outputs")
        self.compiled.add(grammar)

    def forget(self, grammar: str) -> None:
        """Let go of it."""
        self.compiled.remove(grammar)

    def size(self, grammar: str) -> int:
        """Some bytes."""
        assert grammar in self.compiled, f"{grammar} is not compiled"
        return self._unit * len(grammar)

    def open(self, request: int, grammar: str) -> None:
        """Begin an answer."""
        assert grammar in self.compiled, f"{grammar} is not compiled"
        assert request not in self.rows, f"request {request} has a matcher already"
        self.rows[request] = Rules.of(grammar)

    def accept(self, request: int, tokens: Sequence[int]) -> str | None:
        """Take the next tokens of an answer. Each came by a mask, so only one that is torn may not fit."""
        rules = self.rows.get(request)
        if rules is None:
            return None
        for token in tokens:
            fits = rules.accept(token)
            assert fits or rules.is_torn, f"token {token} of request {request} breaks its grammar"
            if not fits:
                return f"token {token} {UNFIT}"
        return None

    def fill(self, requests: Sequence[int]) -> tuple[bytes, dict[int, str]]:
        """All masks; all ones for a request that is not known."""
        free = b"\xff" * 4 * WORDS
        masks = [self.rows[each].mask() if each in self.rows else free for each in requests]
        return b"".join(masks), {}

    def close(self, request: int) -> None:
        """End an answer."""
        del self.rows[request]


def draw_grammar(random: Random, longest: int) -> str:
    """A grammar for answers of so many tokens at most; some are asked for once, some are bad or torn."""
    length = random.choice((0, 2, 5, longest))
    draw = random.random()
    if draw < 0.08:
        return f"{BAD}:{length}"
    if draw < 0.16:
        return f"{TORN}:{length}"
    return f"{random.choice('abc') if draw < 0.7 else random.randrange(1000)}:{length}"


def _mixed(number: int) -> int:
    return int(mix(np.array([number % 2**64], np.uint64))[0])
