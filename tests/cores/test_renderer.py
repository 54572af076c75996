from dataclasses import replace

import pytest

from actorllm.cores import NEVER
from actorllm.cores.renderer import Renderer, RendererStatistics
from actorllm.messages import (
    Abort,
    Conversation,
    Failed,
    Fault,
    FromRenderer,
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
    TokenPrompt,
    ToRenderer,
    Track,
    pack,
)

SAMPLING = Sampling(seed=5)
RULES = TextRules(stop=("x",))
FAULT = Fault("InvalidRequest", "the template said no", "messages")


def render(request: int, prompt: str | list[int], limits: Limits | None = None) -> Render:
    """A prompt as text or as tokens; by default at most 4 tokens are wanted."""
    asked = TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(pack(prompt))
    return Render(request, Question(asked, SAMPLING, limits or Limits(4), RULES))


def say(core: Renderer, *messages: ToRenderer) -> tuple[FromRenderer, ...]:
    for message in messages:
        core.feed(message)
    out = core.poll(0.0)
    core.check()
    return out


def renderer() -> Renderer:
    return Renderer(vocab_size=100, max_model_len=16, max_requests=2)


def done(request: int, tokens: list[int]) -> JobDone:
    return JobDone(request, Rendered(request, pack(tokens)))


def accepted(request: int, tokens: list[int], limits: Limits) -> tuple[FromRenderer, ...]:
    column = pack(tokens)
    return (
        Rendered(request, column),
        Track(request, pack(tokens[-8:]), RULES),
        Submit(request, column, SAMPLING, limits),
    )


def refusal(message: str, param: str) -> tuple[FromRenderer, ...]:
    return (Failed(1, "error", Fault("InvalidRequest", message, param)),)


def test_a_token_prompt_is_submitted_at_once() -> None:
    core = renderer()
    assert say(core, render(1, [5, 6])) == accepted(1, [5, 6], Limits(4))
    assert core.idle
    assert core.deadline == NEVER


def test_text_and_conversations_are_rendered_in_jobs() -> None:
    core = renderer()
    text = render(1, "hi")
    chat = Render(2, replace(text.question, prompt=Conversation("[]")))
    assert say(core, text, chat) == (Job(1, text), Job(2, chat))
    assert not core.idle
    assert say(core, done(2, [7]), done(1, [5, 6])) == (
        *accepted(2, [7], Limits(4)),
        *accepted(1, [5, 6], Limits(4)),
    )
    assert core.statistics() == RendererStatistics(0, 2, 0, 3)


def test_the_detokenizer_hears_of_a_request_before_the_scheduler_does() -> None:
    kinds = [type(message) for message in say(renderer(), render(1, [5]))]
    assert kinds == [Rendered, Track, Submit]


def test_the_detokenizer_gets_the_last_eight_tokens_of_the_prompt() -> None:
    track = say(renderer(), render(1, list(range(12))))[1]
    assert track == Track(1, pack(range(4, 12)), RULES)


@pytest.mark.parametrize(
    ("length", "wanted", "set_to"),
    [(3, 4, 4), (3, None, 13), (3, 50, 13), (15, None, 1), (12, 4, 4), (13, 4, 3)],
)
def test_max_tokens_is_what_the_context_leaves(length: int, wanted: int | None, set_to: int) -> None:
    said = say(renderer(), render(1, [9] * length, Limits(wanted, (3,), ignore_eos=True)))
    assert said == accepted(1, [9] * length, Limits(set_to, (3,), ignore_eos=True))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "the prompt is empty"),
        (
            [1] * 16,
            "the prompt has 16 tokens; with max_model_len 16 it may have 15 at most, "
            "so that one can be generated",
        ),
        ([5, 100], "token id 100 is outside the vocabulary of 100"),
        ([5, -1, 100], "token id -1 is outside the vocabulary of 100"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused(tokens: list[int], message: str) -> None:
    core = renderer()
    assert say(core, render(1, tokens)) == refusal(message, "prompt")
    assert core.idle
    assert core.statistics() == RendererStatistics(0, 0, 1, 0)


def test_rendered_text_is_held_to_the_same_limits() -> None:
    core = renderer()
    say(core, render(1, ""))
    assert say(core, done(1, [])) == refusal("the prompt is empty", "prompt")


def test_a_stop_token_outside_the_vocabulary_is_refused() -> None:
    said = say(renderer(), render(1, [5], Limits(4, (99, 100))))
    assert said == refusal("stop_token_ids: token id 100 is outside the vocabulary of 100", "stop_token_ids")


def test_a_job_that_failed_fails_its_request_alone() -> None:
    core = renderer()
    say(core, render(1, "bad"), render(2, "good"))
    said = say(core, JobDone(1, fault=FAULT), done(2, [7]))
    assert said == (Failed(1, "error", FAULT), *accepted(2, [7], Limits(4)))


def test_an_abort_goes_behind_the_submit() -> None:
    said = say(renderer(), render(1, [5]), Abort(1))
    assert said == (*accepted(1, [5], Limits(4)), Abort(1))


@pytest.mark.parametrize("outcome", [done(1, [5]), done(1, []), JobDone(1, fault=FAULT)])
def test_an_abort_of_what_is_being_rendered_ends_it_when_the_job_is_done(outcome: JobDone) -> None:
    core = renderer()
    say(core, render(1, "hi"))
    assert say(core, Abort(1), Abort(1)) == ()
    assert say(core, outcome) == (Failed(1, "abort"),)
    assert core.idle


def test_an_abort_of_what_was_refused_ends_here() -> None:
    core = renderer()
    assert say(core, render(1, []), Abort(1)) == refusal("the prompt is empty", "prompt")
    assert say(core, Abort(1)) == (Abort(1),)


def test_only_so_many_refusals_are_remembered_as_requests_can_be_open() -> None:
    core = renderer()
    say(core, *(render(number, []) for number in (1, 2, 3)))
    assert say(core, Abort(1), Abort(2), Abort(3)) == (Abort(1),)


def test_a_column_that_is_none_is_refused() -> None:
    core = Renderer(vocab_size=9, max_model_len=9, max_requests=2)
    question = Question(TokenPrompt(b"abc"), Sampling(), Limits(1), TextRules())
    assert say(core, Render(1, question)) == refusal("the prompt is not a column of token ids", "prompt")


def test_max_tokens_below_one_is_refused() -> None:
    core = Renderer(vocab_size=9, max_model_len=9, max_requests=2)
    question = Question(TokenPrompt(pack([1])), Sampling(), Limits(0), TextRules())
    assert say(core, Render(1, question)) == refusal("max_tokens must be at least 1, not 0", "max_tokens")
