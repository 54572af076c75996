"""What callers give to be answered, made into messages. Whatever cannot be raises InvalidRequest."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from ..checkpoint import Tokenizer
from ..checks import plain
from ..errors import InvalidRequest
from ..messages import Conversation, TextPrompt, TokenPrompt, pack, unpack
from ..service import Service

Prompt = str | Sequence[int]
"""Text, or token ids."""

TEMPLATES_OWN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "self"}
)
"""What is no variable of a chat template's own: it has an argument here, or means something in Python."""


def prompt_of(prompt: Prompt, add_special_tokens: bool) -> TextPrompt | TokenPrompt:
    """A prompt; arrays of NumPy and tensors of torch are lists of token ids too."""
    if isinstance(prompt, str):
        return TextPrompt(_text(prompt, "prompt"), bool(add_special_tokens))
    return TokenPrompt(_column(prompt))


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of tokens that stand by themselves."""
    column = unpack(_column(tokens, "tokens"))
    for token in column:
        if token >= tokenizer.vocab_size:
            text = f"token id {token} is outside the vocabulary of {tokenizer.vocab_size}"
            raise InvalidRequest(text, "tokens")
    return tokenizer.decode(column)


class Template(TypedDict, total=False):
    """What the chat template is to know besides the messages.

    tools                   functions that the model may call, in OpenAI's form; a template that knows no
                            tools is told of them in a system message
    documents               for templates that know them
    chat_template_kwargs    further variables of the template, such as `enable_thinking`
    continue_final_message  the answer goes on with the last message instead of being a new one
    add_generation_prompt   whether the prompt ends with the beginning of an answer (default: unless it
                            continues the final message)
    add_special_tokens      the tokenizer's own are put around the prompt; most templates have them already
    """

    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    add_special_tokens: bool


class ChatArguments(Service, Template, total=False):
    """What `Engine.chat` may be told besides its messages and params."""


def split(asked: ChatArguments) -> tuple[Template, Service]:
    """What is for the template, and what says how the request is served; the latter has what is unknown."""
    template = {name: value for name, value in asked.items() if name in Template.__annotations__}
    service = {name: value for name, value in asked.items() if name not in template}
    return cast(Template, template), cast(Service, service)


def conversation_of(messages: Sequence[Mapping[str, Any]], template: Template) -> Conversation:
    """A conversation, and what else its template is to know."""
    add_generation_prompt = template.get("add_generation_prompt")
    continue_final_message = bool(template.get("continue_final_message"))
    if add_generation_prompt and continue_final_message:
        text = "add_generation_prompt and continue_final_message exclude each other"
        raise InvalidRequest(text, "continue_final_message")
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    return Conversation(
        _json(_messages(messages), "messages"),
        bool(add_generation_prompt),
        _variables(template),
        continue_final_message,
        bool(template.get("add_special_tokens")),
    )


def _variables(template: Template) -> str:
    variables = dict(template.get("chat_template_kwargs") or {})
    own = sorted(TEMPLATES_OWN & variables.keys())
    if own:
        text = f"chat_template_kwargs cannot have {own[0]!r}; leave it out, or give it as a field of its own"
        raise InvalidRequest(text, "chat_template_kwargs")
    for name, listed in (("tools", template.get("tools")), ("documents", template.get("documents"))):
        if listed:
            variables[name] = _objects(listed, name)
    return _json(variables, "chat_template_kwargs") if variables else ""


def _messages(messages: Any) -> list[dict[str, Any]]:
    """Check the shape that every chat template relies on."""
    found = _objects(messages, "messages")
    if not found:
        raise InvalidRequest("messages must be a list of at least one message", "messages")
    for index, message in enumerate(found):
        if not isinstance(message.get("role"), str):
            text = f"messages[{index}] must be an object with a role, not {message!r}"
            raise InvalidRequest(text, "messages")
        if not isinstance(message.get("content"), str | None):
            text = f"the content of messages[{index}] must be text, not {message.get('content')!r}"
            raise InvalidRequest(text, "messages")
    return found


def _objects(listed: Any, param: str) -> list[dict[str, Any]]:
    if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
        raise InvalidRequest(f"{param} must be a list of objects, not {type(listed).__name__}", param)
    for index, each in enumerate(listed):
        if not isinstance(each, Mapping):
            kind = " with a role" if param == "messages" else ""
            raise InvalidRequest(f"{param}[{index}] must be an object{kind}, not {each!r}", param)
    return [dict(each) for each in listed]


def _json(value: Any, param: str) -> str:
    try:
        return _text(json.dumps(value, ensure_ascii=False), param)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"{param} must be JSON: {error}", param) from error


def _text(prompt: str, param: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        text = f"{param} is not valid Unicode: there is a lone surrogate at position {error.start}"
        raise InvalidRequest(text, param) from error
    return plain(prompt)


def _column(tokens: Any, param: str = "prompt") -> bytes:
    """Token ids as a column."""
    if hasattr(tokens, "tolist") and not isinstance(tokens, memoryview):
        tokens = tokens.tolist()
    if not isinstance(tokens, Sequence) or isinstance(tokens, bytes | bytearray | memoryview):
        what = "the prompt must be a string or" if param == "prompt" else f"{param} must be"
        raise InvalidRequest(f"{what} a list of token ids, not {type(tokens).__name__}", param)
    if {*map(type, tokens)} == {int} and min(tokens) >= 0 and max(tokens) < 2**31:
        return pack(tokens)
    return pack(_token(token, param) for token in tokens)


def _token(token: Any, param: str) -> int:
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise InvalidRequest(f"a token id must be an integer, not {token!r}", param)
    number: int = token.__index__()
    if not 0 <= number < 2**31:
        raise InvalidRequest(f"token id {number} is outside the vocabulary", param)
    return number
