"""How the text of an answer is read: what of it is reasoning, content, and calls of tools."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from math import inf
from typing import Any

from ...cores.text import Vocabulary
from ...engine.engine import Engine
from ...engine.outputs import CompletionOutput
from ...parsing import (
    CallArguments,
    CallBegun,
    Content,
    Event,
    Parser,
    Reasoning,
    ReasoningFormat,
    ToolFormat,
    behind_reasoning,
    opens_reasoning,
    perhaps_behind_reasoning,
    reasoning_format,
    reasoning_format_for,
    tool_format,
    tool_format_for,
)

TAIL = 16
"""Tokens at a prompt's end in which a template may have opened the reasoning."""


Behind = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Makes of a form (`SamplingParams.structured_outputs`) the one that holds behind reasoning."""


class Formats:
    """The formats that a model speaks: by name, by its chat template (`auto`), or none (None).

    Raises ConfigError for a name that is not known.
    """

    def __init__(self, engine: Engine, tools: str | None, reasoning: str | None) -> None:
        self._engine = engine
        self._tools = None if tools in (None, "auto") else tool_format(tools)
        self._reasoning = None if reasoning in (None, "auto") else reasoning_format(reasoning)
        self._finds_tools = tools == "auto"
        self._finds_reasoning = reasoning == "auto"

    @cached_property
    def tools(self) -> ToolFormat | None:
        """How tools are called. A template that knows none is told to use Hermes' format; None: unknown."""
        if not self._finds_tools:
            return self._tools
        chat = self._engine.tokenizer.chat
        known = [name for name in chat.templates if chat.knows_tools(name)]
        if not known:
            return tool_format("hermes")
        found = [tool_format_for(chat.templates[name]) for name in sorted(known, reverse=True)]
        return next((each for each in found if each is not None), None)

    @cached_property
    def reasoning(self) -> ReasoningFormat | None:
        """How reasoning is marked."""
        if not self._finds_reasoning:
            return self._reasoning
        found = map(reasoning_format_for, self._engine.tokenizer.chat.templates.values())
        return next((each for each in found if each is not None), None)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is looked for in the answers to one request; of calls, no more than `most_calls`.

    `continued` is the text of a message that the answer goes on with, None for an answer of its own.
    """

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    most_calls: int | None = None
    continued: str | None = None

    def behind(self, prompt: str) -> Behind:
        """How a form is held to: behind reasoning, if the prompt begins it, or leaves that open."""
        if self.reasoning is None:
            return dict
        if self._begun(prompt):
            return partial(behind_reasoning, reasoning=self.reasoning)
        if self.continued is not None or prompt.rstrip().endswith(self.reasoning.end):
            return dict
        return partial(perhaps_behind_reasoning, reasoning=self.reasoning)

    def _begun(self, prompt_tail: str) -> bool:
        """Whether the answer begins within reasoning."""
        if self.reasoning is None:
            return False
        if self.continued is None:
            return opens_reasoning(self.reasoning, prompt_tail)
        return self.continued.rfind(self.reasoning.begin) > self.continued.rfind(self.reasoning.end)

    @property
    def keeps_special(self) -> bool:
        """Whether markers may be special tokens, so that these must be in the text."""
        formats = (self.reasoning, self.tools)
        return any(each.keeps_special for each in formats if each is not None)

    def turn(self, prompt: Sequence[int], vocabulary: Vocabulary) -> "Turn":
        """What reads one answer; the end of its prompt tells whether the template has begun the reasoning."""
        if self.reasoning is None and self.tools is None:
            return Turn(None)
        tail = b"".join(vocabulary.pieces[token] for token in prompt[-TAIL:])
        begun = self._begun(tail.decode(errors="replace"))
        parser = Parser(self.reasoning, self.tools, self.names, in_reasoning=begun)
        if self.reasoning is None:
            return Turn(parser, self.most_calls)
        return Turn(parser, self.most_calls, partial(thought, vocabulary.pieces, self.reasoning.end.encode()))


class Turn:
    """One answer, as it comes. Without a parser all of it is content."""

    def __init__(
        self,
        parser: Parser | None,
        most_calls: int | None = None,
        thought: Callable[[Sequence[int]], int] | None = None,
    ) -> None:
        """`thought` counts those of the tokens of an answer with reasoning that are reasoning."""
        self._parser = parser
        self._most = inf if most_calls is None else most_calls
        self._count = thought
        self._tokens: list[int] = []
        self._has_thought = False
        self.calls = 0

    @property
    def num_thought(self) -> int:
        """How many of its tokens are reasoning, with the markers around it."""
        return self._count(self._tokens) if self._count is not None and self._has_thought else 0

    def news(self, answer: CompletionOutput) -> list[Event]:
        """What is certain now and was not before; texts that follow each other are one."""
        if self._parser is None:
            return [Content(answer.delta)] if answer.delta else []
        if self._count is not None:
            self._tokens += answer.token_ids
        events = self._parser.feed(answer.delta)
        if answer.finish_reason is not None:
            events = [*events, *self._parser.finish()]
        found = [event for event in merged(events) if getattr(event, "index", 0) < self._most]
        self.calls += sum(isinstance(event, CallBegun) for event in found)
        self._has_thought |= any(isinstance(event, Reasoning) for event in found)
        return found

    def ending(self, answer: CompletionOutput) -> str | None:
        """Why the answer ended, in OpenAI's words."""
        return "tool_calls" if self.calls and answer.finish_reason == "stop" else answer.finish_reason


def thought(pieces: Sequence[bytes], end: bytes, tokens: Sequence[int]) -> int:
    """How many of the first tokens it takes until their text has the marker; all if it never has it."""
    texts = [pieces[token] if token < len(pieces) else b"" for token in tokens]
    found = b"".join(texts).find(end)
    if found < 0:
        return len(tokens)
    return bisect_left(list(accumulate(map(len, texts))), found + len(end)) + 1


@dataclass(slots=True)
class Said:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    """Name and arguments (JSON text) of each."""


def gathered(events: Iterable[Event]) -> Said:
    """All that the events of an answer say."""
    said = Said()
    names: list[str] = []
    arguments: list[str] = []
    for event in events:
        match event:
            case Content(text):
                said.content += text
            case Reasoning(text):
                said.reasoning += text
            case CallBegun(_, name):
                names.append(name)
                arguments.append("")
            case CallArguments(index, text):
                arguments[index] += text
    said.calls = list(zip(names, arguments, strict=True))
    return said


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbours of one kind made one."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        match last, event:
            case Content(before), Content(text):
                found[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                found[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                found[-1] = replace(last, text=before + text)
            case _:
                found.append(event)
    return found
