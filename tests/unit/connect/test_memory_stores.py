"""The stores of a standalone worker: the same rules as those on Kafka, without Kafka."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores.config_state import ConnectorTaskId, RestartRequest, TargetState
from mm2.connect.stores.config_store import MemoryConfigStore
from mm2.connect.stores.offset_store import FileOffsetStore, JavaFileError, MemoryOffsetStore, dump_map, load_map
from mm2.connect.stores.status_store import MemoryStatusStore, State, Status, TopicStatus

TASK = ConnectorTaskId("c", 0)


class Listener:
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_connector_config_update(self, connector: str) -> None:
        self.events.append(("updated", connector))

    def on_connector_config_remove(self, connector: str) -> None:
        self.events.append(("removed", connector))

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        self.events.append(("tasks", tasks))

    def on_target_state_change(self, connector: str) -> None:
        self.events.append(("state", connector))

    def on_session_key_update(self, key: SessionKey) -> None:
        self.events.append(("key", key))

    def on_restart_request(self, request: RestartRequest) -> None:
        self.events.append(("restart", request))

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        self.events.append(("level", (namespace, level)))


def test_connector_configs_in_memory_are_created_changed_and_deleted() -> None:
    store, listener = MemoryConfigStore(), Listener()
    store.start(listener)
    store.put_connector_config("c", {"a": "1"}, TargetState.PAUSED)
    assert store.snapshot().target_state("c") is TargetState.PAUSED
    assert store.snapshot().connector_config("c") == {"a": "1"}
    store.put_task_configs("c", [{"n": "0"}, {"n": "1"}])
    assert store.snapshot().all_task_configs("c") == [{"n": "0"}, {"n": "1"}]
    store.put_task_configs("c", [{"n": "0"}])
    assert store.snapshot().tasks("c") == [TASK]
    store.put_target_state("c", TargetState.STARTED)
    store.put_target_state("c", TargetState.STARTED)
    store.remove_connector_config("c")
    assert store.snapshot().connectors() == frozenset()
    assert store.snapshot().tasks("c") == []
    assert listener.events == [
        ("updated", "c"),
        ("tasks", [TASK, ConnectorTaskId("c", 1)]),
        ("tasks", [TASK]),
        ("state", "c"),
        ("removed", "c"),
    ]


def test_requests_for_an_unknown_connector_are_rejected() -> None:
    store = MemoryConfigStore()
    store.start(Listener())
    with pytest.raises(ConnectError, match="No connector c is configured"):
        store.put_task_configs("c", [])
    with pytest.raises(ConnectError, match="No connector c is configured"):
        store.put_target_state("c", TargetState.PAUSED)


def test_statuses_in_memory() -> None:
    store = MemoryStatusStore()
    store.put(Status("c", State.RUNNING, "w", 0))
    store.put(Status(TASK, State.RUNNING, "w", 0))
    # On Kafka an UNASSIGNED after a start of the same generation is out of date; here it is current.
    store.put_safe(Status(TASK, State.UNASSIGNED, "w", 0))
    (task,) = store.tasks("c")
    assert task.state is State.UNASSIGNED
    store.put_topic(TopicStatus("t", "c", 0, 1))
    assert set(store.topics("c")) == {"t"}
    assert store.connectors_with_topics() == {"c"}
    store.delete_topic("c", "t")
    store.put(Status("c", State.DESTROYED, "w", 0))
    store.put(Status(TASK, State.DESTROYED, "w", 0))
    store.put(Status(TASK, State.DESTROYED, "w", 0))
    assert (store.connector("c"), store.task(TASK), store.connectors(), store.connectors_with_topics()) == (
        None,
        None,
        set(),
        set(),
    )


def test_offsets_in_memory_are_listed_changed_and_reset() -> None:
    store = MemoryOffsetStore()
    store.write("c", [({"p": 1}, {"o": 1}), ({"p": 2}, {"o": 2})], 1)
    store.write("d", [({"p": 1}, {"o": 9})], 1)
    store.write("c", [({"p": 1}, None), ({"p": 3}, None)], 1)
    assert store.all_offsets("c", 1) == [({"p": 2}, {"o": 2})]
    assert store.offsets("c", [{"p": 1}, {"p": 2}], 1) == [None, {"o": 2}]
    assert store.reset("c", 1) == 1
    assert store.all_offsets("c", 1) == []
    assert store.all_offsets("d", 1) == [({"p": 1}, {"o": 9})]
    with pytest.raises(ConnectError, match="must be a primitive"):
        store.write("c", [({"p": [1]}, {"o": 1})], 1)


def test_the_file_restores_the_offsets(tmp_path: Path) -> None:
    path = tmp_path / "connect.offsets"
    store = FileOffsetStore(path)
    store.start()
    store.write("c", [({"filename": "ü"}, {"position": 2**40})], 1)
    path.chmod(0o640)
    store.write("c", [({"filename": "b"}, {"position": 1})], 1)
    store.write("c", [({"filename": "b"}, None)], 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]
    again = FileOffsetStore(path)
    again.start()
    assert again.all_offsets("c", 1) == [({"filename": "ü"}, {"position": 2**40})]


def test_an_empty_file_has_no_offsets(tmp_path: Path) -> None:
    path = tmp_path / "connect.offsets"
    path.touch()
    store = FileOffsetStore(path)
    store.start()
    assert store.all_offsets("c", 1) == []


def test_an_interrupted_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "connect.offsets"
    store = FileOffsetStore(path)
    store.start()
    store.write("c", [({"p": 1}, {"o": 1})], 1)

    def no_space(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mm2.connect.stores.offset_store.os.fsync", no_space)
    with pytest.raises(ConnectError, match=r"not written to .*connect\.offsets .*No space left on device"):
        store.write("c", [({"p": 1}, {"o": 2})], 1)
    assert store.offsets("c", [{"p": 1}], 1) == [{"o": 1}]
    monkeypatch.undo()
    again = FileOffsetStore(path)
    again.start()
    assert again.offsets("c", [{"p": 1}], 1) == [{"o": 1}]
    again.write("c", [({"p": 1}, {"o": 3})], 1)
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_another_user_in_a_shared_folder_are_not_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "connect.offsets"
    (tmp_path / ".connect.offsets.new").symlink_to(victim)
    store = FileOffsetStore(path)
    store.start()
    store.write("c", [({"p": 1}, {"o": 1})], 1)
    assert victim.read_text() == "mine"
    assert not path.is_symlink()
    assert load_map(path.read_bytes()) == {b'["c",{"p":1}]': b'{"o":1}'}


def test_a_link_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "connect.offsets"
    link.symlink_to(tmp_path / "elsewhere")
    if os.geteuid() == 0:
        os.lchown(link, 12_345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: link.lstat().st_uid + 1)
    with pytest.raises(ConnectError, match="is a link of another user"):
        FileOffsetStore(link).start()


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "offsets")
    store = FileOffsetStore(link)
    store.start()
    store.write("c", [({"p": 1}, {"o": 1})], 1)
    assert link.is_symlink()
    assert load_map((tmp_path / "real" / "offsets").read_bytes()) == {b'["c",{"p":1}]': b'{"o":1}'}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{}", "is cut off after 2 bytes"),
        (b'{"offsets":[]}', "does not begin as a serialised Java object"),
        (dump_map({b"k": b"v"})[:-1], "is cut off after"),
        (dump_map({b"k": b"v"})[:40], "is cut off after 40 bytes"),
        (dump_map({b"k": b"v"}) + b"x", "1 bytes follow its end"),
        (dump_map({}).replace(b"HashMap", b"HashSet"), "is not a java.util.HashMap"),
    ],
)
def test_any_other_file_is_rejected(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "connect.offsets"
    path.write_bytes(data)
    with pytest.raises(ConnectError, match=rf"connect\.offsets \(offset\.storage\.file\.filename\).*{why}"):
        FileOffsetStore(path).start()
    assert path.read_bytes() == data


def test_every_truncation_of_a_file_is_detected() -> None:
    whole = dump_map({b"key-1": b"value-1", b"key-2": b"", b"": b"x"})
    assert load_map(whole) == {b"key-1": b"value-1", b"key-2": b"", b"": b"x"}
    for length in range(len(whole)):
        with pytest.raises(JavaFileError):
            load_map(whole[:length])
