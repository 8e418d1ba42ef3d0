"""The resources /overview and /metrics of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import ASGIApp

from mm2.connect.rest.app import metrics_app
from mm2.connect.rest.failures import RestFailure
from mm2.copy.driver.engine import CopyEngine
from mm2.metrics.exposition import Exposition
from mm2.observer.collector import SnapshotMetrics
from mm2.observer.observer import Observer
from mm2.observer.resources import flow_url, overview_app
from tests.support.access import as_admin


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    """The observer of a process without flows."""
    engine = CopyEngine({})
    made = Observer(list, lambda: engine)
    yield made
    made.stop()


def get(app: ASGIApp, path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(as_admin(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get(path, headers=headers, timeout=30)

    return asyncio.run(ask())


def test_a_process_without_flows_reports_it(observer: Observer) -> None:
    answer = get(overview_app(observer), "/overview")
    assert answer.status_code == 200
    document = answer.json()
    assert (document["flows"], document["spark"]["up"], document["reloads"]) == ([], False, {})


@pytest.mark.parametrize("path", ["/overview/A/B", "/overview/A/B/partitions", "/overview/A/B/groups"])
def test_an_unknown_flow_is_not_found(observer: Observer, path: str) -> None:
    answer = get(overview_app(observer), path)
    assert (answer.status_code, answer.json()["message"]) == (404, "No flow A->B is in this process")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "offset=-1", "limit=x"])
def test_an_invalid_page_is_rejected(observer: Observer, query: str) -> None:
    answer = get(overview_app(observer), f"/overview/A/B/partitions?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["message"]


def test_no_other_path_exists(observer: Observer) -> None:
    with pytest.raises(RestFailure, match="404"):
        get(overview_app(observer), "/overview/A/B/secrets")


def test_a_flow_is_found_by_its_name() -> None:
    assert flow_url("A", "ä/b") == "/overview/A/%C3%A4%2Fb"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "text/plain"),
        ("text/html", "text/plain"),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", "application/openmetrics-text"),
    ],
)
def test_metrics_have_the_format_that_the_scraper_accepts(observer: Observer, accept: str, content_type: str) -> None:
    answer = get(metrics_app(Exposition(SnapshotMetrics(observer.snapshot))), "/metrics", accept=accept)
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == content_type
    assert "mm2_build_info" in answer.text
    assert answer.headers["cache-control"] == "no-store"
