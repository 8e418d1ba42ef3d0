"""Figures about loss of a source topic that was deleted and created again (`source.data.loss = stop`).

Validates `mm2 status`, `mm2 lag`, `mm2 topics`, /overview and /metrics against the records of the new topic, while the flow runs and
after it was stopped. The new log is shorter than the old one, so its end is before the position of the flow.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.asking import asked
from tests.integration.mirror_flow import create, write
from tests.integration.mirror_process import MirrorProcess, delete, ends, partitions_of, write_config
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(int(300 * PATIENCE))

OLD, NEW = 30, 4
Capsys = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_every_record_of_a_recreated_topic_is_at_risk(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: Capsys
) -> None:
    (port,) = free_ports(1)
    a, topic = f"{unique}-a", f"orders-{unique}"
    url, flow = f"http://127.0.0.1:{port}", f"{a}->B"
    props = {
        "clusters": f"{a}, B",
        f"{a}.bootstrap.servers": kafka_a.bootstrap,
        "B.bootstrap.servers": kafka_b.bootstrap,
        f"{flow}.enabled": "true",
        f"{flow}.topics": topic,
        f"{flow}.groups": unique,
        f"{flow}.source.data.loss": "stop",
        "emit.heartbeats.enabled": "false",
        "tasks.max": "1",
        "listeners": url,
    }
    file = write_config(tmp_path / "mm2.properties", props)
    create(kafka_a, topic)
    if not partitions_of(kafka_a, "heartbeats"):
        create(kafka_a, "heartbeats")  # it is copied, too: a task of which all partitions have stopped has failed
    write(kafka_a, topic, [(None, b"old")] * OLD, 0)
    process = MirrorProcess(file, tmp_path / "mirror.log", "B")
    try:
        process.eventually(lambda: partitions_of(kafka_b, f"{a}.{topic}") == 1, 120)
        process.eventually(lambda: ends(kafka_b, f"{a}.{topic}") == [OLD], 120)
        wait_until(lambda: exact(file, flow, capsys) == (0, 0), 60, what="a lag of 0")
        delete(kafka_a, topic)
        create(kafka_a, topic)
        write(kafka_a, topic, [(None, b"new")] * NEW, 0)
        process.eventually(lambda: row_of(url, a, topic).get("state") == "RECREATED", 120)
        wait_until(lambda: overview(url, a)["risk"]["records_at_least"] == NEW, 60, detail=lambda: overview(url, a))
        risk, text = overview(url, a)["risk"], httpx.get(f"{url}/metrics", timeout=20).text
        metrics = {
            one.name: one.value
            for family in parse(text)
            for one in family.samples
            if one.labels.get("source") == a and one.labels.get("topic", topic) == topic
        }
        assert (risk["records"], risk["seconds"]) == (None, None)
        assert metrics["mm2_flow_records_at_risk_at_least"] == metrics["mm2_partition_lag_records"] == NEW
        assert "mm2_flow_records_at_risk" not in metrics
        assert "mm2_flow_seconds_at_risk" not in metrics, "an unknown risk fires Mm2RiskUnknown"
        row = row_of(url, a, topic)
        assert (row["lag_records"], row["is_lag_exact"], row["source_end"]) == (NEW, False, NEW)
        assert_at_least(file, flow, topic, capsys)
    finally:
        process.clean_up()
    assert_at_least(file, flow, topic, capsys)


def exact(file: Path, flow: str, capsys: Capsys) -> tuple[int, int | None]:
    """The exit code of `mm2 lag`, and the records behind if they are all."""
    code, out, _ = asked(capsys, "lag", file, flow, "--json")
    return code, json.loads(out)["flows"][0]["records"]


def assert_at_least(file: Path, flow: str, topic: str, capsys: Capsys) -> None:
    """All verbs have the same lower bound."""
    (status,) = json.loads(asked(capsys, "status", file, flow, "--json")[1])["flows"]
    assert (status["risk"]["records"], status["risk"]["records_at_least"]) == (None, NEW)
    assert f"at least {NEW} records" in status["sentence"]
    code, out, _ = asked(capsys, "lag", file, flow, "--json")
    (lag,) = json.loads(out)["flows"]
    assert (code, lag["records"], lag["records_at_least"]) == (1, None, NEW)
    assert [(one["records"], one["is_exact"]) for one in lag["partitions"] if one["topic"] == topic] == [(NEW, False)]
    for verb in ("status", "lag", "topics"):
        assert re.search(rf"\bat least {NEW}\b", asked(capsys, verb, file, flow)[1]), verb


def overview(url: str, a: str) -> dict[str, Any]:
    return dict(httpx.get(f"{url}/overview/{a}/B", timeout=20).json())


def row_of(url: str, a: str, topic: str) -> dict[str, Any]:
    """The only partition of a topic; empty while the flow does not have it."""
    rows = httpx.get(f"{url}/overview/{a}/B/partitions", timeout=20).json()["rows"]
    return next((dict(row) for row in rows if row["topic"] == topic), {})
