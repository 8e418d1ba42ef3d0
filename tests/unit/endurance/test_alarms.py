"""The report of bin/alarms."""

import json

from tests.alarms import _line
from tests.endurance.alarms import RowResult, _at_risk, _status_lines

STATUS = """\
A->B  DEGRADED  If A dies now you lose 12 seconds, 400 records.

FLOW  PARTITIONS  UNHEALTHY  LAG  SECONDS
A->B           5         1  400     12.0

PARTITION   POSITION  STATE
invoices-0        40  CORRUPT
A->B  invoices-0  CORRUPT since 2026-11-22 07:00:00 UTC: invoices-0: wrong CRC | twice
"""


def test_the_status_report_has_the_sentences_and_not_the_tables() -> None:
    assert _status_lines(STATUS) == (
        "A->B DEGRADED If A dies now you lose 12 seconds, 400 records.<br>"
        r"A->B invoices-0 CORRUPT since 2026-11-22 07:00:00 UTC: invoices-0: wrong CRC \| twice"
    )
    assert _status_lines("mm2: B does not answer.\n") == "mm2: B does not answer."


def key(name: str, **labels: str) -> str:
    return name + json.dumps({"source": "A", "target": "B", **labels}, sort_keys=True)


def test_the_metrics_report_has_only_unhealthy_states_and_values_at_risk() -> None:
    samples = {
        key("mm2_flow_state", state="DEGRADED"): 1.0,
        key("mm2_flow_state", state="RUNNING"): 0.0,
        key("mm2_partition_state", topic="invoices", partition="0", state="CORRUPT"): 1.0,
        key("mm2_partition_state", topic="orders", partition="0", state="RUNNING"): 1.0,
        key("mm2_flow_cluster_up", cluster="A"): 1.0,
        key("mm2_flow_cluster_up", cluster="B"): 0.0,
        key("mm2_flow_seconds_at_risk"): 12.5,
        key("mm2_lost_ranges_total"): 0.0,
        "process_open_fds{}": 40.0,
    }
    assert _at_risk(samples) == (
        "mm2_flow_cluster_up B 0; mm2_flow_seconds_at_risk 12.5; mm2_flow_state DEGRADED; "
        "mm2_partition_state invoices-0 CORRUPT"
    )
    assert _at_risk(None) == "does not respond"


def test_a_row_is_detected_when_an_alert_is_pending_in_time() -> None:
    result = RowResult(
        "B2", "kill", "red | bar", 10.1, "said", 12.3, "up 0", {"Late": (40.0, 55.0), "Soon": (8.0, None)}, 21.0
    )
    assert result.is_detected
    assert not RowResult("B2", "kill", alerts={"Late": (40.0, 55.0)}).is_detected
    assert _line(result) == (
        r"| B2 | kill | after 10 s: red \| bar | after 12 s: said | up 0 "
        "| Soon pending after 8 s; Late pending after 40 s, firing after 55 s | after 21 s |"
    )
