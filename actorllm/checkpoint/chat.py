"""Chat templates, rendered as transformers renders them."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidRequest
from .tools import in_plain_messages

MARK = "\u2402 final message \u2403"
"""Stands for the text of the last message, to find its place in a prompt."""


class ChatTemplate:
    """The chat templates of a model, each compiled once, at its first use. Threads may share one.

    templates       by name; the usual one is called `default`
    special_tokens  what templates know as `bos_token`, `eos_token` and so on
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.templates = dict(templates)
        self.special_tokens = dict(special_tokens)
        self._compiled: dict[str, Template] = {}
        self._variables: dict[str, frozenset[str]] = {}
        self._lock = Lock()

    def render(
        self,
        messages: Iterable[Any],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation; `variables` (such as `tools`) are passed on to the template.

        With tools, a template called `tool_use` is preferred; one that knows no tools gets them as text
        (`tools.in_plain_messages`). With `continue_final_message` the prompt ends with the last text.
        Raises InvalidRequest if the model has no template or the template refuses the conversation.
        """
        listed = list(messages)
        if not continue_final_message:
            return self._render(listed, add_generation_prompt, variables)
        place = self._render([*listed[:-1], {**listed[-1], "content": MARK}], False, variables)
        return _unfinished(self._render(listed, False, variables), place.partition(MARK)[0], listed[-1])

    def _render(self, messages: list[Any], add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        name = "tool_use" if variables.get("tools") and "tool_use" in self.templates else "default"
        context = {"tools": None, "documents": None, **self.special_tokens, **variables}
        try:
            template = self._template(name)
            if not self.knows_tools(name):
                messages = in_plain_messages(messages, variables.get("tools"))
            return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **context)
        except InvalidRequest:
            raise
        except Exception as error:  # a template may trip over anything that a caller puts into a message
            raise InvalidRequest(f"the chat template refused: {error}", "messages") from error

    def variables(self, name: str = "default") -> frozenset[str]:
        """What a template asks for; nothing when there is none, or none that can be read."""
        with self._lock:
            if name not in self._variables:
                try:
                    parsed = self._environment.parse(self.templates.get(name, ""))
                    self._variables[name] = frozenset(meta.find_undeclared_variables(parsed))
                except TemplateError:
                    self._variables[name] = frozenset()
            return self._variables[name]

    def knows_tools(self, name: str = "default") -> bool:
        """Whether a template does anything with tools."""
        return "tools" in self.variables(name)

    def _template(self, name: str) -> Template:
        if name not in self.templates:
            raise InvalidRequest("this model has no chat template: send a plain prompt", "messages")
        with self._lock:
            if name not in self._compiled:
                self._compiled[name] = self._environment.from_string(self.templates[name])
            return self._compiled[name]

    @cached_property
    def _environment(self) -> Environment:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment


def _unfinished(text: str, before: str, last: Mapping[str, Any]) -> str:
    """The prompt up to the end of its last message's text, which begins behind `before`.

    A template may have taken the blanks around it away.
    """
    content = last.get("content") or ""
    for kept in (content, content.lstrip(), content.rstrip(), content.strip()):
        if kept.strip() and text.startswith(before + kept):
            return before + kept
    reason = "the last message has no text in the prompt that an answer could continue"
    raise InvalidRequest(reason, "continue_final_message")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """The body as a block of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
