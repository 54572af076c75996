"""The Renderer's heavy work: chat template and tokenizer."""

import json
from typing import assert_never

from ..checkpoint import Checkpoint, Tokenizer
from ..config import EngineConfig
from ..errors import InvalidRequest
from ..messages import Conversation, Render, Rendered, TextPrompt, TokenPrompt, pack

NORMALISED = 4
"""A normaliser does not make a text shorter than by this factor."""


def render(checkpoint: Checkpoint, config: EngineConfig, max_model_len: int, work: Render) -> Rendered:
    """Tokens of a prompt, and of what else is text in the question.

    Raises InvalidRequest for a conversation that the template refuses, and for a text that is longer than
    so many tokens can be: it is not tokenised first.
    """
    tokenizer, question = checkpoint.tokenizer(), work.question
    bound = None if question.truncate is not None else max_model_len
    tokens = prompt_tokens(tokenizer, question.prompt, bound)
    begin = end = b""
    if question.sampling.thinking is not None:
        begin = pack(tokenizer.encode(config.reasoning_start_str, add_special_tokens=False))
        end = pack(tokenizer.encode(config.reasoning_end_str, add_special_tokens=False))
    words = bad_words(tokenizer, question.bad_words)
    return Rendered(work.request, tokens, words, begin, end)


def prompt_tokens(
    tokenizer: Tokenizer, prompt: TextPrompt | TokenPrompt | Conversation, max_model_len: int | None
) -> bytes:
    """The tokens of a prompt (int32 column). Raises InvalidRequest for a conversation that the template
    refuses, and for a text that cannot be as few as `max_model_len` tokens (None: any will do).
    """
    match prompt:
        case TextPrompt(text, add_special_tokens):
            _check_length(text, tokenizer, max_model_len)
            return pack(tokenizer.encode(text, add_special_tokens=add_special_tokens))
        case Conversation() as conversation:
            text = chat_text(tokenizer, conversation)
            _check_length(text, tokenizer, max_model_len)
            return pack(tokenizer.encode(text, add_special_tokens=conversation.add_special_tokens))
        case TokenPrompt(tokens):
            return tokens
        case _ as unknown:
            assert_never(unknown)


def chat_text(tokenizer: Tokenizer, conversation: Conversation) -> str:
    """The prompt for a conversation. Raises InvalidRequest for one that the template refuses."""
    return tokenizer.render_chat(
        json.loads(conversation.messages),
        conversation.add_generation_prompt,
        conversation.continue_final_message,
        **(json.loads(conversation.variables) if conversation.variables else {}),
    )


def bad_words(tokenizer: Tokenizer, words: tuple[str, ...]) -> tuple[bytes, ...]:
    """Each word as it is tokenised at the beginning of a text and behind a space (int32 columns)."""
    found: dict[bytes, None] = {}
    for word in words:
        for text in (word, f" {word.lstrip()}"):
            found[pack(tokenizer.encode(text, add_special_tokens=False))] = None
    found.pop(b"", None)
    return tuple(found)


def _check_length(text: str, tokenizer: Tokenizer, max_model_len: int | None) -> None:
    if max_model_len is not None and len(text) > NORMALISED * max_model_len * tokenizer.longest_piece:
        reason = (
            f"the prompt has {len(text)} characters, more than max_model_len {max_model_len} tokens can hold"
        )
        raise InvalidRequest(reason, "prompt")
