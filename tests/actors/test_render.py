"""What a render job makes of a question besides the tokens of its prompt."""

import pytest

from actorllm.actors.render import bad_words, render
from actorllm.checkpoint import Checkpoint, open_checkpoint
from actorllm.config import EngineConfig
from actorllm.errors import InvalidRequest
from actorllm.messages import (
    Limits,
    Question,
    Render,
    Sampling,
    TextPrompt,
    TextRules,
    Thinking,
    TokenPrompt,
    pack,
    unpack,
)

from ..engine.models import small_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(small_model(tmp_path_factory.mktemp("model"))))


def ask(prompt: TextPrompt | TokenPrompt, sampling: Sampling | None = None, **fields: object) -> Render:
    question = Question(prompt, sampling or Sampling(), Limits(), TextRules(), **fields)  # type: ignore[arg-type]
    return Render(7, question)


def test_bad_words_are_tokenised_alone_and_behind_a_space(checkpoint: Checkpoint) -> None:
    found = bad_words(checkpoint.tokenizer(), ("x", " y", "x"))
    assert [unpack(word) for word in found] == [[ord("x")], [ord(" "), ord("x")], [ord(" "), ord("y")]]


def test_a_prompt_that_is_tokens_stays_as_it_is(checkpoint: Checkpoint) -> None:
    done = render(checkpoint, EngineConfig(), 64, ask(TokenPrompt(pack([5, 6])), bad_words=("x",)))
    assert (done.request, done.tokens, len(done.bad_words)) == (7, pack([5, 6]), 2)


def test_the_markers_of_reasoning_are_those_of_the_configuration(checkpoint: Checkpoint) -> None:
    config = EngineConfig(reasoning_start_str="ab", reasoning_end_str="yz")
    done = render(checkpoint, config, 64, ask(TextPrompt("x"), Sampling(thinking=Thinking(3))))
    tokens = checkpoint.tokenizer().encode("ab", add_special_tokens=False)
    assert (unpack(done.think_begin), unpack(done.think_end)) == (tokens, [ord("y"), ord("z")])
    plain = render(checkpoint, config, 64, ask(TextPrompt("x")))
    assert (plain.think_begin, plain.think_end) == (b"", b"")


def test_a_text_that_is_truncated_may_be_of_any_length(checkpoint: Checkpoint) -> None:
    text = TextPrompt("x" * 100_000)
    with pytest.raises(InvalidRequest, match="more than max_model_len 64 tokens can hold"):
        render(checkpoint, EngineConfig(), 64, ask(text))
    assert len(unpack(render(checkpoint, EngineConfig(), 64, ask(text, truncate=5)).tokens)) == 100_000
