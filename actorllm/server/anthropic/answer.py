"""The answer in Anthropic's shape: a message of blocks, and the events that tell it block by block."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic_core import from_json

from ...cores.text import Vocabulary
from ...engine.outputs import CompletionOutput, RequestOutput
from ...parsing import CallArguments, CallBegun, CallEnded, Content, Event, Reasoning
from ..answers import HEAVY, check_ended
from ..chat.answer import new_call_id
from ..chat.reading import Reading, Turn
from ..chat.request import ChatRequest
from ..errors import error_body
from ..sse import dumps, named
from ..told import Json
from .blocks import CALL
from .request import MessagesRequest

BROKEN = "INVALID_JSON"
"""The one member of a call's input when what the model wrote is no JSON object; its value is that text."""


class MessageAnswer:
    """One message of the assistant.

    A call's input is an object in Anthropic's API. Where the model wrote something else, the input is
    `{"INVALID_JSON": text}`, and of a call that the answer's end cut off the members that are there; a
    stream has the text as it was written.
    """

    done = b""

    def __init__(
        self, body: MessagesRequest, chat: ChatRequest, model: str, reading: Reading, vocabulary: Vocabulary
    ) -> None:
        """`chat` is what was made of the body."""
        self._body = body
        self._chat = chat
        self._id = f"msg_{body.request_id or secrets.token_hex(12)}"
        self._model = model
        self._reading = reading
        self._vocabulary = vocabulary
        self._turn: Turn | None = None
        self._blocks = Blocks()

    def whole(self, outputs: Sequence[RequestOutput]) -> Json:
        """The response that does not stream. Raises as `chunks` does."""
        (answer,) = outputs[0].outputs
        check_ended(answer)
        content = _content(self._news(outputs[0]))
        ending = self._ending(answer)
        if content and content[-1]["type"] == "tool_use":
            content[-1]["input"] = _input(content[-1]["input"], ending["stop_reason"] != "tool_use")
        for block in content[:-1]:
            if block["type"] == "tool_use":
                block["input"] = _input(block["input"], False)
        usage = {**_prompt_usage(outputs[0]), "output_tokens": answer.num_tokens}
        return self._message(content, usage) | ending

    def is_heavy(self, outputs: Sequence[RequestOutput]) -> bool:
        """Whether `whole` has so much to read that it takes milliseconds."""
        return outputs[0].outputs[0].num_tokens > HEAVY

    def chunks(self, place: int, output: RequestOutput) -> list[Json]:
        """What is new. Raises for an answer that did not end by itself."""
        (answer,) = output.outputs
        check_ended(answer)
        found: list[Json] = []
        if self._turn is None:
            usage = {**_prompt_usage(output), "output_tokens": 0}
            message = self._message([], usage) | {"stop_reason": None, "stop_sequence": None}
            found.append({"type": "message_start", "message": message})
        for event in self._news(output):
            found += self._blocks.take(event)
        return found if answer.finish_reason is None else [*found, *self._blocks.close()]

    def closing(self, outputs: Sequence[RequestOutput]) -> list[Json]:
        """Why it ended, and the usage."""
        (answer,) = outputs[0].outputs
        usage = {**_prompt_usage(outputs[0]), "output_tokens": answer.num_tokens}
        return [
            {"type": "message_delta", "delta": self._ending(answer), "usage": usage},
            {"type": "message_stop"},
        ]

    def frame(self, chunk: Json) -> bytes:
        """An event of a stream."""
        return named(chunk)

    def failure(self, error: Exception) -> list[Json]:
        """The last event of a stream that failed."""
        return [shaped(error_body(error)["error"])]

    @contextmanager
    def named(self) -> Iterator[None]:
        """A block in which errors name the fields of the request."""
        with self._body.named(self._chat):
            yield

    def _message(self, content: Sequence[Json], usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": usage,
        }

    def _news(self, output: RequestOutput) -> list[Event]:
        """What is certain now and was not before, of what is shown."""
        if self._turn is None:
            self._turn = self._reading.turn(output.prompt_token_ids, self._vocabulary)
        news = self._turn.news(output.outputs[0])
        if self._body.shows_thinking:
            return news
        return [event for event in news if not isinstance(event, Reasoning)]

    def _ending(self, answer: CompletionOutput) -> Json:
        """Why it ended. A stop string is told even when a call had begun: the call may be cut off."""
        if isinstance(answer.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_reason}
        if answer.finish_reason == "length":
            is_full = answer.num_tokens >= self._body.max_tokens
            reason = "max_tokens" if is_full else "model_context_window_exceeded"
        else:
            reason = "tool_use" if self._turn is not None and self._turn.calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}


class Blocks:
    """The events that tell a message's content: each block from its start to its end, then the next one."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def take(self, event: Event) -> list[Json]:
        """What is sent when this has been said."""
        match event:
            case Content(text):
                block = {"type": "text", "text": ""}
                return [*self._in(block), self._delta({"type": "text_delta", "text": text})]
            case Reasoning(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return [*self._in(block), self._delta({"type": "thinking_delta", "thinking": text})]
            case CallBegun(_, name):
                return [*self.close(), *self._in(_call(name) | {"input": {}})]
            case CallArguments(_, text):
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case CallEnded():
                return self.close()

    def close(self) -> list[Json]:
        """The end of the block that is open. Thinking is signed with nothing."""
        if self._open is None:
            return []
        signed = self._open == "thinking"
        self._open = None
        before = [self._delta({"type": "signature_delta", "signature": ""})] if signed else []
        return [*before, {"type": "content_block_stop", "index": self._index}]

    def _in(self, block: Json) -> list[Json]:
        """The start of this block, unless one of its type is open."""
        if self._open == block["type"]:
            return []
        closed = self.close()
        self._index += 1
        self._open = block["type"]
        return [*closed, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def shaped(error: Json) -> Json:
    """An error of `error_body` in Anthropic's shape; its message begins with the field at fault.

    One about `thread` has the details at which Anthropic's clients send the whole conversation instead.
    """
    status, message, param = error["code"], error["message"], error["param"]
    if param and param not in message:
        message = f"{param}: {message}"
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = {"details": {"error_code": "thread_unsupported_request"}} if param == "thread" else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""What Anthropic calls an error of this status."""


def _content(events: Sequence[Event]) -> list[Json]:
    """The blocks of a whole answer, the inputs of calls as they were written."""
    found: list[Json] = []
    for event in events:
        kind = found[-1]["type"] if found else None
        match event:
            case Content(text) if kind == "text":
                found[-1]["text"] += text
            case Content(text):
                found.append({"type": "text", "text": text})
            case Reasoning(text) if kind == "thinking":
                found[-1]["thinking"] += text
            case Reasoning(text):
                found.append({"type": "thinking", "thinking": text, "signature": ""})
            case CallBegun(_, name):
                found.append(_call(name) | {"input": ""})
            case CallArguments(_, text):
                found[-1]["input"] += text
    return found


def _call(name: str) -> Json:
    return {"type": "tool_use", "id": CALL + new_call_id(), "name": name}


def _input(text: str, is_cut: bool) -> Json:
    """The object that a model wrote for a call, or as much of it as is there when its end was cut off.

    A last number that nothing follows is not there: more digits might have come.
    """
    if is_cut and not text:
        return {}
    whole = text.rstrip("0123456789") if is_cut else text
    try:
        value = from_json(whole, allow_inf_nan=False, allow_partial=is_cut)
        dumps(value)
    except ValueError:
        return {BROKEN: text}
    return value if isinstance(value, dict) else {BROKEN: text}


def _prompt_usage(output: RequestOutput) -> Json:
    """The prompt's tokens: those that were computed, and those that were in the cache."""
    cached = output.num_cached_tokens
    return {"input_tokens": len(output.prompt_token_ids) - cached, "cache_read_input_tokens": cached}
