"""POST /v1/chat/completions: what a client asks."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ... import checks as check
from ...checkpoint import ChatTemplate
from ...engine.prompts import Template
from ...errors import InvalidRequest
from ...parsing import structured_outputs
from ..bodies.fields import CHAT, Neutral
from ..bodies.objects import JsonObject
from ..bodies.requests import AnyRequest
from .conversation import Choice, Messages, Tools, chosen, functions
from .reading import Behind, Formats, Reading

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(AnyRequest):
    """A conversation to answer. Without a limit the answer may take the rest of the context."""

    neutral: ClassVar[Neutral] = CHAT

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = 0
    tools: Tools = Field([])
    tool_choice: Choice | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    reasoning_effort: Effort | None = None
    documents: Annotated[list[JsonObject], Field(fail_fast=True)] = Field([])
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False

    _renamed: ClassVar[dict[str, str]] = {
        **AnyRequest._renamed,
        "logprobs": "top_logprobs",
        "prompt": "messages",
    }

    @property
    def num_logprobs(self) -> int | None:
        """`top_logprobs`, if `logprobs` are told."""
        return self.top_logprobs if self.logprobs else None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages, for the chat template."""
        return [message.for_template() for message in self.messages]

    def template(self, chat: ChatTemplate) -> Template:
        """What else the chat template is to know. Raises InvalidRequest for what it knows nothing of."""
        return Template(
            tools=None if self.tool_choice == "none" else [tool.for_template() for tool in self.tools],
            documents=self.documents,
            chat_template_kwargs=self.chat_template_kwargs | self._effort(chat),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            add_special_tokens=self.add_special_tokens,
        )

    def reading(self, formats: Formats) -> Reading:
        """What is looked for in the answers."""
        if chosen(self.tool_choice, self.tools) is None:
            return Reading(formats.reasoning, continued=self._continued)
        if formats.tools is None:
            text = "how this model calls tools is not known here; name a --tool-parser for the server"
            raise InvalidRequest(text, "tools")
        names = frozenset(tool.function.name for tool in self.tools)
        most = None if self.parallel_tool_calls else 1
        return Reading(formats.reasoning, formats.tools, names, most, self._continued)

    @property
    def _continued(self) -> str | None:
        """The text that the answers go on with."""
        return self.messages[-1].content or "" if self.continue_final_message and self.messages else None

    @property
    def may_enforce(self) -> bool:
        """Whether the answers may have to have a form."""
        choice = chosen(self.tool_choice, self.tools)
        is_free = choice == "auto" and not any(tool.function.strict for tool in self.tools)
        return self.form() is not None or (choice is not None and not is_free)

    def enforced(self, reading: Reading, behind: Behind) -> dict[str, Any] | None:
        """The form that the answers must have, in the names of SamplingParams; None: any.

        `behind` makes of a form the one that holds where reasoning ends.
        """
        form = self.form()
        choice = chosen(self.tool_choice, self.tools)
        calls = None
        if choice is not None and reading.tools is not None:
            calls = structured_outputs(reading.tools, functions(self.tools), choice, self.parallel_tool_calls)
        if form is not None and calls is not None:
            text = "the form of an answer and enforced calls of tools exclude each other; leave one out"
            raise InvalidRequest(text, "tools")
        found = calls if form is None else form
        return None if found is None else behind(found)

    def _effort(self, chat: ChatTemplate) -> dict[str, Any]:
        """`reasoning_effort` as the template's own variable; `none` switches thinking off."""
        effort = self.reasoning_effort
        if effort is None:
            return {}
        known = chat.variables()
        switches: dict[str, Any] = {name: False for name in ("enable_thinking", "thinking") if name in known}
        if effort == "none" and switches:
            return switches
        if "reasoning_effort" in known:
            return {"reasoning_effort": effort}
        if effort == "none":
            return {}
        text = "reasoning_effort does nothing in this model's chat template; leave it out"
        raise InvalidRequest(text, "reasoning_effort")

    def _check_together(self) -> None:
        super()._check_together()
        check.integer_or_none(self.max_tokens, "max_tokens", 1)
        limits = (self.max_tokens, self.max_completion_tokens)
        if None not in limits and limits[0] != limits[1]:
            text = "max_completion_tokens is {1}, but max_tokens, its older name, is {0}; leave one out"
            raise InvalidRequest(text.format(*limits), "max_completion_tokens")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")

    def _changes(self) -> dict[str, Any]:
        limit = self.max_completion_tokens
        return {"max_tokens": self.max_tokens if limit is None else limit}
