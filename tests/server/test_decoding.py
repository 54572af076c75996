"""What changes a distribution, and what ends an answer, over HTTP and real logits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actorllm import Engine

from .build import CHAT, COMPLETIONS, HELLO, events, served
from .joined import join_completion

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

END = 257
LETTERS = list(range(ord("a"), ord("z") + 1))
WORDS: dict[str, Any] = {"prompt": "abc", "temperature": 0, "max_tokens": 16, "allowed_token_ids": LETTERS}


class Asking:
    """A client that returns the only choice of an answer."""

    def __init__(self, engine: Engine, client: Any) -> None:
        self.engine = engine
        self.client = client

    async def ask(self, path: str = COMPLETIONS, **request: Any) -> Any:
        """All of the body."""
        response = await self.client.post(path, json=request)
        assert response.status_code == 200, response.text
        return response.json()

    async def choice(self, **request: Any) -> Any:
        """Its only choice."""
        (choice,) = (await self.ask(**request))["choices"]
        return choice

    async def text(self, **request: Any) -> str:
        """The text of that."""
        text: str = (await self.choice(**request))["text"]
        return text


@asynccontextmanager
async def asking(model: Path, **changes: Any) -> AsyncIterator[Asking]:
    """Ask this model."""
    async with served(model=str(model), **changes) as (engine, client):
        yield Asking(engine, client)


async def test_a_bias_forces_and_forbids(small: Path) -> None:
    async with asking(small) as client:
        plain = await client.text(**WORDS)
        forced = await client.text(**WORDS, logit_bias={"120": 100})
        without = await client.text(**WORDS, logit_bias={str(ord(letter)): -100.0 for letter in plain})
        chat = await client.ask(CHAT, messages=HELLO, max_tokens=4, logit_bias={"120": 100})
    assert len(plain) == 16
    assert {*plain} <= {*map(chr, LETTERS)}
    assert forced == "x" * 16
    assert {*without}.isdisjoint(plain)
    assert chat["choices"][0]["message"]["content"] == "xxxx"


async def test_an_answer_is_as_long_as_min_tokens(small: Path) -> None:
    request = {"prompt": "abc", "temperature": 0, "max_tokens": 9, "logit_bias": {str(END): 100}}
    async with asking(small) as client:
        at_once = await client.choice(**request, return_token_ids=True)
        later = await client.choice(**request, return_token_ids=True, min_tokens=4)
        never = await client.choice(**request, return_token_ids=True, ignore_eos=True)
    assert (at_once["text"], at_once["token_ids"], at_once["finish_reason"]) == ("", [END], "stop")
    assert later["token_ids"].index(END) == 4
    assert (later["finish_reason"], later["stop_reason"]) == ("stop", None)
    assert (never["token_ids"], never["finish_reason"]) == ([END] * 9, "length")


async def test_bad_words_do_not_come(small: Path) -> None:
    async with asking(small) as client:
        plain = await client.text(**WORDS)
        without_one = await client.text(**WORDS, bad_words=plain[0])
        without_two = await client.text(**WORDS, bad_words=[plain[:2], plain[-2:]])
    assert plain[0] not in without_one
    assert plain[:2] not in without_two
    assert plain[-2:] not in without_two


async def test_penalties_change_what_comes(small: Path) -> None:
    two = {**WORDS, "allowed_token_ids": [97, 98], "logit_bias": {"97": 1.5}}
    async with asking(small) as client:
        plain, words = await client.text(**two), await client.text(**WORDS)
        assert plain != await client.text(**two, frequency_penalty=2)
        assert plain != await client.text(**two, presence_penalty=2.0)
        assert words != await client.text(**WORDS, repetition_penalty=9)
        assert plain == await client.text(
            **two, frequency_penalty=0, presence_penalty=0, repetition_penalty=1
        )


async def test_seeds_repeat_and_count_up(small: Path) -> None:
    drawn = {**WORDS, "temperature": 1.5}
    async with asking(small) as client:
        five = await client.text(**drawn, seed=5)
        six = await client.text(**drawn, seed=6)
        both = (await client.ask(**drawn, seed=5, n=2, best_of=2))["choices"]
    assert five != six
    assert [choice["text"] for choice in both] == [five, six]


async def test_what_streams_is_the_same(small: Path) -> None:
    request = {**WORDS, "prompt": ["abc", "xyz"], "temperature": 0.7, "seed": 5, "logprobs": 3, "echo": True}
    async with asking(small, batch_invariant=True) as client:
        whole = await client.ask(**request, n=2, return_token_ids=True)
        stream = {**request, "n": 2, "return_token_ids": True, "stream": True}
        found = events(await client.client.post(COMPLETIONS, json=stream))
    assert join_completion(found[:-1]) == whole["choices"]


async def test_an_answer_that_goes_round_in_circles_ends(small: Path) -> None:
    rule = {"max_pattern_size": 2, "min_count": 3}
    request = {"prompt": "abc", "max_tokens": 20, "logit_bias": {"65": 100}, "repetition_detection": rule}
    async with asking(small) as client:
        choice = await client.choice(**request)
    assert (choice["text"], choice["finish_reason"]) == ("AAA", "repetition")


async def test_reasoning_has_its_budget(small: Path) -> None:
    request = {"prompt": "a<", "temperature": 0, "max_tokens": 8, "allowed_token_ids": [*LETTERS, ord(">")]}
    async with asking(small, reasoning_start_str="<", reasoning_end_str=">") as client:
        text = await client.text(**request, logit_bias={str(ord(">")): -100}, thinking_token_budget=3)
    assert text.index(">") == 3


async def test_stop_tokens_are_told_and_shown_when_asked_for(small: Path) -> None:
    async with asking(small) as client:
        plain = await client.text(**WORDS)
        stop = ord(plain[7])
        ended = await client.choice(**WORDS, stop_token_ids=[stop])
        shown = await client.choice(**WORDS, stop_token_ids=[stop], include_stop_str_in_output=True)
    cut = plain[: plain.index(chr(stop))]
    assert (ended["text"], ended["finish_reason"], ended["stop_reason"]) == (cut, "stop", stop)
    assert shown["text"] == cut + chr(stop)


async def test_tokens_can_come_without_text(small: Path) -> None:
    async with asking(small) as client:
        plain = await client.choice(**WORDS, return_token_ids=True, logprobs=0)
        bare = await client.choice(**WORDS, return_token_ids=True, logprobs=0, detokenize=False)
    nowhere = plain["logprobs"] | {"text_offset": [0] * len(plain["token_ids"])}
    assert bare == plain | {"text": "", "logprobs": nowhere}


async def test_a_prompt_can_be_cut_from_the_left(small: Path) -> None:
    async with asking(small) as client:
        whole = await client.ask(**{**WORDS, "prompt": "bc"})
        cut = await client.ask(**WORDS, truncate_prompt_tokens=2)
        long = await client.ask(**{**WORDS, "prompt": "ab" * 600}, truncate_prompt_tokens=-1)
    assert cut["choices"] == whole["choices"]
    assert cut["usage"]["prompt_tokens"] == 2
    assert long["usage"]["prompt_tokens"] == 512 - 16


async def test_prefixes_are_shared_only_under_the_same_salt(small: Path) -> None:
    request = {**WORDS, "prompt": "ab" * 40}
    async with asking(small, enable_prefix_caching=True) as client:

        async def hits(salt: str) -> Any:
            before = (await client.engine.statistics())["kvpool"]["hit_tokens"]
            await client.ask(**request, cache_salt=salt)
            return (await client.engine.statistics())["kvpool"]["hit_tokens"] - before

        assert [await hits(salt) for salt in ("one", "two", "one")] == [0, 0, 64]


async def test_a_lower_priority_is_served_sooner(small: Path) -> None:
    async with asking(small, policy="priority") as client:
        low = await client.text(**WORDS, priority=7)
        assert low == await client.text(**WORDS, priority=-7)
