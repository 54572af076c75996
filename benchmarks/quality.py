"""How far the native kernels are from float32, over every token of a text.

For each position the distribution of the next token is compared with that of the reference kernels in
float32, which run on the exact values of the model's file.

With --weights the model's matrices are first rounded to another form (see rounded.py), and float32 runs on
what that form means.

Usage: python benchmarks/quality.py [--model smollm2-135m] [--weights BF16] [--positions 5000] [--window 512]
                                    [--choice "native int16" ...] [FILE ...]
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from actorllm_kernels.cpu.build import load
from actorllm_kernels.cpu.library import Kernels
from numpy.typing import NDArray

from actorllm.checkpoint import Checkpoint, open_checkpoint
from actorllm.config import DEFAULT_MODEL, EngineConfig
from actorllm.cores.inputs import StepInputs
from actorllm.model.families import program_of
from actorllm.model.native import NativeBackEnd
from actorllm.model.reference import ReferenceBackEnd
from actorllm.model.runner import BackEnd
from benchmarks.rounded import KINDS, QUANTIZATIONS, rounded

ROOT = Path(__file__).parents[1]
BLOCK = 16
CHUNK = 64
"""Positions whose distributions are compared at once."""

CHOICES: dict[str, dict[str, str]] = {
    "native int16": {"activation_dtype": "int16"},
    "native int8": {"activation_dtype": "int8"},
    "native int16, KV int8": {"activation_dtype": "int16", "kv_cache_dtype": "int8"},
    "native int8, KV int8": {"activation_dtype": "int8", "kv_cache_dtype": "int8"},
    "native float32": {"dtype": "float32"},
    "native float32, KV int8": {"dtype": "float32", "kv_cache_dtype": "int8"},
    "reference bfloat16": {"dtype": "bfloat16"},
}
"""What is compared with the reference in float32: settings of the engine. Weights in BF16 and F16 are
multiplied with activations in floating point, whatever `activation_dtype` is.
"""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quality:
    """Of each position: the Kullback-Leibler divergence from the reference, whether the likeliest token is
    the same, and what the true next token costs (nats; nothing for the last of a window).
    """

    divergence: Doubles
    agrees: NDArray[np.bool_]
    loss: Doubles


def texts(files: Iterable[Path]) -> str:
    """The files, one after the other."""
    return "\n\n".join(path.read_text(encoding="utf-8") for path in files)


def windows(tokens: Sequence[int], window: int, positions: int) -> list[list[int]]:
    """So many positions in windows, each of which is read from its own beginning."""
    chosen = list(tokens[:positions])
    return [chosen[start : start + window] for start in range(0, len(chosen), window)]


def compare(
    checkpoint: Checkpoint,
    parts: Sequence[Sequence[int]],
    names: Iterable[str],
    exact: Checkpoint | None = None,
    **settings: Any,
) -> dict[str, Quality]:
    """The quality of each of CHOICES that is named, the native ones with these settings of the engine too.

    The reference runs on the values of `exact`, if it is given.
    """
    length = max(map(len, parts))
    found: dict[str, list[Quality]] = {name: [] for name in names}
    with ExitStack() as stack:

        def start(name: str) -> BackEnd:
            more = settings if name.startswith("native") else {}
            return stack.enter_context(opened(checkpoint, length, name, CHOICES[name] | more))

        reference = stack.enter_context(
            opened(exact or checkpoint, length, "reference", {"dtype": "float32"})
        )
        others = {name: start(name) for name in found}
        for part in parts:
            inputs = inputs_of(part, len(checkpoint.architecture.windows))
            wanted = logits_of(reference, inputs)
            logits = {name: logits_of(back_end, inputs) for name, back_end in others.items()}
            for name, made in qualities(wanted, logits, np.array(part[1:])).items():
                found[name].append(made)
    return {name: joined(qualities) for name, qualities in found.items()}


def compare_rounded(
    checkpoint: Checkpoint, weights: str | None, parts: Sequence[Sequence[int]], names: Iterable[str]
) -> dict[str, Quality]:
    """The same with matrices of one of KINDS, or that the engine rounds to one of QUANTIZATIONS."""
    if weights is None:
        return compare(checkpoint, parts, names)
    quantization = weights if weights in QUANTIZATIONS else None
    with rounded(checkpoint, weights) as (stored, exact):
        return compare(stored, parts, names, exact, quantization=quantization)


@contextmanager
def opened(checkpoint: Checkpoint, length: int, name: str, settings: Mapping[str, Any]) -> Iterator[BackEnd]:
    """A back end for one request of this length, all of whose logits are wanted."""
    limits: dict[str, Any] = {"max_num_batched_tokens": length, "max_num_seqs": length, "block_size": BLOCK}
    config = EngineConfig(model=checkpoint.name, **limits, **settings)
    program = program_of(checkpoint.architecture)
    back_end: BackEnd = (
        NativeBackEnd(program, checkpoint, config, Kernels(load()))
        if name.startswith("native")
        else ReferenceBackEnd(program, checkpoint, config)
    )
    back_end.open(-(-length // BLOCK) * len(checkpoint.architecture.windows), length)
    try:
        yield back_end
    finally:
        back_end.close()


def inputs_of(tokens: Sequence[int], num_groups: int) -> StepInputs:
    """A step with one request from its beginning, whose every token wants logits."""
    count = len(tokens)
    blocks = np.arange(num_groups * -(-count // BLOCK), dtype=np.int32).reshape(num_groups, 1, -1)
    positions = np.arange(count, dtype=np.int64)
    none = np.zeros(count)
    return StepInputs(
        input_ids=np.array(tokens, np.int32),
        positions=positions,
        slot_mapping=blocks[:, 0, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK,
        query_start_loc=np.array([0, count], np.int32),
        seq_lens=np.array([count], np.int32),
        block_table=blocks,
        sample_rows=np.zeros(count, np.int64),
        logits_indices=positions,
        temperature=none.astype(np.float32),
        top_k=none.astype(np.int32),
        top_p=none.astype(np.float32),
        min_p=none.astype(np.float32),
        seed=none.astype(np.int64),
        position=positions + 1,
    )


def logits_of(back_end: BackEnd, inputs: StepInputs) -> Floats:
    """Float32 [positions, vocab_size], valid until the next step."""
    logits: Any = back_end.forward(inputs)
    return logits if isinstance(logits, np.ndarray) else logits.float().numpy()


def qualities(
    exact: Floats, logits: Mapping[str, Floats], following: NDArray[np.int64]
) -> dict[str, Quality]:
    """Of one window, by name; `following` are the tokens after each position but the last."""
    found: dict[str, list[Quality]] = {name: [] for name in logits}
    for start in range(0, len(exact), CHUNK):
        rows = slice(start, start + CHUNK)
        p, next_ones = log_softmax(exact[rows]), following[rows]
        shares, likeliest = np.exp(p), exact[rows].argmax(1)
        for name, others in logits.items():
            q = log_softmax(others[rows])
            divergence = (shares * (p - q)).sum(1)
            loss = -q[np.arange(len(next_ones)), next_ones]
            found[name].append(Quality(divergence, likeliest == others[rows].argmax(1), loss))
    return {name: joined(parts) for name, parts in found.items()}


def log_softmax(logits: Floats) -> Doubles:
    """Of each row, in float64."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    result: Doubles = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result


def joined(parts: Sequence[Quality]) -> Quality:
    """Parts of a text, one after the other."""
    return Quality(
        np.concatenate([part.divergence for part in parts]),
        np.concatenate([part.agrees for part in parts]),
        np.concatenate([part.loss for part in parts]),
    )


def main() -> None:
    """Compare all choices and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="texts; default: README and docs")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--positions", type=int, default=5000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--weights", choices=(*KINDS, *QUANTIZATIONS), help="default: the model's own")
    parser.add_argument("--choice", choices=CHOICES, action="append", help="may be repeated; default: all")
    chosen = parser.parse_args()
    checkpoint = open_checkpoint(chosen.model)
    text = texts(chosen.files or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    parts = windows(checkpoint.tokenizer().encode(text), chosen.window, chosen.positions)
    found = compare_rounded(checkpoint, chosen.weights, parts, chosen.choice or CHOICES)
    weights = f" in {chosen.weights}" if chosen.weights else ""
    print(f"{checkpoint.name}{weights}, {sum(map(len, parts))} positions in windows of {chosen.window}")
    print(f"{'':24} {'mean KL':>10} {'p99 KL':>10} {'largest':>10} {'same top-1':>11} {'perplexity':>11}")
    for name, made in found.items():
        kl = made.divergence
        numbers = f"{kl.mean():10.2e} {np.quantile(kl, 0.99):10.2e} {kl.max():10.2e}"
        print(f"{name:24} {numbers} {made.agrees.mean():11.2%} {np.exp(made.loss.mean()):11.4f}")


if __name__ == "__main__":
    main()
