"""Metrics are asked for by their names and labels, and stand in the docs with them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from actorllm import Engine, EngineClosed
from actorllm.engine.definitions import DEFINITIONS

from .build import config


@pytest.mark.anyio
async def test_what_was_asked_for_in_another_way_is_named() -> None:
    engine = Engine(config(served_model_name="mine"))
    with pytest.raises(EngineClosed):
        engine.metrics()
    async with engine:
        metrics = engine.metrics()
    assert metrics.model_name == "mine"
    wrong: list[tuple[Callable[..., object], tuple[str, ...], str]] = [
        (metrics.value, ("no_such",), "there is no metric no_such"),
        (metrics.value, ("mailbox_depth", "nobody"), "mailbox_depth has values for .*'frontend'"),
        (metrics.value, ("e2e_request_latency_seconds",), "ask for its distribution"),
        (metrics.distribution, ("num_requests_running",), "ask for its value"),
    ]
    for ask, arguments, message in wrong:
        with pytest.raises(KeyError, match=message):
            ask(*arguments)


@pytest.mark.anyio
async def test_the_settings_of_the_cache_are_labels() -> None:
    async with Engine(config(block_size=8, watermark=0.25, enable_prefix_caching=False)) as engine:
        assert engine.metrics().value("cache_config_info", "8", "auto", "False", "64", "0.25") == 1


def test_every_metric_is_in_the_docs_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `actorllm:(\w+)` \| (\w+) \| ([^|]*?) \| ([^|]*?) \|$", page, re.M)
    suffixes = {"counter": "_total"}
    assert rows == [
        (
            each.name + suffixes.get(each.kind, ""),
            each.kind,
            ", ".join(f"`{label}`" for label in each.labels),
            each.meaning,
        )
        for each in DEFINITIONS
    ]
