"""The Renderer's heavy work: chat template and tokenizer."""

import json
from typing import assert_never

from ..checkpoint import Checkpoint
from ..messages import Conversation, Render, Rendered, TextPrompt, TokenPrompt, pack


def render(checkpoint: Checkpoint, work: Render) -> Rendered:
    """Tokens of a prompt. Raises InvalidRequest for a conversation that the template refuses."""
    tokenizer = checkpoint.tokenizer()
    match work.question.prompt:
        case TextPrompt(text, add_special_tokens):
            tokens = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        case Conversation(messages, add_generation_prompt):
            text = tokenizer.render_chat(json.loads(messages), add_generation_prompt=add_generation_prompt)
            tokens = tokenizer.encode(text, add_special_tokens=False)
        case TokenPrompt():
            raise AssertionError("a prompt that is tokens already needs no job")
        case _ as prompt:
            assert_never(prompt)
    return Rendered(work.request, pack(tokens))
