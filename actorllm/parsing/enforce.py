"""Grammars that make a model call tools in its own format."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest
from ..structured.keywords import COMBINERS
from ..structured.source import source
from ..structured.spec import FIELD, MAX_TEXT, spec
from .formats import ToolFormat

Schema = dict[str, Any] | bool
Format = dict[str, Any]

_ANY: Format = {"type": "object"}
_SPACES = r"[ \n]{0,4}"


@dataclass(frozen=True, slots=True)
class Function:
    """A tool that may be called. `strict`: a call's arguments must obey the schema of its parameters."""

    name: str
    parameters: Schema = True
    strict: bool = False


def structured_outputs(
    tools_format: ToolFormat,
    tools: Sequence[Function],
    choice: str,
    parallel: bool,
) -> dict[str, Any] | None:
    """`SamplingParams.structured_outputs` that hold an answer to this choice of tools; None: it is free.

    required    one call, or with `parallel` one or several, and nothing else
    a name      exactly one call of this function
    auto        free, unless a function is strict: then what begins as a call must be one

    Arguments are by the schema where the function is strict, and otherwise any object; but where a call is
    required, a schema is followed as well, provided that it can be enforced.

    Raises InvalidRequest, with `param` tools or tool_choice: for a schema that cannot be enforced, a function
    that there is not, and Python calls, which are not enforced.
    """
    if choice == "auto" and not any(tool.strict for tool in tools):
        return None
    chosen = _chosen(tools, choice)
    if tools_format.syntax == "python":
        raise _not_enforced(choice)
    writer = _Writer(tools_format, choice, parallel)
    return writer.value([(tool.name, _schema(tool, writer)) for tool in chosen])


def _chosen(tools: Sequence[Function], choice: str) -> Sequence[Function]:
    chosen = tools if choice in ("auto", "required") else [tool for tool in tools if tool.name == choice]
    if chosen:
        return chosen
    known = ", ".join(tool.name for tool in tools) or "there is none"
    if choice == "required":
        raise InvalidRequest("tool_choice is required, but there are no tools; give some", "tool_choice")
    raise InvalidRequest(f"tool_choice names {choice!r}, which is not among tools: {known}", "tool_choice")


def _not_enforced(choice: str) -> InvalidRequest:
    use = "use another tool parser, such as llama3_json"
    if choice == "auto":
        text = f"tools has a strict function, but Python calls are not enforced; leave strict out, or {use}"
        return InvalidRequest(text, "tools")
    text = f"tool_choice {choice!r} is not possible with Python calls, which are not enforced; {use}"
    return InvalidRequest(text, "tool_choice")


def _schema(tool: Function, writer: "_Writer") -> Schema:
    """What the arguments of a call must be."""
    if not tool.strict and writer.choice == "auto":
        return _ANY
    try:
        return _enforced(tool, writer)
    except InvalidRequest:
        if tool.strict:
            raise
        return _ANY


def _enforced(tool: Function, writer: "_Writer") -> Schema:
    """The schema of a function, of objects only. Raises InvalidRequest that names the function."""
    where = f"tools: the parameters of {tool.name!r}"
    schema = tool.parameters
    if schema is True:
        return _ANY
    if isinstance(schema, dict) and "type" not in schema and not any(key in schema for key in COMBINERS):
        schema = {"type": "object", **schema}
    if isinstance(schema, dict) and schema.get("type", "object") != "object":
        raise InvalidRequest(f'{where} must have type "object", not {str(schema["type"])[:100]!r}', "tools")
    try:
        text = spec({"json": schema})
        writer.count(text)
        source(json.loads(text))
        spec(writer.value([(tool.name, schema)]))
    except InvalidRequest as error:
        text = str(error).removeprefix(f"{FIELD}.json ").removeprefix(f"{FIELD}.structural_tag ")
        raise InvalidRequest(f"{where} {text}", "tools") from error
    return schema


class _Writer:
    """Writes structural tags, for functions with the schemas of their arguments."""

    def __init__(self, tools_format: ToolFormat, choice: str, parallel: bool) -> None:
        self.choice = choice
        self._format = tools_format
        self._several = parallel and choice in ("auto", "required")
        self._num_chars = 0

    def count(self, schema: str) -> None:
        """Bound what all schemas take together, before the time is spent. Raises InvalidRequest."""
        self._num_chars += len(schema)
        if self._num_chars > MAX_TEXT:
            text = f"and those before take more than {MAX_TEXT} characters; give fewer strict tools"
            raise InvalidRequest(text, "tools")

    def value(self, functions: Sequence[tuple[str, Schema]]) -> dict[str, Any]:
        """All of `structured_outputs`."""
        written = self._calls(functions) if self.choice != "auto" else self._auto(functions)
        return {"structural_tag": {"type": "structural_tag", "format": written}}

    def _calls(self, functions: Sequence[tuple[str, Schema]]) -> Format:
        """Nothing but calls."""
        blocks = self._blocks(functions)
        if self._in_list or not self._several:
            return _either(blocks)
        return _listed(blocks, f"{self._format.separator} " if self._format.separator else self._between)

    def _auto(self, functions: Sequence[tuple[str, Schema]]) -> Format:
        if self._format.anywhere:
            return {
                "type": "triggered_tags",
                "triggers": [self._format.begin],
                "tags": self._blocks(functions),
                "stop_after_first": not self._several,
            }
        other = {"type": "regex", "pattern": rf"{_SPACES}(?:[^\s{{<]|<[^|])"}
        return _either([self._calls(functions), _sequence(other, {"type": "any_text"}), _text("")])

    @property
    def _in_list(self) -> bool:
        return self._format.syntax == "array" and not self._format.infixed

    @property
    def _between(self) -> str:
        return "\n" if self._format.end else ""

    def _blocks(self, functions: Sequence[tuple[str, Schema]]) -> list[Format]:
        """Tags that begin with the format's marker, where it has one that is always written."""
        form = self._format
        if form.infixed:
            return [_tag(f"{form.begin}{name}{form.infix}", _json(schema), "") for name, schema in functions]
        if self._in_list:
            objects = self._objects(functions, "", "")
            content = _listed(objects, ", ") if self._several else _either(objects)
            return [_tag(f"{form.begin} [", content, "]")]
        if form.anywhere:
            return self._objects(functions, f"{form.begin}\n", f"\n{form.end}")
        return self._objects(functions, "", "")

    def _objects(self, functions: Sequence[tuple[str, Schema]], before: str, behind: str) -> list[Format]:
        member = self._format.member
        return [
            _tag(f'{before}{{"name": {json.dumps(name)}, "{member}": ', _json(schema), "}" + behind)
            for name, schema in functions
        ]


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _json(schema: Schema) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def _text(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _either(formats: list[Format]) -> Format:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": formats}


def _listed(tags: list[Format], separator: str) -> Format:
    return {"type": "tags_with_separator", "tags": tags, "separator": separator, "at_least_one": True}
