"""The effect of single settings of mirror connectors and of MirrorMaker's process, compared with that of their defaults."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import httpx
import pytest

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.connector_keys import source_connector_config
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.api import SourceTaskContext, WorkerView
from mm2.connect.runtime.exactly_once_settings import transactions_of
from mm2.copy.executor.commit.syncs import Syncs
from mm2.copy.executor.commit.transaction import TaskTransactions
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.structs import TopicPartition
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.checkpoint_task import MirrorCheckpointTask
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.common.scheduler import Scheduler
from mm2.mirror.filters import DefaultGroupFilter, DefaultTopicFilter
from mm2.mirror.rest.process_rest import FlowsRest
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.mirror.source_task import copy_spec
from tests.support import certificates
from tests.support.access import OPEN
from tests.support.waiting import wait_until
from tests.unit.connect.rest.toy_herder import ToyHerder
from tests.unit.connect.test_worker_keys import worker_config
from tests.unit.copy.executor.commit.test_syncs import Desk, syncs_of

NOWHERE = "127.0.0.1:1"
PROPS = {
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": NOWHERE,
    "target.cluster.bootstrap.servers": NOWHERE,
}
JAVA = "org.apache.kafka.connect.mirror"
SOURCE = PROPS | {
    "name": "MirrorSourceConnector",
    "connector.class": f"{JAVA}.MirrorSourceConnector",
    "task.assigned.partitions": "t-0",
}
CHECKPOINT = PROPS | {
    "name": "MirrorCheckpointConnector",
    "connector.class": f"{JAVA}.MirrorCheckpointConnector",
    "task.assigned.groups": "g",
}
NEVER = -1


# -- periodic jobs


@pytest.fixture
def every(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The intervals of the jobs that are scheduled, in seconds by name; negative: never. No job runs."""
    intervals: dict[str, float] = {}

    def noting(_: Scheduler, interval_s: float, name: str, job: object, *, delay_s: float = 0) -> None:
        del job, delay_s
        intervals[name] = interval_s

    monkeypatch.setattr(Scheduler, "every", noting)
    monkeypatch.setattr(Scheduler, "start", lambda _: None)
    return intervals


@pytest.mark.parametrize(
    ("connector", "props", "key", "job", "default_s"),
    [
        (MirrorSourceConnector, SOURCE, "refresh.topics", "Refreshing topics", 600),
        (MirrorSourceConnector, SOURCE, "sync.topic.acls", "Syncing topic ACLs", 600),
        (MirrorSourceConnector, SOURCE, "sync.topic.configs", "Syncing topic configs", 600),
        (MirrorCheckpointConnector, CHECKPOINT, "refresh.groups", "Refreshing groups", 600),
    ],
)
def test_a_periodic_job_of_a_connector_has_its_interval_or_is_disabled(
    every: dict[str, float],
    connector: type[MirrorConnector],
    props: dict[str, str],
    key: str,
    job: str,
    default_s: int,
) -> None:
    for settings, interval_s in (
        ({}, default_s),
        ({f"{key}.interval.seconds": "7"}, 7),
        ({f"{key}.enabled": "false"}, NEVER),
    ):
        connector().dry_run({**props, **settings})
        assert every[job] == interval_s


def test_group_offsets_are_synchronised_at_their_interval_if_enabled(every: dict[str, float]) -> None:
    job, enabled = "Syncing group offsets", {"sync.group.offsets.enabled": "true"}
    for settings, interval_s in (
        ({}, None),
        (enabled, 60),
        ({**enabled, "sync.group.offsets.interval.seconds": "7"}, 7),
    ):
        every.clear()
        task, props = MirrorCheckpointTask(), {**CHECKPOINT, **settings}
        worker = WorkerView({}, "A-mm2", "mm2-offsets.A.internal", {}, exactly_once=False)
        task.initialize(SourceTaskContext("c", 0, MappingProxyType(props), cast(Any, None), worker))
        task.start(props)
        assert every.get(job) == interval_s
        task.stop()


# -- filters


def test_excluded_topics_and_groups_are_not_replicated() -> None:
    topics, groups = DefaultTopicFilter(), DefaultGroupFilter()
    topics.configure({})
    groups.configure({})
    assert topics.should_replicate_topic("secret-1")
    assert groups.should_replicate_group("secret-1")
    topics.configure({"topics.exclude": "secret.*"})
    groups.configure({"groups.exclude": "secret.*"})
    assert not topics.should_replicate_topic("secret-1")
    assert not groups.should_replicate_group("secret-1")


# -- what a task sends to its executors


def spec_of(settings: Mapping[str, str], view: WorkerView | None = None) -> Any:
    own = {"bootstrap.servers": NOWHERE}
    worker = view or WorkerView(own, "A-mm2", "mm2-offsets.A.internal", own, exactly_once=False)
    props = {**SOURCE, **settings}
    return copy_spec(props, SourceTaskContext("c", 0, MappingProxyType(props), cast(Any, None), worker))


@pytest.mark.parametrize(("settings", "synced"), [({}, [0]), ({"offset.lag.max": "10"}, [0, 11])])
def test_an_offset_sync_is_due_when_the_last_one_is_offset_lag_max_behind(
    settings: dict[str, str], synced: list[int]
) -> None:
    """The default is 100 offsets."""
    desk = Desk()
    syncs = Syncs(cast(Any, desk), "syncs", spec_of(settings).syncs.lag_max)
    found = []
    for offset in range(20):
        syncs.acked(TopicPartition("t", 0), offset, offset, offset, 1)
        found += [upstream for upstream, _ in syncs_of(desk)]
    assert found == synced


@pytest.mark.parametrize(("settings", "writes"), [({}, True), ({"emit.offset-syncs.enabled": "false"}, False)])
def test_a_task_writes_offset_syncs_unless_disabled(settings: dict[str, str], writes: bool) -> None:
    assert (spec_of(settings).syncs is not None) is writes


@pytest.mark.parametrize(
    ("settings", "is_due"),
    [
        ({}, True),
        ({"transaction.boundary": "interval", "transaction.boundary.interval.ms": "600000"}, False),
        ({"transaction.boundary": "interval", "transaction.boundary.interval.ms": "1"}, True),
        ({"transaction.boundary.interval.ms": "600000"}, True),
    ],
    ids=["default", "long interval", "short interval", "no interval"],
)
def test_a_transaction_ends_after_its_interval_if_that_is_the_boundary(settings: dict[str, str], is_due: bool) -> None:
    props = {**SOURCE, **settings}
    boundaries = transactions_of(AbstractConfig(source_connector_config(props), props), worker_config(), {})
    own = {"bootstrap.servers": NOWHERE}
    view = WorkerView(
        own,
        "A-mm2",
        "mm2-offsets.A.internal",
        own,
        exactly_once=True,
        transactional_id="id",
        transaction_boundary=boundaries.boundary.value,
        transaction_interval_ms=boundaries.interval_ms,
    )
    spec = spec_of({}, view).transactions
    cluster: Any = Cluster
    transactions = TaskTransactions(cluster, spec, cast(Any, None), "offsets", cast(Any, None), cast(Any, None))
    transactions._ended_s = time.monotonic() - 60
    assert transactions.due(behind=False) is is_due


# -- the process

PAIR = SourceAndTarget("a", "b")
FILE = {
    "clusters": "a,b",
    "a.bootstrap.servers": NOWHERE,
    "b.bootstrap.servers": NOWHERE,
    "a->b.enabled": "true",
    "listeners": "http://127.0.0.1:0",
    **OPEN,
}
Serve = Callable[[Mapping[str, str]], FlowsRest]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    """Starts the REST interface of MirrorMaker with this file, for one flow."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ExitStack() as stack:

        def start(settings: Mapping[str, str]) -> FlowsRest:
            rest = FlowsRest(MirrorMakerConfig({**FILE, **settings}))
            rest.serve({PAIR: ToyHerder()})
            stack.callback(rest.stop, 1.0)
            return rest

        yield start


def answer(rest: FlowsRest, method: str = "GET", path: str = "/a/b/connectors", **headers: str) -> httpx.Response:
    url = f"http://127.0.0.1:{rest.binding.main[0].number}{path}"
    found: list[httpx.Response] = []

    def answered() -> bool:
        try:
            found.append(httpx.request(method, url, headers=headers, trust_env=False, timeout=60))
        except httpx.TransportError:
            return False
        return found[-1].status_code != httpx.codes.SERVICE_UNAVAILABLE

    wait_until(answered)
    return found[-1]


ORIGIN = {"access.control.allow.origin": "http://good.example"}


@pytest.mark.parametrize(("settings", "allowed"), [({}, None), (ORIGIN, "http://good.example")])
def test_origins_are_allowed_as_configured(serve: Serve, settings: dict[str, str], allowed: str | None) -> None:
    response = answer(serve(settings), Origin="http://good.example")
    assert response.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize(
    ("settings", "allowed"), [({}, None), ({"access.control.allow.methods": "GET,PUT"}, "GET,PUT")]
)
def test_methods_are_allowed_as_configured(serve: Serve, settings: dict[str, str], allowed: str | None) -> None:
    preflight = {"Origin": "http://good.example", "Access-Control-Request-Method": "PUT"}
    response = answer(serve(ORIGIN | settings), "OPTIONS", **preflight)
    assert response.headers.get("access-control-allow-methods") == allowed


def test_responses_have_the_configured_headers(serve: Serve) -> None:
    assert "x-frame-options" not in answer(serve({})).headers
    given = {"response.http.headers.config": "set X-Frame-Options: DENY"}
    assert answer(serve(given)).headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:{port}/"),
        ({"rest.advertised.host.name": "h"}, "http://h:{port}/"),
        ({"rest.advertised.port": "7"}, "http://127.0.0.1:7/"),
        ({"rest.advertised.listener": "https"}, "https://127.0.0.1:{port}/"),
        ({"listeners": "http://localhost:0"}, "http://localhost:{port}/"),
    ],
    ids=["default", "rest.advertised.host.name", "rest.advertised.port", "rest.advertised.listener", "listeners"],
)
def test_other_processes_are_given_the_advertised_address(serve: Serve, settings: dict[str, str], url: str) -> None:
    rest = serve(settings)
    assert rest.binding.advertised_url == url.format(port=rest.binding.main[0].number)


@pytest.mark.parametrize(("settings", "status"), [({}, 404), ({"dedicated.mode.enable.internal.rest": "true"}, 400)])
def test_requests_of_other_processes_are_only_accepted_with_internal_rest(
    serve: Serve, settings: dict[str, str], status: int
) -> None:
    """This one is not signed."""
    assert answer(serve(settings), "PUT", "/a/b/connectors/c/fence").status_code == status


@pytest.mark.parametrize("required", [False, True])
def test_clients_need_a_certificate_if_ssl_client_auth_is_required(
    serve: Serve, tmp_path: Path, required: bool
) -> None:
    authority = certificates.issue("Authority")
    certificates.issue("process", authority, address="127.0.0.1").pkcs12(tmp_path / "own.p12", authority)
    (tmp_path / "trusted.pem").write_text(authority.certificate_pem)
    https = {
        "listeners": "https://127.0.0.1:0",
        "ssl.keystore.location": str(tmp_path / "own.p12"),
        "ssl.keystore.password": certificates.PASSWORD,
        "ssl.truststore.location": str(tmp_path / "trusted.pem"),
        **({"ssl.client.auth": "required"} if required else {}),
    }
    rest = serve(https)
    url = f"https://127.0.0.1:{rest.binding.main[0].number}/a/b/connectors"

    def ask() -> int:
        context = ssl.create_default_context(cafile=str(tmp_path / "trusted.pem"))
        return httpx.get(url, verify=context, trust_env=False, timeout=60).status_code

    if required:
        with pytest.raises(httpx.TransportError):
            ask()
    else:
        wait_until(lambda: ask() == httpx.codes.OK)
