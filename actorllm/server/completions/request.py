"""POST /v1/completions: what a client asks."""

from math import inf
from typing import Any, ClassVar

from ... import checks as check
from ...errors import InvalidRequest
from ...params import MAX_N
from ..bodies.fields import COMPLETION, Neutral
from ..bodies.forms import Prompts
from ..bodies.requests import AnyRequest

MAX_IDS = 1_000_000
"""Token ids, in the fields that list some, of all prompts of a request together: each prompt has them."""


MAX_ANSWERS = 1024
"""Answers to all prompts of a request together."""


class CompletionRequest(AnyRequest):
    """Prompts to continue. `echo` puts the prompt before its answer, or in its place for `max_tokens` 0.

    There are `n` answers to each prompt, and at most 1,024 to all of them together.
    """

    neutral: ClassVar[Neutral] = COMPLETION

    prompt: Prompts
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True

    @property
    def num_logprobs(self) -> int | None:
        """`logprobs`."""
        return self.logprobs

    @property
    def only_prompt(self) -> bool:
        """Whether nothing but the prompt is to come back. One token is made all the same, and not shown."""
        return self.echo and self.max_tokens == 0

    def _check_together(self) -> None:
        super()._check_together()
        ids = sum(map(len, (self.allowed_token_ids or (), self.stop_token_ids, self.logit_bias or ())))
        if len(self.prompt) * ids > MAX_IDS:
            text = f"{len(self.prompt)} prompts with {ids} token ids each are too much at once; send fewer"
            raise InvalidRequest(text, "prompt")
        check.integer(self.n, "n", 1, MAX_N)
        if len(self.prompt) * self.n > MAX_ANSWERS:
            text = f"n must be at most {MAX_ANSWERS // len(self.prompt)} for {len(self.prompt)} prompts, "
            raise InvalidRequest(f"{text}not {self.n}: a request has {MAX_ANSWERS} answers at most", "n")

    def _changes(self) -> dict[str, Any]:
        wanted = (self.prompt_logprobs, self.logprobs if self.echo else None)
        told = max((count for count in wanted if count is not None), key=_as_many, default=None)
        return {"max_tokens": 1 if self.only_prompt else self.max_tokens, "prompt_logprobs": told}


def _as_many(count: int) -> float:
    """How many of the likeliest are told, where -1 is all."""
    return inf if count < 0 else count
