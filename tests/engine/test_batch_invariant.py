"""batch_invariant: the same tokens and log-probabilities to the last bit, whatever else the engine does."""

import json
import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch
import transformers
from actorllm_kernels.cpu.build import cache_directory

from actorllm import ConfigError, Engine, EngineConfig, Parts, SamplingParams
from actorllm.actors.worker import Runner, open_runner
from actorllm.checkpoint import Checkpoint, open_checkpoint
from actorllm.cores.arrays import Float32, Int64
from actorllm.cores.inputs import StepInputs
from actorllm.messages import RunStep, Sampled
from actorllm.model.families import program_of
from actorllm.model.runner import Runner as ModelRunner

from ..model.test_runner import SHAPE, VOCAB_SIZE
from .steps import Steps
from .test_token_exact import save_tokenizer
from .told import Asked, Told, answers, ask_alone, ask_at_once

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LARGER = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "initializer_range": 0.1}

FORMS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8 weights": {"dtype": "bfloat16", "quantization": "int8"},
    "int4 weights, all else int8": {
        "dtype": "bfloat16",
        "quantization": "int4",
        "activation_dtype": "int8",
        "kv_cache_dtype": "int8",
    },
    "float32": {"dtype": "float32"},
    "bfloat16, reference kernels": {"dtype": "bfloat16"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random llama whose products are large enough for torch to compute them in several ways."""
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(3)
    settings: dict[str, Any] = SHAPE | LARGER
    made: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    made.save_pretrained(path)
    save_tokenizer(path)
    return str(path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where weights are packed, with the compiled kernels of all."""
    path = tmp_path_factory.mktemp("cache")
    (path / "kernels").symlink_to(cache_directory())
    return path


forms = pytest.mark.parametrize(
    ("anyio_backend", "form"),
    [("asyncio", form) for form in FORMS] + [("trio", form) for form in ("bfloat16", "float32")],
    indirect=["form"],
)
"""Each of them, and two of them in trio too."""


@pytest.fixture
def form(request: pytest.FixtureRequest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv("ACTORLLM_CACHE", str(cache))
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "reference" if "reference" in name else "auto")
    return name


def params(index: int, **changes: Any) -> SamplingParams:
    """Greedy and drawn, with filters and penalties in turn."""
    fields: dict[str, Any] = {
        "max_tokens": 24,
        "temperature": 0.9 * (index % 2),
        "top_p": (1.0, 0.9, 0.8)[index % 3],
        "repetition_penalty": (1.0, 1.2)[index // 2 % 2],
        "seed": index,
        "ignore_eos": True,
        "logprobs": 5,
        "prompt_logprobs": 3,
    }
    return SamplingParams(**(fields | changes))


def tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(VOCAB_SIZE), k=count)


def watched(**changes: Any) -> list[Asked]:
    """Six requests; three of them begin alike."""
    rng = random.Random(5)
    stem = tokens(rng, 40)
    prompts = [tokens(rng, n) for n in (1, 17, 70)] + [stem + tokens(rng, n) for n in (1, 9, 30)]
    return [Asked(prompt, params(index, **changes)) for index, prompt in enumerate(prompts)]


def others(count: int, longest: int = 60) -> list[Asked]:
    rng = random.Random(6)
    return [
        Asked(
            tokens(rng, rng.randint(1, longest)),
            params(50 + index, max_tokens=rng.randint(1, 20), prompt_logprobs=None),
        )
        for index in range(count)
    ]


def config(model: str, form: str, **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {
        "model": model,
        "batch_invariant": True,
        "enable_prefix_caching": False,
        "max_model_len": 128,
        "num_gpu_blocks_override": 600,
        "num_threads": 1,
        "verify": True,
    }
    return EngineConfig(**(fields | FORMS[form] | changes))


_ALONE: dict[tuple[str, str], list[Told]] = {}


@pytest.fixture
def alone(model: str, form: str) -> list[Told]:
    """What the six are told alone; made once."""
    if (model, form) not in _ALONE:

        async def make() -> list[Told]:
            return await ask_alone(config(model, form), watched())

        try:
            _ALONE[model, form] = anyio.run(make)
        except ConfigError as error:
            pytest.skip(str(error))  # where there is no compiler
    return _ALONE[model, form]


@forms
async def test_in_a_batch(model: str, form: str, alone: list[Told]) -> None:
    steps = Steps()
    async with Engine(config(model, form, max_num_seqs=40), parts=steps.parts()) as engine:
        assert await ask_at_once(engine, watched(), others(32)) == alone
    assert max(len(step.rows) for step in steps.steps) > 30
    assert steps.longest_chunk > 60


@forms
async def test_in_chunks(model: str, form: str, alone: list[Told]) -> None:
    for budget, threshold in ((24, 7), (5, 0)):
        steps = Steps()
        chunked = config(
            model,
            form,
            max_num_seqs=5,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
        )
        async with Engine(chunked, parts=steps.parts()) as engine:
            assert await ask_at_once(engine, watched(), others(6)) == alone
        assert steps.longest_chunk == (threshold or budget)


@forms
async def test_from_the_prefix_cache(model: str, form: str, alone: list[Told]) -> None:
    """The prompts tell nothing here, for those that do are computed anew."""
    asked = watched(prompt_logprobs=None)
    longer = [Asked(each.prompt + [7] * 30, each.params) for each in asked]
    async with Engine(config(model, form, enable_prefix_caching=True, max_num_seqs=20)) as engine:
        await ask_at_once(engine, longer, others(12))
        before = (await engine.statistics())["kvpool"]["hit_tokens"]
        assert await ask_at_once(engine, asked, others(12)) == answers(alone)
        hits = (await engine.statistics())["kvpool"]["hit_tokens"]
    assert hits - before >= 16 * sum((len(each.prompt) - 1) // 16 for each in asked)


@forms
async def test_after_preemption(model: str, form: str, alone: list[Told]) -> None:
    for caching in (False, True):
        tight = config(model, form, num_gpu_blocks_override=11, enable_prefix_caching=caching)
        async with Engine(tight) as engine:
            assert await ask_at_once(engine, watched() * 2) == alone * 2
            statistics = await engine.statistics()
        assert statistics["kvpool"]["preemptions"] >= 1


class Fails:
    """A runner that computes the steps of some numbers and raises then."""

    def __init__(self, runner: Runner, numbers: frozenset[int]) -> None:
        self._runner = runner
        self._numbers = numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, step: RunStep) -> Sampled | None:
        sampled = self._runner.execute(step)
        if step.step in self._numbers:
            raise OSError("the machine met a cosmic ray")
        return sampled


@forms
async def test_after_steps_that_raised(model: str, form: str, alone: list[Told]) -> None:
    def open_failing(checkpoint: Checkpoint, config: EngineConfig) -> Any:
        return Fails(open_runner(checkpoint, config), frozenset({2, 9}))

    settings = config(model, form, max_num_batched_tokens=64, enable_prefix_caching=True)
    async with Engine(settings, parts=Parts(open_runner=open_failing)) as engine:
        assert await ask_at_once(engine, watched(), others(12)) == alone
        assert (await engine.statistics())["scheduler"]["num_failed_steps"] == 2


@forms
async def test_after_sleep(model: str, form: str, alone: list[Told]) -> None:
    async with Engine(config(model, form)) as engine:
        await engine.sleep()
        await engine.wake_up()
        assert await ask_at_once(engine, watched()) == alone


SCRIPT = """
import json, sys
from actorllm import LLM, EngineConfig, SamplingParams

settings, prompts, params = json.load(sys.stdin)
with LLM(EngineConfig(**settings)) as llm:
    made = llm.generate(prompts, [SamplingParams(**each) for each in params])
answers = [each.outputs[0] for each in made]
print(json.dumps([list(each.token_ids) for each in answers]))
print([each.logprobs for each in answers])
print([each.prompt_logprobs for each in made])
"""


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_in_another_process(model: str, form: str, alone: list[Told]) -> None:
    settings = asdict(config(model, form, enable_prefix_caching=True))
    del settings["logits_processors"]  # JSON has no tuples
    fields = (
        "max_tokens",
        "temperature",
        "top_p",
        "repetition_penalty",
        "seed",
        "logprobs",
        "prompt_logprobs",
    )
    made = [{name: getattr(each.params, name) for name in fields} for each in watched()]
    asked = settings, [each.prompt for each in watched()], [{**each, "ignore_eos": True} for each in made]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        json.dumps([list(each.tokens) for each in alone]),
        repr([each.logprobs for each in alone]),
        repr([each.prompt_logprobs for each in alone]),
    ]


@pytest.mark.parametrize("form", ["float32"], indirect=True)
async def test_without_the_mode_float32_depends_on_the_batch(model: str, form: str) -> None:
    """Not a promise of ours, but of torch's products here: they differ in the last bits."""
    usual = config(model, form, batch_invariant=False, max_num_seqs=40)
    lonely = await ask_alone(usual, watched())
    async with Engine(usual) as engine:
        together = await ask_at_once(engine, watched(), others(32))
    if together == lonely:
        pytest.skip("torch's products are invariant on this machine")
    assert [each.tokens for each in together] == [each.tokens for each in lonely]


class Wandering:
    """A device whose kernels split their sums by the number of rows, as many a GPU's do."""

    slab_bytes = 1024
    variance = "its kernels split a sum by the number of rows"

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def open(self, num_blocks: int, length: int) -> None: ...

    def close(self) -> None: ...

    def forward(self, inputs: StepInputs) -> Float32:
        return self.logits_of(inputs, inputs.logits_indices)

    def logits_of(self, inputs: StepInputs, indices: Int64) -> Float32:
        return np.full((len(indices), self._vocab_size), len(inputs.input_ids), np.float32)

    def likeliest(self) -> None: ...

    def start_profile(self, path: str) -> None: ...

    def stop_profile(self) -> None: ...


def open_wandering(checkpoint: Checkpoint, config: EngineConfig) -> ModelRunner:
    shape = checkpoint.architecture
    return ModelRunner(shape, program_of(shape), Wandering(shape.vocab_size), config)


@pytest.mark.parametrize("form", ["bfloat16"], indirect=True)
async def test_a_device_that_cannot_is_refused_at_the_start(model: str, form: str) -> None:
    parts = Parts(open_runner=open_wandering)
    with pytest.raises(
        ConfigError, match=r"cannot promise it: its kernels split a sum by the number of rows; turn it off"
    ):
        async with Engine(config(model, form), parts=parts):
            raise AssertionError("an engine that breaks its promise")
    async with Engine(config(model, form, batch_invariant=False), parts=parts) as engine:
        assert (await engine.generate([1, 2, 3])).finished


# -- the real model -------------------------------------------------------------------------------

STEM = "The lighthouse keeper wrote a letter every evening. In the first one he told his sister that"
TEXTS = [STEM + " the sea was calm", STEM + " he had seen a ship", "Once", "1 2 3 4 5"]
BESIDES = ["A".join(str(number * other) for number in range(2, 9)) for other in range(1, 5)]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    encode = open_checkpoint("smollm2-135m").tokenizer().encode
    return [encode(text) for text in TEXTS + BESIDES]


@pytest.mark.longest
@pytest.mark.parametrize(
    ("anyio_backend", "dtype", "block_size", "count"),
    [("trio", "auto", 16, 16), ("asyncio", "float32", 4, 6)],
)
async def test_the_default_model(dtype: str, block_size: int, count: int, prompts: list[list[int]]) -> None:
    asked = [Asked(prompt, params(index, max_tokens=count)) for index, prompt in enumerate(prompts)]
    asked, besides = asked[: len(TEXTS)], asked[len(TEXTS) :]
    usual = EngineConfig(
        dtype=dtype,
        block_size=block_size,
        batch_invariant=True,
        num_threads=1,
        max_model_len=64,
        max_num_seqs=16,
        num_gpu_blocks_override=200,
        verify=True,
    )
    alone = await ask_alone(usual, asked)
    async with Engine(usual) as engine:
        assert await ask_at_once(engine, asked, besides) == alone
        again = [replace(each, params=replace(each.params, prompt_logprobs=None)) for each in asked]
        assert await ask_at_once(engine, again, besides[:2]) == answers(alone)
        assert (await engine.statistics())["kvpool"]["hit_tokens"] > 0
    tight = replace(usual, num_gpu_blocks_override=80 // block_size, max_num_batched_tokens=24)
    async with Engine(tight) as engine:
        assert await ask_at_once(engine, asked, besides) == alone
        assert (await engine.statistics())["kvpool"]["preemptions"] > 0
