"""Content of the status topic, and which status overrides which (Kafka's KafkaStatusBackingStore)."""

from __future__ import annotations

import pytest

from mm2.connect.herder.lifecycle import StatusReports
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.status_store import MemoryStatusStore, State, Status, StatusEntry, StatusFold, TopicStatus

TASK = ConnectorTaskId("a-b", 0)


def test_golden_bytes() -> None:
    status = Status("c", State.RUNNING, "h:1", 3, None, "9.9")
    assert status.key == "status-connector-c"
    assert status.encode() == b'{"state":"RUNNING","trace":null,"worker_id":"h:1","generation":3,"version":"9.9"}'
    assert Status(TASK, State.DESTROYED, "h:1", 3).encode() is None
    topic = TopicStatus("foo", "c", 0, 1700000000000)
    assert topic.key == "status-topic-foo:connector-c"
    assert topic.encode() == b'{"topic":{"name":"foo","connector":"c","task":0,"discoverTimestamp":1700000000000}}'


def test_a_trace_that_quotes_half_a_surrogate_pair_does_not_prevent_the_status() -> None:
    fold = StatusFold()
    read(fold, Status(TASK, State.FAILED, "h:1", 3, "DataError: Value (12\ud83d) was out of range: \udcff"))
    assert fold.task(TASK) == Status(TASK, State.FAILED, "h:1", 3, "DataError: Value (12?) was out of range: ?")


class Deaf(MemoryStatusStore):
    """Does not read back what it has written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def put_topic(self, status: TopicStatus) -> None:
        self.written.append(status.topic)


def test_a_topic_is_recorded_again_after_a_reset() -> None:
    store = MemoryStatusStore()
    reports = StatusReports(store, "w", lambda: 1, track_topics=True)
    for _ in range(2):
        for _ in range(3):
            reports.used_topic("t", TASK)
        assert set(store.topics("a-b")) == {"t"}
        store.delete_topic("a-b", "t")


def test_the_record_of_a_topic_is_not_written_with_each_batch_until_it_is_read_back() -> None:
    store = Deaf()
    reports = StatusReports(store, "w", lambda: 1, track_topics=True)
    for _ in range(10):
        reports.used_topic("t", TASK)
    reports.used_topic("u", TASK)
    assert store.written == ["t", "u"]


def read(fold: StatusFold, status: Status) -> None:
    fold.apply(status.key.encode(), status.encode())


def test_records_round_trip() -> None:
    fold = StatusFold()
    task = Status(TASK, State.FAILED, "h:1", 3, "Träce\n", None)
    read(fold, task)
    read(fold, Status("c", State.PAUSED, "h:1", 3))
    assert fold.task(TASK) == task
    assert fold.tasks("a-b") == [task]
    assert fold.connectors() == {"a-b", "c"}
    read(fold, Status(TASK, State.DESTROYED, "h:1", 3))
    read(fold, Status("c", State.DESTROYED, "h:1", 3))
    assert fold.connectors() == set()


def test_statuses_of_old_workers_lack_the_version() -> None:
    fold = StatusFold()
    fold.apply(b"status-connector-c", b'{"state":"RUNNING","trace":null,"worker_id":"h:1","generation":3}')
    assert fold.connector("c") == Status("c", State.RUNNING, "h:1", 3)


def test_a_late_unassigned_status_does_not_hide_the_new_owner() -> None:
    fold = StatusFold()
    read(fold, Status(TASK, State.RUNNING, "new:1", 5))
    read(fold, Status(TASK, State.UNASSIGNED, "old:1", 4))
    status = fold.task(TASK)
    assert status is not None
    assert status.state is State.RUNNING
    read(fold, Status(TASK, State.UNASSIGNED, "new:1", 6))
    status = fold.task(TASK)
    assert status is not None
    assert status.state is State.UNASSIGNED


@pytest.mark.parametrize(
    ("known", "allowed"),
    [
        (None, True),
        (Status("c", State.RUNNING, "me:1", 9), True),
        (Status("c", State.RUNNING, "other:1", 4), True),
        (Status("c", State.RUNNING, "other:1", 5), True),
        (Status("c", State.RUNNING, "other:1", 6), False),
    ],
)
def test_safe_writes_do_not_overwrite_a_later_generation(known: Status | None, *, allowed: bool) -> None:
    assert StatusEntry(known).allows(Status("c", State.FAILED, "me:1", 5)) is allowed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"status-task-x", b"{}"),
        (b"status-task-c-x", b'{"state":"RUNNING","trace":null,"worker_id":"h","generation":1}'),
        (b"status-connector-c", b"nonsense"),
        (b"status-connector-c", b'{"state":"DANCING","trace":null,"worker_id":"h","generation":1}'),
        (b"status-topic-t", b"{}"),
        (b"unknown", b"{}"),
        (None, b"{}"),
        (b"\xff", b"{}"),
    ],
)
def test_unreadable_statuses_are_ignored(key: bytes | None, value: bytes) -> None:
    fold = StatusFold()
    fold.apply(key, value)
    assert fold.connectors() == set()


def test_topics_in_use() -> None:
    fold = StatusFold()
    seen = TopicStatus("t.1", "c:connector-d", 0, 5)
    fold.apply(seen.key.encode(), seen.encode())
    assert fold.topics("c:connector-d") == {"t.1": seen}
    fold.apply(seen.key.encode(), None)
    assert fold.connectors_with_topics() == set()
