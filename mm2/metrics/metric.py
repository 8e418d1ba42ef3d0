"""The description of a metric, and a sheet with the metric values of one scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import Metric as Family

from mm2.evidence import Evidence


class MetricType(StrEnum):
    """Prometheus metric types; the name of a COUNTER ends in ``_total``."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Cardinality(StrEnum):
    """The level of partition detail: each partition, sums by topic, or sums by flow."""

    FULL = "full"
    TOPIC = "topic"
    FLOW = "flow"


def kind_of(name: str) -> MetricType:
    """The type of a metric that is not a histogram."""
    return MetricType.COUNTER if name.endswith("_total") else MetricType.GAUGE


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    ``labels`` are in the order of their values. ``help`` is one sentence. ``evidence``: what was read before it has a series.
    """

    name: str
    kind: MetricType
    help: str
    labels: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind is MetricType.COUNTER) != self.name.endswith("_total"):
            message = f"{self.name} is a {self.kind}: the name of a counter ends in _total, and no other does"
            raise ValueError(message)


class Sheet:
    """Values of metrics. A metric without values is not on the sheet; None, an unknown value, is left out."""

    def __init__(self) -> None:
        self._families: dict[Metric, Family] = {}

    def add(
        self, metric: Metric, labels: Sequence[str], value: float | None, more: Mapping[str, str] | None = None
    ) -> None:
        """Add one value.

        ``labels`` are the values of the metric's labels, ``more`` additional labels of this process.
        """
        if value is None:
            return
        names = metric.labels
        if len(labels) != len(names):
            message = f"{metric.name} has the labels {names}, not {labels}"
            raise ValueError(message)
        named = dict(zip(names, labels, strict=True))
        self._family(metric).add_sample(metric.name, named if not more else {**more, **named}, float(value))

    def add_states(self, metric: Metric, labels: Sequence[str], states: Sequence[str], present: str) -> None:
        """Add 1 for the present state and 0 for all others; the state is the last label."""
        for state in states:
            self.add(metric, (*labels, state), state == present)

    def add_histogram(
        self, metric: Metric, labels: Sequence[str], bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram. ``counts`` are per bucket, not cumulative, with one bucket more than ``bounds``."""
        family = self._family(metric)
        named = dict(zip(metric.labels, labels, strict=True))
        so_far = 0
        for bound, count in zip((*map(_number, bounds), "+Inf"), counts, strict=True):
            so_far += count
            family.add_sample(f"{metric.name}_bucket", {**named, "le": bound}, so_far)
        family.add_sample(f"{metric.name}_count", named, so_far)
        family.add_sample(f"{metric.name}_sum", named, total)

    def families(self) -> Iterator[Family]:
        """The families in prometheus-client's form."""
        yield from self._families.values()

    def _family(self, metric: Metric) -> Family:
        family = self._families.get(metric)
        if family is None:
            # The library appends the suffix of a counter's name itself.
            name = metric.name.removesuffix("_total") if metric.kind is MetricType.COUNTER else metric.name
            family = self._families[metric] = Family(name, metric.help, metric.kind.value)
        return family


def _number(bound: float) -> str:
    return repr(float(bound))


def by_name(metrics: Sequence[Metric]) -> Mapping[str, Metric]:
    """Metrics by name. Raises ValueError for two different metrics with the same name."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        if found.setdefault(metric.name, metric) != metric:
            message = f"two metrics are called {metric.name}"
            raise ValueError(message)
    return found
