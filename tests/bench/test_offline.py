"""The engine in this process, with the HashModel."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from actorllm import EngineConfig
from actorllm.bench.load import Load
from actorllm.bench.offline import measure, show_offline

from ..test_cli import run
from .peers import CONFIG

SMALL = ["--num-gpu-blocks-override", "64", "--max-model-len", "256", "--max-num-seqs", "2"]


@pytest.mark.anyio
async def test_a_batch_is_counted() -> None:
    load = Load(concurrency=3, num_requests=3, prompt_tokens=6, output_tokens=5, warmup=2)
    found = await measure(CONFIG, load, batches=2)
    report = found.report
    assert (report.ok, report.failed) == (6, 0)
    assert (report.prompt_tokens, report.output_tokens) == (36, 30)
    assert report.load.vocab_size == 260
    assert found.batches == 2
    assert found.steps >= 10  # each batch takes a step for each token of an answer
    assert found.step_ms == pytest.approx(report.duration_s * 1e3 / found.steps)
    assert 0 < found.device_ms < found.step_ms
    assert found.loop_ms is None or 0 < found.loop_ms.p50 <= found.loop_ms.p99
    assert found.batch_ms is not None
    assert found.batch_ms.mean == pytest.approx(report.duration_s * 1e3 / 2)
    assert "batches" in show_offline(found)


@pytest.mark.anyio
async def test_a_request_that_cannot_be_is_counted_and_named() -> None:
    config = EngineConfig(model="hash", num_gpu_blocks_override=4, max_model_len=32)
    found = await measure(config, Load(num_requests=2, prompt_tokens=40, output_tokens=5, warmup=0))
    assert (found.report.ok, found.report.failed, found.steps) == (0, 2, 0)
    assert "with max_model_len 32" in next(iter(found.report.failures))


def test_throughput_prints_and_draws(capfd: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    path = tmp_path / "a.svg"
    lengths = ["--prompt-tokens", "5", "--output-tokens", "4"]
    assert run("bench", "throughput", "hash", "-n", "5", *lengths, *SMALL, "--plot", str(path)) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "hash: c=5, 5 in / 4 out"
    assert lines[1].split()[:5] == ["requests", "5", "ok,", "0", "failed"]
    assert lines[2].split()[:3] == ["output", "20", "tokens,"]
    assert any(line.startswith("steps ") for line in lines)
    drawn = [text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert drawn[1::2] == ["answers", "prompts"]


def test_latency_prints_json(capfd: pytest.CaptureFixture[str]) -> None:
    lengths = ["--prompt-tokens", "5", "--output-tokens", "4"]
    assert run("bench", "latency", "hash", "-c", "2", "--iterations", "3", *lengths, *SMALL, "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["ok"], found["output_tokens"], found["batches"]) == (6, 24, 3)
    assert found["load"]["concurrency"] == 2
    assert found["batch_ms"].keys() == {"mean", "p50", "p99"}


def test_a_failure_is_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "throughput", "hash", "-n", "2", "--prompt-tokens", "300", *SMALL) == 1
    assert "2 x the prompt" in capfd.readouterr().out
