"""Renderer: makes tokens of prompts, holds them to the limits, and submits them."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, assert_never

from ..messages import (
    Abort,
    Failed,
    Fault,
    FromRenderer,
    Job,
    JobDone,
    Question,
    Render,
    Rendered,
    Sampling,
    Submit,
    TokenPrompt,
    ToRenderer,
    Track,
    pack,
    unpack,
)
from . import NEVER

PROMPT_TAIL = 8
"""Tokens of the prompt that the Detokenizer gets: a character of four bytes may have begun there."""


@dataclass(frozen=True, slots=True)
class RendererStatistics:
    """Requests on a thread now; counts since the start."""

    num_rendering: int
    num_rendered: int
    num_refused: int
    num_prompt_tokens: int


class Renderer:
    """Text and conversations become tokens in jobs; token prompts are only checked."""

    def __init__(
        self, *, vocab_size: int, max_model_len: int, max_requests: int, eos_token_ids: Iterable[int] = ()
    ) -> None:
        """`max_requests` bounds the requests that are open at once."""
        self._eos = tuple(sorted(eos_token_ids))
        self._max_requests = max_requests
        self._refused_ids: OrderedDict[int, None] = OrderedDict()
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._held: dict[int, Render] = {}
        self._aborted: set[int] = set()
        self._out: list[FromRenderer] = []
        self._rendered = self._refused = self._prompt_tokens = 0

    def feed(self, message: ToRenderer) -> None:
        """Absorb a message."""
        match message:
            case Render(request, question):
                if isinstance(question.prompt, TokenPrompt) and not needs_words(question):
                    self._submit(message, Rendered(request, question.prompt.tokens))
                else:
                    self._held[request] = message
                    self._out.append(Job(request, message))
            case Abort(request):
                if request in self._held:
                    self._aborted.add(request)
                elif request in self._refused_ids:
                    del self._refused_ids[request]
                else:
                    self._out.append(message)
            case JobDone():
                self._job_done(message)
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromRenderer, ...]:
        """What goes on, in order: Rendered, then Track, then Submit."""
        out, self._out = tuple(self._out), []
        return out

    @property
    def deadline(self) -> float:
        """Mail alone wakes the Renderer."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether no request is being rendered."""
        return not self._held and not self._out

    def check(self) -> None:
        """Raise AssertionError when an aborted request is not held."""
        assert self._aborted <= self._held.keys()

    def statistics(self) -> RendererStatistics:
        """Gauges and counters of this moment."""
        return RendererStatistics(len(self._held), self._rendered, self._refused, self._prompt_tokens)

    def _job_done(self, done: JobDone) -> None:
        """A request whose Abort came meanwhile ends here; a thread cannot be taken its work away."""
        render = self._held.pop(done.id)
        if done.id in self._aborted:
            self._aborted.remove(done.id)
            self._out.append(Failed(done.id, "abort"))
        elif done.fault is not None:
            self._refuse(done.id, done.fault)
        else:
            assert isinstance(done.value, Rendered)
            self._submit(render, done.value)

    def _submit(self, render: Render, rendered: Rendered) -> None:
        request, question = render.request, render.question
        column = self._cut(rendered.tokens, question)
        if len(column) % 4:
            self._refuse(request, _invalid("the prompt is not a column of token ids", "prompt"))
            return
        tokens = unpack(column)
        fault = self._fault(tokens, question) or self._sampling_fault(question.sampling)
        if fault is not None:
            self._refuse(request, fault)
            return
        self._rendered += 1
        self._prompt_tokens += len(tokens)
        rest = self._max_model_len - len(tokens)
        limit = question.limits.max_tokens
        limits = replace(question.limits, max_tokens=rest if limit is None else min(limit, rest))
        self._out += (
            Rendered(request, column),
            Track(request, column[-4 * PROMPT_TAIL :], question.text),
            Submit(request, column, self._sampling(question, rendered), limits, question.terms, question.key),
        )

    def _cut(self, column: bytes, question: Question) -> bytes:
        """The last tokens of the prompt, if the caller wants no more of it."""
        if question.truncate is None:
            return column
        room = max(1, self._max_model_len - (question.limits.max_tokens or 1))
        return column[-4 * (room if question.truncate < 0 else question.truncate) :]

    def _sampling(self, question: Question, rendered: Rendered) -> Sampling:
        """The worker's part, with what only the tokenizer and the model's end tokens can say."""
        sampling, changes = question.sampling, dict[str, Any]()
        if sampling.min_tokens:
            ends = dict.fromkeys((*self._eos, *question.limits.stop_token_ids))
            changes["end_tokens"] = pack(ends)
        if rendered.bad_words:
            changes["bad_words"] = rendered.bad_words
        if sampling.thinking is not None:
            changes["thinking"] = replace(
                sampling.thinking, begin=rendered.think_begin, end=rendered.think_end
            )
        return replace(sampling, **changes) if changes else sampling

    def _refuse(self, request: int, fault: Fault) -> None:
        """End it here, and remember that its Abort has nowhere to go.

        The Frontend hears of refusals in their order and lets no more in than `max_requests`: after so
        many later ones the Abort has come or never will.
        """
        self._refused += 1
        self._refused_ids[request] = None
        if len(self._refused_ids) > self._max_requests:
            self._refused_ids.popitem(last=False)
        self._out.append(Failed(request, "error", fault))

    def _fault(self, tokens: list[int], question: Question) -> Fault | None:
        """What is wrong with these tokens, or None."""
        limits = question.limits
        if not tokens:
            return _invalid("the prompt is empty", "prompt")
        if len(tokens) >= self._max_model_len:
            text = (
                f"the prompt has {len(tokens)} tokens; with max_model_len {self._max_model_len} "
                f"it may have {self._max_model_len - 1} at most, so that one can be generated"
            )
            return _invalid(text, "prompt")
        if not 0 <= min(tokens) <= max(tokens) < self._vocab_size:
            wrong = next(token for token in tokens if not 0 <= token < self._vocab_size)
            return _invalid(f"token id {wrong} is outside the vocabulary of {self._vocab_size}", "prompt")
        if limits.max_tokens is not None and limits.max_tokens < 1:
            return _invalid(f"max_tokens must be at least 1, not {limits.max_tokens}", "max_tokens")
        return self._outside(limits.stop_token_ids, "stop_token_ids")

    def _sampling_fault(self, sampling: Sampling) -> Fault | None:
        """Which token ids of it are not in the vocabulary."""
        return (
            self._outside(unpack(sampling.bias_tokens), "logit_bias")
            or self._outside(unpack(sampling.allowed), "allowed_token_ids")
            or self._outside(unpack(sampling.logprob_tokens), "logprob_token_ids")
        )

    def _outside(self, tokens: Iterable[int], param: str) -> Fault | None:
        for token in tokens:
            if token >= self._vocab_size:
                text = f"{param}: token id {token} is outside the vocabulary of {self._vocab_size}"
                return _invalid(text, param)
        return None


def needs_words(question: Question) -> bool:
    """Whether something besides the prompt is to be made into tokens."""
    return bool(question.bad_words) or question.sampling.thinking is not None


def _invalid(message: str, param: str) -> Fault:
    return Fault("InvalidRequest", message, param)
