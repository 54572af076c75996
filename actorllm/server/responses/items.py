"""The items of the Responses API: what a client sends of a conversation, and the messages that they are."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ...errors import InvalidRequest
from ..bodies.fields import Body, Neutral, Text
from ..bodies.objects import called_with
from ..told import Json

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
"""How the ids of items begin."""

MAX_ITEMS = 10_000
"""Items in one request."""


def new_id(kind: str) -> str:
    """The name of a new item of this type."""
    return f"{PREFIXES[kind]}_{secrets.token_hex(16)}"


class Part(Body):
    """A text. What an earlier answer told besides it is not said again."""

    neutral: ClassVar[Neutral] = {"annotations": ([],), "prompt_cache_breakpoint": ()}

    type: Text
    text: Text = ""
    logprobs: Any = None
    parsed: Any = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, part: Any) -> Any:
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            known = ", ".join(_TEXTS)
            raise InvalidRequest(f"a part must have a text and one of the types {known}, not {kind!s:.50}")
        return part


_TEXTS = ("input_text", "output_text", "reasoning_text", "summary_text")


def _parts(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise InvalidRequest("must be a string or a list of parts")
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[
    list[Part],
    Field(fail_fast=True, max_length=MAX_ITEMS),
    BeforeValidator(_parts, json_schema_input_type=str | list[Part]),
]


class Item(Body):
    """A message, the call of a function, its output, reasoning, or a reference to one of them that is stored.

    Without a type it is a message if it has a role. `id` and `status` are told again, and do nothing.
    `parsed_arguments` is what OpenAI's clients make of the arguments; it does nothing.
    """

    neutral: ClassVar[Neutral] = {
        "phase": ("final_answer",),
        "encrypted_content": (),
        "caller": ({"type": "direct"},),
        "namespace": (),
        "async": (False,),
        "created_by": (),
    }

    type: Text | None = None
    id: Text | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts | None = None
    summary: Parts | None = None
    call_id: Text | None = None
    name: Text | None = None
    arguments: Text | None = None
    parsed_arguments: Any = None
    output: Parts | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, item: Any) -> Any:
        kind = _kind(item) if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in _OWN:
            text = f"items of type {kind!s:.50} are not supported here; there can be {', '.join(_OWN)}"
            raise InvalidRequest(text, "type")
        return item

    @model_validator(mode="after")
    def _only_its_own(self) -> "Item":
        """All that its type needs, and nothing that does nothing there."""
        needed, others = _OWN[self.kind]
        for name in needed:
            if getattr(self, name) is None:
                raise InvalidRequest(f"an item of type {self.kind} needs {name}", name)
        for name in sorted(self.model_fields_set - {"type", *needed, *others}):
            raise InvalidRequest(f"{name} does nothing in an item of type {self.kind}", name)
        if self.arguments is not None:
            called_with(self.arguments)
        return self

    @property
    def kind(self) -> str:
        """Its type."""
        return _kind({"type": self.type, "role": self.role})

    def told(self) -> Json:
        """The item as the API tells it, with an id."""
        kind = self.kind
        told: Json = {"id": self.id or new_id(kind), "type": kind, "status": self.status or "completed"}
        match kind:
            case "message":
                return told | {"role": self.role, "content": self._content()}
            case "function_call":
                return told | {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
            case "function_call_output":
                return told | {"call_id": self.call_id, "output": _joined(self.output)}
            case _:
                summary = [{"type": "summary_text", "text": part.text} for part in self.summary or ()]
                content = [{"type": "reasoning_text", "text": part.text} for part in self.content or ()]
                return told | {"summary": summary, "content": content}

    def _content(self) -> list[Json]:
        parts = self.content or ()
        if self.role != "assistant":
            return [{"type": "input_text", "text": part.text} for part in parts]
        return [{"type": "output_text", "text": part.text, "annotations": []} for part in parts]


def _kind(item: Mapping[str, Any]) -> str:
    kind: str | None = item.get("type")
    return ("message" if item.get("role") is not None else "item_reference") if kind is None else kind


_OWN: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "message": (("role", "content"), ("id", "status")),
    "function_call": (("call_id", "name", "arguments"), ("id", "status", "parsed_arguments")),
    "function_call_output": (("call_id", "output"), ("id", "status")),
    "reasoning": ((), ("id", "status", "content", "summary")),
    "item_reference": (("id",), ()),
}
"""The fields that an item of a type must have, and those that it may have."""


def _items(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise InvalidRequest("must be a string or a list of items")
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


Items = Annotated[
    list[Item],
    Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS),
    BeforeValidator(_items, json_schema_input_type=str | Annotated[list[Item], Field(min_length=1)]),
]
"""A text is what the user says. The first item that is wrong is told, and no other."""


def has_object(arguments: str) -> bool:
    """Whether they are the JSON text of an object, as chat templates want to have it."""
    try:
        called_with(arguments)
    except InvalidRequest:
        return False
    return True


def check_outputs(earlier: Sequence[Json], items: Sequence[Json]) -> None:
    """Raise InvalidRequest unless each call, `earlier` or among the items, has one output behind it.

    Several calls of one id with no output between them are one call.
    """
    open_calls: dict[str, bool] = {}
    for place, item in enumerate([*earlier, *items], -len(earlier)):
        if item["type"] == "function_call":
            open_calls[item["call_id"]] = True
        elif item["type"] == "function_call_output":
            if not open_calls.get(item["call_id"], False):
                raise _no_call(place, item["call_id"], is_second=item["call_id"] in open_calls)
            open_calls[item["call_id"]] = False
    for call_id, is_open in open_calls.items():
        if is_open:
            text = (
                f"input: the function_call with the call_id {call_id[:100]!r} has no output; send a "
                "function_call_output for each call"
            )
            raise InvalidRequest(text, "input")


def _no_call(place: int, call_id: str, *, is_second: bool) -> InvalidRequest:
    """Why an output cannot be where it is."""
    if is_second:
        text = f"there is an output already for the call_id {call_id[:100]!r}; send one for each call"
    else:
        text = (
            f"no function_call before this output has the call_id {call_id[:100]!r}; "
            "send the call before it, or the previous_response_id of the response that called"
        )
    return InvalidRequest(text, f"input.{place}.call_id")


def conversation(items: Sequence[Json]) -> list[Json]:
    """The messages that items are. What the assistant does in one turn is one message of lines."""
    messages: list[Json] = []
    for item in items:
        if item["type"] == "function_call_output":
            said = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            messages.append(said)
        elif item["type"] == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _text(item["content"])})
        else:
            _say(messages, item)
    return [_joined_turn(message) for message in messages]


def _say(messages: list[Json], item: Json) -> None:
    """Add to the assistant's turn, or begin one: reasoning comes first, and two messages are two turns.

    The texts of a turn stay apart until all are there: joined one by one, each would copy those before it.
    """
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    match item["type"]:
        case "reasoning":
            turn = _turn(messages, None if last is None or last.keys() & {"content", "tool_calls"} else last)
            turn.setdefault("reasoning", []).append(_text(item["content"] or item["summary"]))
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            _turn(messages, last).setdefault("tool_calls", []).append(call)
        case _:
            has_spoken = last is not None and "content" in last and "tool_calls" not in last
            turn = _turn(messages, None if has_spoken else last)
            turn.setdefault("content", []).append(_text(item["content"]))


def _turn(messages: list[Json], turn: Json | None) -> Json:
    if turn is None:
        turn = {"role": "assistant"}
        messages.append(turn)
    return turn


def _joined_turn(message: Json) -> Json:
    """The message with the assistant's texts in one piece."""
    texts = {name: message[name] for name in ("reasoning", "content") if isinstance(message.get(name), list)}
    return message | {name: "\n".join(filter(None, parts)) for name, parts in texts.items()}


def _text(parts: Sequence[Json]) -> str:
    return "\n".join(part["text"] for part in parts)


def _joined(parts: Sequence[Part] | None) -> str:
    return "\n".join(part.text for part in parts or ())
