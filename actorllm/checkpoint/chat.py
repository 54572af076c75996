"""Chat templates, rendered as transformers renders them."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidRequest


class ChatTemplate:
    """The chat templates of a model, each compiled once, at its first use. Threads may share one.

    templates       by name; the usual one is called `default`
    special_tokens  what templates know as `bos_token`, `eos_token` and so on
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.templates = dict(templates)
        self.special_tokens = dict(special_tokens)
        self._compiled: dict[str, Template] = {}
        self._lock = Lock()

    def render(self, messages: Iterable[Any], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt for a conversation; `variables` (such as `tools`) are passed on to the template.

        With tools, a template called `tool_use` is preferred. Raises InvalidRequest if the model has no
        template or the template refuses the conversation.
        """
        name = "tool_use" if variables.get("tools") and "tool_use" in self.templates else "default"
        context = {"tools": None, "documents": None, **self.special_tokens, **variables}
        try:
            template = self._template(name)
            return template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **context
            )
        except InvalidRequest:
            raise
        except Exception as error:  # a template may trip over anything that a caller puts into a message
            raise InvalidRequest(f"the chat template refused: {error}", "messages") from error

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
