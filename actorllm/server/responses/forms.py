"""The parts of a body of the Responses API: the form of the answer, reasoning, tools and their choice."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ...errors import InvalidRequest
from ..bodies.fields import Body, Neutral, Text, ToolName
from ..bodies.objects import JsonObject
from ..chat.request import Effort
from ..told import Json


class TextFormat(Body):
    """The form that the answer must have. A schema is matched whether or not it is `strict`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    description: Text | None = None
    strict: bool = True
    schema_: JsonObject | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _only_its_own(self) -> "TextFormat":
        """All that a schema needs, and nothing of it for another type."""
        is_schema = self.type == "json_schema"
        for name in sorted(self.model_fields_set - {"type"}):
            if not is_schema:
                name = name.rstrip("_")
                raise InvalidRequest(f"{name} does nothing in a format of type {self.type}", name)
        for name in ("name", "schema"):
            if is_schema and getattr(self, "schema_" if name == "schema" else name) is None:
                raise InvalidRequest(f"a format of type json_schema needs a {name}", name)
        return self

    def for_chat(self) -> Json | None:
        """The same as `response_format`; None: any."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return {"type": "json_object"}
            case "json_schema":
                schema = {"name": self.name, "strict": self.strict, "schema": self.schema_}
                return {"type": "json_schema", "json_schema": schema}

    def told(self) -> Json:
        """The same as the API tells it."""
        if self.type != "json_schema":
            return {"type": self.type}
        names = ("type", "name", "description", "strict")
        return {name: getattr(self, name) for name in names} | {"schema": self.schema_}


class TextConfig(Body):
    """What the text of the answer is like."""

    neutral: ClassVar[Neutral] = {"verbosity": ("medium",)}

    format: TextFormat = Field(default_factory=lambda: TextFormat.model_validate({"type": "text"}))


class ReasoningConfig(Body):
    """How much the model thinks. All of its reasoning is told, and no summary of it."""

    neutral: ClassVar[Neutral] = {
        "summary": ("auto", "detailed"),
        "generate_summary": ("auto", "detailed"),
        "context": ("auto",),
        "mode": ("standard",),
    }

    effort: Effort | None = None


class StreamConfig(Body):
    """What a stream has besides its events: nothing."""

    neutral: ClassVar[Neutral] = {"include_obfuscation": (False,)}


class FunctionTool(Body):
    """A function that the answer may call.

    With `strict`, its arguments match `parameters`. That is also so when nothing is said about it, provided
    that the calls of this request can be enforced; the response tells whether they were.
    """

    neutral: ClassVar[Neutral] = {
        "defer_loading": (False,),
        "allowed_callers": (["direct"],),
        "output_schema": (),
        "async": (False,),
    }

    type: Literal["function"]
    name: ToolName
    description: Text | None = None
    parameters: JsonObject = Field(default_factory=dict)
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, tool: Any) -> Any:
        kind = tool.get("type") if isinstance(tool, dict) else "function"
        if kind is not None and kind != "function":
            text = f"tools of type {kind!s:.50} are not run here; only functions can be called, by the client"
            raise InvalidRequest(text, "type")
        return tool

    def for_chat(self, strict: bool) -> Json:
        """The tool of a conversation; `strict` unless the tool itself says something else."""
        function = {
            "name": self.name,
            "parameters": self.parameters,
            "strict": strict if self.strict is None else self.strict,
        }
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function}

    def told(self, strict: bool) -> Json:
        """The same as the API tells it."""
        told: Json = {"type": "function", "name": self.name, "description": self.description}
        return told | {
            "parameters": self.parameters,
            "strict": strict if self.strict is None else self.strict,
        }


FunctionTools = Annotated[list[FunctionTool], Field(fail_fast=True, max_length=1000)]


class FunctionChoice(Body):
    """The function that the answer must call."""

    type: Literal["function"]
    name: Text


def _choice(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == "function" and isinstance(value.get("name"), str):
        return value
    if value not in ("none", "auto", "required"):
        raise InvalidRequest('must be none, auto, required or {"type": "function", "name": ...}')
    return value


ToolChoice = Annotated[Literal["none", "auto", "required"] | FunctionChoice, BeforeValidator(_choice)]

Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""What a response can tell besides. Reasoning is never encrypted, and of the rest there is nothing here."""

MAX_PAIRS = 16
"""Pairs of metadata."""


def _not_many(metadata: Any) -> Any:
    if isinstance(metadata, dict) and len(metadata) > MAX_PAIRS:
        raise InvalidRequest(f"must have at most {MAX_PAIRS} pairs, not {len(metadata)}")
    return metadata


Key = Annotated[Text, Field(max_length=64)]
Value = Annotated[Text, Field(max_length=512)]
Metadata = Annotated[dict[Key, Value], BeforeValidator(_not_many)]


def renamed(param: str, names: Mapping[str, str]) -> str:
    """A field by the name that the longest beginning of its path has."""
    parts = param.split(".")
    for end in range(len(parts), 0, -1):
        name = names.get(".".join(parts[:end]))
        if name is not None:
            return ".".join([name, *_rest(name, parts[end:])])
    return param


def _rest(name: str, rest: Sequence[str]) -> Sequence[str]:
    """What of a path is the same in both bodies: nothing of messages, which are not counted as items are."""
    return () if name == "input" else rest
