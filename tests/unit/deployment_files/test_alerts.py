"""conf/prometheus: the rules are valid, and each alert fires in time, and not for a healthy flow."""

from __future__ import annotations

import re

import pytest
import yaml

from mm2.copy.states import HEALTHY, PartitionState
from tests.unit.deployment_files.promtool import ALERTS, PROMETHEUS, alerts, promtool, rules

CASES = (PROMETHEUS / "alerts_test.yml", PROMETHEUS / "alerts_hours_test.yml")


@pytest.mark.debian
def test_the_rules_and_the_sample_configuration_are_valid() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", ALERTS)
    promtool("check", "config", PROMETHEUS / "prometheus.yml")


@pytest.mark.debian
def test_the_rules_fire_only_when_they_should() -> None:
    promtool("test", "rules", *CASES)


def test_every_alert_has_a_test_case() -> None:
    cases = [
        case
        for file in CASES
        for group in yaml.safe_load(file.read_text())["tests"]
        for case in group["alert_rule_test"]
    ]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    inactive = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    # promtool treats an unknown alert name as an alert that does not fire.
    assert fired == inactive == set(alerts())


def test_every_alert_has_a_severity_and_a_runbook() -> None:
    for name, variants in alerts().items():
        for rule in variants:
            assert rule["labels"]["severity"] in {"critical", "warning"}, name
            reported = rule["annotations"]
            assert reported.keys() == {"summary", "description", "runbook_url"}, name
            assert reported["runbook_url"].endswith(f"/{name}.md"), name


def test_every_unhealthy_partition_state_has_an_alert() -> None:
    reported = "".join(rule["expr"] for variants in alerts().values() for rule in variants)
    assert [
        state for state in PartitionState if state not in HEALTHY and not re.search(rf'[|"]{state}[|"]', reported)
    ] == []
