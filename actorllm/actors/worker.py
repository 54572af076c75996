"""The worker's device: a runner on a thread of its own. The only module that knows `actorllm.model`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..errors import ConfigError, RequestFailed, UnsupportedModel
from ..messages import Fault, Job, RunCommand, RunStep, Sampled, SampleStep
from .jobs import Deliver, DeviceThread, Work, box


class Runner(Protocol):
    """What executes steps: a model with its KV cache and its persistent batch."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""

    @property
    def max_model_len(self) -> int:
        """Tokens a request may have in all."""

    def execute(self, step: RunStep) -> Sampled | None:
        """Run the step; a token for each sampling row, in row order. None for a step that waits."""

    def sample(self, step: SampleStep) -> Sampled:
        """The tokens of the step that ran last, and waits."""

    def reset(self) -> None:
        """Forget every row: the next step brings all its rows anew."""

    def command(self, action: str, argument: str) -> None:
        """Do what a RunCommand says. Asleep it keeps neither weights nor cache, and gets no step."""


OpenRunner = Callable[[Checkpoint, EngineConfig], Runner]
"""Makes a runner; called on the device's thread, and may take long."""


def open_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """The runner that the checkpoint asks for. Imports torch unless it is the hash model."""
    if checkpoint.architecture.family == "hash":
        from ..model.hash import HashRunner

        architecture = checkpoint.architecture
        if max(architecture.windows) >= 2**31:
            raise UnsupportedModel(
                f"a window of {max(architecture.windows)} tokens is more than any model has"
            )
        return HashRunner(config, architecture.max_position_embeddings, architecture.windows)
    from ..model.runner import open_runner as open_torch_runner

    return open_torch_runner(checkpoint, config)


class Thread(Protocol):
    """Where a device's jobs run, one after the other, in the order that they came."""

    def start(self, work: Work, job: Job, deliver: Deliver, /) -> None:
        """Queue the job; its JobDone will be delivered."""


class Device:
    """A runner whose batch can be trusted: after a step that raised, its epoch is over."""

    def __init__(self, thread: Thread, runner: Runner) -> None:
        self.num_blocks = runner.num_blocks
        self.max_model_len = runner.max_model_len
        self._thread = thread
        self._runner = runner
        self._epoch = 0
        self._failed_epoch = -1

    def start(self, job: Job, deliver: Deliver) -> None:
        """Queue a step; its JobDone is delivered from the event loop."""
        self._thread.start(self._run, job, deliver)

    def _run(self, step: RunStep | SampleStep | RunCommand) -> Sampled | None:
        if step.epoch <= self._failed_epoch:
            raise RequestFailed(f"an earlier step of epoch {step.epoch} failed")
        try:
            if step.epoch > self._epoch:
                self._epoch = step.epoch
                self._runner.reset()
            if isinstance(step, RunStep):
                return self._runner.execute(step)
            if isinstance(step, SampleStep):
                return self._runner.sample(step)
            return Sampled(b"", self._command(step))
        except BaseException:
            self._failed_epoch = step.epoch
            raise

    def _command(self, command: RunCommand) -> Fault | None:
        """What it failed with, if it did: that costs no step."""
        try:
            self._runner.command(command.action, command.argument)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever loading or profiling raises goes to the caller
            return box(error)
        return None


def _make(make: OpenRunner, checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    try:
        return make(checkpoint, config)
    except MemoryError as error:
        sizes = "num_gpu_blocks_override, kv_cache_memory_bytes, max_num_batched_tokens or max_num_seqs"
        raise ConfigError(f"the engine needs more memory than there is ({error}): lower {sizes}") from error


@asynccontextmanager
async def open_device(
    checkpoint: Checkpoint, config: EngineConfig, make: OpenRunner = open_runner
) -> AsyncIterator[Device]:
    """A device that is ready for steps; its thread ends with the block.

    Raises ConfigError when the memory does not do, and what `make` raises.
    """
    thread = DeviceThread("actorllm-device")
    try:
        with thread:
            runner = await thread.call(partial(_make, make, checkpoint, config))
            yield Device(thread, runner)
    finally:
        await thread.join(config.shutdown_timeout)
