"""GET /metrics: a page that Prometheus' own parsers read, with the engine's values."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
from fastapi import FastAPI
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from actorllm import Engine, EngineClosed, Parts, SamplingParams, Tap
from actorllm.messages import Tokens
from actorllm.server.app import create_app
from actorllm.server.metrics import metrics_routes

from .build import CHAT, CONFIG, HELLO, HELLO_TOKENS, Ear, client_of, error

pytestmark = pytest.mark.anyio

Parse = Callable[[str], Iterable[Metric]]

ACCEPTS_OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.6,text/plain;version=0.0.4;q=0.4"
)
FORMATS = (
    ("", "text/plain; version=0.0.4; charset=utf-8", text_families),
    ("*/*", "text/plain; version=0.0.4; charset=utf-8", text_families),
    (ACCEPTS_OPENMETRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics_families),
)
IDS = ("text", "anything", "openmetrics")
PARAMS = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)


async def scrape(
    client: httpx.AsyncClient, parse: Parse = text_families, accept: str = ""
) -> dict[str, Metric]:
    """The families of a page by their names, without their prefix."""
    response = await client.get("/metrics", headers={"accept": accept})
    assert response.status_code == 200
    families = list(parse(response.text))
    assert all(family.name.startswith("actorllm:") for family in families)
    return {family.name.removeprefix("actorllm:"): family for family in families}


def values(family: Metric, label: str) -> dict[str, float]:
    """The samples of a family by a label."""
    return {sample.labels[label]: sample.value for sample in family.samples}


def only(family: Metric) -> float:
    """The value of a family's one sample."""
    (sample,) = family.samples
    return sample.value


def of_kind(family: Metric, suffix: str) -> list[Any]:
    return [sample for sample in family.samples if sample.name == f"{family.name}_{suffix}"]


@pytest.mark.parametrize(("accept", "content_type", "parse"), FORMATS, ids=IDS)
async def test_the_page_is_in_the_format_that_is_asked_for(
    accept: str, content_type: str, parse: Parse
) -> None:
    async with Engine(CONFIG) as engine, client_of(create_app(engine)) as client:
        response = await client.get("/metrics", headers={"accept": accept})
        assert response.headers["content-type"] == content_type
        assert response.text.endswith("# EOF\n") == content_type.startswith("application")
        found = await scrape(client, parse, accept)
        assert set(found) == {metric.name for metric in engine.metrics().metrics}


@pytest.mark.parametrize(("accept", "content_type", "parse"), FORMATS[1:], ids=IDS[1:])
async def test_the_page_has_what_was_asked_and_answered(accept: str, content_type: str, parse: Parse) -> None:
    body = {"messages": HELLO, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    async with Engine(CONFIG) as engine, client_of(create_app(engine)) as client:
        for _ in range(3):
            assert (await client.post(CHAT, json=body)).status_code == 200
        await engine.check()
        found = await scrape(client, parse, accept)
        metrics = engine.metrics()
    assert only(found["generation_tokens"]) == 60
    assert only(found["prompt_tokens"]) == 3 * len(HELLO_TOKENS)
    assert values(found["request_success"], "finished_reason")["length"] == 3
    assert values(found["mailbox_depth"], "actor") == {
        actor: 0.0 for (actor,) in next(m for m in metrics.metrics if m.name == "mailbox_depth").values
    }
    first, expected = (
        found["time_to_first_token_seconds"],
        metrics.distribution("time_to_first_token_seconds"),
    )
    assert (first.type, expected.count) == ("histogram", 3)
    buckets = [(float(sample.labels["le"]), sample.value) for sample in of_kind(first, "bucket")]
    assert buckets == list(expected.cumulative)
    assert [sample.value for sample in of_kind(first, "count")] == [3]
    assert [sample.value for sample in of_kind(first, "sum")] == [expected.sum]
    assert {sample.labels["model_name"] for each in found.values() for sample in each.samples} == {"hash"}


async def test_gauges_are_back_at_zero_when_nobody_is_there() -> None:
    async with Engine(CONFIG) as engine, client_of(create_app(engine)) as client:
        stream = engine.generate("hello", PARAMS)
        await engine.pause()
        await stream.accepted()
        found = await scrape(client)
        assert (only(found["num_requests_open"]), only(found["engine_paused"])) == (1, 1)
        await engine.resume()
        await stream
        await engine.check()
        found = await scrape(client)
    gauges = ("num_requests_running", "num_requests_waiting", "num_requests_open", "steps_in_flight")
    assert {only(found[name]) for name in (*gauges, "kv_cache_usage_perc", "output_backlog_tokens")} == {0}


async def test_two_apps_in_one_process_tell_of_their_own_engines() -> None:
    one, two = (Engine(replace(CONFIG, served_model_name=name)) for name in ("one", "two"))
    async with one, two, client_of(create_app(one)) as first, client_of(create_app(two)) as second:
        await one.generate("hello", PARAMS)
        pages = [await scrape(client) for client in (first, second)]
        again = client_of(create_app(one))
        assert only((await scrape(again))["generation_tokens"]) == 20
    assert [only(page["generation_tokens"]) for page in pages] == [20, 0]
    assert [page["steps"].samples[0].labels for page in pages] == [
        {"model_name": "one"},
        {"model_name": "two"},
    ]
    assert b"actorllm" not in prometheus_client.generate_latest(prometheus_client.REGISTRY)


@pytest.mark.parametrize(("accept", "content_type", "parse"), FORMATS[1:], ids=IDS[1:])
async def test_values_of_labels_are_escaped(accept: str, content_type: str, parse: Parse) -> None:
    name = 'a "model"\\with\nall, {that}=é'
    async with (
        Engine(replace(CONFIG, served_model_name=name)) as engine,
        client_of(create_app(engine)) as client,
    ):
        found = await scrape(client, parse, accept)
    assert {sample.labels["model_name"] for each in found.values() for sample in each.samples} == {name}


async def test_an_engine_that_is_not_open_has_no_metrics() -> None:
    engine = Engine(CONFIG)
    async with client_of(create_app(engine)) as client:
        response = await client.get("/metrics")
        assert (response.status_code, error(response)["type"]) == (503, "ServiceUnavailableError")
        async with engine:
            assert (await client.get("/metrics")).status_code == 200


async def test_the_route_stands_by_itself() -> None:
    app = FastAPI()
    engine = Engine(CONFIG)
    app.include_router(metrics_routes(engine))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with pytest.raises(EngineClosed):
            await client.get("/metrics")
        async with engine:
            assert only((await scrape(client))["steps"]) == 0
        assert (await client.post("/metrics")).status_code == 405


async def test_the_docs_have_every_family_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `actorllm:(\w+)` \| (\w+) \| ([^|]*?) \| ([^|]*?) \|$", page, re.M)
    documented = {
        (name.removesuffix("_total") if kind == "counter" else name, kind, labels, meaning)
        for name, kind, labels, meaning in rows
    }
    parts = Parts(taps=(Tap(Ear(), (Tokens,)),))
    async with Engine(CONFIG, parts=parts) as engine, client_of(create_app(engine)) as client:
        found = await scrape(client)
    printed = set()
    for name, family in found.items():
        labels = [label for label in family.samples[0].labels if label not in ("model_name", "le")]
        listed = ", ".join(f"`{label}`" for label in sorted(labels))
        printed.add((name, family.type, listed, family.documentation))
    assert printed == documented
