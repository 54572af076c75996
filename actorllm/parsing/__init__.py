"""What an answer's text says: reasoning, content and tool calls, and the grammars that enforce calls."""

from .choose import reasoning_format, reasoning_format_for, tool_format, tool_format_for
from .enforce import Function, structured_outputs
from .events import CallArguments, CallBegun, CallEnded, Content, Event, Reasoning
from .formats import REASONING_FORMATS, TOOL_FORMATS, ReasoningFormat, ToolFormat
from .parser import Parser, opens_reasoning
from .reasoned import behind_reasoning, perhaps_behind_reasoning

__all__ = [
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "CallArguments",
    "CallBegun",
    "CallEnded",
    "Content",
    "Event",
    "Function",
    "Parser",
    "Reasoning",
    "ReasoningFormat",
    "ToolFormat",
    "behind_reasoning",
    "opens_reasoning",
    "perhaps_behind_reasoning",
    "reasoning_format",
    "reasoning_format_for",
    "structured_outputs",
    "tool_format",
    "tool_format_for",
]
