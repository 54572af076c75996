"""What OpenAI's answers have in common: the JSON of a response, as a whole or in chunks."""

import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from ..engine.outputs import CompletionOutput, RequestOutput
from ..errors import RequestFailed
from .bodies.requests import AnyRequest
from .errors import TimedOut, error_body
from .sse import DONE, unnamed
from .told import Json, prompt_logprobs

HEAVY = 10_000
"""Tokens and candidates in an answer that is written on a thread."""


class Answer:
    """The JSON of one response. Its choices are numbered through: prompt by prompt, answer by answer."""

    done = DONE

    prefix: ClassVar[str]
    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, body: AnyRequest, model: str) -> None:
        self._base = {
            "id": f"{self.prefix}-{body.request_id or secrets.token_hex(16)}",
            "object": self.chunk_kind,
            "created": int(time.time()),
            "model": model,
        }
        self._request = body
        self._teller = body.teller()
        self._tells = self._teller is not None or body.return_token_ids
        self._always_usage = body.always_usage
        self._begun: set[int] = set()
        self._ended: set[int] = set()

    def whole(self, outputs: Sequence[RequestOutput]) -> Json:
        """The response that does not stream; one output for each prompt. Raises as `chunks` does."""
        for output in outputs:
            for answer in output.outputs:
                check_ended(answer)
        choices = [
            self._choice(self._index(place, answer), output, answer)
            for place, output in enumerate(outputs)
            for answer in self._answers(output)
        ]
        return self._base | {"object": self.whole_kind, "choices": choices, "usage": self._usage(outputs)}

    def is_heavy(self, outputs: Sequence[RequestOutput]) -> bool:
        """Whether `whole` has so much to write that it takes milliseconds."""
        tokens = sum(len(output.prompt_token_ids) + output.outputs[0].num_tokens for output in outputs)
        return tokens * self._request.n * (1 + (self._request.num_logprobs or 0)) > HEAVY

    def chunks(self, place: int, output: RequestOutput) -> list[Json]:
        """What is new in the answers to one prompt: nothing while all of it is held back.

        Raises for an answer that did not end by itself.
        """
        found: list[Json] = []
        for answer in self._answers(output):
            check_ended(answer)
            index = self._index(place, answer)
            if index in self._ended:
                continue
            new = [] if index in self._begun else self._opening(index, output, answer)
            self._begun.add(index)
            new += self._news(index, output, answer)
            if answer.finish_reason is not None:
                self._ended.add(index)
            if self._always_usage:
                usage = _sum(len(output.prompt_token_ids), answer.num_tokens)
                new = [chunk | {"usage": usage} for chunk in new]
            found += new
        return found

    def closing(self, outputs: Sequence[RequestOutput]) -> list[Json]:
        """The usage, for those who want it."""
        if not self._request.include_usage:
            return []
        return [self._base | {"choices": [], "usage": self._usage(outputs)}]

    def frame(self, chunk: Json) -> bytes:
        """An event of a stream."""
        return unnamed(chunk)

    def failure(self, error: Exception) -> list[Json]:
        """The last event of a stream that failed."""
        return [error_body(error)]

    def named(self) -> AbstractContextManager[None]:
        """A block in which errors name the fields of the request."""
        return self._request.named()

    def _answers(self, output: RequestOutput) -> Sequence[CompletionOutput]:
        """What is shown of the answers."""
        return output.outputs

    def _choice(self, index: int, output: RequestOutput, answer: CompletionOutput) -> Json:
        raise NotImplementedError

    def _opening(self, index: int, output: RequestOutput, answer: CompletionOutput) -> list[Json]:
        """Before the first news of a choice."""
        raise NotImplementedError

    def _news(self, index: int, output: RequestOutput, answer: CompletionOutput) -> list[Json]:
        raise NotImplementedError

    def _index(self, place: int, answer: CompletionOutput) -> int:
        return place * self._request.n + answer.index

    def _chunk(self, choice: Json) -> Json:
        return {**self._base, "choices": [choice]}

    def _is_news(self, answer: CompletionOutput) -> bool:
        """Whether there is text, or a token of which something is told."""
        return bool(answer.delta) or (self._tells and bool(answer.token_ids))

    def _ids(self, answer: CompletionOutput) -> Json:
        """The token ids, for those who want them."""
        return {"token_ids": list(answer.token_ids)} if self._request.return_token_ids else {}

    def _usage(self, outputs: Sequence[RequestOutput]) -> Json:
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        told = sum(answer.num_tokens for output in outputs for answer in self._answers(output))
        cached = sum(output.num_cached_tokens for output in outputs)
        return {**_sum(prompt, told), "prompt_tokens_details": {"cached_tokens": cached}}

    def _told_prompt(self, output: RequestOutput) -> Json:
        """The log-probabilities of the prompt, for those who want them; an echo may have asked for more."""
        most = self._request.prompt_logprobs
        return (
            {} if most is None else {"prompt_logprobs": prompt_logprobs(output.prompt_logprobs or (), most)}
        )

    def _prompt_ids(self, output: RequestOutput) -> Json:
        return {"prompt_token_ids": list(output.prompt_token_ids)} if self._request.return_token_ids else {}


def check_ended(answer: CompletionOutput) -> None:
    """Raise for an answer that ended before its time: it must not look like a whole one."""
    match answer.finish_reason:
        case "timeout":
            raise TimedOut("the request ran into its timeout; its answer is not complete")
        case "abort" | "error":
            raise RequestFailed("the request was aborted; its answer is not complete")


NO_ENDING: Json = {"finish_reason": None, "stop_reason": None}


def ending(answer: CompletionOutput, reason: str | None = None) -> Json:
    """Why an answer ended; `reason` is a better word for it."""
    return {"finish_reason": reason or answer.finish_reason, "stop_reason": answer.stop_reason}


def _sum(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
