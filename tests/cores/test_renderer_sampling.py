"""What the Renderer adds to a request besides the tokens of its prompt, and what it holds it to."""

from dataclasses import replace

import pytest

from actorllm.cores.renderer import Renderer
from actorllm.messages import (
    Job,
    JobDone,
    Limits,
    Question,
    Render,
    Rendered,
    Sampling,
    Submit,
    TextPrompt,
    TextRules,
    Thinking,
    TokenPrompt,
    pack,
    unpack,
)

from .test_renderer import refusal, say

PLAIN, FOUR = Sampling(), Limits(4)


def renderer() -> Renderer:
    return Renderer(vocab_size=100, max_model_len=16, max_requests=2, eos_token_ids={9, 3})


def question(
    tokens: list[int] | str, sampling: Sampling = PLAIN, limits: Limits = FOUR, **fields: object
) -> Render:
    prompt = TextPrompt(tokens) if isinstance(tokens, str) else TokenPrompt(pack(tokens))
    return Render(1, replace(Question(prompt, sampling, limits, TextRules()), **fields))  # type: ignore[arg-type]


def submitted(core: Renderer, *messages: Render | JobDone) -> Submit:
    (found,) = (message for message in say(core, *messages) if isinstance(message, Submit))
    return found


def test_end_tokens_and_stop_tokens_are_those_that_min_tokens_forbids() -> None:
    sampling, limits = Sampling(min_tokens=2), Limits(4, (7, 3))
    assert unpack(submitted(renderer(), question([5], sampling, limits)).sampling.end_tokens) == [3, 9, 7]
    assert submitted(renderer(), question([5], Sampling(), limits)).sampling == Sampling()


def test_bad_words_become_tokens_in_the_job_even_of_a_prompt_that_is_tokens() -> None:
    core = renderer()
    asked = question([5], bad_words=("no",))
    assert say(core, asked) == (Job(1, asked),)
    done = JobDone(1, Rendered(1, pack([5]), (pack([1, 2]), pack([3]))))
    said = say(core, done)
    assert said[0] == Rendered(1, pack([5])), "the caller hears of the prompt alone"
    assert isinstance(said[2], Submit)
    assert said[2].sampling.bad_words == (pack([1, 2]), pack([3]))


def test_the_markers_of_reasoning_come_from_the_job() -> None:
    core = renderer()
    asked = question([5], Sampling(thinking=Thinking(8)))
    assert say(core, asked) == (Job(1, asked),)
    done = JobDone(1, Rendered(1, pack([5]), (), pack([10]), pack([11, 12])))
    assert submitted(core, done).sampling.thinking == Thinking(8, pack([10]), pack([11, 12]))


@pytest.mark.parametrize(
    ("truncate", "max_tokens", "left"),
    [
        (3, 4, [7, 8, 9]),
        (10, 4, list(range(10))),
        (50, 4, list(range(10))),
        (-1, 10, list(range(4, 10))),
        (-1, None, list(range(10))),
        (-1, 50, [9]),
        (None, 4, list(range(10))),
    ],
)
def test_of_a_longer_prompt_the_last_tokens_are_taken(
    truncate: int | None, max_tokens: int | None, left: list[int]
) -> None:
    submit = submitted(renderer(), question(list(range(10)), limits=Limits(max_tokens), truncate=truncate))
    assert unpack(submit.prompt) == left


def test_a_prompt_that_is_too_long_is_right_when_it_is_truncated() -> None:
    submit = submitted(renderer(), question([5] * 40, truncate=15))
    assert (len(submit.prompt), submit.limits.max_tokens) == (60, 1)


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(bias_tokens=pack([99, 100]), bias=b"\0" * 8), "logit_bias"),
        (Sampling(allowed=pack([100])), "allowed_token_ids"),
        (Sampling(logprob_tokens=pack([100])), "logprob_token_ids"),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(sampling: Sampling, param: str) -> None:
    said = say(renderer(), question([5], sampling))
    assert said == refusal(f"{param}: token id 100 is outside the vocabulary of 100", param)
