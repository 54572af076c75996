"""OpenAI's client: plain prompts, models, and many requests at once."""

import math
from typing import Any

import anyio
import openai
import pytest

from .real import ENDLESS, KEY, MODEL, QUESTION, SEATS, Server

pytestmark = pytest.mark.slow

PROMPTS = ["Once upon a time", "The sky is"]


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "actorllm")
    assert client.models.retrieve(MODEL) == model


def test_prompts_are_continued(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPTS, "max_tokens": 5, "temperature": 0}
    whole = client.completions.create(**asked, echo=True, logprobs=2, extra_body=ENDLESS)
    assert [choice.index for choice in whole.choices] == [0, 1]
    for choice, prompt in zip(whole.choices, PROMPTS, strict=True):
        assert choice.text.startswith(prompt)
        assert choice.finish_reason == "length"
        told = choice.logprobs
        assert told is not None
        assert told.tokens is not None
        assert told.top_logprobs is not None
        assert told.token_logprobs is not None
        assert "".join(told.tokens) == choice.text
        assert all(math.isfinite(one) for one in told.token_logprobs[1:])
        pairs = list(zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True))
        assert all(likeliest[token] == logprob for token, logprob, likeliest in pairs[1:])
        assert all(logprob == max(likeliest.values()) for _, logprob, likeliest in pairs[-5:])
    usage = whole.usage
    assert usage is not None
    assert usage.completion_tokens == 10
    assert usage.total_tokens == usage.prompt_tokens + 10


def test_a_streamed_continuation_is_the_whole(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPTS, "n": 2, "seed": 3, "max_tokens": 6}
    whole = client.completions.create(**asked, extra_body=ENDLESS)
    texts = [""] * 4
    with client.completions.create(**asked, stream=True, extra_body=ENDLESS) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_tokens_are_prompts_too(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "temperature": 0}
    told: Any = {"return_token_ids": True, **ENDLESS}
    text = client.completions.create(**asked, prompt=PROMPTS[0], extra_body=told).choices[0]
    assert text.model_extra is not None
    tokens = client.completions.create(
        **asked, prompt=text.model_extra["prompt_token_ids"], extra_body=told
    ).choices[0]
    assert tokens == text


# the client leaves generators to be collected, of which trio warns
@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
async def test_requests_at_once_are_answered_as_alone(server: Server) -> None:
    answers: dict[int, str] = {}
    async with openai.AsyncOpenAI(api_key=KEY, base_url=server.openai, max_retries=0) as client:

        async def ask(seed: int) -> str:
            pieces = []
            async with await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": QUESTION}],
                seed=seed,
                max_completion_tokens=8,
                stream=True,
                extra_body=ENDLESS,
            ) as stream:
                async for chunk in stream:
                    pieces += [choice.delta.content or "" for choice in chunk.choices]
            return "".join(pieces)

        async def keep(seed: int) -> None:
            answers[seed] = await ask(seed)

        async with anyio.create_task_group() as tasks:
            for seed in range(SEATS):
                tasks.start_soon(keep, seed)
        assert [await ask(seed) for seed in range(SEATS)] == [answers[seed] for seed in range(SEATS)]
    assert len(set(answers.values())) > 1
