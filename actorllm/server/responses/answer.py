"""The answer of the Responses API: a response, as a whole or as events."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...cores.text import Vocabulary
from ...engine.outputs import CompletionOutput, RequestOutput
from ...parsing import Content, Event
from ..answers import HEAVY, check_ended
from ..chat.reading import Reading, Turn
from ..chat.request import ChatRequest
from ..errors import error_body
from ..sse import named
from ..told import Json, Teller
from .output import Output
from .request import ResponsesRequest

CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""What OpenAI calls the errors of a response, by their HTTP status; all others are its server's."""


class ResponsesAnswer:
    """One response."""

    done = b""

    def __init__(
        self,
        body: ResponsesRequest,
        chat: ChatRequest,
        base: Json,
        reading: Reading,
        vocabulary: Vocabulary,
        keep: Callable[[Json], None],
    ) -> None:
        """`base` is what the response tells of its request; `keep` gets the response when it has ended."""
        self._base = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            **base,
        }
        self._body, self._chat = body, chat
        self._reader = _Reader(chat.teller(), reading, vocabulary)
        self._keep = keep
        self._number = 0

    def whole(self, outputs: Sequence[RequestOutput]) -> Json:
        """The response that does not stream. Raises for an answer that did not end by itself."""
        check_ended(outputs[0].outputs[0])
        self._reader.read(outputs[0])
        return self._ended(outputs[0])

    def is_heavy(self, outputs: Sequence[RequestOutput]) -> bool:
        """Whether `whole` has so much to write that it takes milliseconds."""
        tokens = len(outputs[0].prompt_token_ids) + outputs[0].outputs[0].num_tokens
        return tokens * (1 + (self._chat.num_logprobs or 0)) > HEAVY

    def frame(self, chunk: Json) -> bytes:
        """An event of a stream."""
        return named(chunk)

    def chunks(self, place: int, output: RequestOutput) -> list[Json]:
        """What is new in the answer. Raises for one that did not end by itself."""
        check_ended(output.outputs[0])
        return self._numbered([*self._opening(), *self._reader.read(output)])

    def closing(self, outputs: Sequence[RequestOutput]) -> list[Json]:
        """The whole response, which is kept before anybody can ask for it."""
        response = self._ended(outputs[0])
        return self._numbered([{"type": f"response.{response['status']}", "response": response}])

    def failure(self, error: Exception) -> list[Json]:
        """The last event of a stream that failed, with what there is of the response. Clients know only of
        one that was created.
        """
        told = error_body(error)["error"]
        code = CODES.get(told.pop("code"), "server_error")
        response = self._response("failed", self._reader.items) | {"error": {"code": code, **told}}
        return self._numbered([*self._opening(), {"type": "response.failed", "response": response}])

    @contextmanager
    def named(self) -> Iterator[None]:
        """A block in which errors name the fields of the request."""
        with self._body.named(), self._chat.named():
            yield

    def _opening(self) -> list[Json]:
        """Before the first event of all."""
        if self._number:
            return []
        response = self._response("in_progress", [])
        return [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]

    def _ended(self, output: RequestOutput) -> Json:
        """The response in its end."""
        answer = output.outputs[0]
        is_cut = answer.finish_reason == "length"
        response = self._response("incomplete" if is_cut else "completed", self._reader.items)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        prompt, told = len(output.prompt_token_ids), answer.num_tokens
        response["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": output.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": told,
            "output_tokens_details": {"reasoning_tokens": self._reader.num_thought},
            "total_tokens": prompt + told,
        }
        self._keep(response)
        return response

    def _response(self, status: str, output: list[Json]) -> Json:
        ending: Json = {"completed_at": None, "error": None, "incomplete_details": None}
        return {**self._base, "status": status, **ending, "output": output, "usage": None}

    def _numbered(self, events: list[Json]) -> list[Json]:
        first = self._number
        self._number += len(events)
        return [event | {"sequence_number": first + place} for place, event in enumerate(events)]


class _Reader:
    """Makes items and events of the outputs of one answer."""

    def __init__(self, teller: Teller | None, reading: Reading, vocabulary: Vocabulary) -> None:
        self._teller = teller
        self._reading = reading
        self._vocabulary = vocabulary
        self._turn: Turn | None = None
        self._output = Output()
        self._waiting: list[Json] = []
        self._has_spoken = False

    @property
    def items(self) -> list[Json]:
        """What there is of the answer."""
        return self._output.items

    @property
    def num_thought(self) -> int:
        """How many of its tokens are reasoning, with the markers around it."""
        return 0 if self._turn is None else self._turn.num_thought

    def read(self, output: RequestOutput) -> list[Json]:
        """The events of what is new, without numbers."""
        answer = output.outputs[0]
        if self._turn is None:
            self._turn = self._reading.turn(output.prompt_token_ids, self._vocabulary)
        if self._teller is not None:
            self._waiting += self._teller.chat(answer.logprobs or ())["content"]
        found = [told for event in self._turn.news(answer) for told in self._take(event)]
        return found if answer.finish_reason is None else [*found, *self._finish(answer)]

    def _take(self, event: Event) -> list[Json]:
        if not isinstance(event, Content):
            return self._output.feed(event)
        return self._output.feed(event, self._logprobs())

    def _logprobs(self) -> list[Json]:
        """What is told of the tokens that have become text: of those behind the reasoning."""
        skipped = 0 if self._has_spoken else self.num_thought
        self._has_spoken = True
        told, self._waiting = self._waiting[skipped:], []
        return told

    def _finish(self, answer: CompletionOutput) -> list[Json]:
        """The end of the last item, before it what is told of tokens that are no text, such as the end's."""
        is_silent = not self._output.items
        last = []
        if self._waiting and (is_silent or self._output.is_speaking):
            last = self._output.feed(Content(""), self._logprobs())
        status = "incomplete" if answer.finish_reason == "length" else "completed"
        return [*last, *self._output.finish(status)]
