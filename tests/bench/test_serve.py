"""Loads against the real server over a socket: counts, totals and failures; and the command."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from actorllm.bench import suite as loads_of_suites
from actorllm.bench.client import Target
from actorllm.bench.load import Load
from actorllm.bench.serve import measure, measure_suite
from actorllm.bench.suite import SUITE, loads, show_suite

from ..test_cli import run
from .peers import MODELS, canned, chunked, sized, text, usage

LOAD = Load(
    concurrency=3, num_requests=5, prompt_tokens=6, output_tokens=7, shared_prefix_tokens=16, vocab_size=256
)
SMALL = {"one": (1, 2, 0, 5, 3), "shared": (2, 3, 16, 4, 2), "prefill": (2, 2, 0, 9, 1)}


@pytest.mark.anyio
@pytest.mark.parametrize("warmup", [0, 2])
async def test_a_load_is_counted(url: str, warmup: int) -> None:
    report = await measure(Target(url=url), Load(**{**fields(LOAD), "warmup": warmup}))
    assert (report.ok, report.failed, report.failures) == (5, 0, {})
    assert (report.prompt_tokens, report.output_tokens) == (5 * 22, 5 * 7)
    assert report.ttft_ms is not None
    assert report.e2e_ms is not None
    assert 0 < report.ttft_ms.p50 <= report.e2e_ms.p50 <= report.duration_s * 1e3
    assert report.output_tokens_per_s == pytest.approx(35 / report.duration_s)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("prompt", "begin", "end"),
    [
        (520, "HTTP 400: the prompt has 520 tokens; with max_model_len 512", ""),
        (
            500,
            "the answer has 12 tokens of 50",
            "(finish_reason 'length'); is the server's context long enough?",
        ),
    ],
)
async def test_requests_that_fail_are_counted_and_named(url: str, prompt: int, begin: str, end: str) -> None:
    load = Load(concurrency=2, num_requests=3, prompt_tokens=prompt, output_tokens=50, vocab_size=256)
    report = await measure(Target(url=url), load)
    assert (report.ok, report.failed) == (0, 3)
    ((reason, count),) = report.failures.items()
    assert count == 3
    assert reason.startswith(begin)
    assert reason.endswith(end)


@pytest.mark.anyio
async def test_some_may_fail_and_the_others_count() -> None:
    good = chunked(text("a"), text("b", "length"), usage(4, 2))
    bad = sized("503 Service Unavailable", b'{"error": {"message": "full"}}')
    async with canned([sized("200 OK", MODELS), good, bad, good]) as server:
        load = Load(concurrency=1, num_requests=3, prompt_tokens=4, output_tokens=2, warmup=0)
        report = await measure(Target(url=server.url), load)
    assert (report.ok, report.output_tokens, report.failures) == (2, 4, {"HTTP 503: full": 1})


@pytest.mark.anyio
async def test_a_suite_is_its_loads(url: str) -> None:
    found = await measure_suite(Target(url=url), LOAD, SMALL)
    assert list(found) == ["one", "shared", "prefill"]
    assert [(each.ok, each.failed) for each in found.values()] == [(2, 0), (3, 0), (2, 0)]
    assert [each.prompt_tokens for each in found.values()] == [10, 60, 18]
    assert [each.output_tokens for each in found.values()] == [6, 6, 2]
    lines = show_suite(found).splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == [
        "load",
        "c=1, 5 in / 3 out",
        "c=2, 16 shared + 4 in / 2 out",
        "c=2, 9 in / 1 out",
    ]
    assert lines[3].split()[-2:] == ["-", "-"]
    assert lines[-1].startswith("the load generator took ")


def test_the_suite_is_what_peers_are_compared_by() -> None:
    drawn = loads(Load(seed=7, vocab_size=999), SUITE)
    assert [str(load) for load in drawn.values()] == [
        "c=1, 128 in / 128 out",
        "c=8, 128 in / 128 out",
        "c=32, 128 in / 128 out",
        "c=16, 512 in / 64 out",
        "c=16, 1024 shared + 64 in / 32 out",
        "c=8, 512 in / 1 out",
    ]
    assert {(load.seed, load.vocab_size) for load in drawn.values()} == {(7, 999)}
    assert drawn.keys() == SUITE.keys()


def command(url: str, *arguments: str) -> int:
    return run("bench", "serve", "--url", url, "--vocab-size", "256", *arguments)


def test_the_command_prints_a_table(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(url, "-c", "2", "-n", "3", "--prompt-tokens", "5", "--output-tokens", "4") == 0
    first, second, *_ = capfd.readouterr().out.splitlines()
    assert first == f"{url}: c=2, 5 in / 4 out"
    assert second.split()[:5] == ["requests", "3", "ok,", "0", "failed"]


def test_the_command_prints_json_and_fails_with_a_request(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command(url, "-n", "2", "--output-tokens", "4", "--json", "--model", "other") == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["ok"], found["failed"]) == (0, 2)
    assert found["failures"] == {"HTTP 404: there is no model 'other' here; 'hash' is served": 2}


def test_a_suite_is_drawn(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(loads_of_suites, "SUITE", SMALL)
    path = tmp_path / "suite.svg"
    assert command(url, "--suite", "--json", "--plot", str(path)) == 0
    assert list(json.loads(capfd.readouterr().out)) == list(SMALL)
    drawn = [text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert drawn[0] == f"Tokens of answers a second, {url}"
    assert drawn[1::2] == ["c=1, 5 in / 3 out", "c=2, 16 shared + 4 in / 2 out"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "0"], "concurrency must be at least 1, not 0"),
        (["--plot", "a.svg"], "--plot draws the loads of a --suite"),
        (["--suite", "--plot", "a.png"], "end the path with .svg, not 'a.png'"),
        (["--url", "nowhere"], "url must be like http://127.0.0.1:8000, not 'nowhere'"),
    ],
)
def test_a_wrong_use_is_named(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "serve", *arguments) == 2
    assert message in capfd.readouterr().err


def test_nobody_listens(capfd: pytest.CaptureFixture[str]) -> None:
    assert command("http://127.0.0.1:1") == 1
    assert capfd.readouterr().err.startswith("actorllm: nobody listens at http://127.0.0.1:1 (")


def fields(load: Load) -> dict[str, int]:
    return {name: getattr(load, name) for name in Load.__dataclass_fields__}
