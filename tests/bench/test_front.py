"""The benchmark of the HTTP side, on a small load."""

import json

import pytest

from actorllm.bench.front import Front, config_of, show_fronts, to_json
from actorllm.bench.load import Load, Run, Sample
from actorllm.bench.report import summarize

from ..test_cli import run

LOAD = Load(concurrency=2, num_requests=2, prompt_tokens=4, output_tokens=3, vocab_size=256)


def test_the_front_is_what_the_server_takes_besides_its_engine() -> None:
    samples = [Sample(0.0, [0.1, 0.2, 0.3], 0.4, 4, 3) for _ in range(2)]
    front = Front("asyncio", summarize(LOAD, Run(samples, 0.5, 0.1)), 60.0, 25.0)
    assert front.front_us == 35.0
    assert show_fronts([front]).splitlines()[1].split() == [
        *("2", "asyncio", "4", "12", "100.0", "100.0", "60.0", "25.0", "35.0")
    ]
    assert to_json([front])[0]["front_us"] == 35.0


def test_all_streams_run_at_once() -> None:
    config = config_of(Load(concurrency=256, num_requests=512, prompt_tokens=16, output_tokens=128))
    assert config.max_num_seqs == 256
    assert config.num_gpu_blocks_override is not None
    assert config.num_gpu_blocks_override * config.block_size >= 256 * (16 + 128)


@pytest.mark.slow
def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("-n", "4", "--streams", "2", "--output-tokens", "5", "--loop", "asyncio", "--json")
    assert run("bench", "front", *options) == 0
    (front,) = json.loads(capsys.readouterr().out)
    assert (front["loop"], front["report"]["ok"], front["report"]["output_tokens"]) == ("asyncio", 4, 20)
    assert front["server_us"] > 0
