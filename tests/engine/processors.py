"""Logits processors for the tests, which load them by their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorllm import InvalidRequest


@dataclass
class Turns:
    """How many tokens an answer has; what it was told to do."""

    allowed: list[int]
    raises: bool
    tokens: list[int] = field(default_factory=list)


class InTurn:
    """Lets only one token come, the next in turn of those in `extra_args["in_turn"]`."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def check(self, arguments: Mapping[str, Any], /) -> None:
        if any(token >= self.vocab_size for token in arguments.get("in_turn", ())):
            raise InvalidRequest("in_turn must be token ids", "extra_args.in_turn")

    def open(self, arguments: Mapping[str, Any], prompt: NDArray[np.int32], /) -> Turns | None:
        if "in_turn" not in arguments:
            return None
        return Turns([*arguments["in_turn"], int(prompt[0])], bool(arguments.get("raises")))

    def advance(self, state: Turns, token: int, /) -> None:
        state.tokens.append(token)

    def apply(self, logits: NDArray[np.float32], states: Sequence[Turns], /) -> None:
        for row, state in zip(logits, states, strict=True):
            if state.raises and len(state.tokens) == 5:
                raise ZeroDivisionError("it was made to raise")
            token = state.allowed[len(state.tokens) % len(state.allowed)]
            kept = row[token]
            row.fill(-np.inf)
            row[token] = kept


class Lacking:
    """No processor at all."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
