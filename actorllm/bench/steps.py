"""A runner that is driven by hand-made steps, as a Scheduler would drive it, and the time that each takes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..cores.inputs import StepInputs
from ..errors import UsageError
from ..messages import NewRow, RunStep, Sampling, pack, pack_ids
from ..model.program import Program
from ..model.runner import BackEnd, Runner
from ..model.sampler import Likeliest

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step in seconds: the batch takes its diff, the back end runs, tokens are sampled and appended."""

    apply: float
    forward: float
    after: float

    @property
    def whole(self) -> float:
        """From a RunStep to its tokens."""
        return self.apply + self.forward + self.after


@dataclass(frozen=True, slots=True)
class Traced:
    """Seconds of a step that ran operation by operation, by their names, and of its forward pass besides."""

    operations: tuple[tuple[str, float], ...]
    besides: float


class Watched:
    """A back end that remembers its last forward pass: what went in, what came out, begin and end."""

    def __init__(self, back_end: BackEnd) -> None:
        self._back_end = back_end
        self.slab_bytes = back_end.slab_bytes
        self.variance = back_end.variance
        self.open = back_end.open
        self.close = back_end.close
        self.likeliest = back_end.likeliest
        self.logits_of = back_end.logits_of
        self.start_profile = back_end.start_profile
        self.stop_profile = back_end.stop_profile
        self.last: tuple[Any, StepInputs, Likeliest | None] | None = None
        self.begun = self.ended = 0.0

    def forward(self, inputs: StepInputs) -> Any:
        """As the back end's."""
        self.begun = perf_counter()
        logits = self._back_end.forward(inputs)
        self.ended = perf_counter()
        self.last = logits, inputs, self.likeliest()
        return logits


class Steps:
    """Makes the steps of one batch after the other. Row r of a batch has always the same blocks.

    Raises what `Runner` raises for what it cannot allocate. A context manager: it closes the back end.
    """

    def __init__(
        self, checkpoint: Checkpoint, program: Program, back_end: BackEnd, config: EngineConfig
    ) -> None:
        architecture = checkpoint.architecture
        self.watched = Watched(back_end)
        self._runner = Runner(architecture, program, self.watched, config)
        self._config = config
        self._num_groups = len(architecture.windows)
        self._vocab_size = architecture.vocab_size
        self._random = np.random.default_rng(config.seed or 0)
        self._requests: Sequence[int] = ()
        self._length = self._computed = 0

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *_: object) -> None:
        self.watched.close()

    def check(self, rows: int, length: int) -> None:
        """Raise UsageError when so many requests of so many tokens do not fit."""
        config, runner = self._config, self._runner
        for name, most in (("max-num-seqs", config.max_num_seqs), ("max-num-batched-tokens", self._budget)):
            if rows > most:
                raise UsageError(f"--{name} is {most}, but a batch of {rows} is asked for")
        if length >= runner.max_model_len:
            raise UsageError(
                f"{length} tokens and one more are asked for, but a request may have {runner.max_model_len}; "
                "--max-model-len and --kv-cache-memory-bytes decide that"
            )
        blocks = rows * self._blocks(length)
        if blocks > runner.num_blocks:
            raise UsageError(
                f"{rows} requests of {length} tokens take {blocks} blocks of {runner.num_blocks}; "
                "--kv-cache-memory-bytes or --num-gpu-blocks-override can give more"
            )

    def prefill(self, rows: int, length: int) -> StepTimes:
        """So many requests compute their whole prompts, all in the same steps: the sum of these."""
        amount = self._budget // rows
        steps = [self._enter(rows, length, 0, min(amount, length), length)]
        while self._computed < length:
            steps.append(self._run((), 0, min(amount, length - self._computed)))
        return StepTimes(
            sum(step.apply for step in steps),
            sum(step.forward for step in steps),
            sum(step.after for step in steps),
        )

    def decode(self, rows: int, context: int) -> StepTimes:
        """One token of each of so many requests, which then have `context` (2 at least).

        A step before it, which is not timed, puts them there. Their KV is what lies in their blocks.
        """
        self._enter(rows, context - 1, context - 2, 1, context)
        return self._run((), 0, 1)

    def traced(self, rows: int, context: int, path: Path) -> Traced:
        """As `decode`, but operation by operation. The path is for the trace."""
        self._enter(rows, context - 1, context - 2, 1, context)
        self._runner.command("start_profile", str(path))
        forward = self._run((), 0, 1).forward
        self._runner.command("stop_profile", "")
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        span = events[-1]["ts"] + events[-1]["dur"] - events[0]["ts"]
        operations = tuple((event["name"], event["dur"] / 1e6) for event in events)
        return Traced(operations, forward - span / 1e6)

    @property
    def _budget(self) -> int:
        return self._config.max_num_batched_tokens

    def _blocks(self, length: int) -> int:
        return self._num_groups * -(-length // self._config.block_size)

    def _enter(self, rows: int, length: int, computed: int, amount: int, room: int) -> StepTimes:
        """Requests of `length` tokens take the place of those before, in blocks for `room` tokens."""
        first = self._requests[-1] + 1 if self._requests else 1
        finished, self._requests = self._requests, range(first, first + rows)
        self._length, self._computed = length, computed
        tokens = self._random.integers(self._vocab_size, size=(rows, length))
        new = tuple(
            NewRow(request, pack(row.tolist()), computed, GREEDY)
            for request, row in zip(self._requests, tokens, strict=True)
        )
        return self._run(new, self._blocks(room), amount, finished)

    def _run(
        self, new: tuple[NewRow, ...], blocks: int, amount: int, finished: Sequence[int] = ()
    ) -> StepTimes:
        rows = len(self._requests)
        self._computed += amount
        samples = self._computed == self._length
        self._length += samples
        step = RunStep(
            step=1,
            epoch=0,
            new=new,
            rows=pack_ids(self._requests),
            num_tokens=pack([amount] * rows),
            samples=bytes([samples]) * rows,
            num_blocks=pack([blocks] * rows),
            blocks=pack(range(rows * blocks)),
            finished=pack_ids(finished),
        )
        begun = perf_counter()
        self._runner.execute(step)
        ended, watched = perf_counter(), self.watched
        return StepTimes(watched.begun - begun, watched.ended - watched.begun, ended - watched.ended)
