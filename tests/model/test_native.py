"""The native kernels as a back end: whole models against the reference, and what a runner asks of it."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from actorllm_kernels.cpu.build import load
from actorllm_kernels.cpu.library import Kernels, Kind

from actorllm.errors import ConfigError
from actorllm.model.families import program_of
from actorllm.model.native import NativeBackEnd, NativeModel
from actorllm.model.reference import ReferenceBackEnd
from actorllm.model.runner import open_runner

from .quantised import KINDS, quantised_checkpoint
from .recording import Logits, config_of, distance, native, open_texts, saved, some_logits

pytestmark = [pytest.mark.usefixtures("native_cache"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]

FAMILIES = (
    "llama",
    "llama with biases",
    "llama with wide heads",
    "mistral with a window",
    "qwen2 with yarn",
    "qwen2 with windows in some layers",
    "qwen3",
    "gemma3",
    "gemma3 with a soft cap and biases",
    "gemma3 with a long window",
)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_as_near_to_float32_as_their_dtype_lets_them(name: str, tmp_path: Path) -> None:
    """In bfloat16 nearer than the reference in bfloat16 comes, or hardly farther. In float32 only attention
    rounds to bfloat16, which costs about half of that.
    """
    checkpoint = saved(name, tmp_path, torch.float32)
    exact = some_logits(ReferenceBackEnd, checkpoint, dtype="float32")
    usual = distance(some_logits(ReferenceBackEnd, checkpoint, dtype="bfloat16"), exact)
    assert usual < 0.06
    assert distance(some_logits(native, checkpoint, dtype="bfloat16"), exact) < 1.2 * usual
    assert distance(some_logits(native, checkpoint, dtype="float32"), exact) < 0.6 * usual


@pytest.mark.parametrize("name", ["llama untied", "gemma3"])
def test_a_checkpoint_in_bfloat16_keeps_its_weights(name: str, tmp_path: Path) -> None:
    checkpoint = saved(name, tmp_path, torch.bfloat16)
    exact = some_logits(ReferenceBackEnd, checkpoint, dtype="float32")
    usual = distance(some_logits(ReferenceBackEnd, checkpoint), exact)
    assert distance(some_logits(native, checkpoint), exact) < 1.2 * usual


def test_codes_are_multiplied_as_they_are(tmp_path: Path) -> None:
    """Of every kind at once: INT16 costs about what attention in bfloat16 does, INT8 some percent."""
    checkpoint = quantised_checkpoint(tmp_path, *KINDS)
    exact = some_logits(ReferenceBackEnd, checkpoint, dtype="float32")
    usual = distance(some_logits(ReferenceBackEnd, checkpoint), exact)
    assert distance(some_logits(native, checkpoint), exact) < 0.6 * usual
    assert distance(some_logits(native, checkpoint, activation_dtype="int8"), exact) < 0.05


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cache_in_bytes_costs_some_percent(name: str, tmp_path: Path) -> None:
    checkpoint = saved(name, tmp_path, torch.float32)
    usual = some_logits(native, checkpoint, dtype="bfloat16")
    rounded = some_logits(native, checkpoint, dtype="bfloat16", kv_cache_dtype="int8")
    assert 0.002 < distance(rounded, usual) < 0.06


def test_a_cache_in_bytes_has_room_for_more(tmp_path: Path) -> None:
    checkpoint = saved("llama", tmp_path, torch.bfloat16)
    memory, program = 1 << 18, program_of(checkpoint.architecture)
    for dtype, size in (("auto", 32), ("bfloat16", 32), ("int8", 16 + 4)):  # 8 numbers are filled up to 16
        config = config_of(
            checkpoint,
            kv_cache_dtype=dtype,
            kv_cache_memory_bytes=memory,
            num_gpu_blocks_override=None,
        )
        block = 16 * program.num_slabs * program.num_kv_heads * 2 * size
        assert open_runner(checkpoint, config).num_blocks == memory // block


@pytest.mark.parametrize("asked", ["bfloat16", "int8"])
def test_the_reference_has_only_the_dtype_of_the_model_in_its_cache(
    tmp_path: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_KERNELS", "reference")
    checkpoint = saved("llama", tmp_path, torch.float32)
    told = f"kv_cache_dtype is {asked}, but the reference .* float32: take auto, or the native kernels"
    with pytest.raises(ConfigError, match=told):
        open_runner(checkpoint, config_of(checkpoint, kv_cache_dtype=asked))
    some_logits(ReferenceBackEnd, checkpoint, dtype="bfloat16", kv_cache_dtype="bfloat16")


def test_after_sleep_the_logits_are_the_same(tmp_path: Path) -> None:
    logits: Logits = {}
    texts = open_texts(native, quantised_checkpoint(tmp_path, *KINDS), logits)
    texts.step({texts.add(1, 20): None})
    texts.runner.command("sleep", "")
    assert texts.recording.inner._model is None  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="asleep"):
        texts.step({texts.add(1, 20): None})
    texts.runner.reset()
    texts.runner.command("wake_up", "")
    texts.forget()
    texts.step({texts.add(1, 20): None})
    assert texts.recording.num_same == 1


def test_a_profile_is_a_trace_of_every_operation(tmp_path: Path) -> None:
    logits: Logits = {}
    texts = open_texts(native, saved("gemma3", tmp_path, torch.bfloat16), logits)
    texts.step({texts.add(1, 20): None})
    path = tmp_path / "profile.json"
    texts.runner.command("start_profile", str(path))
    request = texts.add(1, 20)
    texts.step({request: None})
    texts.step({request: None})
    texts.runner.command("stop_profile", "")
    assert texts.recording.num_same == 1
    events = json.loads(path.read_text())["traceEvents"]
    model: NativeModel = texts.recording.inner._model  # type: ignore[attr-defined]
    assert [event["name"] for event in events] == [kind.name.lower() for kind in model.kinds] * 2
    assert set(model.kinds) == set(Kind)
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert all(one["ts"] + one["dur"] <= other["ts"] + 0.01 for one, other in pairwise(events))
    texts.step({request: None})
    assert json.loads(path.read_text())["traceEvents"] == events


def test_blocks_are_whole_tiles(tmp_path: Path) -> None:
    checkpoint = quantised_checkpoint(tmp_path, "Q4_0")
    with pytest.raises(
        ConfigError, match=r"block_size is 8, .*multiples of 16.*ACTORLLM_CPU_KERNELS=reference"
    ):
        open_runner(checkpoint, config_of(checkpoint, block_size=8))
    for block_size in (16, 32, 48, 64):
        one, other = (
            some_logits(native, checkpoint, block_size=size, num_gpu_blocks_override=64)
            for size in (16, block_size)
        )
        assert np.array_equal(one, other)


def test_heads_that_are_too_large_are_named(tmp_path: Path) -> None:
    checkpoint = quantised_checkpoint(tmp_path, "Q4_0")
    program = replace(program_of(checkpoint.architecture), head_dim=272)
    with pytest.raises(ConfigError, match=r"heads have 272 numbers, .* 256 at most"):
        NativeBackEnd(program, checkpoint, config_of(checkpoint), Kernels(load()))


@pytest.mark.parametrize(("stored", "dtype"), [(torch.bfloat16, "float32"), (torch.float32, "auto")])
def test_float32_is_not_rounded_to_bfloat16(tmp_path: Path, stored: torch.dtype, dtype: str) -> None:
    checkpoint = saved("llama", tmp_path, stored)
    exact = some_logits(ReferenceBackEnd, checkpoint, dtype="float32")
    rounded = distance(some_logits(native, checkpoint, dtype="bfloat16"), exact)
    assert distance(some_logits(native, checkpoint, dtype=dtype), exact) < 0.8 * rounded


def test_a_native_worker_loads_neither_torch_nor_transformers(tmp_path: Path) -> None:
    checkpoint = saved("qwen3", tmp_path, torch.bfloat16)
    program = (
        "import sys\n"
        "from actorllm.checkpoint import open_checkpoint\n"
        "from actorllm.config import EngineConfig\n"
        "from actorllm.actors.worker import open_runner\n"
        "from tests.model.driver import Driver\n"
        "config = EngineConfig(model=sys.argv[1], max_model_len=64, max_num_seqs=2, num_threads=1)\n"
        "runner = open_runner(open_checkpoint(sys.argv[1]), config)\n"
        "driver = Driver(runner, 16)\n"
        "driver.add(1, [1, 2, 3])\n"
        "assert len(driver.step({1: None})) == 1\n"
        "heavy = {'torch', 'transformers', 'triton', 'xgrammar'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(checkpoint.path)], check=True, cwd=root)


FEW_THREADS = """
import resource, sys
from pathlib import Path
from actorllm import EngineConfig
from actorllm.errors import ConfigError
from actorllm.model.runner import open_runner
from tests.model.quantised import quantised_checkpoint

checkpoint = quantised_checkpoint(Path(sys.argv[1]), "Q4_0")
settings = {"max_num_seqs": 2, "num_gpu_blocks_override": 8, "max_model_len": 64}
open_runner(checkpoint, EngineConfig(num_threads=2, **settings))
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29),) * 2)
try:
    open_runner(checkpoint, EngineConfig(num_threads=5000, **settings))
except ConfigError as error:
    print(error)
print(len(list(Path("/proc/self/task").iterdir())) < 50)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and limits what threads' stacks may take")
def test_more_threads_than_the_system_gives_are_refused(tmp_path: Path) -> None:
    """Those that had begun are ended; before, the process died."""
    ran = subprocess.run(
        [sys.executable, "-c", FEW_THREADS, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.stderr == ""
    assert ran.stdout == (
        "num_threads is 5000, but the system gives no 5000 threads, or no memory for them\nTrue\n"
    )
