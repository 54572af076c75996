"""OpenAI's requests, and the answers to them. Names and defaults are vLLM's where OpenAI has none."""

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator

from ..engine.engine import Prompt
from ..engine.outputs import RequestOutput
from ..errors import InvalidRequest
from ..params import SamplingParams
from .errors import error_body
from .fields import CHAT, COMPLETION, MESSAGE, Body, Neutral, Text, check_text

MAX_PROMPTS = 1024
"""Prompts in one request."""


def _texts(value: Any) -> list[str]:
    """A string or a list of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("must be a string or a list of strings")
    return [check_text(text) for text in texts]


def _prompts(value: Any) -> list[str | list[int]]:
    """A prompt or a list of them; the engine looks at the token ids."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(one, str | list) for one in value):
        raise InvalidRequest("must be a string, a list of strings, a list of token ids or a list of those")
    if not 0 < len(value) <= MAX_PROMPTS:
        raise InvalidRequest(f"has {len(value)} prompts; there must be 1 to {MAX_PROMPTS}")
    return [check_text(one) if isinstance(one, str) else one for one in value]


def _content(value: Any) -> str:
    """Text, or a list of text parts, which become lines."""
    if isinstance(value, str):
        return check_text(value)
    if not isinstance(value, list):
        raise InvalidRequest("must be a string or a list of text parts")
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else part
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"can only have parts of type 'text' with a text, not {str(kind)[:50]!r}")
    return "\n".join(check_text(part["text"]) for part in value)


class StreamOptions(Body):
    """What a stream has besides text."""

    neutral: ClassVar[Neutral] = {"continuous_usage_stats": (False,), "include_obfuscation": (False,)}

    include_usage: bool = False


class Message(Body):
    """One turn of a conversation."""

    neutral: ClassVar[Neutral] = MESSAGE

    role: Text
    content: Annotated[str, PlainValidator(_content, json_schema_input_type=str | list[dict[str, str]])]
    name: Text | None = None


class ResponseFormat(Body):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: dict[str, Any] | None = None
    structures: list[Any] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None

    def structured_outputs(self) -> dict[str, Any] | None:
        """The same in the names of SamplingParams."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return {"json_object": True}
            case "json_schema":
                if self.json_schema is None:
                    text = "response_format of type json_schema needs a json_schema"
                    raise InvalidRequest(text, "response_format.json_schema")
                return {"json": self.json_schema.get("schema")}
            case "structural_tag":
                return {"structural_tag": self.model_dump(exclude_none=True)}


class AnyRequest(Body):
    """What the routes have in common. `user` and `metadata` describe the caller and do nothing."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Annotated[list[str], PlainValidator(_texts, json_schema_input_type=str | list[str])] = Field([])
    stop_token_ids: list[int] = Field([])
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    structured_outputs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Any = None
    metadata: Any = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream tells the usage at its end."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int | None) -> SamplingParams:
        """How the request is sampled. Raises InvalidRequest."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", "stream_options")
        given = {name: getattr(self, name) for name in self.model_fields_set if name in _SAMPLING}
        form = self.response_format and self.response_format.structured_outputs()
        if form is not None:
            if self.structured_outputs is not None:
                text = "response_format and structured_outputs exclude each other"
                raise InvalidRequest(text, "response_format")
            given["structured_outputs"] = form
        return SamplingParams(**given | {"max_tokens": max_tokens})


_SAMPLING = SamplingParams.__dataclass_fields__.keys()


class ChatRequest(AnyRequest):
    """POST /v1/chat/completions. Without a limit the answer may take the rest of the context."""

    neutral: ClassVar[Neutral] = CHAT

    messages: list[Message]
    max_completion_tokens: int | None = Field(None, ge=1)

    def params(self) -> SamplingParams:
        """How the answer is sampled."""
        limit = self.max_completion_tokens
        return self.sampling(self.max_tokens if limit is None else limit)

    def conversation(self) -> list[dict[str, Any]]:
        """The messages, for the chat template."""
        return [message.model_dump(exclude_none=True) for message in self.messages]


class CompletionRequest(AnyRequest):
    """POST /v1/completions."""

    neutral: ClassVar[Neutral] = COMPLETION

    prompt: Annotated[
        list[Prompt],
        PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    max_tokens: int | None = 16

    def params(self) -> SamplingParams:
        """How the answers are sampled."""
        return self.sampling(self.max_tokens)


class Answer:
    """The JSON of one response, as a whole or in chunks."""

    prefix: ClassVar[str]
    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, model: str, include_usage: bool) -> None:
        self._base = {
            "id": f"{self.prefix}-{secrets.token_hex(16)}",
            "object": self.chunk_kind,
            "created": int(time.time()),
            "model": model,
        }
        self._include_usage = include_usage

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The response that does not stream; one choice for each output."""
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return self._base | {"object": self.whole_kind, "choices": choices, "usage": _usage(outputs)}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Before the first text of a choice."""
        return []

    def chunks(self, index: int, output: RequestOutput) -> list[dict[str, Any]]:
        """What is new in a choice: nothing while text is held back."""
        raise NotImplementedError

    def closing(self, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """The usage, for those who want it."""
        return [self._chunk([]) | {"usage": _usage(outputs)}] if self._include_usage else []

    def failure(self, error: Exception) -> dict[str, Any]:
        """The last event of a stream that failed."""
        return error_body(error)

    def _choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        raise NotImplementedError

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._base, "choices": choices}


class ChatAnswer(Answer):
    """The answer to a conversation."""

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Who speaks."""
        return [self._delta(index, {"role": "assistant", "content": ""})]

    def chunks(self, index: int, output: RequestOutput) -> list[dict[str, Any]]:
        """New text, and the end."""
        found = [self._delta(index, {"content": output.delta})] if output.delta else []
        return [*found, self._delta(index, {}, output)] if output.finished else found

    def _choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        message = {"role": "assistant", "content": output.text}
        return {"index": index, "message": message, "logprobs": None, **_ending(output)}

    def _delta(self, index: int, delta: dict[str, str], last: RequestOutput | None = None) -> dict[str, Any]:
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, **_ending(last)}])


class CompletionAnswer(Answer):
    """The answers to plain prompts."""

    prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def chunks(self, index: int, output: RequestOutput) -> list[dict[str, Any]]:
        """New text; the last one also tells the end."""
        if not output.delta and not output.finished:
            return []
        ending = _ending(output if output.finished else None)
        return [self._chunk([{"index": index, "text": output.delta, "logprobs": None, **ending}])]

    def _choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        return {"index": index, "text": output.text, "logprobs": None, **_ending(output)}


def _ending(output: RequestOutput | None) -> dict[str, str | int | None]:
    if output is None:
        return {"finish_reason": None, "stop_reason": None}
    answer = output.outputs[0]
    return {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}


def _usage(outputs: Sequence[RequestOutput]) -> dict[str, int]:
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(output.outputs[0].num_tokens for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
