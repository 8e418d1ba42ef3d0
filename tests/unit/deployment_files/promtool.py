"""Runs promtool of Debian's package prometheus, the reference parser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parents[3] / "conf"
PROMETHEUS = CONF / "prometheus"
ALERTS = PROMETHEUS / "alerts.yml"

#: Series of Prometheus itself and of alerts.
_FOREIGN = {"up", "ALERTS"}
_NAME = re.compile(r"\b(?:mm2|kafka|process|python|flow)[a-z0-9]*[_:][a-zA-Z0-9_:]*\b|\bup\b|\bALERTS\b")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def promtool(*arguments: str | Path) -> str:
    """The output of promtool; fails when it reports an error."""
    found = shutil.which("promtool")
    assert found, "promtool is missing; tests/tools/debian-packages prometheus installs it"
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def rules() -> list[dict[str, Any]]:
    """All rules of alerts.yml in order."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, list[dict[str, Any]]]:
    """The alerts of alerts.yml by name; one name may have several severities."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rule in rules():
        if "alert" in rule:
            found.setdefault(rule["alert"], []).append(rule)
    return found


def metrics_in(expression: str) -> set[str]:
    """Names of the series in a PromQL expression."""
    return set(_NAME.findall(_QUOTED.sub('""', expression))) - _FOREIGN
