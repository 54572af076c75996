"""What a caller gets: vLLM's shapes, built lazily from what has come."""

from collections.abc import Sequence
from typing import Any


class CompletionOutput:
    """One answer so far.

    index          which of the n answers
    delta          the text that is new in this output
    text           all of the text so far (joined when it is asked for)
    token_ids      all token ids so far (built when asked for)
    finish_reason  None while it goes on; then stop, length, abort
    stop_reason    the stop string or stop token id that ended it; None for the model's own end token
    logprobs       None
    """

    __slots__ = (
        "_num_parts",
        "_num_tokens",
        "_parts",
        "_tokens",
        "delta",
        "finish_reason",
        "index",
        "logprobs",
        "stop_reason",
    )

    def __init__(
        self,
        index: int,
        parts: list[str],
        tokens: list[int],
        delta: str,
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> None:
        """`parts` and `tokens` grow on behind this output; it shows them as long as they are now."""
        self.index = index
        self.delta = delta
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
        self.logprobs = None
        self._parts, self._num_parts = parts, len(parts)
        self._tokens, self._num_tokens = tokens, len(tokens)

    @property
    def text(self) -> str:
        """All of the text up to this output."""
        return "".join(self._parts[: self._num_parts])

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All token ids up to this output."""
        return tuple(self._tokens[: self._num_tokens])

    @property
    def num_tokens(self) -> int:
        """How many token ids there are, without building them."""
        return self._num_tokens

    def __repr__(self) -> str:
        return (
            f"CompletionOutput(index={self.index}, text={self.text!r}, delta={self.delta!r}, "
            f"token_ids={self.token_ids}, finish_reason={self.finish_reason!r}, "
            f"stop_reason={self.stop_reason!r})"
        )


class RequestOutput:
    """What is known of a request: its prompt and its answers so far."""

    __slots__ = ("finished", "outputs", "prompt_token_ids", "request_id")

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        outputs: tuple[CompletionOutput, ...],
        finished: bool,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.outputs = outputs
        self.finished = finished

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
