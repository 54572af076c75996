"""The synchronous facade."""

import subprocess
import sys
import threading
from typing import Any

import pytest

from actorllm import LLM, EngineClosed, InvalidRequest, ModelNotFound, SamplingParams, UsageError

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
    before = threading.enumerate()
    with pytest.raises(ModelNotFound):
        LLM("./no-such-model")
    for thread in set(threading.enumerate()) - set(before):
        thread.join(timeout=5)  # told to end, and perhaps not there yet
        assert not thread.is_alive(), thread.name


def test_a_backend_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="backend must be one of asyncio, trio, not 'curio'"):
        LLM(config(), backend="curio")


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


@pytest.mark.parametrize("prompts", [None, 5, {"a"}, b"x", {"a": 1}])
def test_what_is_no_list_of_prompts_is_refused(prompts: Any) -> None:
    with LLM(config()) as llm, pytest.raises(InvalidRequest, match="prompts must be a list, not "):
        llm.generate(prompts)


def test_commands_act_on_the_engine() -> None:
    asked = prompts(3)
    with LLM(config()) as llm:
        before = llm.generate(asked, PARAMS)
        llm.sleep()
        llm.wake_up()
        llm.reset_prefix_cache()
        with pytest.raises(UsageError, match="the hash model has no kernels"):
            llm.start_profile("profile.json")
        with pytest.raises(UsageError, match="the hash model has no kernels"):
            llm.stop_profile()
        after = llm.generate(asked, PARAMS)
    assert [each.token_ids for each in before] == [each.token_ids for each in after]


def test_a_closed_llm_says_so() -> None:
    llm = LLM(config())
    llm.close()
    with pytest.raises(EngineClosed, match="this LLM was closed"):
        llm.generate("x")


def test_ctrl_c_aborts_the_requests() -> None:
    code = (
        "import signal, threading, time\n"
        "from actorllm import LLM, EngineConfig, SamplingParams\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs ignore it
        "llm = LLM(EngineConfig(model='hash', seed=0, num_gpu_blocks_override=300, max_model_len=4000))\n"
        "params = SamplingParams(max_tokens=3900, ignore_eos=True)\n"
        "def interrupt():\n"
        "    while llm.engine._ring.door.num_open < 8: time.sleep(0.01)\n"
        "    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try: llm.generate(['x'] * 8, params)\n"
        "except KeyboardInterrupt: llm._portal.call(llm.engine.check); print('interrupted, and idle')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("interrupted, and idle\n", "")
