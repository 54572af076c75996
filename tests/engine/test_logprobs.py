"""Log-probabilities of answers and of prompts beside transformers' own, whatever the schedule."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from actorllm import Engine, EngineConfig, RequestOutput, RequestOutputKind, SamplingParams
from actorllm.engine.logprobs import Position

from ..model.test_runner import random_model
from .build import prompts, together
from .test_token_exact import save_tokenizer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROMPTS = [[token % 96 for token in prompt] for prompt in prompts(6, longest=60)]
PARAMS = SamplingParams(
    max_tokens=12,
    temperature=0.8,
    seed=5,
    ignore_eos=True,
    logprobs=3,
    prompt_logprobs=2,
    logprob_token_ids=[7],
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    path = tmp_path_factory.mktemp("llama")
    made = random_model("llama")
    made.save_pretrained(path)
    save_tokenizer(path)
    return made, path


def config(path: Path, **changes: Any) -> EngineConfig:
    fields = {"model": str(path), "dtype": "float32", "max_model_len": 128, "block_size": 4, "verify": True}
    return EngineConfig(**(fields | changes))  # type: ignore[arg-type]


def check(position: Position, token: int, logits: torch.Tensor, count: int, others: tuple[int, ...]) -> None:
    """The candidates of one place: the token, the likeliest, and those that were asked for."""
    values = torch.log_softmax(logits.double(), 0)
    order = torch.argsort(values, descending=True, stable=True).tolist()
    assert list(position) == list(dict.fromkeys((token, *order[:count], *others)))
    for candidate, found in position.items():
        assert found.logprob == pytest.approx(float(values[candidate]), abs=1e-4)
        assert found.rank == 1 + int((logits > logits[candidate]).sum())
        assert math.isfinite(found.logprob)


MODES: dict[str, dict[str, Any]] = {
    "at once": {},
    "in chunks": {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 7},
    "tight": {"num_gpu_blocks_override": 24, "max_model_len": 80},
    "one step in flight": {"steps_in_flight": 1},
}


@pytest.mark.parametrize("mode", MODES)
async def test_they_are_those_of_the_models_own_distribution(
    mode: str, model: tuple[PreTrainedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "reference")
    network, path = model
    async with Engine(config(path, **MODES[mode])) as engine:
        answers = await together(engine, [engine.generate(prompt, PARAMS) for prompt in PROMPTS])
        preempted = (await engine.statistics())["kvpool"]["preemptions"]
    assert (preempted > 0) is (mode == "tight")
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        tokens = [*prompt, *answer.token_ids]
        with torch.inference_mode():
            logits = network(torch.tensor([tokens])).logits[0]
        told, made = answer.prompt_logprobs, answer.outputs[0].logprobs
        assert told is not None
        assert made is not None
        assert told[0] is None
        assert (len(told), len(made)) == (len(prompt), 12)
        for at, position in enumerate(told[1:], 1):
            assert position is not None
            check(position, tokens[at], logits[at - 1], 2, ())
        for at, position in enumerate(made, len(prompt)):
            check(position, tokens[at], logits[at - 1], 3, (7,))
        total = sum(each[token].logprob for each, token in zip(made, answer.token_ids, strict=True))
        assert answer.outputs[0].cumulative_logprob == pytest.approx(total)


async def test_what_is_new_put_together_is_the_whole(model: tuple[PreTrainedModel, Path]) -> None:
    async with Engine(config(model[1])) as engine:
        whole = await engine.generate(PROMPTS[0], PARAMS)
        parts: list[RequestOutput] = []
        delta = SamplingParams(
            max_tokens=12, temperature=0.8, seed=5, ignore_eos=True, logprobs=3, prompt_logprobs=2,
            logprob_token_ids=[7], output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        async for output in engine.generate(PROMPTS[0], delta):
            parts.append(output)
    assert len(parts) > 1
    assert "".join(part.text for part in parts) == whole.text
    assert sum((part.token_ids for part in parts), ()) == whole.token_ids
    told = [position for part in parts for position in part.outputs[0].logprobs or ()]
    assert told == whole.outputs[0].logprobs
    assert parts[-1].prompt_logprobs == whole.prompt_logprobs


async def test_without_asking_there_are_none(model: tuple[PreTrainedModel, Path]) -> None:
    async with Engine(config(model[1])) as engine:
        answer = await engine.generate(PROMPTS[0], SamplingParams(max_tokens=2, seed=1))
    assert (answer.outputs[0].logprobs, answer.outputs[0].cumulative_logprob) == (None, None)
    assert answer.prompt_logprobs is None


async def test_processed_ones_are_those_of_what_is_drawn_from(model: tuple[PreTrainedModel, Path]) -> None:
    params = SamplingParams(max_tokens=3, temperature=0.5, seed=1, allowed_token_ids=[4, 5], logprobs=3)
    async with Engine(config(model[1], logprobs_mode="processed_logprobs")) as engine:
        answer = await engine.generate(PROMPTS[0], params)
    for position in answer.outputs[0].logprobs or ():
        drawn = [position[token].logprob for token in (4, 5)]
        assert math.exp(drawn[0]) + math.exp(drawn[1]) == pytest.approx(1, abs=1e-5)
        assert [found.logprob for token, found in position.items() if token not in (4, 5)] == [-9999.0]


async def test_the_whole_vocabulary_sums_up_to_one(model: tuple[PreTrainedModel, Path]) -> None:
    params = SamplingParams(max_tokens=2, seed=1, logprobs=-1)
    async with Engine(config(model[1], max_logprobs=-1)) as engine:
        answer = await engine.generate(PROMPTS[0], params)
    for position in answer.outputs[0].logprobs or ():
        assert len(position) == 96
        assert sum(math.exp(found.logprob) for found in position.values()) == pytest.approx(1, abs=1e-4)
