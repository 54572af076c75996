import gc
import json
import random
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from actorllm.checkpoint import open_checkpoint
from actorllm.config import EngineConfig
from actorllm.errors import ConfigError, UsageError
from actorllm.messages import Sampling
from actorllm.model.runner import Runner, open_runner

from .driver import Driver

BLOCK_SIZE = 4
VOCAB_SIZE = 96
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
GEMMA3: dict[str, Any] = {
    "num_hidden_layers": 7,
    "head_dim": 12,
    "sliding_window": 9,
    "layer_types": [
        "sliding_attention" if layer in (0, 1, 3, 4, 6) else "full_attention" for layer in range(7)
    ],
    "query_pre_attn_scalar": 20,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama untied": ("Llama", {"tie_word_embeddings": False}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("Llama", {"head_dim": 16}),
    "llama without groups": ("Llama", {"num_key_value_heads": 6}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with a window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen2 with windows in some layers": (
        "Qwen2",
        {"num_hidden_layers": 5, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3},
    ),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "gemma3": ("Gemma3", GEMMA3),
    "gemma3 with a soft cap and biases": (
        "Gemma3",
        GEMMA3 | {"final_logit_softcapping": 3.0, "attention_bias": True, "rope_parameters": GEMMA3_ROPE},
    ),
    "gemma3 with a long window": ("Gemma3", GEMMA3 | {"sliding_window": 256}),
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


@pytest.fixture(autouse=True)
def reference_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "reference")


def random_model(name: str) -> PreTrainedModel:
    family, settings = MODELS[name]
    config = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(**SHAPE | settings)
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    assert isinstance(model, PreTrainedModel)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def generated(model: Any, tokens: list[int], count: int) -> list[int]:
    ids = torch.tensor([tokens])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count
    )
    made: list[int] = out[0, len(tokens) :].tolist()
    return made


def open_small(path: Path, **settings: Any) -> Runner:
    settings = {"max_num_seqs": 4, "block_size": BLOCK_SIZE, "max_model_len": 96} | settings
    return open_runner(open_checkpoint(str(path)), EngineConfig(model=str(path), **settings))


@pytest.fixture
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    """A random model, and the directory where it was saved."""
    model = random_model(request.param)
    model.save_pretrained(tmp_path)
    return model, tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("saved", MODELS, indirect=True, ids=str)
def test_tokens_are_those_of_transformers(saved: tuple[PreTrainedModel, Path]) -> None:
    model, path = saved
    runner = open_small(path)
    driver = Driver(runner, BLOCK_SIZE, len(open_checkpoint(str(path)).architecture.windows))
    prompts = {1: prompt(37, 1), 2: prompt(6, 2), 3: prompt(21, 3)}
    for request in prompts:
        driver.add(request, prompts[request])
    driver.step({1: 10})
    driver.step({1: 9, 2: None})
    driver.step({2: None, 1: None, 3: 20})
    driver.step({1: None, 2: None, 3: None})
    driver.step({2: None})
    driver.preempt(2)
    driver.step({3: None, 1: None})
    while min(len(driver.tokens[request]) - len(prompts[request]) for request in prompts) < 16:
        driver.step({3: None, 2: None, 1: None})
        runner.check()
    for request, tokens in prompts.items():
        made = driver.tokens[request][len(tokens) :]
        assert made == generated(model, tokens, len(made))


SMALL = pytest.mark.parametrize("saved", ["llama"], indirect=True, ids=str)


@pytest.mark.slow
@SMALL
def test_a_block_serves_every_request_with_that_prefix(saved: tuple[PreTrainedModel, Path]) -> None:
    model, path = saved
    driver = Driver(open_small(path), BLOCK_SIZE)
    first = prompt(14, 1)
    driver.add(1, first)
    driver.step({1: None})
    second = first[:12] + prompt(3, 2)
    driver.add(2, second, computed=12, blocks=driver.blocks[1][:3])
    made = [driver.step({2: None})[0] for _ in range(8)]
    assert made == generated(model, second, 8)


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["gemma3"], indirect=True, ids=str)
def test_of_a_window_only_the_last_blocks_are_needed(saved: tuple[PreTrainedModel, Path]) -> None:
    model, path = saved
    assert open_checkpoint(str(path)).architecture.windows == (0, 9, 9, 9)
    driver = Driver(open_small(path, num_gpu_blocks_override=80), BLOCK_SIZE, 4)
    first = prompt(26, 1)
    driver.add(1, first)
    driver.step({1: None})
    second = first[:24] + prompt(3, 2)
    shared = driver.blocks[1][: 6 * 4]
    shared[: 4 * 4] = [block if place % 4 == 0 else -1 for place, block in enumerate(shared[: 4 * 4])]
    driver.add(2, second, computed=24, blocks=shared)
    made = [driver.step({2: None})[0] for _ in range(8)]
    assert made == generated(model, second, 8)


@pytest.mark.parametrize("saved", ["gemma3"], indirect=True, ids=str)
def test_a_block_of_several_groups_is_as_large_as_the_largest_group(
    saved: tuple[PreTrainedModel, Path],
) -> None:
    block = 2 * BLOCK_SIZE * 2 * 2 * 12 * 4  # slabs, tokens, keys and values, heads, width, bytes
    assert open_small(saved[1], kv_cache_memory_bytes=101 * block).num_blocks == 101
    assert open_small(saved[1]).num_blocks == 4 * 4 * 24


@pytest.mark.slow
@SMALL
def test_drawn_tokens_do_not_depend_on_the_schedule(saved: tuple[PreTrainedModel, Path]) -> None:
    alone, together = (Driver(open_small(saved[1]), BLOCK_SIZE) for _ in range(2))
    drawn = {
        1: Sampling(temperature=0.9, top_k=20, seed=5),
        2: Sampling(temperature=1.3, top_p=0.8, min_p=0.01, seed=-6),
        3: Sampling(temperature=0.9, seed=7),
    }
    for request, sampling in drawn.items():
        alone.add(request, prompt(20 - request, request), sampling)
        together.add(request, prompt(20 - request, request), sampling)
        for _ in range(12):
            alone.step({request: None})
    together.step({1: 5, 2: 3})
    while min(len(together.tokens[request]) - (20 - request) for request in drawn) < 12:
        together.step(dict.fromkeys(drawn))
    for request in drawn:
        length = 20 - request + 12
        assert together.tokens[request][:length] == alone.tokens[request][:length]


@pytest.mark.slow
@SMALL
def test_after_a_reset_the_requests_come_anew(saved: tuple[PreTrainedModel, Path]) -> None:
    model, path = saved
    runner = open_small(path)
    driver = Driver(runner, BLOCK_SIZE)
    driver.add(1, prompt(9, 1))
    driver.step({1: None})
    runner.reset()
    again = Driver(runner, BLOCK_SIZE)
    again.add(1, prompt(9, 1))
    assert [again.step({1: None})[0] for _ in range(5)] == generated(model, prompt(9, 1), 5)


@SMALL
def test_steps_without_samples_or_rows_sample_nothing(saved: tuple[PreTrainedModel, Path]) -> None:
    driver = Driver(open_small(saved[1]), BLOCK_SIZE)
    driver.add(1, prompt(9, 1))
    assert driver.step({1: 4}) == []
    driver.finish(1)
    assert driver.step({}) == []


@pytest.mark.slow
@SMALL
def test_half_precision_is_close_to_float32(saved: tuple[PreTrainedModel, Path]) -> None:
    runners = [open_small(saved[1], dtype=dtype) for dtype in ("float32", "bfloat16", "float16")]
    drivers = [Driver(runner, BLOCK_SIZE) for runner in runners]
    agreed = 0
    for seed in range(20):
        made = []
        for driver in drivers:
            driver.add(seed, prompt(9, seed))
            made.append(driver.step({seed: None}))
            driver.finish(seed)
        agreed += made[0] == made[1] == made[2]
    assert agreed >= 17


@SMALL
def test_capacity_comes_from_memory_blocks_and_model(saved: tuple[PreTrainedModel, Path]) -> None:
    path = saved[1]
    block = 2 * BLOCK_SIZE * 2 * 2 * 8 * 4  # layers, tokens, keys and values, heads, width, bytes
    assert open_small(path).num_blocks == 4 * 24
    assert open_small(path, kv_cache_memory_bytes=11 * block + 1).num_blocks == 11
    assert open_small(path, dtype="bfloat16", kv_cache_memory_bytes=11 * block).num_blocks == 22
    assert open_small(path, num_gpu_blocks_override=7).num_blocks == 7
    assert open_small(path, max_model_len=None).max_model_len == 256
    assert open_small(path, max_model_len=None, num_gpu_blocks_override=7).max_model_len == 28
    with pytest.raises(ConfigError, match="made for 256"):
        open_small(path, max_model_len=257)
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes"):
        open_small(path, kv_cache_memory_bytes=block - 1)


@pytest.mark.slow
@SMALL
def test_asleep_it_has_neither_weights_nor_cache_and_awake_it_goes_on(
    saved: tuple[PreTrainedModel, Path],
) -> None:
    model, path = saved
    runner = open_small(path)
    runner.command("sleep", "")
    assert not [value for value in reachable(runner) if isinstance(value, torch.Tensor) and value.numel()]
    with pytest.raises(AssertionError, match="asleep"):
        one_token(runner)
    runner.reset()
    runner.command("wake_up", "")
    assert one_token(runner) == generated(model, prompt(9, 1), 1)


def reachable(root: object) -> list[object]:
    """Whatever an object holds, and they hold, but modules, classes and functions."""
    seen: dict[int, object] = {}
    found = [root]
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, types.ModuleType | type | types.FunctionType):
            seen[id(each)] = each
            found += gc.get_referents(each)
    return list(seen.values())


def one_token(runner: Runner) -> list[int]:
    driver = Driver(runner, BLOCK_SIZE)
    driver.add(1, prompt(9, 1))
    driver.step({1: None})
    return driver.tokens[1][9:]


@pytest.mark.slow
@SMALL
def test_a_profile_is_a_trace_of_the_kernels(saved: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    runner = open_small(saved[1])
    trace = tmp_path / "profile.json"
    with pytest.raises(UsageError, match="no profile is being taken"):
        runner.command("stop_profile", "")
    with pytest.raises(FileNotFoundError):
        runner.command("start_profile", str(tmp_path / "nowhere" / "profile.json"))
    runner.command("start_profile", str(trace))
    with pytest.raises(UsageError, match="taken already"):
        runner.command("start_profile", str(trace))
    one_token(runner)
    runner.command("stop_profile", "")
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::linear" in names or "aten::mm" in names or any("mkldnn" in str(name) for name in names)
