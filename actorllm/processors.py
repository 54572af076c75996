"""Custom logits processors: what one must have, and how they are loaded by name."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

State = Any
"""What a processor remembers of one request. It is never sent anywhere, and None is none."""


@runtime_checkable
class LogitsProcessor(Protocol):
    """Changes the logits of the requests that take part, before the penalties and the temperature.

    A class is named as `package.module:Class` and constructed with the vocabulary's size, once in each
    process: where requests are made (`check`), and where they are sampled (the rest). A request that is
    preempted, moved or replayed is opened anew and advanced by every token of its output so far, so a state
    must be a pure function of (arguments, prompt, output): no clock, no randomness, nothing of other
    requests. Then it draws the same tokens again.
    """

    def check(self, arguments: Mapping[str, Any], /) -> None:
        """Raise InvalidRequest for arguments that cannot be.

        They are the whole object that the request says (vLLM's `extra_args`), empty where it says none;
        those of other processors are among them.
        """

    def open(self, arguments: Mapping[str, Any], prompt: NDArray[np.int32], /) -> State | None:
        """The state of a request before its first output token; None: it does not take part."""

    def advance(self, state: State, token: int, /) -> None:
        """Take the next token of the output into the state; called for all of them in order."""

    def apply(self, logits: NDArray[np.float32], states: Sequence[State], /) -> None:
        """Change the logits [R, V] of the R requests that take part in this step, in place.

        Row r belongs to states[r], and must come out the same whatever the other rows are. -inf forbids a
        token; a token that is -inf already must not come back (a grammar's never does). What is NaN
        afterwards counts as -inf.
        """


def load_processors(names: Sequence[str], vocab_size: int) -> tuple[LogitsProcessor, ...]:
    """Make the processors of these names (`package.module:Class`).

    Raises ConfigError, which tells the name, for one that cannot be imported or made, or is no processor.
    """
    return tuple(_load(name, vocab_size) for name in names)


def _load(name: str, vocab_size: int) -> LogitsProcessor:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"logits processor {name!r} must be named like package.module:Class")
    try:
        made = getattr(importlib.import_module(module), attribute)(vocab_size)
    except Exception as error:
        raise ConfigError(f"logits processor {name!r} cannot be loaded: {error!r}") from error
    if not isinstance(made, LogitsProcessor):
        raise ConfigError(f"logits processor {name!r} lacks one of check, open, advance and apply")
    return made
