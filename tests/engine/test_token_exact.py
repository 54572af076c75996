"""Token-exact: greedy in float32, the engine gives the tokens of transformers' own `generate`.

Each model is asked alone, all at once, with a token budget that cuts prompts into chunks, and with so few
blocks that requests are preempted.
"""

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
import transformers
from filelock import FileLock
from tokenizers import Tokenizer, decoders, models

from actorllm import Engine, EngineConfig, SamplingParams
from actorllm.checkpoint import Architecture, Checkpoint, open_checkpoint
from actorllm.checkpoint.fetch import MODELS as KNOWN
from actorllm.checkpoint.fetch import cached
from actorllm.checkpoint.tokenizer import byte_alphabet

from ..model.test_runner import MODELS, VOCAB_SIZE, generated, random_model

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NUM_TOKENS = 64
NUM_AGAIN = NUM_TOKENS if os.environ.get("ACTORLLM_SOAK") == "1" else 24
"""Of the default model under trio: it is slow in float32."""

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)

TEXTS = [
    "Once upon a time",
    "1",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Ich weiß nicht, was soll es bedeuten, daß ich so traurig bin;",
    "日本語の文章を続けてください。",
    "😀 👩‍👩‍👧 emoji and a combining e\u0301",
    "SELECT name, count(*) FROM users WHERE",
    "   leading spaces and\ttabs\n\n",
    "The quick brown fox jumps over the lazy dog. " * 12,
]
CHATS = ["What is the capital of France?", "Écris un haïku sur la pluie."]


async def answers(
    config: EngineConfig, prompts: list[list[int]], params: SamplingParams = GREEDY, *, alone: bool
) -> tuple[list[list[int]], Any]:
    """The tokens of each prompt, asked one after the other or all at once, and the statistics."""
    made: dict[int, list[int]] = {}
    async with Engine(config) as engine:

        async def ask(index: int) -> None:
            made[index] = list((await engine.generate(prompts[index], params)).token_ids)

        if alone:
            for index in range(len(prompts)):
                await ask(index)
        else:
            async with anyio.create_task_group() as nursery:
                for index in range(len(prompts)):
                    nursery.start_soon(ask, index)
        await engine.check()
        statistics = await engine.statistics()
    return [made[index] for index in range(len(prompts))], statistics


MODES: dict[str, dict[str, Any]] = {
    "alone": {},
    "at once": {},
    "in chunks": {"max_num_batched_tokens": 48},
    "tight": {},
}


TIGHT = {
    "mistral with a window": 14,
    "qwen2 with windows in some layers": 88,
    "gemma3": 56,
    "gemma3 with a soft cap and biases": 56,
}
"""Blocks that are too few for all requests at once: 40, unless there are windows or several groups."""


def settings(mode: str, blocks: int, block_size: int, longest: int) -> dict[str, Any]:
    """`blocks` is a number that makes requests preempt each other."""
    tight = {"num_gpu_blocks_override": blocks, "max_model_len": longest, "verify": True}
    fixed = {"dtype": "float32", "num_threads": 1, "block_size": block_size, "seed": 0}
    return fixed | MODES[mode] | (tight if mode == "tight" else {})


@lru_cache
def small_reference(name: str) -> tuple[Any, list[list[int]], list[list[int]]]:
    """A random model of this family, prompts, and what transformers makes of them."""
    model = random_model(name)
    rng = random.Random(name)
    prompts = [rng.choices(range(VOCAB_SIZE), k=rng.choice([1, 2, 5, 17, 33, 80])) for _ in range(12)]
    return model, prompts, [generated(model, prompt, NUM_TOKENS) for prompt in prompts]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
async def test_random_models_of_every_family(name: str, mode: str, tmp_path: Path) -> None:
    model, prompts, expected = small_reference(name)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    config = EngineConfig(model=str(tmp_path), **settings(mode, TIGHT.get(name, 40), 4, 160))
    made, statistics = await answers(config, prompts, alone=mode == "alone")
    assert made == expected
    assert (statistics["kvpool"]["preemptions"] > 0) == (mode == "tight")


@pytest.mark.parametrize("name", ["gemma3", "qwen2 with windows in some layers"])
async def test_prefix_hits_of_layers_with_windows(name: str, tmp_path: Path) -> None:
    model, prompts, expected = small_reference(name)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    config = EngineConfig(model=str(tmp_path), **settings("at once", 0, 4, 160))
    asked = [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)][:6]
    follow_ups = [[*tokens[:-10], 5] for tokens in asked]
    wanted = [generated(model, prompt, NUM_TOKENS) for prompt in follow_ups]
    async with Engine(config) as engine:
        for prompt in asked:
            await engine.generate(prompt, GREEDY)
        for prompt, answer in zip(follow_ups, wanted, strict=True):
            assert list((await engine.generate(prompt, GREEDY)).token_ids) == answer
        hits = (await engine.statistics())["kvpool"]["hit_tokens"]
    assert hits >= sum((len(prompt) - 1) // 4 * 4 for prompt in follow_ups)


def save_tokenizer(path: Path) -> None:
    """A byte-level tokenizer of as many tokens as the random models have."""
    tokens = {char: byte for byte, char in byte_alphabet().items() if byte < VOCAB_SIZE}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))


def as_transformers(checkpoint: Checkpoint) -> Any:
    """The checkpoint's weights, in float32, in transformers' own model."""
    shape: Architecture = checkpoint.architecture
    settings: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    if shape.family == "gemma3":
        settings |= {"sliding_window": 512, "query_pre_attn_scalar": 256}
        model: Any = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**settings))
    else:
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": shape.rope_theta}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    model.eval()
    state = {name: torch.from_numpy(raw.to_float32().copy()) for name, raw in checkpoint.weights().items()}
    for name in state:
        if shape.family == "gemma3" and "norm" in name:
            state[name] -= 1
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    return model


Reference = tuple[list[list[int]], list[list[int]]]
"""Prompts as tokens, and what transformers makes of them."""


@pytest.fixture(scope="session")
def make_once(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Callable[[Callable[[], Reference]], Reference]:
    """Makes a reference; one process makes it for all."""
    own = tmp_path_factory.getbasetemp()
    directory = own if worker_id == "master" else own.parent

    def once(make: Callable[[], Reference]) -> Reference:
        kept = directory / f"{make.__name__}.json"
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                kept.write_text(json.dumps(make()))
        prompts, expected = json.loads(kept.read_text())
        return prompts, expected

    return once


def smollm2_reference() -> Reference:
    checkpoint = open_checkpoint("smollm2-135m")
    tokenizer = checkpoint.tokenizer()
    chats = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in CHATS]
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS + chats]
    model = as_transformers(checkpoint)
    return prompts, [generated(model, prompt, NUM_TOKENS) for prompt in prompts]


def gemma3_reference() -> Reference:
    checkpoint = open_checkpoint("gemma3-270m")
    prompts = [checkpoint.tokenizer().encode(text) for text in (TEXTS[0], " ".join(TEXTS) * 3)]
    model = as_transformers(checkpoint)
    return prompts, [generated(model, prompt, NUM_TOKENS) for prompt in prompts]


@pytest.fixture(scope="session")
def smollm2(make_once: Callable[[Callable[[], Reference]], Reference]) -> Reference:
    return make_once(smollm2_reference)


@pytest.fixture(scope="session")
def gemma3(make_once: Callable[[Callable[[], Reference]], Reference]) -> Reference:
    if cached(KNOWN["gemma3-270m"]) is None:
        pytest.skip("`actorllm fetch gemma3-270m` was not run")
    return make_once(gemma3_reference)


@pytest.mark.longest
async def test_the_default_model(smollm2: Reference, anyio_backend: str) -> None:
    prompts, expected = smollm2
    count = NUM_TOKENS if anyio_backend == "asyncio" else NUM_AGAIN
    for mode in MODES:
        config = EngineConfig(model="smollm2-135m", **settings(mode, 24, 16, 256))
        params = replace(GREEDY, max_tokens=count)
        made, statistics = await answers(config, prompts, params, alone=mode == "alone")
        assert made == [tokens[:count] for tokens in expected], mode
        assert (statistics["kvpool"]["preemptions"] > 0) == (mode == "tight"), mode


@pytest.mark.longest
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it takes a minute
async def test_gemma3_270m_beyond_its_window(gemma3: Reference) -> None:
    prompts, expected = gemma3
    assert len(prompts[-1]) > 512 + NUM_TOKENS
    config = EngineConfig(model="gemma3-270m", **settings("in chunks", 0, 16, 0), max_model_len=1024)
    made, _ = await answers(config, prompts, alone=False)
    assert made == expected
