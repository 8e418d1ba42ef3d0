"""Assigned work of a group member without responses of the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from mm2.connect.group.assignor import CooperativeAssignor
from mm2.connect.group.membership import GroupMember, _Dropped, _merge, _Rebalanced
from mm2.connect.group.protocol import (
    CONFIG_MISMATCH,
    NO_ERROR,
    URL_NOT_USED,
    WorkerAssignment,
    WorkerState,
    encode_worker_state,
)
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.group.classic_member import GroupTimings
from mm2.kafka.group.member_thread import Retry
from mm2.kafka.settings.client_settings import ClientSettings

TASK = ConnectorTaskId("c", 0)
HELD = WorkerAssignment(NO_ERROR, "m", URL_NOT_USED, 1, ("c",), (TASK,), version=2)
MISMATCH = WorkerAssignment(CONFIG_MISMATCH, "m", URL_NOT_USED, 2, version=2)


class Revoked:
    """A listener that records the revoked connectors and tasks."""

    def __init__(self) -> None:
        self.connectors: list[str] = []
        self.tasks: list[ConnectorTaskId] = []

    def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        raise AssertionError("nothing is assigned here")

    def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[ConnectorTaskId]) -> None:
        self.connectors.extend(connectors)
        self.tasks.extend(tasks)


def member(listener: Revoked, held: WorkerAssignment) -> GroupMember:
    made = GroupMember(
        Cluster(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}), name="T"),
        group_id="g",
        timings=GroupTimings(10_000, 60_000, 3_000),
        connect_protocol="sessioned",
        url=URL_NOT_USED,
        assignor=CooperativeAssignor(0, lambda: 0),
        configs=ClusterConfigState,
        listener=listener,
        stage=lambda: "testing",
    )
    made._allocation = held
    return made


@pytest.mark.parametrize("held", [HELD, _merge(HELD, MISMATCH)], ids=["assigned", "kept over a failed round"])
@pytest.mark.parametrize("way", ["revoke_all", "dropped"])
def test_everything_assigned_is_revoked(held: WorkerAssignment, way: str) -> None:
    listener = Revoked()
    lost = member(listener, held)
    if way == "revoke_all":
        lost.revoke_all("testing")
    else:
        lost._event = _Dropped("testing")
        lost._handle_event()
    assert (listener.connectors, listener.tasks) == (["c"], [TASK])
    assert lost._allocation is None


def test_after_an_unnoticed_session_timeout_everything_stops_before_rejoining() -> None:
    listener = Revoked()
    frozen = member(listener, HELD)
    frozen._lease.begin()
    with frozen._changed:
        frozen._lose()
    assert not frozen.is_ours()
    # A response that was in flight is ignored.
    frozen._event = _Rebalanced(HELD, 7, "sessioned")
    frozen._handle_event()
    assert (listener.connectors, listener.tasks) == (["c"], [TASK])
    assert frozen._allocation is None
    assert frozen._rejoin
    assert frozen.is_ours(), "no task remains that another worker could own"


def test_an_expired_lease_revokes_the_tasks_at_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Revoked()
    frozen = member(listener, HELD)
    frozen._lease.begin()
    monkeypatch.setattr(frozen._lease, "_until_s", 0.0)
    watching = threading.Thread(target=frozen._watch_lease, daemon=True)
    watching.start()
    frozen.poll(10)
    assert listener.tasks == [TASK]
    with frozen._changed:
        frozen._stopping = True
        frozen._changed.notify_all()
    watching.join(60)
    assert not watching.is_alive()


def test_a_coordinator_that_forgets_each_member_is_not_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """675 times a second before, with a line in the log each time."""
    forgotten = member(Revoked(), HELD)
    joined = SimpleNamespace(
        error_code=0, generation_id=1, protocol_name="sessioned", member_id="m", leader="other", members=[]
    )
    answers = {"JoinGroupRequest": joined, "SyncGroupRequest": SimpleNamespace(error_code=ErrorCode.UNKNOWN_MEMBER_ID)}
    monkeypatch.setattr(forgotten, "_ask", lambda request, _: answers[request.name])
    waits = []
    for _ in range(12):
        with pytest.raises(Retry) as retry:
            forgotten._join()
        waits.append(retry.value.wait_s)
    assert waits[:3] == [0.0, 0.0, 0.0]
    assert all(wait_s > 0.05 for wait_s in waits[3:])
    assert min(waits[-3:]) >= 0.8, "retry.backoff.max.ms, less the jitter"


@pytest.mark.parametrize("state", [b"", b"\xff\xff", b"\x00\x02\x7f\xff", b"\x00\x02\x00\x01\xff" + bytes(8)])
def test_a_member_with_a_malformed_state_gets_no_work_and_ends_no_leader(state: bytes) -> None:
    """Any client with READ on the group can join it. One ended the herder of the leader, again after each start."""
    leader = member(Revoked(), HELD)
    valid = encode_worker_state(WorkerState(URL_NOT_USED, -1), "sessioned")
    members = [SimpleNamespace(member_id="m", metadata=valid), SimpleNamespace(member_id="stranger", metadata=state)]
    joined = SimpleNamespace(protocol_name="sessioned", generation_id=1, member_id="m", leader="m", members=members)
    assert leader._assign(joined).keys() == {"m"}


@pytest.mark.parametrize("assignment", [b"", b"\xff\xff", b"\x00\x02\x00\x00\x7f\xff"])
def test_after_a_malformed_assignment_the_worker_joins_again(
    monkeypatch: pytest.MonkeyPatch, assignment: bytes
) -> None:
    worker = member(Revoked(), HELD)
    joined = SimpleNamespace(
        error_code=0, generation_id=1, protocol_name="sessioned", member_id="m", leader="other", members=[]
    )
    answers = {"JoinGroupRequest": joined, "SyncGroupRequest": SimpleNamespace(error_code=0, assignment=assignment)}
    monkeypatch.setattr(worker, "_ask", lambda request, _: answers[request.name])
    with pytest.raises(Retry) as retry:
        worker._join()
    assert retry.value.wait_s == 3.0, "heartbeat.interval.ms: each attempt is a rebalance of the group"
    assert worker._rejoin
