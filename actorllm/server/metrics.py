"""GET /metrics: the engine's metrics in the formats of Prometheus."""

from collections.abc import Iterator

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..cores.histogram import Distribution
from ..engine.engine import Engine
from ..engine.metrics import Metric as EngineMetric

PREFIX = "actorllm:"
OPENMETRICS = "application/openmetrics-text"


def metrics_routes(engine: Engine) -> APIRouter:
    """The route, for an engine that may open later; until it is open, it raises EngineClosed.

    The answer is in the text format, or in that of OpenMetrics if the request accepts it.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine))

    async def metrics(request: Request) -> Response:
        """What Prometheus scrapes."""
        body, content_type = _page(registry, request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    router = APIRouter(redirect_slashes=False)
    router.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
    return router


def _page(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The metrics in a format that is accepted, and its content type."""
    if any(kind.split(";")[0].strip() == OPENMETRICS for kind in accept.split(",")):
        # names may have colons in every scheme of escaping, but prometheus_client loses them in the others
        encode, _ = choose_encoder(f"{OPENMETRICS}; version=1.0.0; escaping=allow-utf-8")
        return encode(registry), CONTENT_TYPE_LATEST
    encode, content_type = choose_encoder("")
    return encode(registry), content_type


class EngineCollector(Collector):
    """Reads the engine whenever a registry collects; to be collected in the engine's event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Every metric, with the label `model_name` first."""
        found = self._engine.metrics()
        for metric in found.metrics:
            yield _family(metric, found.model_name)


def _family(metric: EngineMetric, model_name: str) -> Metric:
    name, labels = PREFIX + metric.name, ("model_name", *metric.labels)
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.meaning, labels=labels)
        for of, value in metric.values.items():
            assert isinstance(value, Distribution)
            buckets = [(_number(bound), count) for bound, count in value.cumulative]
            histogram.add_metric((model_name, *of), buckets, value.sum)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.meaning, labels=labels)
    for of, value in metric.values.items():
        assert not isinstance(value, Distribution)
        family.add_metric((model_name, *of), value)
    return family


def _number(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]  # the client has no types for it
    return text
