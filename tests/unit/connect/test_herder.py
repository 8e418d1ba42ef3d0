"""Tests of the herder without a group."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog

from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect.api import ConnectError
from mm2.connect.errors import BadRequest, Busy, NotFound, NotLeader
from mm2.connect.group.protocol import CONFIG_MISMATCH, NO_ERROR, URL_NOT_USED, WorkerAssignment
from mm2.connect.herder import base as base_module
from mm2.connect.herder import request_queue as requests_module
from mm2.connect.herder.answers import ConnectorInfo, ConnectorOffsets, ConnectorType
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.herder.interface import timed_out
from mm2.connect.herder.internal_requests import RequestRefused
from mm2.connect.herder.request_queue import StagedFuture
from mm2.connect.herder.steps import config_view as view_module
from mm2.connect.herder.steps import fencing as fencing_module
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, RestartRequest, TargetState
from mm2.connect.stores.config_store import PrivilegedWriteError
from mm2.connect.stores.status_store import State, Status
from mm2.kafka.errors import TimeoutFailure
from tests.support.waiting import wait_until
from tests.systems.herder_toys import CLASS

BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
TASK = ConnectorTaskId("c", 0)


def herder(**settings: str) -> DistributedHerder:
    props = {
        "bootstrap.servers": "127.0.0.1:1",
        "group.id": "g",
        "config.storage.topic": "configs",
        "offset.storage.topic": "offsets",
        "status.storage.topic": "statuses",
        "key.converter": BYTES,
        "value.converter": BYTES,
        **settings,
    }
    return Node(WorkerConfig(props), Plugins(), worker_id="w", cluster_name="T", log_context={"flow": "A->B"}).herder


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "_BACKOFF_FLOOR_S", 0.02)


def run_requests(instance: DistributedHerder) -> float:
    """Run the due requests as a tick does; returns the time of the next one."""
    return instance._requests.run_due(lambda: instance._privileges.fenced)


def hold(instance: DistributedHerder) -> None:
    """Assign a task to it, as after a rebalance."""
    held = WorkerAssignment(NO_ERROR, "m", URL_NOT_USED, 1, (), (TASK,), version=2)
    instance._member._allocation = held
    instance._work.tasks = {TASK}


def test_without_a_delay_the_group_is_not_left_while_work_runs() -> None:
    instance = herder(**{"scheduled.rebalance.max.delay.ms": "0"})
    hold(instance)
    for _ in range(5):
        before = time.monotonic()
        instance._view.back_off()
        assert time.monotonic() - before >= 0.02, "a failure that comes at once must not make the herder spin"
        assert not instance._member._on_leave
        assert instance._work.tasks == {TASK}
    instance._view.back_off()
    assert instance._member._on_leave
    assert instance._work.tasks == set()


def test_with_a_delay_the_group_waits_for_the_returning_worker() -> None:
    instance = herder(**{"scheduled.rebalance.max.delay.ms": "500"})
    hold(instance)
    instance._view.back_off()
    assert instance._member._on_leave
    assert instance._work.tasks == {TASK}


def test_in_an_eager_group_work_stops_before_the_group_is_left() -> None:
    """Such a group reassigns it immediately. In Java it runs twice, for `worker.unsync.backoff.ms`."""
    instance = herder(**{"connect.protocol": "eager", "worker.unsync.backoff.ms": "20"})
    hold(instance)
    instance._view.back_off()
    assert instance._member._on_leave
    assert instance._work.tasks == set()


@pytest.mark.parametrize("error", [CONFIG_MISMATCH, NO_ERROR])
def test_a_leader_that_is_behind_the_config_topic_removes_no_status(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector that it does not know yet may run on another worker, which would not report it again."""
    instance = herder()
    instance._member._member_id = "m"
    running = Status(TASK, State.RUNNING, "other:1", 1)
    removed: list[Status] = []
    instance._status_store.apply(running.key.encode(), running.encode())
    monkeypatch.setattr(instance._status_store, "put", removed.append)
    instance.on_assigned(WorkerAssignment(error, "m", URL_NOT_USED, 5, version=2), 2)
    assert [status.id for status in removed] == ([] if error == CONFIG_MISMATCH else [TASK])


def test_an_assigned_task_without_a_config_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has read the config topic after a compaction that removed it, the leader before. As in Java."""
    instance = herder()
    failed: list[Status] = []
    monkeypatch.setattr(instance._status_store, "put_safe", failed.append)
    instance._view.configs = ClusterConfigState(connector_configs={"c": {}}, target_states={"c": TargetState.STARTED})
    assert not instance._starts.task(TASK)
    assert [(status.id, status.state) for status in failed] == [(TASK, State.FAILED)]
    assert "no configuration" in str(failed[0].trace)


def test_a_leader_with_a_new_member_id_is_a_new_leader() -> None:
    announced = []
    instance = herder()
    instance._on_leader_ready = lambda leader: announced.append(leader._member.member_id)
    for member_id in ("m1", "m1", "m2"):
        instance._member._member_id = member_id
        instance._rebalances.assignment = WorkerAssignment(NO_ERROR, member_id, URL_NOT_USED, 1, version=2)
        instance._rebalances.announce_leadership()
    assert announced == ["m1", "m2"]
    instance._rebalances.assignment = WorkerAssignment(NO_ERROR, "other", URL_NOT_USED, 1, version=2)
    instance._rebalances.announce_leadership()
    assert announced == ["m1", "m2"]


def test_a_stop_ends_a_write_that_waits_for_a_broker() -> None:
    instance = herder()
    instance._ready.set()
    request = RestartRequest("c", only_failed=False, include_tasks=False)
    with ThreadPoolExecutor(1) as pool:
        # No process listens there, so this would be retried for half a minute.
        writing = pool.submit(instance._config_store.put_restart_request, request)
        time.sleep(0.1)
        instance.stop()
        with pytest.raises(ConnectError, match="Failed to write"):
            writing.result(timeout=20)


def test_slow_requests_do_not_block_the_herder_s_group_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "_TURN_S", 0.05)
    instance = herder()
    done = [instance.later(lambda: time.sleep(0.1), "being slow") for _ in range(2)]
    assert run_requests(instance) < time.monotonic(), "there is more to do, after a look at the group"
    assert [future.done() for future in done] == [True, False]
    assert run_requests(instance) == float("inf")
    assert all(future.done() for future in done)


def test_reads_of_offsets_that_hang_do_not_use_up_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer may read offsets, and each read has a thread of its own, also after its client has closed the connection."""
    instance, reading = herder(), threading.Event()
    info: StagedFuture[ConnectorInfo] = StagedFuture(lambda: instance._stages.current)
    info.set_result(ConnectorInfo("c", {}, (), ConnectorType.SOURCE))

    def hang(*_: object) -> ConnectorOffsets:
        reading.wait(600)
        return ConnectorOffsets(())

    monkeypatch.setattr(instance, "connector_info", lambda _name: info)
    monkeypatch.setattr(instance._offsets, "read", hang)
    reads = [instance.connector_offsets("c") for _ in range(200)]
    try:
        assert sum(not read.done() for read in reads) == 32
        with pytest.raises(Busy, match="32 reads of offsets are in progress"):
            reads[-1].result(0)
    finally:
        reading.set()
    assert reads[0].result(60) == ConnectorOffsets(())
    wait_until(lambda: instance.connector_offsets("c").exception(60) is None)


def test_after_a_fenced_write_the_config_topic_is_claimed_before_the_next_request() -> None:
    instance = herder(**{"exactly.once.source.support": "enabled"})
    request = RestartRequest("c", only_failed=False, include_tasks=False)

    def write() -> None:
        instance._privileges.put_restart_request(request)

    futures = [instance.later(write, "writing") for _ in range(2)]
    assert run_requests(instance) <= time.monotonic()
    with pytest.raises(PrivilegedWriteError, match="has not claimed the right"):
        futures[0].result(0)
    assert not futures[1].done()
    instance._privileges.fenced = False  # claimed again
    run_requests(instance)
    assert futures[1].done()


KEY = SessionKey(bytes(32), "HmacSHA256", 0)


def follower(
    monkeypatch: pytest.MonkeyPatch, leader_url: str, **responses: object
) -> tuple[DistributedHerder, list[float]]:
    """A follower whose leader returns `responses` (None: fenced) in order, and the times of its fencing requests."""
    instance = herder(**{"exactly.once.source.support": "enabled"})
    instance._rebalances.assignment = WorkerAssignment(NO_ERROR, "leader", leader_url, 1, (), (TASK,), version=2)
    instance._session_keys.accept(KEY)
    left = list(responses.values())
    pending = [True]
    requested_s: list[float] = []

    def fence(url: str, connector: str, key: SessionKey | None) -> None:
        assert (url, connector, key) == (leader_url, "c", KEY)
        requested_s.append(time.monotonic())
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        pending[0] = False

    monkeypatch.setattr(instance._internal_requests, "fence", fence)
    monkeypatch.setattr(instance._config_store, "is_pending_fencing", lambda _name: pending[0])
    monkeypatch.setattr(fencing_module, "_POLL_S", 0.01)
    return instance, requested_s


def never() -> bool:
    return False


def test_a_leader_with_another_key_or_without_a_response_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {f"n{status}": RequestRefused("no", status) for status in (403, 503)}
    lost = RequestRefused("lost", None)
    instance, requested_s = follower(monkeypatch, "http://l/", **refused, lost=lost, done=None)
    instance._ownership.await_fencing(TASK, None, never)
    assert len(requested_s) == 4
    assert all(later - earlier >= 0.01 for earlier, later in itertools.pairwise(requested_s)), "no wait between retries"


def test_a_leader_that_rejects_the_fencing_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, requested_s = follower(monkeypatch, "http://l/", refused=RequestRefused("no right", 500))
    with pytest.raises(ConnectError, match="Older tasks of connector c are not fenced: no right"):
        instance._ownership.await_fencing(TASK, None, never)
    assert len(requested_s) == 1


def test_a_task_whose_configs_are_out_of_date_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, requested_s = follower(monkeypatch, "http://l/", conflict=RequestRefused("newer", 409))
    state = ClusterConfigState(task_config_generations={"c": 3})
    monkeypatch.setattr(instance._config_store, "snapshot", lambda: state)
    until_s = time.monotonic() + 0.1
    instance._ownership.await_fencing(TASK, 2, lambda: time.monotonic() > until_s)
    assert time.monotonic() > until_s
    assert len(requested_s) == 1


def test_a_leader_that_is_unknown_or_has_moved_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    conflict = RequestRefused("the leader is not known", 409)
    instance, requested_s = follower(monkeypatch, "http://l/", first=conflict, second=conflict, done=None)
    state = ClusterConfigState(task_config_generations={"c": 3})
    monkeypatch.setattr(instance._config_store, "snapshot", lambda: state)
    instance._ownership.await_fencing(TASK, 3, never)
    assert len(requested_s) == 3


@pytest.mark.parametrize("readable", [True, False])
def test_a_connector_is_stopped_when_that_is_written_even_if_it_cannot_be_read_back(
    monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """Before its next step the herder reads the config topic to its end."""
    instance, written = herder(), list[object]()

    def refresh(_timeout_s: float) -> None:
        if not readable:
            raise TimeoutFailure("no answer")

    state = ClusterConfigState(connector_configs={"c": {"name": "c"}})
    monkeypatch.setattr(instance._config_store, "snapshot", lambda: state)
    monkeypatch.setattr(instance._config_store, "refresh", refresh)
    monkeypatch.setattr(instance._config_store, "put_target_state", lambda *change: written.append(change))
    monkeypatch.setattr(instance._privileges, "put_task_configs", lambda *change: written.append(change))
    instance._member._member_id = "m"
    instance._rebalances.assignment = WorkerAssignment(NO_ERROR, "m", URL_NOT_USED, 1, version=2)
    stopped = instance.stop_connector("c")
    run_requests(instance)
    assert stopped.result(0) is None
    assert written == [("c", []), ("c", TargetState.STOPPED)]
    assert instance._view._is_readable is readable


def test_without_rest_a_task_waits_for_the_record_until_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, requested_s = follower(monkeypatch, URL_NOT_USED)
    recorded = iter([True, True, True, False])
    with monkeypatch.context() as patched:
        patched.setattr(instance._config_store, "is_pending_fencing", lambda _name: next(recorded))
        instance._ownership.await_fencing(TASK, None, never)
    assert list(recorded) == []
    monkeypatch.setattr(fencing_module, "_FENCING_TIMEOUT_S", 0.05)
    began_s = time.monotonic()
    with pytest.raises(ConnectError, match="Task c-0 was not started: exactly-once needs older tasks of connector c"):
        instance._ownership.await_fencing(TASK, None, never)
    assert time.monotonic() - began_s >= 0.05
    assert requested_s == []


@pytest.mark.parametrize(
    ("generation", "tasks", "output"),
    [(3, (TASK,), None), (2, (TASK,), "newer task configs"), (3, (), "no longer assigned")],
)
def test_a_task_is_owned_while_assigned_with_the_newest_configs(
    generation: int, tasks: tuple[ConnectorTaskId, ...], output: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = herder()
    state = ClusterConfigState(task_config_generations={"c": 3})
    monkeypatch.setattr(instance._config_store, "refresh", lambda _timeout_s: None)
    monkeypatch.setattr(instance._config_store, "snapshot", lambda: state)
    instance._rebalances.assignment = WorkerAssignment(NO_ERROR, "m", URL_NOT_USED, 1, (), tasks, version=2)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(instance._ownership.confirm, TASK, generation, never)
        while not asking.done():
            run_requests(instance)
        if output is None:
            asking.result()
        else:
            with pytest.raises(ConnectError, match=output):
                asking.result()


def test_log_lines_of_a_start_contain_the_flow() -> None:
    assert herder()._work._pool.submit(structlog.contextvars.get_contextvars).result() == {"flow": "A->B"}


def test_only_source_connectors_have_older_tasks_to_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = herder()
    sink = "org.apache.kafka.connect.tools.VerifiableSinkConnector"
    state = ClusterConfigState(connector_configs={"c": {"connector.class": sink}})
    monkeypatch.setattr(instance._config_store, "snapshot", lambda: state)
    instance._member._member_id = "m"
    instance._rebalances.assignment = WorkerAssignment(NO_ERROR, "m", URL_NOT_USED, 1, version=2)
    sink_future, unknown = instance.begin_fencing("c"), instance.begin_fencing("nobody")
    run_requests(instance)
    with pytest.raises(BadRequest, match="Connector c is not a source connector"):
        sink_future.result(0)
    with pytest.raises(NotFound, match="Connector nobody not found"):
        unknown.result(0)


def test_a_health_check_reports_what_blocks_a_herder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_module, "HEALTH_TIMEOUT_S", 0.05)
    instance = herder()
    starting = instance.health().result(60)
    assert (starting.status, starting.http_status) == ("starting", 503)
    assert "The worker is currently awaiting startup" in starting.message
    instance._ready.set()
    with instance._stages.during("restarting task c-0"):
        unhealthy = instance.health().result(60)
    assert (unhealthy.status, unhealthy.http_status) == ("unhealthy", 500)
    assert "The worker is currently restarting task c-0, which began at" in unhealthy.message
    asked = instance.health()
    run_requests(instance)
    assert asked.result(60).http_status == 200


def test_a_waiting_request_reports_its_stage() -> None:
    instance = herder()
    waiting = instance.connector_info("c")
    with instance._stages.during("stopping connector d"):
        output = str(timed_out(waiting))
    assert output.startswith("Request timed out. The worker is currently stopping connector d, which began at ")


def test_a_restart_that_waits_for_a_connector_s_start_reports_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The herder's thread polls the group coordinator meanwhile."""
    instance, file = herder(), tmp_path / "hang"
    config = {"name": "c", "connector.class": CLASS, "topic": "t", "hang.in": "start", "hang.file": str(file)}
    state = ClusterConfigState(connector_configs={"c": config}, target_states={"c": TargetState.STARTED})
    instance._view.configs = state
    monkeypatch.setattr(instance, "_require_own_connector", lambda _name: None)
    file.touch()
    restarting = instance.restart_connector("c")
    try:
        run_requests(instance)
        with instance._stages.during("polling the group coordinator until interrupted"):
            output = str(timed_out(restarting))
        assert output.startswith("Request timed out. The worker is currently starting the connector, which began at ")
    finally:
        file.unlink()
    instance.worker.stop_connectors(["c"])


def test_a_restart_of_a_connector_without_a_status_is_answered_as_by_java(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = herder()
    state = ClusterConfigState(connector_configs={"c": {"name": "c"}})
    monkeypatch.setattr(instance._config_store, "snapshot", lambda: state)
    monkeypatch.setattr(instance._privileges, "put_restart_request", lambda _request: None)
    instance._member._member_id = "m"
    instance._rebalances.assignment = WorkerAssignment(NO_ERROR, "m", URL_NOT_USED, 1, version=2)
    asked = instance.restart_connector_and_tasks(RestartRequest("c", only_failed=False, include_tasks=True))
    run_requests(instance)
    with pytest.raises(NotFound, match=r"^Status for connector c not found$"):
        asked.result(0)


def test_a_follower_reports_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = herder()
    monkeypatch.setattr(
        instance._config_store, "snapshot", lambda: ClusterConfigState(connector_configs={"c": {"name": "c"}})
    )
    instance._rebalances.assignment = WorkerAssignment(NO_ERROR, "other", "http://leader:1/", 1, version=2)
    requests: list[Future[Any]] = [
        instance.delete_connector_config("c"),
        instance.stop_connector("c"),
        instance.restart_connector("c"),
        instance.restart_connector_and_tasks(RestartRequest("c", only_failed=False, include_tasks=True)),
    ]
    for asked in requests:
        run_requests(instance)
        with pytest.raises(NotLeader) as refused:
            asked.result(0)
        assert refused.value.forward_url == "http://leader:1/"
