import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from actorllm.config import EngineConfig
from actorllm.errors import ConfigError
from actorllm.messages import Sampling
from actorllm.model.hash import END, VOCAB_SIZE, HashRunner, mix, naive_tokens

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
