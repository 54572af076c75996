"""What a parser has told, in short, and that its events are in order."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from actorllm.parsing import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    CallArguments,
    CallBegun,
    CallEnded,
    Content,
    Event,
    Parser,
    Reasoning,
)

NAMES = ("f", "get_weather", "naïve")


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class Called:
    name: str
    arguments: str = "{}"


Told = list[str | Thought | Called]


def told(events: Iterable[Event]) -> Told:
    """The events with neighbouring texts of a kind as one: a str is content. Calls must be numbered, whole
    and one after the other, and no text empty.
    """
    said: Told = []
    open_call: int | None = None
    num_calls = 0
    for event in events:
        last = said[-1] if said else None
        match event:
            case CallBegun(index, name):
                assert (open_call, index) == (None, num_calls)
                open_call, num_calls = index, num_calls + 1
                said.append(Called(name, ""))
            case CallArguments(index, text):
                assert text
                assert isinstance(last, Called)
                assert open_call == index
                said[-1] = Called(last.name, last.arguments + text)
            case CallEnded(index):
                assert open_call == index
                open_call = None
            case Content(text):
                assert (text != "", open_call) == (True, None)
                said[-1:] = [last + text] if isinstance(last, str) else [*said[-1:], text]
            case Reasoning(text):
                assert (text != "", open_call) == (True, None)
                said[-1:] = (
                    [Thought(last.text + text)] if isinstance(last, Thought) else [*said[-1:], Thought(text)]
                )
    assert open_call is None
    return said


def parser(tools: str | None, reasoning: str | None = None, *, in_reasoning: bool = False) -> Parser:
    return Parser(
        None if reasoning is None else REASONING_FORMATS[reasoning],
        None if tools is None else TOOL_FORMATS[tools],
        NAMES,
        in_reasoning=in_reasoning,
    )


def parsed(
    pieces: Iterable[str], tools: str | None, reasoning: str | None = None, *, in_reasoning: bool = False
) -> Told:
    each = parser(tools, reasoning, in_reasoning=in_reasoning)
    return told([*(event for piece in pieces for event in each.feed(piece)), *each.finish()])


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The text, cut at these places."""
    ends = [0, *sorted(places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]
