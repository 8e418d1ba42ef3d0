"""Content of the status topic, and which status overrides which (Kafka's KafkaStatusBackingStore)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mm2.connect.herder.lifecycle import StatusReports
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_status_store import KafkaStatusStore
from mm2.connect.stores.status_store import MemoryStatusStore, State, Status, StatusEntry, StatusFold, TopicStatus
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import TimeoutFailure
from mm2.kafka.settings.client_settings import ClientSettings

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
        (b"status-connector-c", b'{"state":"RUNNING","trace":null,"worker_id":"h","generation":1e400}'),
        (b"status-connector-c", b"[1]"),
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


def test_texts_of_a_status_are_texts_whatever_was_written() -> None:
    fold = StatusFold()
    fold.apply(
        b"status-connector-c", b'{"state":"FAILED","trace":["x"],"worker_id":5,"generation":1,"version":{"a":1}}'
    )
    entry = fold.entry("c").value
    assert entry is not None
    assert (entry.trace, entry.worker_id, entry.version) == ("['x']", "5", "{'a': 1}")


@pytest.mark.parametrize("key", [b"k" * 900_000, b"\xff" * 900_000, b"status-connector-" + b"c" * 900_000])
def test_an_unreadable_record_does_not_fill_the_log(key: bytes) -> None:
    """Each process that reads the topic logs it at each start."""
    with capture_logs() as logs:
        StatusFold().apply(key, b"{}")
    assert len(logs) == 1
    assert len(str(logs[0])) < 1_000


def test_topics_in_use() -> None:
    fold = StatusFold()
    seen = TopicStatus("t.1", "c:connector-d", 0, 5)
    fold.apply(seen.key.encode(), seen.encode())
    assert fold.topics("c:connector-d") == {"t.1": seen}
    fold.apply(seen.key.encode(), None)
    assert fold.connectors_with_topics() == set()


class StatusTopic:
    """A status topic whose first write fails. ``others`` are the statuses of other workers."""

    def __init__(self, store: KafkaStatusStore) -> None:
        self.name, self.cluster = "statuses", Cluster(ClientSettings.from_props({"bootstrap.servers": "x:1"}), name="T")
        self.stopping = threading.Event()
        self.tried = threading.Event()
        self.fail = threading.Event()
        self.others: list[Status] = []
        self.is_readable = True
        self.written: list[tuple[bytes, bytes | None]] = []
        self._store = store

    def send_all(self, records: Sequence[tuple[bytes, bytes | None]], *, timeout_s: float) -> None:
        del timeout_s
        if not self.tried.is_set():
            self.tried.set()
            assert self.fail.wait(60)
            raise TimeoutFailure("no leader")
        self.written += records

    def read_to_end(self, timeout_s: float) -> None:
        del timeout_s
        if not self.is_readable:
            raise TimeoutFailure("no leader")
        for status in self.others:
            read(self._store, status)


@contextmanager
def kafka_store() -> Iterator[tuple[KafkaStatusStore, StatusTopic]]:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}), name="T")
    store = KafkaStatusStore(cluster, InternalTopic("statuses", "status.storage.", 1, 1), start_timeout_s=1)
    topic = StatusTopic(store)
    store._log = cast(Any, topic)
    sender = threading.Thread(target=store._send_queued, daemon=True)
    sender.start()
    yield store, topic
    topic.stopping.set()
    with store._news:
        store._news.notify_all()
    sender.join(60)


MINE = Status(TASK, State.FAILED, "me:1", 5, "trace")


@pytest.mark.parametrize(
    ("other", "is_readable", "kept"),
    [
        (None, True, True),
        (Status(TASK, State.RUNNING, "other:1", 4), True, True),
        (Status(TASK, State.RUNNING, "other:1", 6), True, False),
        (None, False, False),
    ],
    ids=["no other", "an older one", "a newer one", "unknown"],
)
def test_a_rebalance_does_not_drop_a_status_that_could_not_be_written(
    other: Status | None, *, is_readable: bool, kept: bool
) -> None:
    """It is dropped only if another worker may have written a newer one meanwhile. In Java it is always dropped."""
    with kafka_store() as (store, topic):
        topic.is_readable = is_readable
        topic.others = [] if other is None else [other]
        store.put_safe(MINE)
        assert topic.tried.wait(60)
        later = Status("d", State.RUNNING, "me:1", 6)
        store.put(later)
        topic.fail.set()
        assert store.flush(60)
    expected = [MINE, later] if kept else [later]
    assert topic.written == [(status.key.encode(), status.encode()) for status in expected]


def test_a_status_that_could_not_be_written_does_not_replace_a_later_one_of_the_same_worker() -> None:
    with kafka_store() as (store, topic):
        store.put(Status(TASK, State.RUNNING, "me:1", 5))
        assert topic.tried.wait(60)
        store.put_safe(MINE)
        topic.fail.set()
        assert store.flush(60)
    assert topic.written == [(MINE.key.encode(), MINE.encode())]


def test_the_start_of_a_group_whose_generations_began_again_is_reported() -> None:
    with kafka_store() as (store, topic):
        topic.others = [Status(TASK, State.RUNNING, "other:1", 900)]
        started = Status(TASK, State.RUNNING, "me:1", 1)
        store.put(started)
        assert topic.tried.wait(60)
        topic.fail.set()
        assert store.flush(60)
    assert topic.written == [(started.key.encode(), started.encode())]
