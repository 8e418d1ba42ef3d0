"""conf/grafana: the dashboards are complete and their queries parse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deployment_files.promtool import CONF, promtool

GRAFANA = CONF / "grafana"
BOARDS = sorted(GRAFANA.glob("*.json"))
#: Panels that Grafana draws itself, without a plugin, and has not replaced by others (as it has graph, singlestat, table-old).
PANELS = {"row", "stat", "timeseries", "table", "state-timeline", "heatmap"}
UNITS = {"s", "short", "decbytes", "bytes", "rps", "Bps", "cps", "ops", "percentunit", "locale"}
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


def board(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def queries(file: Path) -> Iterator[tuple[str, str]]:
    """Location and PromQL of every query of a dashboard."""
    made = board(file)
    for panel in made["panels"]:
        for target in panel.get("targets", []):
            yield f"{file.stem}: {panel['title']}: {target['refId']}", target["expr"]
    for one in made["annotations"]["list"]:
        yield f"{file.stem}: annotation {one['name']}", one["expr"]
    for variable in made["templating"]["list"]:
        if variable["type"] == "query":
            metric = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert metric, variable
            yield f"{file.stem}: variable {variable['name']}", f"count by ({metric[2]}) ({metric[1]})"


def resolved(expression: str) -> str:
    """The expression with Grafana's variables replaced: durations by a time, all others by a pattern."""
    return _VARIABLE.sub(lambda found: "1m" if found[1].startswith("__") else ".*", expression)


def test_all_dashboards_exist() -> None:
    assert {file.stem for file in BOARDS} == {"flows", "partitions", "groups", "workers"}
    assert len({board(file)["uid"] for file in BOARDS}) == len(BOARDS)


@pytest.mark.debian
def test_every_query_parses(tmp_path: Path) -> None:
    asked = [query for file in BOARDS for query in queries(file)]
    assert len(asked) > 50
    made = [
        {"record": f"query:{number}", "expr": resolved(expression), "labels": {"place": place}}
        for number, (place, expression) in enumerate(asked)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": made}]}))
    assert f"{len(made)} rules found" in promtool("check", "rules", file)


@pytest.mark.parametrize("file", BOARDS, ids=lambda file: file.stem)
def test_a_dashboard_is_complete(file: Path) -> None:
    made = board(file)
    assert "id" not in made, "the file contains the id of a Grafana installation"
    variables = {variable["name"] for variable in made["templating"]["list"]}
    assert {"datasource", "source", "target"} <= variables
    used = {name for _, expression in queries(file) for name in _VARIABLE.findall(expression)}
    assert {name for name in used if not name.startswith("__")} <= variables
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in PANELS, panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        unit = panel["fieldConfig"]["defaults"].get("unit")
        assert unit in UNITS or (unit is None and panel["type"] in {"table", "state-timeline"}), panel["title"]


@pytest.mark.parametrize("file", BOARDS, ids=lambda file: file.stem)
def test_panels_do_not_overlap(file: Path) -> None:
    places = [panel["gridPos"] for panel in board(file)["panels"]]
    for place in places:
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)


def test_installation_specific_values_come_from_the_environment() -> None:
    for file in (GRAFANA / "provisioning").rglob("*.yml"):
        yaml.safe_load(file.read_text())
    source = (GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text()
    boards = (GRAFANA / "provisioning" / "dashboards" / "mm2.yml").read_text()
    assert "url: ${PROMETHEUS_URL}" in source
    assert "path: ${MM2_DASHBOARDS}" in boards
