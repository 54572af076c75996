"""A back end whose logits are kept, and whose tokens do not depend on them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from actorllm_kernels.cpu.build import load
from actorllm_kernels.cpu.library import Kernels

from actorllm.checkpoint import Checkpoint, open_checkpoint
from actorllm.config import EngineConfig
from actorllm.cores.arrays import Float32, Int64
from actorllm.cores.inputs import StepInputs
from actorllm.messages import Sampling
from actorllm.model.families import program_of
from actorllm.model.native import NativeBackEnd
from actorllm.model.program import Program
from actorllm.model.runner import BackEnd, Runner
from actorllm.model.sampler import find_likeliest

from .driver import Driver
from .test_runner import random_model

Logits = dict[tuple[int, int], Float32]
"""By text, and by how many of its tokens come before."""


def text(number: int, length: int, vocab_size: int) -> list[int]:
    """The first tokens of a text; what follows is what a Recording samples."""
    return [_token(number, position, vocab_size) for position in range(length)]


def _token(number: int, position: int, vocab_size: int) -> int:
    return int(((number + 1) * 2654435761 + position * 40503 + position * position * 977) % vocab_size)


class Recording:
    """A back end that gives the next token of the text that a request names by its seed.

    What the inner one computed goes to `logits`. Asserts that what is there already is the same to the last
    bit; `num_same` counts these.
    """

    def __init__(self, inner: BackEnd, logits: Logits, vocab_size: int) -> None:
        self.inner = inner
        self.logits = logits
        self.num_same = 0
        self._vocab_size = vocab_size

    @property
    def slab_bytes(self) -> int:
        return self.inner.slab_bytes

    @property
    def variance(self) -> str | None:
        return self.inner.variance

    def open(self, num_blocks: int, length: int) -> None:
        self.inner.open(num_blocks, length)

    def close(self) -> None:
        self.inner.close()

    def start_profile(self, path: str) -> None:
        self.inner.start_profile(path)

    def stop_profile(self) -> None:
        self.inner.stop_profile()

    def logits_of(self, inputs: StepInputs, indices: Int64) -> Any:
        return self.inner.logits_of(inputs, indices)

    def likeliest(self) -> None:
        """Unknown: what `forward` returns is another's."""

    def forward(self, inputs: StepInputs) -> Float32:
        logits: Any = self.inner.forward(inputs)
        values = logits if isinstance(logits, np.ndarray) else logits.float().numpy()
        assert values.shape == (inputs.sample_rows.size, self._vocab_size)
        assert np.isfinite(values).all()
        if (likeliest := self.inner.likeliest()) is not None:
            for found, wanted in zip(likeliest, find_likeliest(values), strict=True):
                assert np.array_equal(found, wanted)
        told = np.zeros(values.shape, np.float32)
        for row, key in enumerate(zip(inputs.seed.tolist(), inputs.position.tolist(), strict=True)):
            told[row, _token(*key, self._vocab_size)] = 1
            if key in self.logits:
                assert np.array_equal(self.logits[key], values[row]), f"other logits at {key}"
                self.num_same += 1
            self.logits[key] = values[row].copy()
        return told


MakeBackEnd = Callable[[Program, Checkpoint, EngineConfig], BackEnd]


def native(program: Program, checkpoint: Checkpoint, config: EngineConfig) -> NativeBackEnd:
    return NativeBackEnd(program, checkpoint, config, Kernels(load()))


class Texts:
    """A runner that computes texts: `add` one as a request, then `step`."""

    def __init__(
        self, make: MakeBackEnd, checkpoint: Checkpoint, config: EngineConfig, logits: Logits
    ) -> None:
        architecture = checkpoint.architecture
        program = program_of(architecture)
        self._vocab_size = architecture.vocab_size
        self._block_size = config.block_size
        self._num_groups = len(architecture.windows)
        self.recording = Recording(make(program, checkpoint, config), logits, self._vocab_size)
        self.runner = Runner(architecture, program, self.recording, config)
        self._requests = 0
        self.forget()

    def forget(self) -> None:
        """All blocks are free; of the runner the requests must be gone too."""
        self.driver = Driver(self.runner, self._block_size, self._num_groups)

    def add(self, number: int, length: int, computed: int = 0, blocks: Sequence[int] = ()) -> int:
        """A request for the first tokens of a text."""
        self._requests += 1
        sampling = Sampling(temperature=0.0, seed=number)
        tokens = text(number, length, self._vocab_size)
        self.driver.add(self._requests, tokens, sampling, computed, blocks)
        return self._requests

    def step(self, amounts: dict[int, int | None]) -> None:
        self.driver.step(amounts)


def config_of(checkpoint: Checkpoint, **settings: Any) -> EngineConfig:
    defaults = {"max_num_seqs": 64, "max_model_len": 96, "num_threads": 1, "num_gpu_blocks_override": 700}
    return EngineConfig(model=str(checkpoint.path), **defaults | settings)


def open_texts(make: MakeBackEnd, checkpoint: Checkpoint, logits: Logits, **settings: Any) -> Texts:
    return Texts(make, checkpoint, config_of(checkpoint, **settings), logits)


def saved(name: str, path: Path, dtype: torch.dtype) -> Checkpoint:
    """A random model of test_runner's."""
    model: Any = random_model(name)
    model.to(dtype).save_pretrained(path / "model")
    return open_checkpoint(str(path / "model"))


def some_logits(make: MakeBackEnd, checkpoint: Checkpoint, **settings: Any) -> Float32:
    """Of three texts, chunked, mixed and decoded, [positions, vocab]."""
    logits: Logits = {}
    texts = open_texts(make, checkpoint, logits, **settings)
    first, second, third = texts.add(1, 37), texts.add(2, 5), texts.add(3, 1)
    texts.step({first: 20})
    texts.step({first: None, second: None, third: None})
    for _ in range(20):
        texts.step({third: None, first: None, second: None})
    return np.stack([logits[key] for key in sorted(logits)])


def distance(logits: Float32, reference: Float32) -> float:
    """Root mean square of the error, in standard deviations of each position's logits."""
    error = (logits - reference).std(1) / reference.std(1)
    return float(np.sqrt((error**2).mean()))
