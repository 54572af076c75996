"""The parts of a body: prompts, messages, and the form that an answer must have."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, model_validator

from ...engine.prompts import Prompt
from ...errors import InvalidRequest
from .fields import Body, Neutral, Text, check_text

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


Texts = Annotated[list[str], PlainValidator(_texts, json_schema_input_type=str | list[str])]

_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Tokens = Annotated[list[_Token], Field(min_length=1)]
_Several = Annotated[list[str | _Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
Prompts = Annotated[list[Prompt], PlainValidator(_prompts, json_schema_input_type=str | _Tokens | _Several)]


class StreamOptions(Body):
    """What a stream has besides text: the usage at its end, or in every chunk."""

    neutral: ClassVar[Neutral] = {"include_obfuscation": (False,)}

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Body):
    """A schema, which the answer matches whether or not it is `strict`; name and description do nothing."""

    name: Text | None = None
    description: Text | None = None
    strict: bool = True
    schema_: dict[str, Any] | bool = Field(alias="schema")


class ResponseFormat(Body):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: list[Any] | None = None
    triggers: Annotated[list[str], Field(max_length=1000)] | None = None
    format: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _only_its_own(self) -> "ResponseFormat":
        """No field of another type, for it would do nothing."""
        own = _OWN.get(self.type, ())
        for name in sorted(self.model_fields_set - {"type", *own}):
            raise InvalidRequest(f"response_format.{name} does nothing for type {self.type}", name)
        if self.type == "json_schema" and self.json_schema is None:
            raise InvalidRequest("response_format of type json_schema needs a json_schema", "json_schema")
        return self

    def structured_outputs(self) -> dict[str, Any] | None:
        """The same in the names of SamplingParams."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return {"json_object": True}
            case "json_schema":
                assert self.json_schema is not None
                return {"json": self.json_schema.schema_}
            case "structural_tag":
                given = {name: getattr(self, name) for name in ("type", *_OWN[self.type])}
                return {"structural_tag": {name: value for name, value in given.items() if value is not None}}

    def blame(self, param: str) -> str:
        """What the field is called here that SamplingParams finds fault with."""
        return (
            "response_format.json_schema.schema" if param == "structured_outputs.json" else "response_format"
        )


_OWN = {"json_schema": ("json_schema",), "structural_tag": ("structures", "triggers", "format")}
"""The fields that belong to a type."""
