"""Logits of the native kernels are the same to the last bit, whatever is in the batch and however it came."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actorllm.checkpoint import Checkpoint

from .quantised import KINDS, quantised_checkpoint
from .recording import Logits, Texts, native, open_texts, saved

pytestmark = [pytest.mark.usefixtures("native_cache"), pytest.mark.slow]

LENGTH = 37
MODELS: dict[str, Callable[[Path], Checkpoint]] = {
    "llama": lambda path: saved("llama with biases", path, torch.bfloat16),
    "float32": lambda path: saved("llama untied", path, torch.float32),
    "windows": lambda path: saved("qwen2 with windows in some layers", path, torch.bfloat16),
    "gemma3": lambda path: saved("gemma3 with a soft cap and biases", path, torch.bfloat16),
    "quantised": lambda path: quantised_checkpoint(path, *KINDS),
    "int8": lambda path: quantised_checkpoint(path, *KINDS),
    "int8 cache": lambda path: saved("llama with biases", path, torch.bfloat16),
    "int8 cache, windows": lambda path: saved("qwen2 with windows in some layers", path, torch.bfloat16),
}


class Bench:
    """A model, the logits of whatever ran on it, and what ran: text 1 alone, and ten tokens on."""

    def __init__(self, name: str, path: Path) -> None:
        self._checkpoint = MODELS[name](path)
        self._settings = {
            "dtype": "float32" if name == "float32" else "auto",
            "activation_dtype": "int8" if name == "int8" else "int16",
            "kv_cache_dtype": "int8" if name.startswith("int8 cache") else "auto",
        }
        self.windows = self._checkpoint.architecture.windows
        self.logits: Logits = {}
        alone = self.open()
        request = alone.add(1, LENGTH)
        for _ in range(11):
            alone.step({request: None})
        assert set(self.logits) == {(1, LENGTH + by) for by in range(11)}

    def open(self, num_threads: int = 1) -> Texts:
        """The model with an empty cache; its logits must be those that are known."""
        return open_texts(native, self._checkpoint, self.logits, num_threads=num_threads, **self._settings)


@pytest.fixture(params=MODELS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(request.param, tmp_path)


def finish(texts: Texts, request: int, same: int) -> None:
    """Decode until so many logits were those that are known."""
    while texts.recording.num_same < same:
        texts.step({request: None})


def test_in_a_batch_of_any_size(bench: Bench) -> None:
    rng = random.Random(1)
    for others, num_threads in ((1, 1), (2, 2), (7, 2), (15, 1), (16, 2), (31, 1), (63, 2)):
        texts = bench.open(num_threads)
        lengths = [rng.randint(1, 400 // (others + 1)) for _ in range(others)]
        rows = [texts.add(100 + other + 1000 * others, min(n, 80)) for other, n in enumerate(lengths)]
        rows.insert(rng.randrange(len(rows) + 1), texts.add(1, LENGTH))
        for _ in range(11):
            texts.step(dict.fromkeys(rows))
            rng.shuffle(rows)
        assert texts.recording.num_same == 11


def test_in_chunks_of_any_size(bench: Bench) -> None:
    rng = random.Random(2)
    for sizes in ([1], [16], [15, 17], [1, 5, 2, 9], [36]):
        texts = bench.open(num_threads=len(sizes))
        request, other = texts.add(1, LENGTH), texts.add(rng.randint(200, 10**6), 60)
        for size in sizes * LENGTH:
            if not texts.recording.num_same:
                texts.step({other: 1, request: size} if rng.random() < 0.5 else {request: size})
        finish(texts, request, 11)


def test_token_by_token(bench: Bench) -> None:
    """From its first token on the text is what is sampled."""
    for num_threads in (1, 2):
        texts = bench.open(num_threads)
        request = texts.add(1, 1)
        finish(texts, request, 11 if num_threads == 1 else LENGTH + 10)


def test_with_the_blocks_of_another_request(bench: Bench) -> None:
    for num_threads, whole in ((1, 2), (2, 1)):
        texts = bench.open(num_threads)
        first = texts.add(1, LENGTH)
        texts.step({first: 20})
        texts.step({first: None, texts.add(5, 50): None})
        shared = texts.driver.blocks[first][: whole * len(bench.windows)]
        for place in range(len(shared)):  # those that no token sees any more are not there
            window, end = bench.windows[place % len(bench.windows)], place // len(bench.windows) * 16 + 16
            if window and end <= 16 * whole - window + 1:
                shared[place] = -1
        second = texts.add(1, LENGTH + 1, computed=16 * whole, blocks=shared)
        texts.step({first: None, second: None})
        finish(texts, second, 11)


def test_after_preemption(bench: Bench) -> None:
    for num_threads in (1, 2):
        texts = bench.open(num_threads)
        request, other = texts.add(1, LENGTH), texts.add(7, 33)
        texts.step({request: 30, other: None})
        texts.driver.preempt(request)
        for _ in range(3):
            texts.step({request: None, other: None})
        texts.driver.preempt(request)
        texts.step({request: 17, other: None})
        finish(texts, request, 11)
