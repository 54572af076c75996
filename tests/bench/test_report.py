"""Numbers of known samples."""

import json

import pytest

from actorllm.bench.load import Load, Run, Sample
from actorllm.bench.report import Report, reasons, show, spread, summarize

LOAD = Load(num_requests=3, prompt_tokens=10, output_tokens=3)


def sample(begun: float, *arrivals: float, prompt: int | None = 10, output: int | None = 3) -> Sample:
    return Sample(begun, list(arrivals), arrivals[-1] + 0.5, prompt, output)


def failed(reason: str) -> Sample:
    return Sample(0.0, [1.0], 9.0, 10, 2, reason)


def report(*samples: Sample) -> Report:
    return summarize(LOAD, Run(samples, 4.0, 0.25))


def test_percentiles_are_interpolated() -> None:
    found = spread([number / 1000 for number in range(101)])
    assert found is not None
    assert (found.mean, found.p50, found.p99) == pytest.approx((50.0, 50.0, 99.0))
    between = spread([0.001, 0.002])
    assert between is not None
    assert (between.mean, between.p50, between.p99) == pytest.approx((1.5, 1.5, 1.99))
    assert spread([]) is None


def test_rates_and_times_are_of_what_succeeded() -> None:
    found = report(sample(0.0, 1.0, 2.0, 4.0), sample(1.0, 3.0, 4.0, 5.0), failed("no"))
    assert (found.ok, found.failed, found.failures) == (2, 1, {"no": 1})
    assert (found.prompt_tokens, found.output_tokens, found.chunks) == (20, 6, 6)
    assert (found.requests_per_s, found.prompt_tokens_per_s) == (0.5, 5.0)
    assert (found.output_tokens_per_s, found.total_tokens_per_s) == (1.5, 6.5)
    times = found.ttft_ms, found.itl_ms, found.tpot_ms, found.e2e_ms
    assert [each and each.mean for each in times] == pytest.approx([1500, 1250, 1250, 4500])
    assert found.notes == []


def test_the_time_a_token_counts_tokens_and_the_gaps_count_chunks() -> None:
    found = report(sample(0.0, 1.0, 2.0, output=5))
    assert found.itl_ms is not None
    assert found.tpot_ms is not None
    assert (found.itl_ms.mean, found.tpot_ms.mean) == pytest.approx((1000, 250))
    assert found.notes == ["fewer chunks than tokens: ITL is the gap between chunks"]


def test_without_usage_tokens_are_what_was_asked_and_what_came() -> None:
    found = report(sample(0.0, 1.0, 2.0, prompt=None, output=None))
    assert (found.prompt_tokens, found.output_tokens) == (10, 2)
    assert found.notes == ["the server tells no usage: tokens are chunks that were counted"]


def test_prompts_that_are_counted_otherwise_are_noted() -> None:
    one = report(sample(0.0, 1.0, 2.0, 3.0, prompt=11))
    assert one.notes == ["the server counts 11 tokens in a prompt where 10 were meant"]
    many = report(*(sample(0.0, 1.0, 2.0, 3.0, prompt=count) for count in (10, 14, 12)))
    assert many.notes == ["the server counts 12 to 14 tokens in a prompt where 10 were meant"]


def test_json_has_the_units_in_its_names() -> None:
    found = json.loads(json.dumps(report(sample(0.0, 1.0, 2.0, 4.0)).json()))
    assert found["load"]["prompt_tokens"] == 10
    assert found["ttft_ms"] == {"mean": 1000.0, "p50": 1000.0, "p99": 1000.0}
    assert found["duration_s"] == 4.0
    assert found.keys() == Report.__dataclass_fields__.keys()


def test_the_table_says_it_all() -> None:
    table = show(report(sample(0.0, 1.0, 2.0, 4.0), failed("HTTP 500: no")), "generator")
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "requests 1 ok, 1 failed in 4.00 s (0.25 a second)",
        "1 x HTTP 500: no",
        "output 3 tokens, 0.8 a second",
        "prompts 10 tokens, 2.5 a second",
        "together 3.2 tokens a second",
        "ms mean p50 p99",
        "TTFT 1000.00 1000.00 1000.00",
        "ITL 1500.00 1500.00 1990.00",
        "TPOT 1500.00 1500.00 1500.00",
        "end to end 4500.00 4500.00 4500.00",
        "generator 0.25 s of CPU: 83333 us a token, 6.2% of a core",
    ]


def test_a_run_without_a_success_has_counts_and_reasons() -> None:
    found = report(failed("a"), failed("b"), failed("b"))
    assert (found.ok, found.output_tokens_per_s, found.ttft_ms) == (0, 0.0, None)
    said = " ".join(show(found, "generator").split())
    assert said == "requests 0 ok, 3 failed in 4.00 s (0.00 a second) 2 x b 1 x a"


def test_a_table_does_not_list_every_reason() -> None:
    many = report(*(failed(str(number)) for number in range(8)))
    assert reasons(many) == ["1 x 0", "1 x 1", "1 x 2", "1 x 3", "1 x 4", "and 3 other reasons"]
    assert len(many.failures) == 8
