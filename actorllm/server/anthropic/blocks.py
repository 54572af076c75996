"""What a conversation is made of in Anthropic's API, and the same messages as chats have them.

What is decided here where the two differ:

- Turns of one role that follow each other are one turn; its texts are lines.
- In a turn of the assistant the calls stand behind the texts, as chat templates have them.
- Thinking goes back to the template; redacted thinking can be read by nobody here, and is left out.
- The result of a tool that failed begins with `Error:`, since templates have no other word for it.
- `cache_control` does nothing: whatever can be shared of a prompt is cached anyway.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, FailFast, Field, model_validator

from ...errors import InvalidRequest
from ..bodies.fields import Body, Neutral, Text
from ..bodies.objects import JsonObject
from ..told import Json

CALL = "toolu_"
"""How the names of calls begin. The rest is what chat templates see: some take nine letters and no more."""


class Cached(Body):
    """Something that may have a `cache_control`."""

    cache_control: Any = None


class TextBlock(Cached):
    """Text."""

    neutral: ClassVar[Neutral] = {"citations": ([],)}

    type: Literal["text"]
    text: Text


class ThinkingBlock(Body):
    """What an earlier answer thought. There is nothing to check a signature against."""

    type: Literal["thinking"]
    thinking: Text
    signature: str = ""


class RedactedBlock(Body):
    """Thinking that only another server could read."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Cached):
    """A call of an earlier answer."""

    neutral: ClassVar[Neutral] = {"caller": ({"type": "direct"},), "toolset_name": ()}

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: JsonObject

    def for_chat(self) -> Json:
        """The call, as chats have it."""
        function = {"name": self.name, "arguments": json.dumps(self.input)}
        return {"id": self.id.removeprefix(CALL), "type": "function", "function": function}


def _blocks_of(blocks: Any, *kinds: str) -> BeforeValidator:
    """Reads a list of these blocks, which are of these kinds, or a string, which is one block of text."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            return [{"type": "text", "text": value}]
        if not isinstance(value, list):
            raise InvalidRequest("must be a string or a list of blocks")
        for index, block in enumerate(value):
            kind = block.get("type") if isinstance(block, dict) else block
            if kind not in kinds:
                text = f"a block of type {str(kind)[:50]!r} is not read here, only {', '.join(kinds)}"
                raise InvalidRequest(text, str(index))
        return value

    return BeforeValidator(check, json_schema_input_type=str | list[blocks])


TextBlocks = Annotated[list[TextBlock], FailFast(), _blocks_of(TextBlock, "text")]


class ToolResultBlock(Cached):
    """What a tool has answered to a call."""

    neutral: ClassVar[Neutral] = {"toolset_name": ()}

    type: Literal["tool_result"]
    tool_use_id: Text
    content: TextBlocks = Field([])
    is_error: bool = False

    def for_chat(self) -> Json:
        """The message of the tool."""
        text = _lines(self.content)
        content = f"Error: {text}" if self.is_error else text
        return {"role": "tool", "tool_call_id": self.tool_use_id.removeprefix(CALL), "content": content}


Block = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
OneBlock = Annotated[Block, Field(discriminator="type")]

WHO_SAYS = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
"""The types of blocks that a role may have."""


class Message(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[OneBlock],
        FailFast(),
        Field(min_length=1),
        _blocks_of(OneBlock, "text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
    ]

    @model_validator(mode="after")
    def _only_its_own(self) -> "Message":
        for index, block in enumerate(self.content):
            if block.type not in WHO_SAYS[self.role]:
                text = f"a message of role {self.role!r} cannot have a block of type {block.type!r}"
                raise InvalidRequest(text, f"content.{index}")
        return self


def conversation(system: Sequence[TextBlock], messages: Iterable[Message]) -> list[Json]:
    """The messages, as chats have them."""
    found: list[Json] = [{"role": "system", "content": _lines(system)}] if system else []
    for role, turn in groupby(messages, lambda message: message.role):
        blocks = [block for message in turn for block in message.content]
        found += [_answer(blocks)] if role == "assistant" else _said(role, blocks)
    return found


def _said(role: str, blocks: Iterable[Block]) -> list[Json]:
    """What the user says, and what tools have answered."""
    found: list[Json] = []
    for _, run in groupby(blocks, lambda block: block.type):
        same = list(run)
        results = [block.for_chat() for block in same if isinstance(block, ToolResultBlock)]
        found += results or [{"role": role, "content": _lines(same)}]
    return found


def _answer(blocks: Sequence[Block]) -> Json:
    """An earlier answer."""
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [block.for_chat() for block in blocks if isinstance(block, ToolUseBlock)]
    return {
        "role": "assistant",
        "content": _lines(blocks),
        "reasoning_content": "\n".join(thoughts) or None,
        "tool_calls": calls,
    }


def _lines(blocks: Iterable[Block]) -> str:
    """The texts among the blocks."""
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
