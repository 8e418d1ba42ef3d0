"""The resources /overview and /metrics of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import cast

import httpx
import pytest
from starlette.types import ASGIApp

from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Kind, Principal, Role
from mm2.connect.rest.app import metrics_app
from mm2.connect.rest.failures import RestFailure
from mm2.copy.driver.engine import CopyEngine
from mm2.copy.progress.ledger import Ledger, Pause, pause_record
from mm2.copy.states import PartitionState
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.record import Record
from mm2.metrics.exposition import Exposition
from mm2.observer.observer import Observer
from mm2.observer.shown.collector import SnapshotMetrics
from mm2.observer.shown.resources import overview_app
from mm2.observer.shown.topic_resources import LedgerWriter
from mm2.observer.views import FlowState, FlowView, PartitionView, Risk, Snapshot
from mm2.reasons import PauseCode
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


class _Observed:
    """An observer whose snapshot has one topic."""

    def snapshot(self) -> Snapshot:
        views = tuple(
            PartitionView("or.ders", number, "A.or.ders", state, lag_records=number % 2, pause=pause)
            for number, (state, pause) in enumerate(
                (
                    (PartitionState.RUNNING, None),
                    (PartitionState.PAUSED, None),
                    (PartitionState.LOST_RANGE, PauseCode.USER),
                )
            )
        )
        return Snapshot(1, "1", (FlowView("A", "B", FlowState.RUNNING, "", Risk(), partitions=views),))


def put(write: LedgerWriter, path: str, body: object = None, role: Role = Role.OPERATOR) -> httpx.Response:
    app = Access(Principal("ada", Kind.LOCAL), role).calling(overview_app(cast(Observer, _Observed()), write))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.put(path, json=body, timeout=30)

    return asyncio.run(ask())


TOPIC = "/overview/A/B/topics/or.ders"


def test_topics_are_listed() -> None:
    answer = get(overview_app(cast(Observer, _Observed())), "/overview/A/B/topics?search=ders")
    (row,) = answer.json()["rows"]
    assert (row["topic"], row["state"], row["partitions"], row["unhealthy"], row["lag_records"]) == (
        "or.ders",
        "LOST_RANGE",
        3,
        1,  # a paused partition is not unhealthy
        1,
    )


def test_a_topic_is_paused_resumed_and_limited_through_the_ledger() -> None:
    ledger = Ledger()
    flows: list[str] = []

    def write(flow: str, records: Sequence[Record]) -> None:
        flows.append(flow)
        for record in records:
            ledger.apply(record.key, record.value)

    assert put(write, f"{TOPIC}/pause", {"reason": "ticket 4711"}).status_code == 202
    (pause,) = ledger.pauses().values()
    assert (pause.by, pause.reason) == ("ada", "ticket 4711")
    write("", [pause_record("or.ders", number, Pause("ann", 5)) for number in (1, 2)])
    flows.clear()
    assert put(write, f"{TOPIC}/resume").status_code == 202
    assert ledger.pauses() == {}, "also of a partition with a condition that lasts"
    assert put(write, f"{TOPIC}/throttle", {"bytes_per_s": 500}).status_code == 202
    assert ledger.throttles() == {"or.ders": 500}
    assert put(write, f"{TOPIC}/throttle", {"bytes_per_s": None}).status_code == 202
    assert ledger.throttles() == {}
    assert flows == ["A->B"] * 3


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/overview/A/B/topics/absent/pause", {}, 404),
        ("/overview/A/C/topics/orders/pause", {}, 404),
        (f"{TOPIC}/pause", {"reason": 7}, 400),
        (f"{TOPIC}/pause", [], 400),
        (f"{TOPIC}/throttle", {}, 400),
        (f"{TOPIC}/throttle", {"bytes_per_s": True}, 400),
        (f"{TOPIC}/throttle", {"bytes_per_s": -1}, 400),
        (f"{TOPIC}/throttle", {"bytes_per_s": "20MB"}, 400),
    ],
)
def test_an_impossible_change_of_a_topic_is_rejected(path: str, body: object, status: int) -> None:
    answer = put(lambda _flow, _records: pytest.fail("nothing may be written"), path, body)
    assert answer.status_code == status


def test_changes_of_a_topic_need_the_role_operator_and_a_writable_ledger() -> None:
    with pytest.raises(RestFailure) as failure:
        put(lambda _flow, _records: pytest.fail("nothing may be written"), f"{TOPIC}/pause", {}, Role.VIEWER)
    assert failure.value.status == 403

    def fails(_flow: str, _records: Sequence[Record]) -> None:
        raise KafkaFailure("B does not answer")

    answer = put(fails, f"{TOPIC}/pause", {})
    assert (answer.status_code, answer.json()["message"]) == (
        503,
        "The ledger of A->B could not be written: B does not answer",
    )
