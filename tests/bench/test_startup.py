"""Servers that start, and some that do not."""

import json
import os
from pathlib import Path

import pytest

from actorllm import MachineError
from actorllm.bench.startup import COLD, Start, environment, measure, show_starts, to_json

from ..test_cli import run

SMALL = ["--num-gpu-blocks-override", "64", "--max-model-len", "256"]


def start(number: int) -> Start:
    return Start(
        ready_s=number,
        first_token_s=2.0 * number,
        resident_bytes=number * 10**6,
        idle_cpu_s=0.001,
        idle_s=5.0,
    )


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_server_starts_answers_and_ends() -> None:
    (found,) = await measure("hash", SMALL, runs=1, cold=True, idle_s=0.01, timeout=60)
    assert 0 < found.ready_s < found.first_token_s < 60
    assert found.resident_bytes > 1 << 24
    assert 0 <= found.idle_cpu_s < 1


@pytest.mark.slow
def test_the_command_prints_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "startup", "hash", "--runs", "2", "--idle-seconds", "0", "--json", "--", *SMALL) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["model"], found["cold"], len(found["runs"])) == ("hash", False, 2)
    assert found["median"].keys() == Start.__dataclass_fields__.keys()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_server_that_ends_says_why() -> None:
    with pytest.raises(MachineError, match="ended with code 2; it says: actorllm: max_model_len must be"):
        await measure("hash", ["--max-model-len", "1"], runs=1, cold=False, idle_s=0.0, timeout=60)


@pytest.mark.anyio
async def test_a_server_that_takes_too_long_is_ended() -> None:
    with pytest.raises(MachineError, match=r"no token within 0.01 s"):
        await measure("hash", SMALL, runs=1, cold=False, idle_s=0.0, timeout=0.01)


def test_a_warm_server_has_the_environment_as_it_is() -> None:
    with environment(Path("hash"), cold=False) as variables:
        assert variables == dict(os.environ)


def test_a_cold_server_has_new_caches_with_the_model_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORLLM_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    (tmp_path / "models").mkdir()
    model = tmp_path / "models" / "a.gguf"
    model.write_text("weights")
    (tmp_path / "packed").mkdir()
    with environment(model, cold=True) as variables:
        cache = Path(variables["ACTORLLM_CACHE"])
        assert cache.parent == Path(variables["XDG_CACHE_HOME"])
        assert [path.relative_to(cache).as_posix() for path in cache.rglob("*")] == [
            "models",
            "models/a.gguf",
        ]
        assert (cache / "models" / "a.gguf").read_text() == "weights"
        assert Path(variables["HF_HOME"]).name == "huggingface"
        assert not Path(variables["HF_HOME"]).is_relative_to(cache.parent)
    assert not cache.exists()
    assert model.exists()


def test_a_model_elsewhere_is_not_linked(tmp_path: Path) -> None:
    with environment(tmp_path / "a.gguf", cold=True) as variables:
        assert not Path(variables["ACTORLLM_CACHE"]).exists()


def test_the_table_says_what_is_cold_and_the_medians() -> None:
    lines = show_starts(True, [start(1), start(4), start(2)]).splitlines()
    assert lines[0] == COLD
    first, last = (" ".join(lines[at].split()) for at in (2, -1))
    assert first == "run 1 1.00 s 2.00 s 1 MB 1.0 ms of CPU in 5 s"
    assert last == "median 2.00 s 4.00 s 2 MB 1.0 ms of CPU in 5 s"


def test_json_has_the_medians() -> None:
    found = to_json("m", True, [start(1), start(4), start(2)])
    assert (found["caches"], len(found["runs"])) == (COLD, 3)
    assert found["median"]["first_token_s"] == 4.0
