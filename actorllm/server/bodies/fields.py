"""What a body may say: fields that are honoured, and fields that may only say nothing new."""

import difflib
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from ...errors import InvalidRequest

LENIENT: ContextVar[bool] = ContextVar("ignore_unknown_fields", default=False)
"""Whether the server ignores fields that nobody knows."""

Neutral = Mapping[str, tuple[Any, ...]]
"""Fields that OpenAI or vLLM know and we do not, with the values that change nothing."""

ANY_ROUTE: Neutral = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "truncation_side": ("left",),
    "watermarking": (False,),
    "return_token_offsets": (False,),
    "return_mm_kwargs": (True,),
    "routed_experts_prompt_start": (0,),
    "session_id": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
}

CHAT: Neutral = {
    **ANY_ROUTE,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "echo": (False,),
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "mm_payload": (),
    "return_prompt_text": (False,),
}

COMPLETION: Neutral = {
    **ANY_ROUTE,
    "suffix": ("",),
    "prompt_embeds": (),
}

MESSAGE: Neutral = {
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
}


OTHER_NAMES = {
    "guided_json": "structured_outputs",
    "guided_regex": "structured_outputs",
    "guided_choice": "structured_outputs",
    "guided_grammar": "structured_outputs",
    "max_new_tokens": "max_tokens",
}
"""What fields of other servers, or of older ones, are called here."""


MAX_NAME = 100
"""Characters of an unknown name that are compared with the known ones: the time grows with their square."""


class Body(BaseModel):
    """A JSON object. A field that is null was not given; an unknown one is an error that names it."""

    model_config = ConfigDict(strict=True)

    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise InvalidRequest("must be a JSON object")
        given = {name: value for name, value in body.items() if value is not None}
        known = cls._names()
        for name, value in given.items():
            if name in cls.neutral:
                cls._stay_neutral(name, value)
            elif name not in known and not LENIENT.get():
                raise cls._unknown(name)
        return {name: value for name, value in given.items() if name in known}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        """The JSON Schema of what is accepted. An unknown field can only be null, which is nothing."""
        schema = handler(core_schema)
        body = handler.resolve_ref_schema(schema)
        properties, required = body.setdefault("properties", {}), body.get("required", ())
        for name, each in properties.items():
            if name not in required:
                properties[name] = _or_null(each)
        for name, values in cls.neutral.items():
            properties[name] = {"enum": [*values, None]}
        body["additionalProperties"] = _NULL
        return schema

    @classmethod
    def _names(cls) -> list[str]:
        """The fields, as they are called in JSON."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def _stay_neutral(cls, name: str, value: Any) -> None:
        allowed = cls.neutral[name]
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            only = f"can only be {' or '.join(map(json.dumps, allowed))}" if allowed else "is not supported"
            raise InvalidRequest(f"{name} {only}; leave it out", name)

    @classmethod
    def _unknown(cls, name: str) -> InvalidRequest:
        known = [*cls._names(), *cls.neutral]
        other = OTHER_NAMES.get(name)
        near = [other] if other in known else difflib.get_close_matches(name[:MAX_NAME], known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return InvalidRequest(f"unknown field {name[:200]!r}{hint}", name)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, with null beside what it allows; what has no `type` and so on allows it anyway."""
    notes = {name: schema[name] for name in _NOTES if name in schema}
    form = {name: value for name, value in schema.items() if name not in _NOTES}
    forms = form.get("anyOf", [form])
    return notes | {"anyOf": [*forms, _NULL]} if form and _NULL not in forms else schema


_NULL = {"type": "null"}
_NOTES = ("title", "description", "default")


def check_text(text: str) -> str:
    """The text, if it can be written in UTF-8; else raises InvalidRequest."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"the text has half of a surrogate pair at character {error.start}: it is not Unicode"
        raise InvalidRequest(message) from error
    return text


Text = Annotated[str, AfterValidator(check_text)]

ToolName = Annotated[str, Field(min_length=1, max_length=256, pattern="^[a-zA-Z0-9_.-]+$")]
"""A name that every format of calls can write and read again."""
