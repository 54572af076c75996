"""What a caller gets: vLLM's shapes, built lazily from what has come."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..messages import Logprobs
from .logprobs import Position, positions


@dataclass(slots=True)
class Gathered:
    """All that was read of one answer: it grows on behind the outputs that show its beginning.

    `pieces` are the bytes of each token id, None when no log-probabilities were asked for.
    """

    pieces: Sequence[bytes] | None = None
    parts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)

    @property
    def end(self) -> "End":
        """How far it goes now."""
        return End(len(self.parts), len(self.tokens), len(self.logprobs))


@dataclass(frozen=True, slots=True)
class End:
    """How many parts of text, tokens and columns of log-probabilities are there."""

    parts: int = 0
    tokens: int = 0
    logprobs: int = 0


START = End()


class CompletionOutput:
    """One answer so far; with `RequestOutputKind.DELTA`, what is new of it.

    index          which of the n answers
    delta          the text that is new in this output
    text           all of the text so far (joined when it is asked for)
    token_ids      all token ids so far (built when asked for)
    logprobs       of each of these tokens the candidates by their ids, `Logprob` objects, the token itself
                   first (built when asked for); None unless SamplingParams asks for them
    finish_reason  None while it goes on; then stop, length, repetition, abort, timeout
    stop_reason    the stop string or stop token id that ended it; None for the model's own end token
    """

    __slots__ = ("_begin", "_end", "_gathered", "delta", "finish_reason", "index", "stop_reason")

    def __init__(
        self,
        index: int,
        gathered: Gathered,
        delta: str,
        finish_reason: str | None,
        stop_reason: str | int | None,
        begin: End = START,
    ) -> None:
        """`gathered` grows on; the output shows it from `begin` to where it ends now."""
        self.index = index
        self.delta = delta
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
        self._gathered = gathered
        self._begin, self._end = begin, gathered.end

    @property
    def text(self) -> str:
        """All of the text up to this output."""
        return "".join(self._gathered.parts[self._begin.parts : self._end.parts])

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All token ids up to this output."""
        return tuple(self._gathered.tokens[self._begin.tokens : self._end.tokens])

    @property
    def logprobs(self) -> list[Position] | None:
        """The candidates of each of these tokens."""
        pieces = self._gathered.pieces
        if pieces is None:
            return None
        return positions(self._gathered.logprobs[self._begin.logprobs : self._end.logprobs], pieces)

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the tokens' own log-probabilities."""
        found = self.logprobs
        if found is None:
            return None
        return sum(next(iter(each.values())).logprob for each in found)

    @property
    def num_tokens(self) -> int:
        """How many tokens the answer has up to this output, without building them."""
        return self._end.tokens

    def __repr__(self) -> str:
        return (
            f"CompletionOutput(index={self.index}, text={self.text!r}, delta={self.delta!r}, "
            f"token_ids={self.token_ids}, finish_reason={self.finish_reason!r}, "
            f"stop_reason={self.stop_reason!r})"
        )


class RequestOutput:
    """What is known of a request: its prompt and its answers so far.

    `prompt_token_ids` are the tokens that the prompt became. `num_cached_tokens` of them were in the prefix
    cache when the first answer began to run (0 until its first token is there).
    """

    __slots__ = (
        "_prompt_logprobs",
        "finished",
        "num_cached_tokens",
        "outputs",
        "prompt_token_ids",
        "request_id",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        outputs: tuple[CompletionOutput, ...],
        finished: bool,
        prompt_logprobs: Gathered | None = None,
        num_cached_tokens: int = 0,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.outputs = outputs
        self.finished = finished
        self.num_cached_tokens = num_cached_tokens
        self._prompt_logprobs = prompt_logprobs

    @property
    def prompt_logprobs(self) -> list[Position | None] | None:
        """Of each token of the prompt the candidates, None for the first; None unless they were asked for.

        All of them are there with the first token of an answer.
        """
        gathered = self._prompt_logprobs
        if gathered is None or gathered.pieces is None:
            return None
        return [None, *positions(gathered.logprobs, gathered.pieces)]

    @property
    def text(self) -> str:
        """The first answer's text so far."""
        return self.outputs[0].text

    @property
    def delta(self) -> str:
        """The first answer's new text."""
        return self.outputs[0].delta

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first answer's token ids so far."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Why the first answer ended; None while it goes on."""
        return self.outputs[0].finish_reason

    def __repr__(self) -> str:
        return (
            f"RequestOutput(request_id={self.request_id!r}, prompt_token_ids={tuple(self.prompt_token_ids)}, "
            f"outputs={self.outputs!r}, finished={self.finished})"
        )


Statistics = dict[str, Any]
"""Every actor's statistics by its name, and `mailboxes`: how much mail waits for each."""
