"""POST /v1/messages, Anthropic's API: what a client asks, and the same as a request of a chat.

An answer goes on with the last message when that is the assistant's. Thinking is disabled by the chat
template's own variable; how much there may be is the engine's matter.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import FailFast, Field, ValidationError, model_validator

from ...engine.engine import Engine
from ...errors import InvalidRequest
from ..bodies.fields import ANY_ROUTE, Body, Neutral, Text, ToolName
from ..bodies.forms import Texts
from ..bodies.objects import JsonObject
from ..bodies.requests import Bias, RequestName, TokenIds, renaming
from ..chat.reading import Formats
from ..chat.request import ChatRequest
from ..told import Json
from .blocks import Cached, Message, TextBlock, TextBlocks, ToolUseBlock, conversation


class Tool(Cached):
    """A tool of the client's own. With `strict`, the input of a call matches the schema."""

    neutral: ClassVar[Neutral] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "eager_input_streaming": (True,),
        "input_examples": ([],),
    }

    type: Literal["custom"] = "custom"
    name: ToolName
    description: Text | None = None
    input_schema: JsonObject
    strict: bool = False

    @model_validator(mode="before")
    @classmethod
    def _runs_at_the_client(cls, tool: Any) -> Any:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind is not None and kind != "custom":
            text = f"tools of type {str(kind)[:50]!r} are not known here; give one with an input_schema"
            raise InvalidRequest(text, "type")
        return tool

    def for_chat(self) -> Json:
        """The function, as chats have it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict,
        }
        return {"type": "function", "function": function}


class ToolChoice(Body):
    """How tools are to be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _names_a_tool(self) -> "ToolChoice":
        if (self.type == "tool") is (self.name is None):
            raise InvalidRequest("tool_choice has a name if it is of type tool, and only then", "name")
        return self

    def for_chat(self) -> Any:
        """The choice, as chats have it."""
        if self.name is not None:
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class Thinking(Body):
    """Whether the model thinks first, and for how many tokens at most. `adaptive`: if it wants to."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _only_its_own(self) -> "Thinking":
        if (self.type == "enabled") is (self.budget_tokens is None):
            text = "thinking has budget_tokens if it is of type enabled, and only then"
            raise InvalidRequest(text, "budget_tokens")
        if self.type == "disabled" and self.display is not None:
            raise InvalidRequest("thinking.display does nothing for type disabled", "display")
        return self


class OutputFormat(Body):
    """The form that the answer must have."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How the answer is to be."""

    neutral: ClassVar[Neutral] = {"task_budget": ()}

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Cached):
    """A conversation whose tokens are counted."""

    neutral: ClassVar[Neutral] = {
        "speed": ("standard",),
        "container": (),
        "context_management": (),
        "mcp_servers": ([],),
    }

    model: str | None = None
    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=10_000)]
    system: TextBlocks = Field([])
    tools: Annotated[list[Tool], FailFast(), Field(max_length=1000)] = Field([])
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    user_profile_id: Any = None

    @model_validator(mode="after")
    def _fits_together(self) -> "CountRequest":
        """Tools to choose from, and nothing of the assistant's at the end but text."""
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool") and not self.tools:
            raise InvalidRequest(f"tool_choice {self.tool_choice.type} needs tools", "tool_choice")
        last = list(takewhile(lambda message: message.role == "assistant", reversed(self.messages)))
        calls = any(isinstance(block, ToolUseBlock) for message in last for block in message.content)
        if last and (calls or not isinstance(last[0].content[-1], TextBlock)):
            text = "the answer goes on with the last message if that is the assistant's: it can only be text"
            raise InvalidRequest(text, "messages")
        return self

    def to_chat(self, engine: Engine, formats: Formats) -> ChatRequest:
        """The same as a request of a chat. Raises InvalidRequest for what the model cannot do."""
        same = self.model_fields_set & ChatRequest.model_fields.keys() - _TRANSLATED
        told = {name: getattr(self, name) for name in same} | self._translated()
        variables = self._thinking(engine, formats)
        for name in variables.keys() & self.chat_template_kwargs:
            text = f"thinking and chat_template_kwargs.{name} exclude each other; leave one out"
            raise InvalidRequest(text, "thinking")
        told["chat_template_kwargs"] = self.chat_template_kwargs | variables
        try:
            return ChatRequest.model_validate(told)
        except ValidationError as error:
            complaints = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
            raise RequestValidationError(complaints) from error

    @contextmanager
    def named(self, chat: ChatRequest) -> Iterator[None]:
        """A block in which errors name the fields of this body; `chat` was made of it."""
        with renaming(lambda param: _NAMES.get(param, param)), chat.named():
            yield

    def _translated(self) -> Json:
        choice, output = self.tool_choice, self.output_config
        found: Json = {
            "messages": conversation(self.system, self.messages),
            "tools": [tool.for_chat() for tool in self.tools],
            "continue_final_message": self.messages[-1].role == "assistant",
            "reasoning_effort": output.effort,
        }
        if choice is not None:
            found["tool_choice"] = choice.for_chat()
            found["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        if output.format is not None:
            schema = {"schema": output.format.schema_}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.thinking is not None:
            found["thinking_token_budget"] = self.thinking.budget_tokens
        return found

    def _thinking(self, engine: Engine, formats: Formats) -> Json:
        """`thinking` in the chat template's own variables."""
        if self.thinking is None:
            return {}
        form, kind = formats.reasoning, self.thinking.type
        if kind == "enabled" and form is None:
            text = "thinking of type enabled needs a model that thinks; this server reads no thinking"
            raise InvalidRequest(text, "thinking")
        markers = (engine.config.reasoning_start_str, engine.config.reasoning_end_str)
        if kind == "enabled" and form is not None and markers != (form.begin, form.end):
            text = f"budget_tokens needs the engine's reasoning_start_str to be {form.begin}, and its end too"
            raise InvalidRequest(text, "thinking.budget_tokens")
        known = engine.tokenizer.chat.variables()
        found: Json = {name: kind != "disabled" for name in ("enable_thinking", "thinking") if name in known}
        if kind == "disabled" and form is not None and not found:
            text = "thinking cannot be disabled: this model's chat template has no variable for it"
            raise InvalidRequest(text, "thinking")
        return found


class MessagesRequest(CountRequest):
    """A conversation to answer. What Anthropic does not have is called as in the other APIs."""

    neutral: ClassVar[Neutral] = {
        **ANY_ROUTE,
        **CountRequest.neutral,
        "service_tier": ("auto", "standard_only"),
        "diagnostics": (),
        "inference_geo": (),
        "thread": (),
    }

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Texts = Field([])
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Bias | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Texts = Field([])
    stop_token_ids: TokenIds = Field([])
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    structured_outputs: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None
    queue_timeout: float | None = None
    ttft_timeout: float | None = None
    request_id: RequestName | None = None
    stream_interval: int = 1
    metadata: Any = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the answer tells what the model thought."""
        return self.thinking is None or self.thinking.display != "omitted"

    def _translated(self) -> Json:
        return super()._translated() | {"stop": self.stop_sequences}


_TRANSLATED = frozenset({"messages", "tools", "tool_choice", "chat_template_kwargs"})
"""Fields that chats have by the same name, and not in the same form."""

_NAMES = {
    "stop": "stop_sequences",
    "continue_final_message": "messages",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""What fields of a chat are called here."""
