"""Where the time of a step goes on the native kernels, beside what the machine can do at most."""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from actorllm_kernels.cpu.build import kernels_mode, native_library
from actorllm_kernels.cpu.isa import choose_isa
from actorllm_kernels.cpu.library import Activation, Form, Kernels
from actorllm_kernels.cpu.packing import Packed

from ..checkpoint import Checkpoint, Progress, open_checkpoint
from ..config import EngineConfig
from ..errors import KernelsMissing, UsageError
from ..model.families import program_of
from ..model.native import CACHES, available_cores
from ..model.packed import load_packed
from ..model.program import Program
from ..model.runner import BackEnd, native_back_end
from ..model.sampler import sample
from .limits import best, memory_rate, product_rate
from .steps import Steps, StepTimes, Traced
from .work import Work

MOST_TRACED = 10
MOST_PREFILLS = 5
"""Steps of each batch that run operation by operation, and prompts, at most."""

KINDS = {
    "linear": "linears",
    "gated": "linears",
    "attend": "attention",
    "join": "attention",
    "rotate": "rotary, KV",
    "activate": "activations",
    "norm": "activations",
    "embed": "embedding",
}
"""What the kernels' operations count as. The last product of a step is its head."""

NATIVE = ("linears", "head", "attention", "rotary, KV", "activations", "embedding")
PARTS = (*NATIVE, "sampling", "Python", "rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Matrices in one form: how many, their bytes, and what they are multiplied with."""

    matrices: int
    bytes: int
    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What this machine did at most. `product` is the form of the weights that were multiplied."""

    memory_gb_per_s: float
    product_gmac_per_s: float
    product: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A step, or the steps of a prompt. The rates are those of the best, and products those with weights."""

    median_ms: float
    best_ms: float
    tokens_per_s: float
    gmac_per_s: float
    product_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Steps in which each request of a batch decodes a token: what one reads, and parts of the best."""

    batch: int
    rates: Rates
    bytes: int
    gb_per_s: float
    memory_share: float
    split_ms: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that was measured in one process."""

    model: str
    isa: str
    threads: int
    kv_cache_dtype: str
    weights: dict[str, Weights]
    limits: Ceilings
    context: int
    decode: list[Decode]
    prompt_tokens: int
    prefill: Rates

    def json(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


def measure(
    config: EngineConfig,
    batches: Sequence[int],
    context: int,
    prompt_tokens: int,
    repeats: int,
    progress: Progress | None = None,
) -> Found:
    """The limits first, then decoding in each of the batches, then a prompt.

    Raises UsageError where the native kernels do not run, and for what does not fit, KernelsMissing, and
    what opening a model raises.
    """
    checkpoint = open_checkpoint(config.model, progress=progress)
    back_end, program = _native(checkpoint, config)
    threads = config.num_threads or available_cores()
    with Steps(checkpoint, program, back_end, config) as steps:
        for rows, length in ((max(batches), context), (1, prompt_tokens)):
            steps.check(rows, length)
        matrices = load_packed(program, checkpoint, config.dtype, config.quantization).matrices
        work = Work(program, matrices, back_end.slab_bytes // config.block_size)
        limits = _limits(work.commonest(), config, threads)
        steps.prefill(max(batches), context)  # all the KV that is read is there, and everything is warm
        decode = [_decode(steps, work, limits, rows, context, repeats) for rows in batches]
        prompts = [steps.prefill(1, prompt_tokens) for _ in range(min(repeats, MOST_PREFILLS))]
    return Found(
        model=config.model,
        isa=choose_isa().name,
        threads=threads,
        kv_cache_dtype=CACHES[config.kv_cache_dtype].dtype,
        weights=_forms(matrices, config),
        limits=limits,
        context=context,
        decode=decode,
        prompt_tokens=prompt_tokens,
        prefill=_rates(prompts, prompt_tokens, work.macs(prompt_tokens, 1), limits),
    )


def _native(checkpoint: Checkpoint, config: EngineConfig) -> tuple[BackEnd, Program]:
    if checkpoint.architecture.family == "hash":
        raise UsageError(f"{config.model} has no weights, so it needs no kernels: name a real model")
    program = program_of(checkpoint.architecture)
    back_end = native_back_end(program, checkpoint, config)
    if back_end is not None:
        return back_end, program
    mode = kernels_mode()
    if mode == "reference":
        raise UsageError("ACTORLLM_CPU_KERNELS is reference, so the native kernels do not run: unset it")
    if config.dtype == "float32" or checkpoint.architecture.dtype == "float32":
        raise UsageError(
            "float32 runs on the reference kernels: take --dtype bfloat16, or ACTORLLM_CPU_KERNELS=native"
        )
    raise KernelsMissing("the native kernels cannot be compiled here; ACTORLLM_CPU_KERNELS=native tells why")


def _limits(packed: Packed, config: EngineConfig, threads: int) -> Ceilings:
    library = native_library()
    assert library is not None, "they run already"
    integers = Activation[config.activation_dtype.upper()]
    return Ceilings(
        memory_gb_per_s=memory_rate(threads),
        product_gmac_per_s=product_rate(packed, Kernels(library), integers, threads),
        product=packed.form.name,
    )


def _forms(matrices: Mapping[str, Packed], config: EngineConfig) -> dict[str, Weights]:
    by_form: dict[Form, list[Packed]] = {}
    for packed in matrices.values():
        by_form.setdefault(packed.form, []).append(packed)
    return {
        form.name: Weights(
            matrices=len(those),
            bytes=sum(packed.data.nbytes for packed in those),
            activation={Form.BF16: "bfloat16", Form.F16: "float32", Form.F32: "float32"}.get(
                form, config.activation_dtype
            ),
        )
        for form, those in sorted(by_form.items())
    }


def _decode(steps: Steps, work: Work, limits: Ceilings, rows: int, context: int, repeats: int) -> Decode:
    times = [steps.decode(rows, context) for _ in range(repeats)]
    assert steps.watched.last is not None, "it ran"
    sampling = best(partial(sample, *steps.watched.last))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        traces = [steps.traced(rows, context, path) for _ in range(min(repeats, MOST_TRACED))]
    fastest = min(times, key=lambda step: step.whole)
    size = work.bytes(rows, context)
    rate = size / fastest.whole / 1e9
    return Decode(
        batch=rows,
        rates=_rates(times, rows, work.macs(rows, rows), limits),
        bytes=size,
        gb_per_s=rate,
        memory_share=rate / limits.memory_gb_per_s,
        split_ms=split(fastest, traces, sampling),
    )


def _rates(times: Sequence[StepTimes], tokens: int, macs: int, limits: Ceilings) -> Rates:
    seconds = min(step.whole for step in times)
    rate = macs / seconds / 1e9
    return Rates(
        median_ms=median(step.whole for step in times) * 1e3,
        best_ms=seconds * 1e3,
        tokens_per_s=tokens / seconds,
        gmac_per_s=rate,
        product_share=rate / limits.product_gmac_per_s,
    )


def split(step: StepTimes, traces: Sequence[Traced], sampling: float) -> dict[str, float]:
    """The milliseconds of a step by PARTS; they add up to it.

    Of each operation the best of the traces counts. What the cheapest takes alone is what a call costs
    (mostly it had nothing to do), and is taken off all; what is left is scaled to the time of the kernels.
    """
    names = [name for name, _ in traces[0].operations]
    took = [[seconds for _, seconds in each.operations] for each in traces]
    alone = [min(times) for times in zip(*took, strict=True)]
    call, head = min(alone), max(number for number, name in enumerate(names) if name == "linear")
    kinds: Counter[str] = Counter()
    for number, (name, seconds) in enumerate(zip(names, alone, strict=True)):
        kinds["head" if number == head else KINDS.get(name, "rest")] += seconds - call
    besides = min(step.forward, max(0.0, median(each.besides for each in traces)))
    scale = (step.forward - besides) / (sum(kinds.values()) or 1.0)
    parts = {kind: kinds[kind] * scale for kind in NATIVE}
    parts |= {"sampling": min(sampling, step.after), "Python": step.apply + besides}
    parts["rest"] = max(0.0, step.whole - sum(parts.values()))
    return {part: seconds * 1e3 for part, seconds in parts.items()}


def show_kernels(found: Found) -> str:
    """Tables: the limits, a line a batch and the prompt, and a column a batch for the split."""
    limits = found.limits
    forms = [
        f"{form} x {each.activation}: {each.bytes / 1e6:.1f} MB in {each.matrices}"
        for form, each in found.weights.items()
    ]
    lines = [
        f"{'kernels':14}native, {found.isa}, {found.threads} threads; KV {found.kv_cache_dtype}",
        *(f"{'weights' if not number else '':14}{form}" for number, form in enumerate(forms)),
        f"{'memory':14}{limits.memory_gb_per_s:.1f} GB/s at most",
        f"{'products':14}{limits.product_gmac_per_s:.1f} GMAC/s at most, of {limits.product}",
        "",
        f"{f'context {found.context}':14}{'median ms':>10}{'best ms':>10}{'tokens/s':>10}"
        f"{'GMAC/s':>10}{'of most':>9}{'MB':>10}{'GB/s':>8}{'of most':>9}",
    ]
    for each in found.decode:
        read = f"{each.bytes / 1e6:10.1f}{each.gb_per_s:8.1f}{each.memory_share:9.0%}"
        lines.append(f"{f'decode {each.batch}':14}{_columns(each.rates)}{read}")
    lines += [
        f"{f'prefill {found.prompt_tokens}':14}{_columns(found.prefill)}",
        "",
        f"{'ms of the best':14}" + "".join(f"{f'decode {each.batch}':>18}" for each in found.decode),
        *(f"{part:14}" + "".join(_part(each, part) for each in found.decode) for part in PARTS),
        "note: each operation was timed alone, less what a call costs; together they are scaled to the step",
    ]
    return "\n".join(lines)


def _columns(rates: Rates) -> str:
    return (
        f"{rates.median_ms:10.2f}{rates.best_ms:10.2f}{rates.tokens_per_s:10.1f}"
        f"{rates.gmac_per_s:10.1f}{rates.product_share:9.0%}"
    )


def _part(of: Decode, part: str) -> str:
    return f"{of.split_ms[part]:11.3f}{of.split_ms[part] / of.rates.best_ms:7.1%}"
