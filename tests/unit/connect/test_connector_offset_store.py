"""A connector's own offsets and the shared offsets: precedence, and the order of writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from mm2.connect.api import ConnectError, SourceRecord, SourceTask
from mm2.connect.herder.connector_offsets import StoredOffsets
from mm2.connect.runtime.tasks.source import WorkerSourceTask
from mm2.connect.stores.kafka_offset_store import ConnectorOffsetStore, own_topic
from mm2.connect.stores.offset_store import MemoryOffsetStore, SourceOffset
from tests.unit.connect.task_parts import RecordingListener, equipment, source_setup

P1, P2, P3 = {"p": 1}, {"p": 2}, {"p": 3}


class Noted(MemoryOffsetStore):
    """Records its writes, and fails or waits as configured."""

    def __init__(self, name: str, written: list[tuple[str, list[SourceOffset]]]) -> None:
        super().__init__()
        self.name = name
        self.written = written
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()

    def write(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        batch = list(offsets)
        assert self.gate.wait(60)
        if self.fails:
            raise ConnectError(f"{self.name} cannot be written")
        self.written.append((self.name, batch))
        super().write(connector, batch, timeout_s)


class Stores:
    def __init__(self) -> None:
        self.written: list[tuple[str, list[SourceOffset]]] = []
        self.own, self.shared = Noted("own", self.written), Noted("shared", self.written)
        self.both = ConnectorOffsetStore(self.own, self.shared)


@pytest.fixture
def stores() -> Iterator[Stores]:
    made = Stores()
    yield made
    made.both.stop()


def test_own_offsets_override_shared_ones(stores: Stores) -> None:
    stores.shared.write("c", [(P1, {"o": 1}), (P2, {"o": 2})], 1)
    stores.own.write("c", [(P2, {"o": 20}), (P3, {"o": 30})], 1)
    assert stores.both.offsets("c", [P1, P2, P3, {"p": 4}], 1) == [{"o": 1}, {"o": 20}, {"o": 30}, None]
    assert stores.both.all_offsets("c", 1) == [(P1, {"o": 1}), (P2, {"o": 20}), (P3, {"o": 30})]


def test_offsets_are_written_to_the_own_store_and_then_copied(stores: Stores) -> None:
    stores.both.write("c", [(P1, {"o": 1})], 1)
    assert stores.both.flush(60)
    assert stores.written == [("own", [(P1, {"o": 1})]), ("shared", [(P1, {"o": 1})])]


def test_removals_are_written_first_and_to_the_shared_store_first(stores: Stores) -> None:
    stores.both.write("c", [(P1, {"o": 1}), (P2, {"o": 1})], 1)
    assert stores.both.flush(60)
    stores.written.clear()
    stores.both.write("c", [(P1, None), (P2, {"o": 2})], 1)
    assert stores.both.flush(60)
    assert stores.written == [
        ("shared", [(P1, None)]),
        ("own", [(P1, None), (P2, {"o": 2})]),
        ("shared", [(P2, {"o": 2})]),
    ]
    assert stores.both.all_offsets("c", 1) == [(P2, {"o": 2})]


def test_a_removal_rejected_by_the_shared_store_changes_nothing(stores: Stores) -> None:
    stores.both.write("c", [(P1, {"o": 1})], 1)
    assert stores.both.flush(60)
    stores.shared.fails = True
    with pytest.raises(ConnectError, match="shared cannot be written"):
        stores.both.write("c", [(P1, None)], 1)
    assert stores.both.offsets("c", [P1], 1) == [{"o": 1}]


def test_a_failed_copy_is_not_an_error(stores: Stores) -> None:
    stores.shared.fails = True
    stores.both.write("c", [(P1, {"o": 1})], 1)
    assert stores.both.flush(60)
    stores.shared.fails = False
    stores.both.write("c", [(P1, {"o": 2})], 1)
    assert stores.both.flush(60)
    assert stores.shared.all_offsets("c", 1) == [(P1, {"o": 2})]


def test_a_failed_write_is_not_copied(stores: Stores) -> None:
    stores.own.fails = True
    with pytest.raises(ConnectError, match="own cannot be written"):
        stores.both.write("c", [(P1, {"o": 1})], 1)
    assert stores.both.flush(60)
    assert stores.shared.all_offsets("c", 1) == []


def test_no_copy_overtakes_a_removal(stores: Stores) -> None:
    stores.shared.gate.clear()
    stores.both.write("c", [(P1, {"o": 1})], 1)  # its copy is delayed
    threading.Timer(0.2, stores.shared.gate.set).start()
    stores.both.write("c", [(P1, None)], 5)
    assert stores.both.flush(60)
    assert stores.shared.all_offsets("c", 1) == []
    assert stores.both.all_offsets("c", 1) == []


def test_a_delayed_copy_contains_only_the_latest_offsets(stores: Stores) -> None:
    stores.shared.gate.clear()
    for number in range(50):
        stores.both.write("c", [(P1, {"o": number})], 1)
    stores.shared.gate.set()
    assert stores.both.flush(60)
    assert stores.shared.all_offsets("c", 1) == [(P1, {"o": 49})]
    assert len([name for name, _ in stores.written if name == "shared"]) <= 2


class Idle(SourceTask):
    def version(self) -> str:
        return "1"

    def start(self, props: dict[str, str]) -> None: ...

    def stop(self) -> None: ...

    def poll(self) -> list[SourceRecord] | None:
        return None


def running_task(stores: Stores) -> WorkerSourceTask:
    setup = replace(source_setup(Idle()), offset_store=stores.both, owns_store=True)
    task = WorkerSourceTask(equipment(RecordingListener()), setup, flush_timeout_s=1)
    task.start()
    return task


def test_the_last_commit_of_a_task_is_copied_before_its_store_is_stopped(stores: Stores) -> None:
    """Also while an earlier copy is in progress."""
    task = running_task(stores)
    stores.shared.gate.clear()
    for number in range(2):
        stores.both.write("c", [(P1, {"o": number})], 1)
        time.sleep(0.05)
    task.stop()
    threading.Timer(0.2, stores.shared.gate.set).start()
    assert task.await_stop(60)
    assert stores.shared.all_offsets("c", 1) == [(P1, {"o": 1})]


def test_a_cancelled_task_does_not_wait_for_copies(stores: Stores) -> None:
    task = running_task(stores)
    stores.shared.gate.clear()
    stores.both.write("c", [(P1, {"o": 1})], 1)
    task.cancel()
    assert task.await_stop(30)
    stores.shared.gate.set()


def test_offsets_that_a_user_changes_are_copied_before_the_store_is_stopped(stores: Stores) -> None:
    stores.shared.gate.clear()
    threading.Timer(0.2, stores.shared.gate.set).start()
    StoredOffsets(stores.both, "c").write([(P1, {"o": 1})], 1)
    stores.both.stop()
    assert stores.shared.all_offsets("c", 1) == [(P1, {"o": 1})]


def test_a_reset_empties_both_stores(stores: Stores) -> None:
    stores.shared.write("c", [(P1, {"o": 1})], 1)
    stores.own.write("c", [(P2, {"o": 2})], 1)
    assert stores.both.reset("c", 1) == 2
    assert stores.own.all_offsets("c", 1) == []
    assert stores.shared.all_offsets("c", 1) == []


@pytest.mark.parametrize(
    ("named", "elsewhere", "exactly_once", "own"),
    [
        ("", False, False, None),
        ("", True, False, None),
        ("", False, True, None),
        ("", True, True, "offsets"),
        ("mine", False, False, "mine"),
        ("mine", True, True, "mine"),
        ("offsets", False, True, None),
        ("offsets", True, False, "offsets"),
    ],
)
def test_a_connector_s_own_offsets_topic_follows_its_settings(
    named: str, elsewhere: bool, exactly_once: bool, own: str | None
) -> None:
    assert own_topic(named, "offsets", elsewhere=elsewhere, exactly_once=exactly_once) == own
