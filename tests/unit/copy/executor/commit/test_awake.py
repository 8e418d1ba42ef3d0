"""Partitions at rest: their state is committed and reported, and each change of it wakes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.commit.commits import Commits, state_of
from mm2.copy.executor.commit.positions import PendingRecords, Positions
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.events import PartitionEvent
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.producing.outbox_events import ResendUncertain
from mm2.copy.executor.reports import Reports, progress_key
from mm2.copy.progress.session import Lease, Mark
from mm2.copy.spec import PartitionProgress
from mm2.copy.states import PartitionState
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import TopicPartition
from tests.unit.copy.batches import PRODUCER, SPEC, TP, batch, fetched, partition_events


class Target:
    """Acknowledges what is written to it when `settle` is called, and keeps the records of each topic."""

    def __init__(self) -> None:
        self.log: dict[str, list[Record]] = {SPEC.remote_topic: [Record(None, None)] * 5}
        self._sent: list[tuple[str, Outbox, OutgoingBatch]] = []

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        outbox.stamp(outgoing)
        outbox.sent.append(outgoing)
        self._sent.append((outbox.partition.topic, outbox, outgoing))

    def wake(self, outbox: Outbox) -> None:
        while outbox.queue:
            self.put(outbox, outbox.queue.popleft())

    def stage(self, topic: str) -> PendingRecords:
        return PendingRecords(lambda number: Outbox(TopicPartition(topic, number), None), self.put)

    def settle(self) -> None:
        while self._sent:
            topic, outbox, outgoing = self._sent.pop(0)
            outbox.sent.remove(outgoing)
            (view,) = iter_batches(outgoing.data)
            known = self.log.setdefault(topic, [])
            known += decode_batch(view)
            outbox.deliver(outgoing, len(known) - outgoing.count)


class Scene:
    """One partition, copied up to offset 5, with all that commits and reports it."""

    def __init__(self) -> None:
        self.target, self.awake = Target(), AwakeCursors()
        self.messages: list[dict[str, Any]] = []
        link: Any = SimpleNamespace(ask=self.messages.append)
        self.reports = Reports(link, self.awake)
        cursors: dict[TopicPartition, Cursor] = {}
        source: Any = SimpleNamespace(
            reads_committed=False, resume=lambda: None, remove=lambda _: None, consider=lambda _: None
        )
        sink: Any = SimpleNamespace(put=self.target.put, wake=self.target.wake, topic_ids={})
        self.outbox = Outbox(SPEC.target, PRODUCER, source=TP)
        self.cursor = cursors[TP] = Cursor(
            SPEC, self.outbox, self._handle, self.reports.tally, read_committed=False, changes=None
        )
        ledger = self.target.stage("ledger")
        self.positions = Positions(self.target.stage("offsets"), ledger, partitions=5, connector="c", source_alias="A")
        self.commits = Commits(
            cursors, self.positions, ledger, "ledger", sink, {}, None, self.reports.arrived, self.awake
        )
        losses: Any = SimpleNamespace(
            **{name: lambda *_: None for name in ("unreadable", "source_recreated", "diverged", "validate")}
        )
        self.events = partition_events(
            cursors, source=source, sink=sink, awake=self.awake, losses=losses, commits=self.commits
        )
        self.awake.wake(self.cursor)
        self.positions.start_at(TP, 5, Lease(1, 0))
        self.outbox.begin(PRODUCER, 5, known=True)
        self.cursor.begin(Mark(5, 5, 5))
        self.cursor.take(fetched(end=5))

    def _handle(self, event: PartitionEvent) -> None:
        self.events.handle(TP, event)

    def pass_second(self) -> None:
        """Commit and report, as in each second."""
        self.commits.commit()
        self.target.settle()
        self.reports.report("")

    def come_to_rest(self) -> None:
        for _ in range(5):
            self.pass_second()
        assert not self.awake.uncommitted
        assert not self.awake.unreported

    @property
    def entries(self) -> int:
        """The entries of the partition in the ledger so far."""
        return sum(b"chunk" not in (record.key or b"") for record in self.target.log["ledger"])

    @property
    def reported(self) -> list[PartitionProgress]:
        """The partitions in the last report."""
        return [PartitionProgress(*row) for row in self.messages[-1]["partitions"]]


def test_a_partition_comes_to_rest_once_the_ledger_knows_its_position_and_the_driver_its_state() -> None:
    scene = Scene()
    scene.cursor.take(fetched(batch(5, 3), end=8))
    scene.target.settle()
    scene.come_to_rest()
    assert scene.entries == 2, "once more after the position"
    assert len(scene.target.log["offsets"]) == 1
    shown = scene.entries
    scene.pass_second()
    assert (scene.entries, scene.reported) == (shown, [])


CHANGES: dict[str, Callable[[Scene], object]] = {
    "records": lambda scene: scene.cursor.take(fetched(batch(5, 1), end=6)),
    "a later end": lambda scene: scene.cursor.take(fetched(end=9)),
    "read error": lambda scene: scene.cursor.failed(BrokerFailure.of(29)),
    "write error": lambda scene: scene.cursor.set_target_error(BrokerFailure.of(3)),
    "pause": lambda scene: scene.cursor.pause("paused by ann", 7),
    "note": lambda scene: scene.cursor.annotate("at least once"),
    "uncertain": lambda scene: scene.events.handle_outbox(ResendUncertain(scene.outbox, "at least once")),
    "stop": lambda scene: scene.cursor.fail(PartitionState.INCONSISTENT, "contradiction"),
    "lost range": lambda scene: scene.cursor.add_lost_range(5, 7, "retention"),
    "position": lambda scene: scene.cursor.move(2),
    "begin": lambda scene: scene.cursor.begin(Mark(3, 3, 3)),
    "jump": lambda scene: scene.cursor.jump(3, "retention"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_partition_at_rest_is_committed_and_reported(change: str) -> None:
    scene = Scene()
    scene.come_to_rest()
    written, reported = state_of(scene.cursor), progress_key(scene.cursor)
    CHANGES[change](scene)
    scene.target.settle()
    assert (written, reported) != (state_of(scene.cursor), progress_key(scene.cursor))
    is_new = written != state_of(scene.cursor), reported != progress_key(scene.cursor)
    before = scene.entries
    scene.pass_second()
    assert (scene.entries > before, len(scene.reported) > 0) == is_new


def test_the_end_of_a_pause_and_of_an_error_are_changes_too() -> None:
    scene = Scene()
    scene.cursor.pause("paused by ann", 7)
    scene.come_to_rest()
    scene.cursor.resume()
    scene.cursor.set_target_error(BrokerFailure.of(3))
    scene.pass_second()
    assert [row.state for row in scene.reported] == [PartitionState.DELETED]
    scene.come_to_rest()
    scene.cursor.set_target_error(None)
    scene.pass_second()
    assert [row.state for row in scene.reported] == [PartitionState.RUNNING]


def test_a_partition_is_awake_while_something_is_in_flight_or_left_to_be_read() -> None:
    scene = Scene()
    scene.come_to_rest()
    scene.cursor.take(fetched(batch(5, 1), end=6))
    for _ in range(5):
        scene.commits.commit()
        scene.reports.report("")
    assert [*scene.awake.uncommitted] == [*scene.awake.unreported] == [scene.cursor], "it is not acknowledged"
    scene.target.settle()
    scene.come_to_rest()
    scene.cursor.take(fetched(end=9))
    for _ in range(5):
        scene.pass_second()
    assert scene.awake.unreported, "whether it is throttled or blocked depends on the time"


def test_a_commit_that_something_waits_for_wakes_a_partition_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.come_to_rest()
    monkeypatch.setattr("asyncio.get_running_loop", lambda: SimpleNamespace(call_soon=lambda call: call()))
    done: list[bool] = []
    scene.commits.then(scene.cursor, lambda: done.append(True))
    assert scene.awake.uncommitted
    scene.target.settle()
    assert done == [True]


def test_the_rate_after_a_rest_is_that_of_a_partition_that_was_measured_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    scene = Scene()
    scene.come_to_rest()
    now[0] += 60
    scene.cursor.take(fetched(batch(5, 3), end=8))
    scene.target.settle()
    now[0] += 1
    scene.pass_second()
    assert scene.cursor.rate.value == pytest.approx(scene.cursor.window.bytes / 10)
