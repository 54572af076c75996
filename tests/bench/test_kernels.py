"""Where a step's time goes, with a little model of random weights in two forms."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from actorllm_kernels.cpu.build import native_library
from actorllm_kernels.cpu.library import Form
from actorllm_kernels.cpu.packing import pack_floats

from actorllm import EngineConfig, UsageError
from actorllm.bench.kernels import KINDS, PARTS, Found, measure, show_kernels, split
from actorllm.bench.steps import StepTimes, Traced
from actorllm.bench.work import Work
from actorllm.model.program import Attend, Embed, Head, Linear, Operation, Program

from ..checkpoint.files import byte_level, matrices, write_gguf
from ..test_cli import run

CONTEXT = 40
Q4_BLOCK, BF16_BLOCK = 32 * 32 // 2 + 2 * 32 * 2, 32 * 32 * 2
"""Bytes of 32 outputs and 32 columns: codes with scales and offsets in 16 bits, and bfloat16."""

LAYER_BLOCKS = (1 + 1 + 1) + 1 + (2 + 2) + 2
"""Of q, k and v (32, 16 and 16 outputs), of o, of gate and up, and of down, which has twice the columns."""

LAYER_MACS = (32 + 16 + 16) * 32 + 32 * 32 + 3 * 32 * 64
HEAD_BLOCKS = 9  # 258 tokens
TOKEN_BYTES = 2 * 2 * 2 * 16 * 2
"""Of one token's KV: in two layers keys and values of two heads, whose 8 numbers are filled up to 16."""

INT8_TOKEN_BYTES = 2 * 2 * 2 * (16 + 4)
"""The same in bytes, with a scale each."""

LENGTHS = ["--context", str(CONTEXT), "--prompt-tokens", "50", "--repeats", "2"]
SMALL = ["--num-threads", "1", "--max-num-batched-tokens", "32", "--seed", "0"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose layers are Q4_1 and whose embedding, and so its head, is bfloat16."""
    monkeypatch.delenv("ACTORLLM_CPU_KERNELS", raising=False)
    native_library()  # from the user's cache; what is packed goes into a cache of the test's own
    monkeypatch.setenv("ACTORLLM_CACHE", str(tmp_path / "cache"))
    tensors = matrices(len(byte_level("he")), np.random.default_rng(0))
    kinds = dict.fromkeys(
        (name for name in tensors if "norm" not in name), gguf.GGMLQuantizationType.Q4_1
    ) | {"token_embd.weight": gguf.GGMLQuantizationType.BF16}
    return str(write_gguf(tmp_path / "tiny.gguf", tensors=tensors, quantised=kinds))


@pytest.mark.slow
def test_everything_is_told_and_adds_up(model: str) -> None:
    config = EngineConfig(model=model, num_threads=2, max_num_batched_tokens=32, seed=0)
    found = measure(config, (1, 3), CONTEXT, 50, 2)
    weights = 2 * LAYER_BLOCKS * Q4_BLOCK + HEAD_BLOCKS * BF16_BLOCK
    assert [(each.batch, each.bytes) for each in found.decode] == [
        (rows, weights + rows * CONTEXT * TOKEN_BYTES) for rows in (1, 3)
    ]
    for each in found.decode:
        assert tuple(each.split_ms) == PARTS
        assert sum(each.split_ms.values()) == pytest.approx(each.rates.best_ms)
        assert min(each.split_ms.values()) >= 0
        assert each.split_ms["sampling"] > 0
        assert each.split_ms["Python"] > 0
        assert each.rates.median_ms >= each.rates.best_ms
        assert each.rates.tokens_per_s == pytest.approx(each.batch / each.rates.best_ms * 1e3)
        assert each.gb_per_s == pytest.approx(each.bytes / each.rates.best_ms / 1e6)
        assert each.memory_share == pytest.approx(each.gb_per_s / found.limits.memory_gb_per_s)
    macs = 50 * 2 * LAYER_MACS + 258 * 32
    assert found.prefill.gmac_per_s == pytest.approx(macs / found.prefill.best_ms / 1e6)
    rate = found.prefill.gmac_per_s / found.limits.product_gmac_per_s
    assert found.prefill.product_share == pytest.approx(rate)
    forms = {form: (each.matrices, each.activation) for form, each in found.weights.items()}
    assert forms == {"CODES_4_32_HALF": (14, "int16"), "BF16": (1, "bfloat16")}
    assert found.limits.product == "CODES_4_32_HALF"
    check_table(found)


def check_table(found: Found) -> None:
    lines = show_kernels(found).splitlines()
    assert lines[0].split()[:2] == ["kernels", "native,"]
    assert lines[0].endswith("KV bfloat16")
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines}
    assert [len(rows["decode", count]) for count in "13"] == [8, 8]
    assert len(rows["prefill", "50"]) == 5
    assert [line[:14].strip() for line in lines[-1 - len(PARTS) : -1]] == list(PARTS)
    assert len(lines[-2].split()) == 1 + 2 * 2
    assert "scaled" in lines[-1]


@pytest.mark.slow
def test_the_command_prints_json(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--batch", "2", *LENGTHS, *SMALL, "--activation-dtype", "int8", "--kv-cache-dtype", "int8"]
    assert run("bench", "kernels", model, *options, "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["model"], found["context"], found["prompt_tokens"]) == (model, CONTEXT, 50)
    assert [each["batch"] for each in found["decode"]] == [2]
    assert found["weights"]["CODES_4_32_HALF"]["activation"] == "int8"
    weights = sum(each["bytes"] for each in found["weights"].values())
    assert found["decode"][0]["bytes"] == weights + 2 * CONTEXT * INT8_TOKEN_BYTES
    assert found["kv_cache_dtype"] == "int8"
    assert found["threads"] == 1


def test_a_model_without_weights_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "kernels", "hash") == 2
    assert "hash has no weights" in capfd.readouterr().err


def test_the_reference_is_refused(
    model: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "kernels", model, "--dtype", "float32") == 2
    assert "take --dtype bfloat16" in capfd.readouterr().err
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "reference")
    assert run("bench", "kernels", model) == 2
    assert "ACTORLLM_CPU_KERNELS is reference" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "rows", "told"),
    [
        ({"max_num_seqs": 2}, 3, "--max-num-seqs is 2, but a batch of 3"),
        ({"max_num_batched_tokens": 2}, 3, "--max-num-batched-tokens is 2, but a batch of 3"),
        ({"max_model_len": CONTEXT}, 3, f"{CONTEXT} tokens and one more"),
        ({"num_gpu_blocks_override": 4}, 3, "3 requests of 40 tokens take 9 blocks of 4"),
    ],
)
def test_what_does_not_fit_is_refused(model: str, settings: dict[str, Any], rows: int, told: str) -> None:
    config = EngineConfig(model=model, num_threads=1, **settings)
    with pytest.raises(UsageError, match=told):
        measure(config, (1, rows), CONTEXT, 8, 1)


def test_a_split_is_of_the_best_traces_less_what_a_call_costs() -> None:
    names = ("embed", "linear", "attend", "linear", "join", "unheard of")
    traces = [
        Traced(tuple(zip(names, times, strict=True)), 0.5)
        for times in ((2.0, 7.0, 3.0, 4.0, 1.0, 2.0), (3.0, 5.0, 3.5, 6.0, 2.0, 2.0))
    ]
    parts = split(StepTimes(apply=0.25, forward=24.5, after=1.0), traces, 0.75)
    ms = {part: took / 1e3 for part, took in parts.items() if took}
    assert ms == pytest.approx(  # 12 seconds alone, less 1 each of six, are 24 of kernels in the step
        {"linears": 8.727, "head": 6.545, "attention": 4.364, "embedding": 2.182, "sampling": 0.75}
        | {"Python": 0.75, "rest": 2.182 + 0.25},
        abs=1e-3,
    )
    assert sum(ms.values()) == pytest.approx(25.75)


def test_operations_that_cannot_be_told_apart_are_the_rest() -> None:
    traces = [Traced((("linear", 1.0), ("join", 1.0)), 2.0)]
    parts = split(StepTimes(apply=1.0, forward=5.0, after=0.5), traces, 0.75)
    assert {part: took / 1e3 for part, took in parts.items() if took} == {
        "sampling": 0.5,
        "Python": 3.0,
        "rest": 3.0,
    }


def test_a_window_bounds_what_is_read() -> None:
    matrix = pack_floats(np.zeros((40, 32), np.uint16))
    assert (matrix.form, matrix.data.nbytes) == (Form.BF16, 2 * BF16_BLOCK)
    attends = [Attend("qkv", "out", layer, 0, 1.0, window=window) for layer, window in enumerate((0, 16))]
    operations: list[Operation] = [Embed("e"), *attends, Linear("out", ("a", "b"), "hidden"), Head("n", "e")]
    program = Program(tuple(operations), {}, 2, 1, 1, 16, 40, 1e-5, ())
    work = Work(program, {"e": matrix, "a": matrix, "b": matrix}, 10)
    assert work.bytes(3, 8) == 6 * BF16_BLOCK + 3 * (8 + 8) * 10
    assert work.bytes(3, 20) == 6 * BF16_BLOCK + 3 * (20 + 16) * 10
    assert work.macs(5, 2) == 40 * 32 * (5 * 2 + 2)
    assert work.commonest() is matrix


def test_every_kind_has_its_part() -> None:
    assert set(KINDS.values()) < set(PARTS)
