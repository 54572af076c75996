"""POST /v1/responses: what a client asks, and the same as a conversation."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationError

from ...errors import InvalidRequest
from ..bodies.fields import Body, Neutral, Text
from ..bodies.forms import Texts
from ..bodies.objects import JsonObject
from ..bodies.requests import Bias, TokenIds, renaming
from ..chat.request import ChatRequest
from ..told import Json
from .forms import (
    FunctionChoice,
    FunctionTools,
    Include,
    Metadata,
    ReasoningConfig,
    StreamConfig,
    TextConfig,
    ToolChoice,
    renamed,
)
from .items import Items

RESPONSES: Neutral = {
    "background": (False,),
    "background_options": (),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "conversation": (),
    "prompt": (),
    "context_management": (),
    "moderation": (),
    "access_programs": (),
    "image": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
}


class ResponsesRequest(Body):
    """Items to answer, behind those of a stored response if there is one.

    `max_tool_calls` concerns tools that the server runs, of which there are none. `metadata`, `user`,
    `safety_identifier` and `prompt_cache_key` describe the caller: they are told again, and do nothing.
    From `top_k` on the fields are not OpenAI's, and mean what they mean in a conversation.
    """

    neutral: ClassVar[Neutral] = RESPONSES

    input: Items
    model: str | None = None
    instructions: Text | None = None
    previous_response_id: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int = 0
    include: Annotated[list[Include], Field(fail_fast=True, max_length=100)] = Field([])
    text: TextConfig = Field(default_factory=TextConfig)
    reasoning: ReasoningConfig = Field(default_factory=ReasoningConfig)
    tools: FunctionTools = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    store: bool = True
    stream: bool = False
    stream_options: StreamConfig | None = None
    metadata: Metadata = Field(default_factory=dict)
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None

    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Bias | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Texts | None = None
    stop: Texts | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    documents: Annotated[list[JsonObject], Field(fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    stream_interval: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    queue_timeout: float | None = None
    ttft_timeout: float | None = None

    _SAME: ClassVar[tuple[str, ...]] = ("temperature", "top_p", "parallel_tool_calls", "stream")
    _OTHERWISE: ClassVar[dict[str, str]] = {
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }

    @property
    def tells_logprobs(self) -> bool:
        """Whether the log-probabilities of the text are told."""
        return "message.output_text.logprobs" in self.include

    @property
    def assumes_strict(self) -> bool:
        """Whether a tool leaves open if its calls are enforced."""
        return self._choice != "none" and any(tool.strict is None for tool in self.tools)

    def chat(self, messages: Sequence[Json], strict: bool) -> ChatRequest:
        """The same as a conversation; `strict` is for the tools that leave it open. Raises InvalidRequest."""
        self._check_together()
        names = self.model_fields_set & {*self._SAME, *self._own_names()}
        body: Json = {name: getattr(self, name) for name in names}
        first = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        body |= {
            "messages": [*first, *messages],
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort,
            "response_format": self.text.format.for_chat(),
            "tools": [tool.for_chat(strict) for tool in self.tools],
            "tool_choice": self._choice,
        }
        if self.tells_logprobs:
            body |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        try:
            return ChatRequest.model_validate(body)
        except ValidationError as error:
            raise _told_error(error) from error

    def told(self, strict: bool) -> Json:
        """What of it the response tells again; `strict` as in `chat`."""
        choice = self.tool_choice
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": self.store,
            "temperature": self.temperature,
            "text": {"format": self.text.format.told(), "verbosity": "medium"},
            "tool_choice": choice.model_dump() if isinstance(choice, FunctionChoice) else choice,
            "tools": [tool.told(strict) for tool in self.tools],
            "top_logprobs": self.top_logprobs,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }

    def named(self) -> AbstractContextManager[None]:
        """What is raised in this block names the fields of this body, and not those of the conversation."""
        return renaming(self._blame)

    def _blame(self, param: str) -> str:
        """What a field of the conversation is called here."""
        if param.split(".")[0] == "structured_outputs" and self.structured_outputs is None:
            return "tools"
        return renamed(param, self._OTHERWISE)

    @property
    def _choice(self) -> Any:
        """`tool_choice` as a conversation has it."""
        if isinstance(self.tool_choice, FunctionChoice):
            return {"type": "function", "function": {"name": self.tool_choice.name}}
        return self.tool_choice

    @classmethod
    def _own_names(cls) -> list[str]:
        """The fields that are not OpenAI's."""
        names = list(cls.model_fields)
        return names[names.index("top_k") :]

    def _check_together(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", "stream_options")
        logprobs = "message.output_text.logprobs"
        if self.top_logprobs and not self.tells_logprobs:
            raise InvalidRequest(f"top_logprobs needs include: [{logprobs!r}]", "top_logprobs")
        if self.tells_logprobs and self.tools and self.tool_choice != "none":
            text = f"include: {logprobs!r} is not possible with tools, whose calls are no text; leave one out"
            raise InvalidRequest(text, "include")


def _told_error(error: ValidationError) -> InvalidRequest:
    """What is wrong with the conversation, first of all what can only come of its items."""
    found = error.errors()[0]
    if found["type"] == "too_long" and found["loc"][-1] == "tool_calls":
        text = (
            f"input: the assistant calls more than {found['ctx']['max_length']} functions in one turn; "
            "send fewer items of type function_call in a row, or their outputs between them"
        )
        return InvalidRequest(text, "input")
    place = ".".join(map(str, found["loc"]))
    return InvalidRequest(f"{place}: {found['msg']}", place)
