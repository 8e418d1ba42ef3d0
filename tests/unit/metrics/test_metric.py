"""Descriptions of metrics, and the result of a scrape."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from mm2.metrics.connect import CONNECT_METRICS
from mm2.metrics.exposition import Exposition
from mm2.metrics.flows import FLOW_METRICS
from mm2.metrics.metric import Metric, MetricType, Sheet, by_name
from mm2.metrics.mirror import MIRROR_METRICS

ALL = (*FLOW_METRICS, *MIRROR_METRICS, *CONNECT_METRICS)
COUNT = Metric("things_total", MetricType.COUNTER, "Things.", ("kind",))
SIZE = Metric("size_bytes", MetricType.GAUGE, "Size.", ("kind",))
TIME = Metric("time_seconds", MetricType.HISTOGRAM, "Time.", ("kind",))


def reported(write: object, accept: str = "") -> str:
    body, _ = Exposition(write).answer(accept)  # type: ignore[arg-type]
    return body.decode()


def example(sheet: Sheet) -> None:
    sheet.add(COUNT, ("a",), 3)
    sheet.add(SIZE, ('quo"te\n',), 1.5)
    sheet.add(SIZE, ("unknown",), None)
    sheet.add(SIZE, ("more",), math.inf, {"source": "A"})
    sheet.add_histogram(TIME, ("a",), (0.1, 1.0), (2, 1, 4), 9.5)


@pytest.mark.parametrize(
    ("accept", "parser"), [("", parse), ("application/openmetrics-text; version=1.0.0", parse_openmetrics)]
)
def test_both_formats_have_the_same_content(accept: str, parser: object) -> None:
    families = {one.name: one for one in parser(reported(example, accept))}  # type: ignore[operator]
    assert families["things"].type == "counter"
    (three,) = (sample for sample in families["things"].samples if sample.name == "things_total")
    assert (three.labels, three.value) == ({"kind": "a"}, 3)
    sizes = {tuple(sample.labels.values()): sample.value for sample in families["size_bytes"].samples}
    assert sizes == {('quo"te\n',): 1.5, ("more", "A"): math.inf}
    buckets = {s.labels.get("le", s.name): s.value for s in families["time_seconds"].samples}
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 7, "time_seconds_count": 7, "time_seconds_sum": 9.5}


def test_samples_of_one_metric_from_several_sources_are_grouped() -> None:
    text = told_by_two()
    assert text.count("# TYPE size_bytes gauge") == 1
    assert re.findall(r'^size_bytes\{kind="(.)"\}', text, re.MULTILINE) == ["1", "2"]


def told_by_two() -> str:
    one = Exposition(lambda sheet: sheet.add(SIZE, ("1",), 1), lambda sheet: sheet.add(SIZE, ("2",), 2))
    return one.answer(None)[0].decode()


def test_the_process_has_metrics() -> None:
    assert "process_resident_memory_bytes" in reported(example)


def test_a_wrong_number_of_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Sheet().add(SIZE, (), 1)


def test_names_are_unique_and_follow_prometheus_rules() -> None:
    known: dict[tuple[str, tuple[str, ...]], Metric] = {}
    for metric in ALL:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name), metric
        assert metric.help.endswith("."), metric
        assert known.setdefault((metric.name, metric.labels), metric) == metric
    by_name(FLOW_METRICS)


def test_a_counter_has_the_type_counter() -> None:
    with pytest.raises(ValueError, match="ends in _total"):
        Metric("things", MetricType.COUNTER, "Things.")
    with pytest.raises(ValueError, match="ends in _total"):
        Metric("things_total", MetricType.GAUGE, "Things.")
