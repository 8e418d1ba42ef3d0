"""State that the records of the config topic produce (Kafka's KafkaConfigBackingStore)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mm2.connect.request_signing import SessionKey
from mm2.connect.stores.config_state import ConfigFold, ConnectorTaskId, RestartRequest, TargetState


class RecordingListener:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_connector_config_update(self, connector: str) -> None:
        self.events.append(("update", connector))

    def on_connector_config_remove(self, connector: str) -> None:
        self.events.append(("remove", connector))

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        self.events.append(("tasks", *tasks))

    def on_target_state_change(self, connector: str) -> None:
        self.events.append(("target", connector))

    def on_session_key_update(self, key: SessionKey) -> None:
        self.events.append(("key", key.creation_timestamp_ms))

    def on_restart_request(self, request: RestartRequest) -> None:
        self.events.append(("restart", request))

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        self.events.append(("level", namespace, level))


class Topic:
    """A config topic written record by record."""

    def __init__(self) -> None:
        self.fold = ConfigFold()
        self.listener = RecordingListener()
        self.next = 0

    def write(self, key: str, value: Any) -> None:
        data = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        self.fold.apply(self.next, key.encode(), data)
        self.next += 1

    def connector(self, name: str = "c", **props: str) -> None:
        self.write(f"connector-{name}", {"properties": props})

    def task(self, number: int, name: str = "c", **props: str) -> None:
        self.write(f"task-{name}-{number}", {"properties": props})

    def commit(self, tasks: int, name: str = "c") -> None:
        self.write(f"commit-{name}", {"tasks": tasks})

    def listen(self) -> None:
        self.fold.start_listening(self.listener)


def ids(*numbers: int, name: str = "c") -> list[ConnectorTaskId]:
    return [ConnectorTaskId(name, number) for number in numbers]


@pytest.fixture
def topic() -> Topic:
    return Topic()


def test_the_offset_is_that_of_the_next_record(topic: Topic) -> None:
    assert topic.fold.snapshot().offset == -1
    topic.connector()
    assert topic.fold.snapshot().offset == 1
    topic.write("connector-x", b"{not json")
    assert topic.fold.snapshot().offset == 1
    topic.write("unknown", {})
    assert topic.fold.snapshot().offset == 3


@pytest.mark.parametrize(
    ("key", "value"), [(b"connector-\xff", b"{}"), (b"target-state-c", b'{"state":"PAUSED"} and more'), (b"\xff", None)]
)
def test_records_that_java_reads_advance_the_offset(topic: Topic, key: bytes, value: bytes | None) -> None:
    """Members of a group whose offsets differ would rebalance without end."""
    topic.connector()
    topic.fold.apply(1, key, value)
    state = topic.fold.snapshot()
    assert state.offset == 2
    assert state.target_state("c") is (TargetState.PAUSED if value and b"PAUSED" in value else TargetState.STARTED)


def test_task_configs_appear_with_the_commit_record(topic: Topic) -> None:
    topic.connector(a="1")
    topic.task(0, n="0")
    topic.task(1, n="1")
    assert topic.fold.snapshot().tasks("c") == []
    topic.listen()
    topic.commit(2)
    state = topic.fold.snapshot()
    assert state.tasks("c") == ids(0, 1)
    assert state.all_task_configs("c") == [{"n": "0"}, {"n": "1"}]
    assert state.applied_connector_configs["c"] == {"a": "1"}
    assert state.task_config_generations["c"] == 0
    assert state.pending_fencing == {"c"}
    assert topic.listener.events == [("tasks", *ids(0, 1))]


def test_an_incomplete_set_makes_the_connector_inconsistent_until_a_complete_one(topic: Topic) -> None:
    topic.connector()
    topic.task(1)
    topic.listen()
    topic.commit(2)
    assert topic.fold.snapshot().inconsistent == {"c"}
    assert topic.fold.snapshot().tasks("c") == []
    assert topic.listener.events == [("tasks",)]
    topic.task(0)
    topic.commit(2)  # the deferred task 1 was discarded with the bad commit
    assert topic.fold.snapshot().inconsistent == {"c"}
    topic.task(0)
    topic.task(1)
    topic.commit(2)
    assert topic.fold.snapshot().inconsistent == set()
    assert topic.fold.snapshot().tasks("c") == ids(0, 1)


def test_fewer_tasks_hide_the_configs_of_removed_ones(topic: Topic) -> None:
    topic.connector()
    topic.task(0)
    topic.task(1, left="over")
    topic.task(0, now="alone")
    topic.commit(1)
    assert topic.fold.snapshot().all_task_configs("c") == [{"now": "alone"}]
    topic.commit(0)
    assert topic.fold.snapshot().tasks("c") == []


def test_generations_count_sets_of_task_configs(topic: Topic) -> None:
    topic.connector()
    topic.commit(0)
    assert "c" not in topic.fold.snapshot().task_config_generations
    for expected in (0, 1):
        topic.task(0)
        topic.commit(1)
        assert topic.fold.snapshot().task_config_generations["c"] == expected


def test_a_tombstone_deletes_tasks_and_deferred_configs(topic: Topic) -> None:
    topic.connector()
    topic.task(0)
    topic.commit(1)
    topic.task(0, deferred="yes")
    topic.listen()
    topic.write("connector-c", None)
    topic.write("target-state-c", None)
    state = topic.fold.snapshot()
    assert (state.connectors(), state.tasks("c"), dict(state.task_configs)) == (frozenset(), [], {})
    assert dict(state.target_states) == {}
    assert topic.listener.events == [("remove", "c")]
    topic.connector()
    topic.commit(1)
    assert topic.fold.snapshot().tasks("c") == []  # never the old ones


def test_left_over_tasks_of_an_unknown_connector_are_ignored(topic: Topic) -> None:
    topic.task(0)
    topic.listen()
    topic.commit(1)
    assert topic.fold.snapshot().task_counts == {}
    assert topic.listener.events == []


def test_names_may_contain_dashes(topic: Topic) -> None:
    topic.connector("a-1-b")
    topic.task(7, "a-1-b")
    topic.task(0, "a-1-b")
    topic.commit(1, "a-1-b")
    assert topic.fold.snapshot().tasks("a-1-b") == ids(0, name="a-1-b")


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ({"state": "PAUSED", "state.v2": "STOPPED"}, TargetState.STOPPED),
        ({"state": "PAUSED"}, TargetState.PAUSED),
        ({"state": "PAUSED", "state.v2": None}, TargetState.PAUSED),
        ({"state": "NONSENSE"}, TargetState.STARTED),
        ({}, TargetState.STARTED),
        ([], TargetState.STARTED),
        (None, TargetState.STARTED),
    ],
)
def test_target_states(topic: Topic, value: Any, state: TargetState) -> None:
    topic.connector()
    topic.write("target-state-c", value)
    assert topic.fold.snapshot().target_state("c") is state


def test_only_real_changes_of_known_connectors_are_announced(topic: Topic) -> None:
    topic.connector()
    topic.listen()
    topic.write("target-state-c", {"state": "STARTED", "state.v2": "STARTED"})
    topic.write("target-state-unknown", {"state": "PAUSED", "state.v2": "PAUSED"})
    topic.write("target-state-c", {"state": "PAUSED", "state.v2": "PAUSED"})
    assert topic.listener.events == [("target", "c")]


def test_a_state_written_before_its_connector_counts_from_the_start(topic: Topic) -> None:
    topic.write("target-state-c", {"state": "PAUSED", "state.v2": "STOPPED"})
    topic.connector()
    assert topic.fold.snapshot().target_state("c") is TargetState.STOPPED


def test_old_restarts_and_log_levels_are_ignored(topic: Topic) -> None:
    topic.write("restart-connector-c", {"include-tasks": True, "only-failed": True})
    topic.write("logger-cluster-a.b", {"level": "DEBUG"})
    topic.listen()
    topic.write("restart-connector-c", {"include-tasks": True, "only-failed": "x"})
    topic.write("logger-cluster-a.b", {"level": "DEBUG"})
    assert topic.listener.events == [
        ("restart", RestartRequest("c", only_failed=False, include_tasks=True)),
        ("level", "a.b", "DEBUG"),
    ]


def test_the_newest_session_key_wins(topic: Topic) -> None:
    for created in (1, 2):
        topic.write("session-key", {"key": "AAA=", "algorithm": "HmacSHA256", "creation-timestamp": created})
    topic.write("session-key", {"key": "AAA=", "algorithm": "HmacSHA256", "creation-timestamp": "3"})
    key = topic.fold.snapshot().session_key
    assert key is not None
    assert key.creation_timestamp_ms == 2


def test_a_task_count_record_ends_pending_fencing(topic: Topic) -> None:
    topic.connector()
    topic.commit(0)
    topic.write("tasks-fencing-c", {"task-count": 3})
    state = topic.fold.snapshot()
    assert (state.task_count_records, state.pending_fencing) == ({"c": 3}, frozenset())


@pytest.mark.parametrize("key", ["task-c", "task-c-x", "task-c--1x", "task-c-"])
def test_keys_without_a_task_number_are_ignored(topic: Topic, key: str) -> None:
    topic.connector()
    topic.write(key, {"properties": {}})
    topic.commit(1)
    assert topic.fold.snapshot().inconsistent == {"c"}


def test_restart_requests_are_ordered_by_impact() -> None:
    requests = [RestartRequest("c", failed, tasks) for failed in (True, False) for tasks in (False, True)]
    assert sorted(requests, key=lambda request: request.impact) == requests
