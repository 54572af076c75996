"""The runner: a back end with its KV cache, and the persistent batch. It executes steps."""

from typing import Any, Protocol

import numpy as np

from ..checkpoint import Architecture, Checkpoint
from ..config import EngineConfig
from ..cores.arrays import Int64
from ..cores.batch import Batch
from ..cores.inputs import PromptPart, StepInputs
from ..cores.logprobs import concatenate
from ..errors import ConfigError, KernelsMissing, UsageError
from ..messages import PromptLogprobs, RunStep, Sampled, SampleStep
from ..processors import load_processors
from .capacity import capacity
from .dtypes import resolve_dtype
from .families import program_of
from .logprobs import prompt_logprobs
from .masks import Masks, masks_of
from .program import Program
from .sampler import Likeliest, sample

PROMPT_CHUNK = 32
"""Tokens of prompts whose logits are in memory at once."""


class BackEnd(Protocol):
    """What runs a program: kernels, with weights and a KV cache while it is open."""

    @property
    def slab_bytes(self) -> int:
        """Bytes of one block in one slab of the cache."""

    @property
    def variance(self) -> str | None:
        """Why the logits of a token may differ in their last bits with what else is in its step, as a clause
        of a sentence; None: they never do, which is what `EngineConfig.batch_invariant` asks for.
        """

    def open(self, num_blocks: int, length: int) -> None:
        """Load the weights and allocate the cache, for positions below `length`."""

    def close(self) -> None:
        """Let go of both."""

    def forward(self, inputs: StepInputs) -> Any:
        """Logits [S, vocab_size] of the step's `logits_indices`, as `sample` takes them."""

    def logits_of(self, inputs: StepInputs, indices: Int64) -> Any:
        """Logits [n, vocab_size] of other tokens of the last step, by their index in N.

        There are no more of them than rows may sample; what `forward` returned is lost.
        """

    def likeliest(self) -> Likeliest | None:
        """The likeliest tokens of the last step, where they were found on the way."""

    def start_profile(self, path: str) -> None:
        """Take the times of what runs from now on."""

    def stop_profile(self) -> None:
        """Write them. Raises OSError."""


class Runner:
    """Executes steps on a back end; all of it belongs to the thread that made it.

    `num_blocks` blocks are in the KV cache; `max_model_len` tokens a request may have (see `capacity`,
    whose ConfigError it raises). Raises ConfigError for a back end that is to be batch invariant and is not.
    """

    def __init__(
        self, architecture: Architecture, program: Program, back_end: BackEnd, config: EngineConfig
    ) -> None:
        if config.batch_invariant and (variance := back_end.variance) is not None:
            raise ConfigError(
                f"batch_invariant is true, but this device cannot promise it: {variance}; turn it off, or "
                "take a device that can: the CPU does, on the native and on the reference kernels"
            )
        windows = architecture.windows
        self._back_end = back_end
        self.num_blocks, self.max_model_len = capacity(
            config,
            architecture.max_position_embeddings,
            program.num_slabs * back_end.slab_bytes,
            windows,
        )
        self._processors = load_processors(config.logits_processors, program.vocab_size)
        self._processed_logprobs = config.logprobs_mode == "processed_logprobs"
        self._chunk = min(PROMPT_CHUNK, config.max_num_seqs)
        self._batch = Batch(
            config.max_num_seqs, self.max_model_len, config.block_size, len(windows), self._processors
        )
        self._held: tuple[StepInputs, Any, tuple[PromptLogprobs, ...]] | None = None
        self._profile_path: str | None = None
        back_end.open(self.num_blocks, self.max_model_len)

    def reset(self) -> None:
        """Forget every request: the next step brings all its rows anew."""
        self._held = None
        self._batch.reset()

    def command(self, action: str, argument: str) -> None:
        """Drop weights and cache, bring them back, or profile the steps in between.

        Raises UsageError for a profile that has begun already or not at all, OSError when it cannot be
        written, and whatever loading raises.
        """
        match action:
            case "sleep":
                self._back_end.close()
            case "wake_up":
                self._back_end.open(self.num_blocks, self.max_model_len)
            case "start_profile":
                self._start_profile(argument)
            case "stop_profile":
                self._stop_profile()
            case _:
                raise AssertionError(f"unknown command {action}")

    def _start_profile(self, path: str) -> None:
        if self._profile_path is not None:
            raise UsageError(f"a profile is being taken already, for {self._profile_path}")
        with open(path, "w", encoding="utf-8"):
            pass  # it can be written, or fails now
        self._back_end.start_profile(path)
        self._profile_path = path

    def _stop_profile(self) -> None:
        if self._profile_path is None:
            raise UsageError("no profile is being taken")
        self._profile_path = None
        self._back_end.stop_profile()

    def execute(self, step: RunStep) -> Sampled | None:
        """A token for each sampling row of the step, in row order; None when it waits for `sample`.

        Raises AssertionError for a step that breaks the protocol (see `Batch.apply`). After any
        exception only `reset` is possible.
        """
        assert self._held is None, "the last step was not sampled"
        inputs = self._batch.apply(step)
        logits: Any = None
        prompts: tuple[PromptLogprobs, ...] = ()
        if inputs.input_ids.size:
            logits = self._back_end.forward(inputs)
        if inputs.prompts:
            prompts = tuple(self._prompt_logprobs(inputs, part) for part in inputs.prompts)
            logits = self._back_end.logits_of(inputs, inputs.logits_indices)
        self._held = inputs, logits, prompts
        return None if step.waits else self._sample({})

    def sample(self, step: SampleStep) -> Sampled:
        """The tokens of the step that waits, under its masks."""
        assert self._held is not None, "no step waits"
        return self._sample(masks_of(step, self._held[0]))

    def check(self) -> None:
        """Raise AssertionError when the batch is inconsistent."""
        self._batch.check()

    def _sample(self, masks: Masks) -> Sampled:
        assert self._held is not None, "no step was run"
        inputs, logits, prompts = self._held
        self._held = None
        if not inputs.sample_rows.size:
            self._batch.append(np.zeros(0, np.int32))
            return Sampled(b"", prompt_logprobs=prompts)
        drawn = sample(
            logits,
            inputs,
            self._back_end.likeliest(),
            inputs.extras,
            masks,
            self._processors,
            self._processed_logprobs,
        )
        self._batch.append(drawn.tokens)
        tokens = drawn.tokens.astype("<i4").tobytes()
        return Sampled(tokens, logprobs=drawn.logprobs, prompt_logprobs=prompts)

    def _prompt_logprobs(self, inputs: StepInputs, part: PromptPart) -> PromptLogprobs:
        """Those of a part of a prompt, a few tokens at a time."""
        found = []
        for begin in range(0, len(part.targets), self._chunk):
            targets = part.targets[begin : begin + self._chunk]
            indices = part.begin + begin + np.arange(len(targets), dtype=np.int64)
            logits = self._back_end.logits_of(inputs, indices)
            found.append(prompt_logprobs(logits, targets, part.num_top))
        return PromptLogprobs(part.request, part.first, concatenate(found))


def open_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """Make a runner of a checkpoint, on the native kernels where they serve and else on the reference.

    float32 runs on the reference, whose cache is float32 too, unless ACTORLLM_CPU_KERNELS says native.
    Raises ModelCorrupt for a damaged file, ConfigError for what does not fit (see `Runner`), and
    KernelsMissing.
    """
    architecture = checkpoint.architecture
    program = program_of(architecture)
    back_end = native_back_end(program, checkpoint, config) or _reference(program, checkpoint, config)
    return Runner(architecture, program, back_end, config)


def native_back_end(program: Program, checkpoint: Checkpoint, config: EngineConfig) -> BackEnd | None:
    """The native kernels, not open yet; None where the reference runs (see `open_runner`)."""
    from actorllm_kernels.cpu.build import KernelsUnavailable, kernels_mode, native_library
    from actorllm_kernels.cpu.isa import InvalidSetting

    try:
        is_exact = resolve_dtype(config.dtype, checkpoint.architecture.dtype) == "float32"
        if is_exact and kernels_mode() != "native":
            return None
        library = native_library()
    except InvalidSetting as error:
        raise ConfigError(str(error)) from None
    except KernelsUnavailable as error:
        raise KernelsMissing(str(error)) from error
    if library is None:
        return None
    from actorllm_kernels.cpu.library import Kernels

    from .native import NativeBackEnd

    return NativeBackEnd(program, checkpoint, config, Kernels(library))


def _reference(program: Program, checkpoint: Checkpoint, config: EngineConfig) -> BackEnd:
    if config.quantization is not None:
        raise ConfigError(
            f"quantization is {config.quantization}, which only the native kernels have, but the reference "
            "runs here: a checkpoint in float32 needs dtype bfloat16, and the kernels a C++ compiler"
        )
    from .reference import ReferenceBackEnd

    return ReferenceBackEnd(program, checkpoint, config)
