"""docs/reference/metrics.md matches the descriptions."""

from __future__ import annotations

from pathlib import Path

from mm2.metrics import flows
from mm2.metrics.connect import CONNECT_METRICS
from mm2.metrics.flows import FLOW_METRICS
from mm2.metrics.metric import Metric
from mm2.metrics.mirror import MIRROR_METRICS
from mm2.metrics.reference import FILE, page
from mm2.metrics.strimzi import PANELS

PAGE = Path(__file__).parents[3] / FILE


def test_the_page_is_generated_from_the_descriptions() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python -m mm2.metrics.reference"


def test_every_metric_is_on_it() -> None:
    described = [one for one in vars(flows).values() if isinstance(one, Metric)]
    assert sorted(one.name for one in described) == sorted(one.name for one in FLOW_METRICS)
    text = PAGE.read_text(encoding="utf-8")
    for metric in (*FLOW_METRICS, *MIRROR_METRICS, *CONNECT_METRICS):
        assert f"- `{metric.name}` ({metric.kind}): " in text


def test_the_claimed_metrics_of_strimzis_dashboard_are_described() -> None:
    known = {one.name for one in (*MIRROR_METRICS, *CONNECT_METRICS)}
    assert {name for panel in PANELS if panel.is_claimed for name in panel.metrics} <= known
    assert not {name for panel in PANELS if not panel.is_claimed for name in panel.metrics} & known
