"""The loads by which engines are compared, and one table of them all."""

from collections.abc import Mapping
from dataclasses import replace

from .load import Load
from .report import Report, Spread, reasons

Suite = Mapping[str, tuple[int, int, int, int, int]]
"""Of each load: streams, requests, shared tokens, further tokens of a prompt, tokens of an answer."""

SUITE: Suite = {
    "one stream": (1, 3, 0, 128, 128),
    "8 streams": (8, 16, 0, 128, 128),
    "32 streams": (32, 64, 0, 128, 128),
    "long prompts": (16, 32, 0, 512, 64),
    "shared prefix": (16, 32, 1024, 64, 32),
    "prefill only": (8, 32, 0, 512, 1),
}
WARM_TOKENS = 16
"""Tokens of the prompts and the answers before a suite: they wake the server up, and are not measured."""


def warm_load(load: Load) -> Load:
    """What is asked before the suite, as often as `load.warmup` says."""
    return replace(
        load, concurrency=1, prompt_tokens=WARM_TOKENS, output_tokens=WARM_TOKENS, shared_prefix_tokens=0
    )


def loads(load: Load, suite: Suite) -> dict[str, Load]:
    """The loads by their names; warm-up, vocabulary and seed are those of `load`."""
    names = ("concurrency", "num_requests", "shared_prefix_tokens", "prompt_tokens", "output_tokens")
    return {name: replace(load, **dict(zip(names, row, strict=True))) for name, row in suite.items()}


def show_suite(found: Mapping[str, Report]) -> str:
    """A line for each load, and below them what failed and what must be known."""
    reports = found.values()
    heads = ("out tok/s", "all tok/s", "TTFT p50", "p99 ms", "ITL p50", "p99 ms")
    lines = [f"{'load':34}{'ok':>5}{'failed':>8}" + "".join(f"{head:>11}" for head in heads)]
    for report in reports:
        cells = [f"{report.output_tokens_per_s:.1f}", f"{report.total_tokens_per_s:.1f}"]
        cells += [*_cells(report.ttft_ms), *_cells(report.itl_ms)]
        lines.append(
            f"{report.load!s:34}{report.ok:5}{report.failed:8}" + "".join(f"{cell:>11}" for cell in cells)
        )
    lines += [f"{report.load}: {reason}" for report in reports for reason in reasons(report)]
    lines += [f"note: {note}" for note in dict.fromkeys(note for report in reports for note in report.notes)]
    cpu, tokens = sum(report.cpu_s for report in reports), sum(report.output_tokens for report in reports)
    lines.append(f"the load generator took {cpu:.2f} s of CPU, {cpu / max(1, tokens) * 1e6:.0f} us a token")
    return "\n".join(lines)


def _cells(times: Spread | None) -> tuple[str, str]:
    return ("-", "-") if times is None else (f"{times.p50:.1f}", f"{times.p99:.1f}")
