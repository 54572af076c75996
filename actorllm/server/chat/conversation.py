"""The messages of a conversation, and the tools that its answer may call."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from ...errors import InvalidRequest
from ...parsing import Function
from ..bodies.fields import MESSAGE, Body, Neutral, Text, ToolName, check_text
from ..bodies.objects import JsonObject, called_with

ROLES = {"developer": "system", "function": "tool"}
"""Roles that chat templates do not know, and what they are called there."""


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


class TextPart(BaseModel):
    """A text in a list of them. What else it has is not looked at."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text"]
    text: str


Content = Annotated[str, PlainValidator(_content, json_schema_input_type=str | list[TextPart])]


class CalledFunction(Body):
    """A function that an earlier answer has called. `arguments` is the JSON text of an object.

    `parsed_arguments` is what OpenAI's clients make of them and send again; it does nothing.
    """

    name: Text
    arguments: Text = "{}"
    parsed_arguments: Any = None

    @model_validator(mode="after")
    def _has_an_object(self) -> "CalledFunction":
        self.as_object()
        return self

    def as_object(self) -> dict[str, Any]:
        """What the arguments say. Raises InvalidRequest."""
        return called_with(self.arguments or "{}")


class ToolCall(Body):
    """One of the calls of an earlier answer."""

    neutral: ClassVar[Neutral] = {"index": tuple(range(128))}

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The same with its arguments as an object, as templates want them."""
        function = {"name": self.function.name, "arguments": self.function.as_object()}
        return {"id": self.id, "type": "function", "function": function}


class Message(Body):
    """One turn of a conversation. `parsed` is what OpenAI's clients make of its content; it does nothing."""

    neutral: ClassVar[Neutral] = MESSAGE

    role: Text
    content: Content | None = None
    name: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=1000)] = Field([])
    tool_call_id: Text | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    parsed: Any = None

    @model_validator(mode="after")
    def _only_its_own(self) -> "Message":
        """Something to say, and nothing that another role says."""
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self._reasons)):
            raise InvalidRequest("a message must have content", "content")
        for name, role in (
            ("tool_calls", "assistant"),
            ("reasoning", "assistant"),
            ("reasoning_content", "assistant"),
            ("tool_call_id", "tool"),
        ):
            if getattr(self, name) and self.role != role:
                raise InvalidRequest(f"only a message of role {role!r} has {name}", name)
        return self

    @property
    def _reasons(self) -> bool:
        return self.reasoning is not None or self.reasoning_content is not None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        said: dict[str, Any] = {
            "role": ROLES.get(self.role, self.role),
            "content": self.content or "",
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content or self.reasoning,
            "tool_calls": [call.for_template() for call in self.tool_calls] or None,
        }
        return {name: value for name, value in said.items() if value is not None}


Messages = Annotated[list[Message], Field(fail_fast=True, max_length=10_000)]
"""The messages of a conversation. The first one that is wrong is told, and no other."""


class FunctionTool(Body):
    """A function that the answer may call. With `strict`, its arguments match `parameters`."""

    name: ToolName
    description: Text | None = None
    parameters: JsonObject = Field(default_factory=dict)
    strict: bool = False


class Tool(Body):
    """Something that the answer may call."""

    type: Literal["function"]
    function: FunctionTool

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates know it."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        return {"type": "function", "function": function | {"parameters": self.function.parameters}}


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=1000)]


class NamedFunction(Body):
    """The name of a function."""

    name: Text


class NamedChoice(Body):
    """The function that the answer must call."""

    type: Literal["function"] = "function"
    function: NamedFunction


Choice = Literal["none", "auto", "required"] | NamedChoice


def chosen(choice: Choice | None, tools: Sequence[Tool]) -> str | None:
    """`auto`, `required` or the name of a function; None when no tool is to be called.

    Raises InvalidRequest for a choice that the tools do not allow.
    """
    names = Counter(tool.function.name for tool in tools)
    for name, count in names.items():
        if count > 1:
            raise InvalidRequest(f"{count} tools are called {name!r}", "tools")
    if isinstance(choice, NamedChoice):
        if choice.function.name not in names:
            text = f"tool_choice names {choice.function.name!r}, which is not among the tools"
            raise InvalidRequest(text, "tool_choice")
        return choice.function.name
    if choice == "required" and not tools:
        raise InvalidRequest("tool_choice required needs tools", "tool_choice")
    return None if choice == "none" or not tools else choice or "auto"


def functions(tools: Sequence[Tool]) -> list[Function]:
    """The tools, for the grammar that enforces them."""
    return [Function(tool.function.name, tool.function.parameters, tool.function.strict) for tool in tools]
