"""Which format a model speaks, by the markers in its chat template, or by name."""

from ..errors import ConfigError
from .formats import (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_ARGS,
    PYTHONIC,
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
)

# In this order: the first whose markers all stand in a template, with none of the others, is the one.
_SIGNS: tuple[tuple[ToolFormat, tuple[str, ...], tuple[str, ...]], ...] = (
    (MISTRAL_ARGS, ("[TOOL_CALLS]", "[ARGS]"), ()),
    (MISTRAL, ("[TOOL_CALLS]",), ()),
    (HERMES, ("<tool_call>", "</tool_call>"), ("<function=", "<arg_key>")),
    (PYTHONIC, ("<|python_start|>",), ()),
    (PYTHONIC, ("[func_name1(",), ()),
    (LLAMA3_JSON, ("<|python_tag|>",), ()),
    (LLAMA3_JSON, ("<|start_header_id|>", '"parameters": '), ()),
)


def tool_format_for(template: str) -> ToolFormat | None:
    """How a model with this chat template calls tools; None: not at all, or in a way that is not known."""
    for tools, present, absent in _SIGNS:
        if all(sign in template for sign in present) and not any(sign in template for sign in absent):
            return tools
    return None


def reasoning_format_for(template: str) -> ReasoningFormat | None:
    """How a model with this chat template marks its reasoning; None if it does not."""
    return next((each for each in REASONING_FORMATS.values() if each.end in template), None)


def tool_format(name: str) -> ToolFormat:
    """The format of this name. Raises ConfigError that names those that there are."""
    if name not in TOOL_FORMATS:
        raise ConfigError(f"there is no tool format {name!r}; known are {', '.join(TOOL_FORMATS)}")
    return TOOL_FORMATS[name]


def reasoning_format(name: str) -> ReasoningFormat:
    """The format of this name. Raises ConfigError that names those that there are."""
    if name not in REASONING_FORMATS:
        raise ConfigError(f"there is no reasoning format {name!r}; known are {', '.join(REASONING_FORMATS)}")
    return REASONING_FORMATS[name]
