"""Of the reference kernels that are to be invariant: logits are the same to the last bit in any batch."""

import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from actorllm_kernels.reference import AttentionPlan, plan_attention

from actorllm.checkpoint import Checkpoint, open_checkpoint
from actorllm.config import EngineConfig
from actorllm.cores.arrays import Float32
from actorllm.cores.extras import Extras
from actorllm.messages import Sampling, pack
from actorllm.model.families import program_of
from actorllm.model.interpreter import AT_ONCE, rope_tables
from actorllm.model.logprobs import prompt_logprobs
from actorllm.model.reference import ReferenceBackEnd
from actorllm.model.runner import open_runner
from actorllm.model.sampler import sample

from .driver import Driver
from .recording import Logits, Texts, open_texts, saved
from .sampling import entries, extras_of, rows_of
from .sampling import random as random_logits
from .test_runner import random_model

LENGTH = 37
MODELS = {
    "llama with biases": torch.float32,
    "llama without groups": torch.float16,
    "mistral with a window": torch.float32,
    "qwen2 with windows in some layers": torch.bfloat16,
    "gemma3 with a soft cap and biases": torch.float32,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_logits_do_not_depend_on_the_step(name: str, tmp_path: Path) -> None:
    dtype, rng = MODELS[name], random.Random(1)
    checkpoint = saved(name, tmp_path, dtype)
    logits: Logits = {}

    def fresh() -> Texts:
        settings: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "batch_invariant": True}
        return open_texts(ReferenceBackEnd, checkpoint, logits, **settings)

    alone = fresh()
    request = alone.add(1, LENGTH)
    for _ in range(11):
        alone.step({request: None})
    for others, chunk in ((1, 1), (3, 16), (31, 36), (7, LENGTH)):
        texts = fresh()
        rows = [texts.add(100 + other, rng.randint(1, 60)) for other in range(others)]
        request = texts.add(1, LENGTH)
        rows.insert(rng.randrange(others + 1), request)
        while texts.recording.num_same < 11:
            texts.step({row: chunk if row == request else None for row in rows})
            rng.shuffle(rows)


@pytest.mark.parametrize("invariant", [False, True])
def test_only_the_mode_makes_the_reference_invariant(invariant: bool, tmp_path: Path) -> None:
    checkpoint = saved("llama", tmp_path, torch.float32)
    config = EngineConfig(batch_invariant=invariant)
    back_end = ReferenceBackEnd(program_of(checkpoint.architecture), checkpoint, config)
    assert (back_end.variance is None) == invariant


def test_only_a_few_masks_exist_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def plan(*arguments: Any) -> AttentionPlan:
        nonlocal most
        made = plan_attention(*arguments)
        masks.extend(weakref.ref(group.mask) for group in made.groups)
        masks[:] = [mask for mask in masks if mask() is not None]
        most = max(most, len(masks))
        return made

    monkeypatch.setattr("actorllm.model.interpreter.plan_attention", plan)
    checkpoint = saved("mistral with a window", tmp_path, torch.float32)
    logits: Logits = {}
    settings: dict[str, Any] = {"dtype": "float32", "batch_invariant": True, "max_model_len": 256}
    whole, pieces = (open_texts(ReferenceBackEnd, checkpoint, logits, **settings) for _ in range(2))
    whole.step({whole.add(1, 200): None})
    request = pieces.add(1, 200)
    while not pieces.recording.num_same:
        pieces.step({request: 7})
    assert 7 < most <= AT_ONCE


def test_positions_turn_alike_whatever_the_longest_is() -> None:
    frequencies = [10000.0 ** (-i / 32) for i in range(32)]
    whole = rope_tables(frequencies, 1.1, 3000)
    for length in (1, 2, 7, 17, 129, 1000, 2999):
        for table, longest in zip(rope_tables(frequencies, 1.1, length), whole, strict=True):
            assert torch.equal(table, longest[:length])


# -- what others leave behind ---------------------------------------------------------------------


def broken_checkpoint(path: Path, dtype: torch.dtype) -> Checkpoint:
    """Token 95 is NaN, as it may be in a model that never learned it."""
    model: Any = random_model("llama untied")
    with torch.no_grad():
        model.model.embed_tokens.weight[95] = float("nan")
    model.to(dtype).save_pretrained(path / "model")
    return open_checkpoint(str(path / "model"))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("dtype", "cache"), [(torch.float32, "auto"), (torch.bfloat16, "auto"), (torch.bfloat16, "int8")]
)
def test_a_broken_request_does_not_break_the_next_owner_of_its_blocks(
    dtype: torch.dtype, cache: str, tmp_path: Path
) -> None:
    checkpoint = broken_checkpoint(tmp_path, dtype)
    settings = EngineConfig(
        model=str(checkpoint.path),
        max_model_len=32,
        num_gpu_blocks_override=2,
        max_num_seqs=2,
        kv_cache_dtype=cache,
        batch_invariant=True,
        num_threads=1,
    )

    def tokens(breaks: bool) -> list[int]:
        runner = open_runner(checkpoint, settings)
        if breaks:
            driver = Driver(runner, 16)
            driver.add(1, [95] * 31)
            with pytest.raises(FloatingPointError):
                driver.step({1: None})
            runner.reset()
        driver = Driver(runner, 16)
        driver.add(2, [5, 6, 7])
        return [token for _ in range(9) for token in driver.step({2: None})]

    assert tokens(breaks=True) == tokens(breaks=False)


# -- the sampler ----------------------------------------------------------------------------------


def asked(rng: np.random.Generator, size: int) -> tuple[Sampling, Extras]:
    """A row of everything that may be asked of one."""
    sampling = Sampling(
        temperature=float(rng.choice([0.0, 0.7, 1.5])),
        top_k=int(rng.choice([0, 1, 40])),
        top_p=float(rng.choice([1.0, 0.8])),
        min_p=float(rng.choice([0.0, 0.05])),
        seed=int(rng.integers(2**40)),
        presence_penalty=float(rng.choice([0.0, 0.5])),
        repetition_penalty=float(rng.choice([1.0, 1.3])),
        bias_tokens=pack([1]),
        bias=np.array([2.5], "<f4").tobytes(),
        logprobs=int(rng.choice([0, 5, 20])),
    )
    history = rng.integers(0, size, 30).tolist()
    return sampling, extras_of(sampling, history[:20], history[20:])


@pytest.mark.slow
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("size", [97, 5003, 49_152])
def test_tokens_and_log_probabilities_of_a_row_are_those_of_the_row_alone(size: int, processed: bool) -> None:
    rng = np.random.default_rng(size)
    logits = random_logits(33, size, seed=size) * np.float32(4)
    made = [asked(rng, size) for _ in logits]
    masks = {row: rng.integers(0, 2**32, -(-size // 32), np.uint32) for row in range(0, 33, 3)}
    positions = rng.integers(1, 3000, 33).tolist()

    def drawn(rows: list[int], values: Float32) -> list[tuple[int, list[tuple[int, float, int]]]]:
        found = sample(
            values,
            rows_of([made[row][0] for row in rows], [positions[row] for row in rows]),
            extras={place: made[row][1] for place, row in enumerate(rows)},
            masks={place: masks[row] for place, row in enumerate(rows) if row in masks},
            processed_logprobs=processed,
        )
        return list(zip(found.tokens.tolist(), entries(found.logprobs), strict=True))

    together = drawn(list(range(33)), logits)
    order = rng.permutation(33).tolist()
    assert drawn(order, logits[order]) == [together[row] for row in order]
    for row in range(33):
        offset = int(rng.integers(16))
        memory = np.zeros((1, size + 16), np.float32)[:, offset : offset + size]
        memory[0] = logits[row]
        assert drawn([row], memory) == [together[row]]


def test_a_prompt_is_told_alike_in_any_pieces() -> None:
    logits = random_logits(40, 5003)
    targets = np.arange(40, dtype=np.int32) * 7
    whole = entries(prompt_logprobs(logits, targets, 5))
    pieces = [
        entries(prompt_logprobs(logits[i : i + 3].copy(), targets[i : i + 3], 5)) for i in range(0, 40, 3)
    ]
    assert [each for piece in pieces for each in piece] == whole
