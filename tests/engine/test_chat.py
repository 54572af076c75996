"""Conversations: what reaches the chat template, and what is refused."""

from typing import Any

import pytest

from actorllm import Engine, InvalidRequest, SamplingParams

from .build import config

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Hi"}
PARAMS = SamplingParams(max_tokens=1, temperature=0)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def prompt(messages: list[dict[str, Any]], **template: Any) -> str:
    """The text of the prompt that was computed; the hash model's tokens are bytes."""
    async with Engine(config(max_model_len=2048, num_gpu_blocks_override=256)) as engine:
        answer = await engine.chat(messages, PARAMS, **template)
        return engine.tokenizer.decode(answer.prompt_token_ids)


async def test_the_usual_prompt_ends_with_the_beginning_of_an_answer() -> None:
    assert (await prompt([USER])).endswith("user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert (await prompt([USER], add_generation_prompt=False)).endswith("user\nHi<|im_end|>\n")


async def test_a_final_message_is_continued() -> None:
    last = {"role": "assistant", "content": "Well, "}
    assert (await prompt([USER, last], continue_final_message=True)).endswith("assistant\nWell, ")


async def test_tools_are_told_of() -> None:
    assert '"name": "f"' in await prompt([USER], tools=[TOOL])
    assert "<tools>" not in await prompt([USER], tools=[])


@pytest.mark.parametrize(
    ("template", "param", "message"),
    [
        ({"tools": "f"}, "tools", "tools must be a list of objects, not str"),
        ({"tools": ["f"]}, "tools", r"tools\[0\] must be an object, not 'f'"),
        ({"documents": [1]}, "documents", r"documents\[0\] must be an object"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "cannot have 'tools'"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs", "cannot have 'self'"),
        (
            {"chat_template_kwargs": {"continue_final_message": True}},
            "chat_template_kwargs",
            "cannot have 'continue_final_message'",
        ),
        ({"chat_template_kwargs": {"a": {1}}}, "chat_template_kwargs", "must be JSON"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
            "exclude each other",
        ),
        ({"colour": "red"}, "colour", "unknown argument 'colour'"),
    ],
)
async def test_what_cannot_be_is_named(template: dict[str, Any], param: str, message: str) -> None:
    async with Engine(config()) as engine:
        with pytest.raises(InvalidRequest, match=message) as caught:
            engine.chat([USER], PARAMS, **template)
    assert caught.value.param == param


async def test_tokens_of_texts_and_conversations_are_those_that_are_computed() -> None:
    async with Engine(config(max_model_len=2048, num_gpu_blocks_override=256)) as engine:
        text = await engine.generate("H\u00fc<|im_end|>", PARAMS)
        tokens = [72, 195, 188, 258]
        assert list(text.prompt_token_ids) == tokens
        assert await engine.tokenize("H\u00fc<|im_end|>") == tokens
        chat = await engine.chat([USER], PARAMS, tools=[TOOL])
        assert await engine.tokenize_chat([USER], tools=[TOOL]) == list(chat.prompt_token_ids)
        assert await engine.detokenize(tokens) == "H\u00fc<|im_end|>"
        with pytest.raises(InvalidRequest, match="token id 260 is outside the vocabulary of 260") as caught:
            await engine.detokenize([72, 260])
        assert caught.value.param == "tokens"
        with pytest.raises(InvalidRequest, match="more than max_model_len 2048 tokens can hold"):
            await engine.tokenize("x" * 1_000_000)
