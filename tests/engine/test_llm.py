"""The synchronous facade."""

import subprocess
import sys

import pytest

from actorllm import LLM, InvalidRequest, ModelNotFound, SamplingParams

from .build import config, expected, prompts

PARAMS = SamplingParams(max_tokens=20, temperature=0)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_many_prompts_are_answered_in_their_order(backend: str) -> None:
    asked = prompts(10)
    with LLM(config(), backend=backend) as llm:
        answers = llm.generate(asked, PARAMS)
        alone = llm.generate(asked[3], PARAMS)
        llm.close()
    assert [list(answer.token_ids) for answer in answers] == [expected(each, PARAMS) for each in asked]
    assert alone[0].token_ids == answers[3].token_ids


def test_each_prompt_can_have_its_params() -> None:
    each = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (3, 5)]
    with LLM(config()) as llm:
        answers = llm.generate(["one", "two"], each)
        with pytest.raises(InvalidRequest, match="3 prompts, but 2 params"):
            llm.generate(["one", "two", "three"], each)
    assert [len(answer.token_ids) for answer in answers] == [3, 5]


def test_conversations_are_answered() -> None:
    conversation = [{"role": "user", "content": "hi"}]
    with LLM(config()) as llm:
        one = llm.chat(conversation, PARAMS)
        two = llm.chat([conversation, conversation], PARAMS)
    assert [answer.token_ids for answer in two] == [one[0].token_ids] * 2


def test_an_error_reaches_the_caller_and_the_engine_goes_on() -> None:
    with LLM(config()) as llm:
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            llm.generate(["fine", ""], PARAMS)
        assert llm.generate("fine", PARAMS)[0].finished


def test_a_model_that_is_not_there_leaves_no_thread_behind() -> None:
    with pytest.raises(ModelNotFound):
        LLM("./no-such-model")


def test_a_program_that_forgets_to_close_it_still_ends() -> None:
    code = (
        "from actorllm import LLM, EngineConfig, SamplingParams\n"
        "llm = LLM(EngineConfig(model='hash', seed=0, num_gpu_blocks_override=16, max_model_len=128))\n"
        "print(len(llm.generate('hello', SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("4", "")
