"""Bodies whose fields depend on one of them, such as `type`: what each of its values goes with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .shapes import NOTHING, TEXT, Json, either, many, ref

Values = Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Variant:
    """A body with these values in the field that decides; no value: with any.

    needs   fields that it must have
    may     fields that it may have
    other   what else is true of a field
    """

    values: Values
    needs: Sequence[str] = ()
    may: Sequence[str] = ()
    other: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Variants:
    """The fields that depend, on `by` or on which of them are there, and the variants that there are."""

    by: str
    dependent: Sequence[str]
    variants: Sequence[Variant]

    def split(self, schema: Json) -> Json:
        """The schema of a body as one of its variants; each is whole."""
        notes: Json = {name: schema[name] for name in ("title", "description") if name in schema}
        return {**notes, "anyOf": [self._one(schema, variant) for variant in self.variants]}

    def _one(self, schema: Json, variant: Variant) -> Json:
        properties: Json = dict(schema["properties"])
        for name in self.dependent:
            if name in variant.needs:
                properties[name] = _without_null(properties[name])
            elif name not in variant.may:
                properties[name] = NOTHING
        required = dict.fromkeys([*schema.get("required", ()), *variant.needs])
        if variant.values:
            properties[self.by] = {"enum": list(variant.values)}
            if None not in variant.values:
                required[self.by] = None
        properties |= variant.other
        return {"type": "object", "properties": properties, "required": list(required)}


def _without_null(schema: Json) -> Json:
    if "anyOf" not in schema:
        return schema
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    forms = [form for form in schema["anyOf"] if form != NOTHING]
    return rest | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def _empty(*names: str) -> Mapping[str, Json]:
    """Fields of another role: they may be there, and say nothing."""
    return {name: {"enum": [None, [] if name == "tool_calls" else ""]} for name in names}


def _blocks(*kinds: str) -> Mapping[str, Json]:
    """What a message of Anthropic's API can be made of."""
    blocks = many(either(*map(ref, kinds))) | {"minItems": 1}
    return {"content": either(TEXT, blocks)}


_TOLD = ("id", "status")
_OF_CHATS = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
_MESSAGES: Json = {**many(ref("ConversationMessage")), "minItems": 1}
_THOUGHTS = ("reasoning", "reasoning_content")

VARIANTS: Mapping[str, Variants] = {
    "ResponseFormat": Variants(
        "type",
        ("json_schema", "structures", "triggers", "format"),
        (
            Variant(("text", "json_object")),
            Variant(("json_schema",), ("json_schema",)),
            Variant(("structural_tag",), (), ("structures", "triggers", "format")),
        ),
    ),
    "TextFormat": Variants(
        "type",
        ("name", "description", "strict", "schema"),
        (
            Variant(("text", "json_object")),
            Variant(("json_schema",), ("name", "schema"), ("description", "strict")),
        ),
    ),
    "Thinking": Variants(
        "type",
        ("budget_tokens", "display"),
        (
            Variant(("enabled",), ("budget_tokens",), ("display",)),
            Variant(("adaptive",), (), ("display",)),
            Variant(("disabled",)),
        ),
    ),
    "ToolChoice": Variants(
        "type", ("name",), (Variant(("tool",), ("name",)), Variant(("auto", "any", "none")))
    ),
    "Item": Variants(
        "type",
        (*_TOLD, "role", "content", "summary", "call_id", "name", "arguments", "parsed_arguments", "output"),
        (
            Variant(("message", None), ("role", "content"), _TOLD),
            Variant(("function_call",), ("call_id", "name", "arguments"), (*_TOLD, "parsed_arguments")),
            Variant(("function_call_output",), ("call_id", "output"), _TOLD),
            Variant(("reasoning",), (), (*_TOLD, "content", "summary")),
            Variant(("item_reference", None), ("id",)),
        ),
    ),
    "Part": Variants(
        "type",
        ("text",),
        (Variant(("input_text", "output_text", "reasoning_text", "summary_text"), ("text",)),),
    ),
    "ConversationMessage": Variants(
        "role",
        ("content", "tool_calls", "tool_call_id", *_THOUGHTS),
        (
            Variant((), ("content",), (), _empty("tool_calls", "tool_call_id", *_THOUGHTS)),
            Variant(("tool",), ("content",), ("tool_call_id",), _empty("tool_calls", *_THOUGHTS)),
            Variant(("assistant",), (), ("content", "tool_calls", *_THOUGHTS), _empty("tool_call_id")),
        ),
    ),
    "TokenizeRequest": Variants(
        "",
        ("prompt", "messages", *_OF_CHATS),
        (
            Variant((), ("prompt",), (), {"messages": {"enum": [None, []]}}),
            Variant((), ("messages",), _OF_CHATS, {"messages": _MESSAGES}),
        ),
    ),
    "MessagesMessage": Variants(
        "role",
        (),
        (
            Variant(("system",), other=_blocks("TextBlock")),
            Variant(("user",), other=_blocks("TextBlock", "ToolResultBlock")),
            Variant(
                ("assistant",),
                other=_blocks("TextBlock", "ThinkingBlock", "RedactedBlock", "ToolUseBlock"),
            ),
        ),
    ),
}
"""By the name of the body. An empty text of another role's is as good as none."""
