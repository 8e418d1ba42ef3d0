"""Any client with READ on the Connect group can join it: one that sends what no worker sends gets no work, and ends no worker.

Given a real broker, a worker that leads the group, and a client that joins with another state, or assigns another thing as the leader.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from mm2.connect.group.assignor import CooperativeAssignor
from mm2.connect.group.membership import GroupMember
from mm2.connect.group.protocol import URL_NOT_USED, WorkerAssignment
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.group.classic_member import GroupTimings
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.support.waiting import PATIENCE, wait_until

_PROTOCOLS: Final = ("sessioned", "compatible", "default")
_TIMEOUT_S: Final = 60.0 * PATIENCE


class Rounds:
    """A listener that counts the assignments."""

    def __init__(self) -> None:
        self.assigned: list[WorkerAssignment] = []

    def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        self.assigned.append(assignment)

    def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[ConnectorTaskId]) -> None:
        pass


class Stranger:
    """A client that joins with this state, and assigns it to all members if it leads."""

    def __init__(self, broker: LocalKafka, group: str, state: bytes) -> None:
        self.cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="A")
        self.group, self.state, self.member_id = group, state, ""

    def _ask(self, request: Any) -> Any:
        return self.cluster.send(self.cluster.coordinator(self.group), request, timeout_s=_TIMEOUT_S)

    def join(self) -> bool:
        """Join one generation; returns whether it leads."""
        offers = [JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=self.state) for name in _PROTOCOLS]
        while True:
            joined = self._ask(
                JoinGroupRequest(
                    group_id=self.group,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    member_id=self.member_id,
                    group_instance_id=None,
                    protocol_type="connect",
                    protocols=offers,
                )
            )
            self.member_id = joined.member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            assert joined.error_code == 0
            leads = joined.leader == joined.member_id
            members = [member.member_id for member in joined.members] if leads else []
            made = SyncGroupRequest.SyncGroupRequestAssignment
            synced = self._ask(
                SyncGroupRequest(
                    group_id=self.group,
                    generation_id=joined.generation_id,
                    member_id=joined.member_id,
                    group_instance_id=None,
                    protocol_type="connect",
                    protocol_name=joined.protocol_name,
                    assignments=[made(member_id=member, assignment=self.state) for member in members],
                )
            )
            if synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            assert synced.error_code == 0
            return bool(leads)

    def leave(self) -> None:
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=None, reason=None)
        self._ask(LeaveGroupRequest(group_id=self.group, member_id=self.member_id, members=[identity]))
        self.cluster.close()


class Worker:
    """The membership of a worker, and the thread of its herder."""

    def __init__(self, broker: LocalKafka, group: str) -> None:
        self.rounds = Rounds()
        self.failure: Exception | None = None
        self.member = GroupMember(
            Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="A"),
            group_id=group,
            timings=GroupTimings(10_000, 60_000, 500),
            connect_protocol="sessioned",
            url=URL_NOT_USED,
            assignor=CooperativeAssignor(0, lambda: 0),
            configs=ClusterConfigState,
            listener=self.rounds,
            stage=lambda: "testing",
        )
        self._stopping = threading.Event()
        self._herder = threading.Thread(target=self._run, daemon=True)
        self.member.start()
        self._herder.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self.member.ensure_active():
                    self.member.poll(0.1)
        except Exception as error:  # noqa: BLE001 - checked by the test
            self.failure = error

    def await_round(self, number: int) -> None:
        """Wait until it has got so many assignments."""
        wait_until(lambda: self.failure or len(self.rounds.assigned) >= number, _TIMEOUT_S, what="an assignment")
        assert self.failure is None

    def stop(self) -> None:
        self._stopping.set()
        self.member.stop()
        self.member.wakeup()
        self._herder.join(_TIMEOUT_S)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Those in the list are stopped."""
    found: list[Worker] = []
    yield found
    for one in found:
        one.stop()


@pytest.mark.parametrize("state", [b"", b"\xff\xff", b"\x00\x02\x7f\xff", b"\x00\x02\x00\x01\xff" + bytes(8)])
def test_a_member_with_a_malformed_state_ends_no_leader(
    kafka_a: LocalKafka, unique: str, state: bytes, workers: list[Worker]
) -> None:
    workers.append(worker := Worker(kafka_a, unique))
    worker.await_round(1)
    stranger = Stranger(kafka_a, unique, state)
    assert stranger.join() is False
    worker.await_round(2)
    stranger.leave()
    worker.await_round(3)


def test_a_malformed_assignment_of_another_leader_ends_no_worker(
    kafka_a: LocalKafka, unique: str, workers: list[Worker]
) -> None:
    stranger = Stranger(kafka_a, unique, b"\x00\x02\x7f\xff")
    assert stranger.join() is True
    workers.append(worker := Worker(kafka_a, unique))
    assert stranger.join() is True
    stranger.leave()
    worker.await_round(1)
