"""What a run was: counts, rates and times, as a table for people and as JSON for programs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from .load import Load, Run, Sample

FEW_CHUNKS = 0.9
"""Below this share of chunks a token, the report says that the gaps are between chunks."""


MAX_REASONS = 5
"""Reasons of failures that a table lists; JSON has them all."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some times, in milliseconds. Percentiles are interpolated between neighbours."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run. Rates and times are those of the requests that succeeded.

    ttft_ms    from sending a request to its first news
    itl_ms     from news to news within an answer
    tpot_ms    for each answer the mean time a token, after the first news
    e2e_ms     from sending a request to its end
    cpu_s      of the process that asks: the load generator, or the engine itself when it runs in here
    """

    load: Load
    ok: int
    failed: int
    failures: dict[str, int]
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    chunks: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_ms: Spread | None
    itl_ms: Spread | None
    tpot_ms: Spread | None
    e2e_ms: Spread | None
    cpu_s: float
    notes: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The same for JSON: the names of the fields with their units; null where there is nothing."""
        return asdict(self)


def spread(seconds: Sequence[float]) -> Spread | None:
    """Mean, median and 99th percentile; None of no times."""
    if not seconds:
        return None
    import numpy

    p50, p99 = numpy.percentile(seconds, (50, 99))
    return Spread(float(numpy.mean(seconds)) * 1e3, float(p50) * 1e3, float(p99) * 1e3)


def summarize(load: Load, run: Run) -> Report:
    """What the samples say together."""
    good = [sample for sample in run.samples if sample.failure is None]
    failures = Counter(sample.failure for sample in run.samples if sample.failure is not None)
    prompt = sum(_first(sample.prompt_tokens, load.tokens_of_prompt) for sample in good)
    output = sum(map(_tokens, good))
    return Report(
        load=load,
        ok=len(good),
        failed=len(run.samples) - len(good),
        failures=dict(failures.most_common()),
        duration_s=run.seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        chunks=sum(len(sample.arrivals) for sample in good),
        requests_per_s=len(good) / run.seconds,
        prompt_tokens_per_s=prompt / run.seconds,
        output_tokens_per_s=output / run.seconds,
        total_tokens_per_s=(prompt + output) / run.seconds,
        ttft_ms=spread([sample.arrivals[0] - sample.begun for sample in good if sample.arrivals]),
        itl_ms=spread([after - before for sample in good for before, after in pairwise(sample.arrivals)]),
        tpot_ms=spread([_each(sample) for sample in good if len(sample.arrivals) > 1]),
        e2e_ms=spread([sample.ended - sample.begun for sample in good]),
        cpu_s=run.cpu_seconds,
        notes=_notes(load, good),
    )


def _tokens(sample: Sample) -> int:
    return _first(sample.output_tokens, len(sample.arrivals))


def _first(counted: int | None, otherwise: int) -> int:
    return otherwise if counted is None else counted


def _each(sample: Sample) -> float:
    return (sample.arrivals[-1] - sample.arrivals[0]) / max(1, _tokens(sample) - 1)


def _notes(load: Load, good: Sequence[Sample]) -> list[str]:
    """What the reader of the numbers must know."""
    found: list[str] = []
    if any(sample.output_tokens is None for sample in good):
        found.append("the server tells no usage: tokens are chunks that were counted")
    meant = load.tokens_of_prompt
    others = sorted({_first(sample.prompt_tokens, meant) for sample in good} - {meant})
    if others:
        counted = f"{others[0]}" if len(others) == 1 else f"{others[0]} to {others[-1]}"
        found.append(f"the server counts {counted} tokens in a prompt where {meant} were meant")
    if sum(len(sample.arrivals) for sample in good) < FEW_CHUNKS * sum(map(_tokens, good)):
        found.append("fewer chunks than tokens: ITL is the gap between chunks")
    return found


def show(report: Report, who: str) -> str:
    """A table. `who` has spent the CPU time."""
    counts = f"{report.ok} ok, {report.failed} failed"
    lines = [f"{'requests':14}{counts} in {report.duration_s:.2f} s ({report.requests_per_s:.2f} a second)"]
    lines += [f"{'':14}{reason}" for reason in reasons(report)]
    if report.ok:
        lines += [
            f"{'output':14}{report.output_tokens} tokens, {report.output_tokens_per_s:.1f} a second",
            f"{'prompts':14}{report.prompt_tokens} tokens, {report.prompt_tokens_per_s:.1f} a second",
            f"{'together':14}{report.total_tokens_per_s:.1f} tokens a second",
            f"{'ms':14}{'mean':>10}{'p50':>10}{'p99':>10}",
        ]
        times = {
            "TTFT": report.ttft_ms,
            "ITL": report.itl_ms,
            "TPOT": report.tpot_ms,
            "end to end": report.e2e_ms,
        }
        lines += [
            f"{name:14}{each.mean:10.2f}{each.p50:10.2f}{each.p99:10.2f}"
            for name, each in times.items()
            if each
        ]
        share, a_token = report.cpu_s / report.duration_s, report.cpu_s / max(1, report.output_tokens) * 1e6
        lines.append(f"{who:14}{report.cpu_s:.2f} s of CPU: {a_token:.0f} us a token, {share:.1%} of a core")
    return "\n".join([*lines, *(f"note: {note}" for note in report.notes)])


def reasons(report: Report) -> list[str]:
    """Why requests failed, the most frequent reasons first."""
    found = [f"{count} x {reason}" for reason, count in report.failures.items()]
    left = len(found) - MAX_REASONS
    return [*found[:MAX_REASONS], f"and {left} other reasons"] if left > 0 else found
