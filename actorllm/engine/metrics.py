"""Metrics: the statistics of the actors and what the meter has measured, read at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..config import EngineConfig
from ..cores.histogram import Distribution
from .definitions import DEFINITIONS, Labels, Value, View
from .ring import Ring
from .topology import ACTORS


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge, a counter or a histogram: `values` by the values of its `labels`, in their order."""

    name: str
    kind: str
    labels: Labels
    meaning: str
    values: Mapping[Labels, Value]


@dataclass(frozen=True, slots=True)
class Metrics:
    """All that is told of an engine, under the names of docs/metrics.md without their prefix and suffixes."""

    model_name: str
    metrics: tuple[Metric, ...]

    def value(self, name: str, *labels: str) -> float:
        """A gauge or a counter. Raises KeyError when there is none of this name with these labels."""
        found = self._find(name, labels)
        if isinstance(found, Distribution):
            raise KeyError(f"{name} is a histogram; ask for its distribution")
        return found

    def distribution(self, name: str, *labels: str) -> Distribution:
        """A histogram. Raises KeyError when there is none of this name with these labels."""
        found = self._find(name, labels)
        if not isinstance(found, Distribution):
            raise KeyError(f"{name} is no histogram; ask for its value")
        return found

    def _find(self, name: str, labels: Labels) -> Value:
        for metric in self.metrics:
            if metric.name == name and labels in metric.values:
                return metric.values[labels]
            if metric.name == name:
                text = f"{name} has values for {metric.labels} of {sorted(metric.values)}, not {labels}"
                raise KeyError(text)
        raise KeyError(f"there is no metric {name}")


def gather(ring: Ring, config: EngineConfig, model_name: str, now: float) -> Metrics:
    """Read everything; `now` is the time of the event loop's clock."""
    view = _view(ring, config, now)
    found = (Metric(each.name, each.kind, each.labels, each.meaning, each.read(view)) for each in DEFINITIONS)
    return Metrics(model_name, tuple(found))


def _view(ring: Ring, config: EngineConfig, now: float) -> View:
    told = {actor: ring.cores[actor].statistics() for actor in ACTORS}
    recorder = ring.recorder
    return View(
        config=config,
        scheduler=told["scheduler"],
        kvpool=told["kvpool"],
        renderer=told["renderer"],
        detokenizer=told["detokenizer"],
        grammar=told["grammar"],
        executor=told["executor"],
        worker=told["worker"],
        meter=ring.door.meter,
        backlog=ring.door.backlog,
        step_age=ring.door.meter.step_age(now),
        num_open=ring.door.num_open,
        num_at_door=ring.door.num_waiting,
        num_turns_lost=0 if recorder is None else recorder.statistics()["num_lost"],
        depths={actor: ring.mail_waiting(actor) for actor in ring.mailboxes},
        capacities={
            actor: mailbox.inbox.statistics().max_buffer_size for actor, mailbox in ring.mailboxes.items()
        },
        num_lost={f"tap-{index}": port.num_lost for index, port in enumerate(ring.taps)},
    )
