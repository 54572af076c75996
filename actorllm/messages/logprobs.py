"""Log-probabilities on their way from the worker to the caller."""

from .base import message


@message(24)
class Logprobs:
    """The log-probabilities of some tokens, one token after the other, as columns.

    `counts` (int32) says of each token how many candidates it has; 0 where none were wanted. The candidates
    of all tokens stand one after the other in `tokens` (int32), `values` (float32, never NaN) and `ranks`
    (int32; 1 is the likeliest of the vocabulary): first the token itself, then the likeliest in order, then
    those that were asked for by id. None stands twice.
    """

    counts: bytes = b""
    tokens: bytes = b""
    values: bytes = b""
    ranks: bytes = b""


@message(25)
class PromptLogprobs:
    """Those of some tokens of a prompt: the first of them is the prompt's token number `first` (from 0)."""

    request: int
    first: int
    logprobs: Logprobs
