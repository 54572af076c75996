"""How models mark what they think and which tools they call: data, which the parser and the grammars read."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between two markers, at the beginning of an answer.

    keeps_special  the markers may be special tokens: detokenise with skip_special_tokens=False
    """

    name: str
    begin: str
    end: str
    keeps_special: bool = True


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    begin      the marker before them; one that may be left out where they are the whole answer
    end        the marker behind them, which models may leave out; empty: there is none
    anywhere   they may stand anywhere in an answer; otherwise they are the whole answer
    syntax     object: {"name": ..., "arguments": ...}; array: a list of such objects, or a name and its
               arguments; python: a list of Python calls
    separator  what stands between two calls that are in no list
    infix      the marker between a name and its arguments, which models may leave out
    member     the name of the arguments in an object, when they are written; both names are read
    infixed    calls are written with the infix; otherwise as objects. Both are read
    special    those of the markers that may be special tokens
    """

    name: str
    begin: str
    end: str
    anywhere: bool
    syntax: Literal["object", "array", "python"]
    separator: str = ""
    infix: str = ""
    member: Literal["arguments", "parameters"] = "arguments"
    infixed: bool = False
    special: tuple[str, ...] = ()

    @property
    def keeps_special(self) -> bool:
        """Whether answers must be detokenised with skip_special_tokens=False, or markers may be lost."""
        return bool(self.special)


HERMES = ToolFormat(
    "hermes", "<tool_call>", "</tool_call>", True, "object", special=("<tool_call>", "</tool_call>")
)
LLAMA3_JSON = ToolFormat(
    "llama3_json",
    "<|python_tag|>",
    "",
    False,
    "object",
    separator=";",
    member="parameters",
    special=("<|python_tag|>",),
)
MISTRAL = ToolFormat(
    "mistral", "[TOOL_CALLS]", "", True, "array", infix="[ARGS]", special=("[TOOL_CALLS]", "[ARGS]")
)
MISTRAL_ARGS = ToolFormat(
    "mistral_args",
    "[TOOL_CALLS]",
    "",
    True,
    "array",
    infix="[ARGS]",
    infixed=True,
    special=("[TOOL_CALLS]", "[ARGS]"),
)
PYTHONIC = ToolFormat(
    "pythonic",
    "<|python_start|>",
    "<|python_end|>",
    False,
    "python",
    special=("<|python_start|>", "<|python_end|>"),
)

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": HERMES,
        "qwen": HERMES,
        "qwen2": HERMES,
        "qwen3": HERMES,
        "llama3_json": LLAMA3_JSON,
        "llama4_json": LLAMA3_JSON,
        "mistral": MISTRAL,
        "mistral_args": MISTRAL_ARGS,
        "pythonic": PYTHONIC,
        "llama4_pythonic": PYTHONIC,
    }
)
"""The formats by their names, several of which mean the same."""

THINK = ReasoningFormat("think", "<think>", "</think>")
MISTRAL_THINK = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
SEED_THINK = ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>")

REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        "think": THINK,
        "deepseek_r1": THINK,
        "qwen3": THINK,
        "glm45": THINK,
        "olmo3": THINK,
        "mistral": MISTRAL_THINK,
        "seed_oss": SEED_THINK,
    }
)
"""The formats by their names, several of which mean the same."""
