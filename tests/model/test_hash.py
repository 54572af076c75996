import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from actorllm.config import EngineConfig
from actorllm.errors import ConfigError
from actorllm.messages import Logprobs, NewRow, RunStep, Sampled, SampleStep, Sampling, pack, pack_ids, unpack
from actorllm.model.hash import END, VOCAB_SIZE, HashRunner, mix, naive_draws, naive_tokens
from actorllm.testing.answers import owed_logprobs, owed_prompt_logprobs
from actorllm.testing.grammars import Rules

from .driver import Driver

GREEDY = Sampling(temperature=0.0)
DRAWN = Sampling(temperature=0.7, seed=11)


def runner(**settings: Any) -> HashRunner:
    settings = {"max_model_len": 128, "block_size": 4, "max_num_seqs": 4} | settings
    return HashRunner(EngineConfig(model="hash", **settings), 2048)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def test_mix_is_splitmix64() -> None:
    gamma = np.uint64(0x9E3779B97F4A7C15)
    words = mix(np.arange(1, 4, dtype=np.uint64) * gamma)
    assert words.tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_one_request_gives_the_naive_tokens(sampling: Sampling) -> None:
    driver = Driver(runner(), 4)
    driver.add(1, prompt(9), sampling)
    made = [driver.step({1: None})[0] for _ in range(40)]
    assert made == naive_tokens(prompt(9), 40, sampling, ignore_eos=True)


@pytest.mark.slow
def test_any_chunking_preemption_and_mixture_gives_the_naive_tokens() -> None:
    for seed in range(30):
        choose = random.Random(seed)
        device = runner()
        driver = Driver(device, 4)
        prompts = {request: prompt(choose.randint(1, 30), seed + request) for request in range(4)}
        for request in prompts:
            driver.add(request, prompts[request], Sampling(temperature=choose.choice([0, 1]), seed=request))
        for _ in range(50):
            some = choose.sample(range(4), choose.randint(1, 4))
            if choose.random() < 0.1:
                driver.preempt(some[0])
            driver.step({request: choose.choice([1, 2, 5, None]) for request in some})
            device.check()
        for request, asked in prompts.items():
            made = driver.tokens[request][len(asked) :]
            assert made == naive_tokens(asked, len(made), driver.sampling[request], ignore_eos=True)


def test_cached_blocks_of_another_request_serve_as_well_as_own() -> None:
    driver = Driver(runner(), 4)
    driver.add(1, prompt(10))
    driver.step({1: None})
    asked = [*prompt(8), 1, 2]
    driver.add(2, asked, computed=8, blocks=driver.blocks[1][:2])
    assert [driver.step({2: None})[0] for _ in range(9)] == naive_tokens(asked, 9, GREEDY, ignore_eos=True)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param([0, 2, 1], id="blocks in the wrong order"),
        pytest.param([0, 1, 7], id="a block that nobody wrote"),
        pytest.param([3, 1, 2], id="a block of another content"),
    ],
)
def test_a_wrong_block_changes_the_tokens(table: list[int]) -> None:
    made = []
    for blocks in ([0, 1, 2], table):
        driver = Driver(runner(), 4)
        driver.add(1, prompt(12), blocks=[0, 1, 2])
        driver.add(2, prompt(4, seed=8), blocks=[3])
        driver.step({1: None, 2: None})
        driver.add(3, [*prompt(12), 65], computed=12, blocks=blocks)
        made.append([driver.step({3: None})[0] for _ in range(8)])
    assert made[0] == naive_tokens([*prompt(12), 65], 8, GREEDY, ignore_eos=True)
    assert made[1] != made[0]


def test_reset_loses_the_cache() -> None:
    device = runner()
    driver = Driver(device, 4)
    driver.add(1, prompt(12), blocks=[0, 1, 2])
    driver.step({1: None})
    device.reset()
    driver.add(2, [*prompt(12), 65], computed=12, blocks=[0, 1, 2])
    made = [driver.step({2: None})[0] for _ in range(8)]
    assert made != naive_tokens([*prompt(12), 65], 8, GREEDY, ignore_eos=True)


def test_an_empty_step_samples_nothing() -> None:
    assert Driver(runner(), 4).step({}) == []


def test_a_block_outside_the_cache_is_an_assertion_error() -> None:
    driver = Driver(runner(num_gpu_blocks_override=3), 4)
    driver.add(1, prompt(2), blocks=[3])
    with pytest.raises(AssertionError, match="outside the cache"):
        driver.step({1: None})


def test_naive_tokens_end_with_the_end_token_unless_it_is_ignored() -> None:
    endless = naive_tokens(prompt(6), 500, GREEDY, ignore_eos=True)
    first = endless.index(END)
    assert len(endless) == 500
    assert naive_tokens(prompt(6), 500, GREEDY) == endless[: first + 1]
    assert naive_tokens(prompt(6), 500, GREEDY, eos_ids=(endless[0],)) == endless[:1]
    assert naive_tokens(prompt(6), first, GREEDY) == endless[:first]


def test_the_seed_counts_only_for_drawn_tokens() -> None:
    greedy = [naive_tokens(prompt(5), 20, Sampling(temperature=0.0, seed=seed)) for seed in (1, 2)]
    drawn = [naive_tokens(prompt(5), 20, Sampling(temperature=1.0, seed=seed)) for seed in (1, 2)]
    assert greedy[0] == greedy[1]
    assert drawn[0] != drawn[1]


def test_tokens_are_mostly_readable_with_some_longer_characters_and_ends() -> None:
    tokens = naive_tokens(prompt(5), 8000, GREEDY, ignore_eos=True)
    assert all(0 <= token <= END for token in tokens)
    assert 150 < tokens.count(END) < 250
    text = bytes(token for token in tokens if token != END).decode(errors="replace")
    assert sum(character.isascii() for character in text) > 0.8 * len(text)
    assert any(ord(character) > 0xFFFF for character in text)
    assert any(0x80 <= ord(character) < 0x800 for character in text)
    assert 0 < text.count("\ufffd") < 0.1 * len(text)


def test_the_log_probabilities_are_those_of_the_draws_in_any_chunking() -> None:
    sampling = Sampling(temperature=0.7, seed=11, logprobs=2, logprob_tokens=pack([7, 9]), prompt_logprobs=1)
    drawn = naive_draws(prompt(9), 5, sampling, ignore_eos=True)
    owed = [owed_logprobs(sampling, [token], [draw]) for token, draw in drawn]
    owed_of_prompt = owed_prompt_logprobs(sampling, prompt(9))
    assert owed_of_prompt is not None
    assert unpack(owed_of_prompt.tokens)[0] == prompt(9)[1]
    for chunk in (1, 2, 5, None):
        driver = Driver(runner(), 4)
        driver.add(1, prompt(9), sampling)
        driver.add(2, prompt(3))
        told: list[Logprobs | None] = []
        parts: list[Logprobs] = []
        while len(told) < 5:
            made = len(driver.step({2: 1, 1: chunk}))
            parts += [part.logprobs for part in driver.last.prompt_logprobs]
            if driver.last.logprobs is not None:
                assert len(unpack(driver.last.logprobs.counts)) == made
                told.append(driver.last.logprobs)
        assert b"".join(part.values for part in parts) == owed_of_prompt.values
        assert b"".join(part.tokens for part in parts) == owed_of_prompt.tokens
        have = [each.values for each in told if each is not None]
        assert have == [each.values for each in owed if each is not None]


def test_who_asks_for_none_is_told_none() -> None:
    driver = Driver(runner(), 4)
    driver.add(1, prompt(9))
    driver.step({1: None})
    assert (driver.last.logprobs, driver.last.prompt_logprobs) == (None, ())


def test_a_step_that_waits_is_sampled_under_its_masks() -> None:
    device, rules = runner(), Rules.of("b:5")
    row = NewRow(1, pack(prompt(3)), 0, GREEDY, 3)
    step = RunStep(1, 0, (row,), pack_ids([1]), pack([3]), b"\1", pack([1]), pack([2]), b"", waits=True)
    assert device.execute(step) is None
    done = device.sample(SampleStep(1, 0, pack_ids([1]), rules.mask()))
    made = naive_tokens(prompt(3), 8, GREEDY, guide=Rules.of("b:5"))
    assert isinstance(done, Sampled)
    assert unpack(done.tokens) == made[:1]
    assert made[5:] == [END]
    for token in made:
        assert rules.accept(token)
    assert made[0] != naive_tokens(prompt(3), 1, GREEDY)[0], "a mask that changes nothing shows nothing"


def test_what_a_request_wishes_is_obeyed() -> None:
    plain = naive_tokens(prompt(9, 4), 40, GREEDY, ignore_eos=True)
    assert END in plain
    letters = pack(b"abc")
    cases: dict[str, tuple[Sampling, Any]] = {
        "allowed": (Sampling(0.0, allowed=letters), lambda made: set(made) <= set(b"abc")),
        "biased": (
            Sampling(0.0, bias_tokens=pack([97]), bias=np.array([100], "<f4").tobytes()),
            lambda made: set(made) == {97},
        ),
        "banned": (
            Sampling(0.0, bias_tokens=pack([plain[0]]), bias=np.array([-100], "<f4").tobytes()),
            lambda made: plain[0] not in made,
        ),
        "bad word": (Sampling(0.0, bad_words=(pack(plain[:2]),)), lambda made: made[:2] != plain[:2]),
        "too early": (Sampling(0.0, min_tokens=40, end_tokens=pack([END])), lambda made: END not in made),
        "weak": (
            Sampling(0.0, bias_tokens=letters, bias=np.ones(3, "<f4").tobytes()),
            lambda made: made == plain,
        ),
    }
    for name, (sampling, holds) in cases.items():
        driver = Driver(runner(), 4)
        driver.add(1, prompt(9, 4), sampling)
        made = [driver.step({1: None})[0] for _ in range(40)]
        assert holds(made), (name, made)


def test_masks_of_all_ones_change_nothing() -> None:
    made = []
    for waits in (False, True):
        device = runner()
        row = NewRow(1, pack(prompt(3)), 0, GREEDY, 3)
        step = RunStep(1, 0, (row,), pack_ids([1]), pack([3]), b"\1", pack([1]), pack([2]), b"", waits=waits)
        done = device.execute(step)
        made.append(done or device.sample(SampleStep(1, 0, pack_ids([1]), b"\xff" * 36)))
    assert made[0] == made[1]


@pytest.mark.slow
def test_the_oracle_needs_no_torch() -> None:
    program = "import sys, actorllm.model.hash; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_capacity_comes_from_the_configuration() -> None:
    assert runner(max_num_seqs=3, max_model_len=10).num_blocks == 9
    assert runner(num_gpu_blocks_override=5).num_blocks == 5
    assert runner(kv_cache_memory_bytes=200).num_blocks == 6
    assert runner(max_model_len=None, num_gpu_blocks_override=5).max_model_len == 20
    assert runner(max_model_len=None).max_model_len == 2048
    with pytest.raises(ConfigError, match="max_model_len is 2049"):
        runner(max_model_len=2049)
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes"):
        runner(kv_cache_memory_bytes=31)
