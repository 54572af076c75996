"""The Renderer's heavy work: chat template and tokenizer."""

import json
from typing import assert_never

from ..checkpoint import Checkpoint
from ..errors import InvalidRequest
from ..messages import Conversation, Render, Rendered, TextPrompt, TokenPrompt, pack

NORMALISED = 4
"""A normaliser does not make a text shorter than by this factor."""


def render(checkpoint: Checkpoint, max_model_len: int, work: Render) -> Rendered:
    """Tokens of a prompt.

    Raises InvalidRequest for a conversation that the template refuses, and for a text that is longer than
    so many tokens can be: it is not tokenised first.
    """
    tokenizer = checkpoint.tokenizer()
    most = NORMALISED * max_model_len * tokenizer.longest_piece
    match work.question.prompt:
        case TextPrompt(text, add_special_tokens):
            _check_length(text, most, max_model_len)
            tokens = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        case Conversation(messages, add_generation_prompt):
            text = tokenizer.render_chat(json.loads(messages), add_generation_prompt=add_generation_prompt)
            _check_length(text, most, max_model_len)
            tokens = tokenizer.encode(text, add_special_tokens=False)
        case TokenPrompt():
            raise AssertionError("a prompt that is tokens already needs no job")
        case _ as prompt:
            assert_never(prompt)
    return Rendered(work.request, pack(tokens))


def _check_length(text: str, most: int, max_model_len: int) -> None:
    if len(text) > most:
        reason = (
            f"the prompt has {len(text)} characters, more than max_model_len {max_model_len} tokens can hold"
        )
        raise InvalidRequest(reason, "prompt")
