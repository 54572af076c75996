"""Tools for a chat template that knows none: they are told in messages, in the form that Hermes models use.

`<tools>`, `<tool_call>` and `<tool_response>` are those of the Hermes function-calling models, and of Qwen.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

INSTRUCTIONS = """\
You can call functions. They are listed in <tools></tools>, one JSON object a line:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments as a JSON object, for each call:
<tool_call>
{{"name": "the function's name", "arguments": {{}}}}
</tool_call>"""


def in_plain_messages(
    messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[Message]:
    """The same conversation with nothing but roles and texts; the tools stand in its system message."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    text = INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0]["role"] == "system":
        first, *rest = plain
        return [first | {"content": f"{first.get('content') or ''}\n\n{text}".lstrip()}, *rest]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: Mapping[str, Any]) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = message.get("tool_calls") or ()
    if not calls:
        return dict(message)
    parts = [content] if content else []
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return kept | {"content": "\n".join([*parts, *map(_call, calls)])}


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    said = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{said}\n</tool_call>"
