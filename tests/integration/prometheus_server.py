"""A real Prometheus on loopback, with the sample configuration and the rules of conf/prometheus."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn
from tests.support.waiting import wait_until

CONF = Path(__file__).parents[2] / "conf" / "prometheus"
_START_S = 60.0
_ANSWER_S = 60.0


@dataclass(frozen=True)
class Alert:
    """An alert: ``state`` pending or firing, ``active_s`` since when its expression is true (epoch)."""

    name: str
    state: str
    labels: dict[str, str]
    annotations: dict[str, str]
    active_s: float


class Prometheus:
    """A running Prometheus; see `prometheus`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant vector: ``metric`` (labels) and ``value`` of each series. Fails on invalid queries."""
        return list(self._get("/api/v1/query", query=expression)["result"])

    def value(self, expression: str) -> float | None:
        """The value of the only series; None without one."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> list[Alert]:
        """Pending and firing alerts."""
        return [
            Alert(
                row["labels"]["alertname"],
                row["state"],
                row["labels"],
                row["annotations"],
                datetime.fromisoformat(f"{row['activeAt'][:19]}+00:00").timestamp(),
            )
            for row in self._get("/api/v1/alerts")["alerts"]
        ]

    def firing(self, name: str | None = None, **labels: str) -> list[Alert]:
        """Firing alerts with that name and these labels."""
        return [
            alert
            for alert in self.alerts()
            if alert.state == "firing" and name in {None, alert.name} and labels.items() <= alert.labels.items()
        ]

    def _get(self, path: str, **params: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}{path}", params=params, timeout=_ANSWER_S)
        found: dict[str, Any] = answer.json()
        assert answer.status_code == 200, found
        return dict(found["data"])


@contextmanager
def prometheus(
    folder: Path, targets: Sequence[str], interval: str | None = None, retention: str = "1d"
) -> Iterator[Prometheus]:
    """Run Prometheus inside the `with` block. ``targets`` are scraped; ``interval`` replaces the sample's intervals.

    Its data are in ``folder / "data"``.
    """
    program = shutil.which("prometheus")
    assert program, "prometheus is missing; tests/tools/debian-packages prometheus installs it"
    folder.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load((CONF / "prometheus.yml").read_text())
    if interval is not None:
        config["global"] = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(CONF / name) for name in config["rule_files"]]
    (scrape,) = config["scrape_configs"]
    scrape["static_configs"] = [{"targets": list(targets)}]
    file, log = folder / "prometheus.yml", folder / "prometheus.log"
    file.write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    command = [
        *(program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"),
        *(f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.retention.time={retention}"),
    ]
    process = spawn(command, output=log, folder=folder)
    try:
        made = Prometheus(f"http://127.0.0.1:{port}")

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return _is_ready(made.url)

        wait_until(is_ready, _START_S, what="the start of Prometheus", detail=log.read_text)
        yield made
    finally:
        end(process, patience_s=5)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
