"""Rules and dashboards query only exported series: names and labels are those of `mm2.metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector

from mm2.metrics import flows
from mm2.metrics.connect import CONNECT_METRICS
from mm2.metrics.connect import FLOW_LABELS as OF_FLOW
from mm2.metrics.metric import Metric, MetricType
from mm2.metrics.mirror import MIRROR_METRICS
from tests.unit.deployment_files.promtool import metrics_in, rules
from tests.unit.deployment_files.test_grafana import BOARDS, queries

#: Labels that Prometheus adds to scraped series.
_SCRAPED = {"job", "instance"}
_ALERT = {"alertname", "alertstate", "severity"}
_SELECTOR = re.compile(r"\b([a-zA-Z_][a-zA-Z0-9_:]*)\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")


def known() -> dict[str, set[str]]:
    """Labels of every series, by its name."""
    described = {name: one for name, one in vars(flows).items() if isinstance(one, Metric)}
    found: dict[str, set[str]] = {}
    for metric in (*described.values(), *MIRROR_METRICS):
        labels = {*metric.labels, *_SCRAPED}
        if metric.kind is MetricType.HISTOGRAM:
            found |= {
                f"{metric.name}_bucket": labels | {"le"},
                f"{metric.name}_sum": labels,
                f"{metric.name}_count": labels,
            }
        else:
            found[metric.name] = labels
    found |= {metric.name: {*OF_FLOW, *metric.labels, *_SCRAPED} for metric in CONNECT_METRICS}
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    found |= {sample.name: set(_SCRAPED) for family in registry.collect() for sample in family.samples}
    found |= {rule["record"]: {"source", "target"} for rule in rules() if "record" in rule}
    return found | {"up": set(_SCRAPED), "ALERTS": {*_ALERT, *_SCRAPED, *OF_FLOW, "topic"}}


def asked() -> Iterator[tuple[str, str]]:
    """Every expression and its location."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
        for text in rule.get("annotations", {}).values():
            for query in re.findall(r'printf "([^"]+)"', text):
                yield f"{rule['alert']}: annotation", query.replace("%q", '""')
    for file in BOARDS:
        yield from queries(file)


def test_every_queried_series_is_exported() -> None:
    series = known()
    expressions = list(asked())
    assert len(expressions) > 90
    for place, expression in expressions:
        names = metrics_in(expression)
        assert names or "ALERTS" in expression or re.search(r"\bup\b", expression), place
        assert names <= series.keys(), f"{place}: {names - series.keys()} are not exported"


def test_every_queried_label_exists_on_its_series() -> None:
    series = known()
    for place, expression in asked():
        for name, matchers in _SELECTOR.findall(expression):
            labels = set(_MATCHER.findall(matchers))
            assert labels <= series[name], f"{place}: {name} has no {labels - series[name]}"
        there = set[str]().union(*(series[name] for name in metrics_in(expression)), _SCRAPED)
        for names in _GROUPING.findall(expression):
            wanted = {name.strip() for name in names.split(",") if name.strip()}
            assert wanted <= there, f"{place}: nothing has {wanted - there}"
