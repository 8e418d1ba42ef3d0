"""Exactly-once mode across crashes: ledger and Connect's offsets topic after each step, as a successor reads them."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

import tests.unit.copy.executor.producing.test_sink as sinks
from mm2.codec import decode
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect import node
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.copy.executor.clusters.brokers import BrokerAddress
from mm2.copy.executor.commit.commits import TransactionCommits
from mm2.copy.executor.commit.transaction import TaskTransactions
from mm2.copy.executor.copier import Copier
from mm2.copy.executor.fetching.fetch_states import PartitionFetchState
from mm2.copy.executor.partition.events import SourceDiverged, SourceRecreated, Unreadable
from mm2.copy.executor.partition.outbox import Outbox, OutboxState
from mm2.copy.executor.partition.window import RangeAcknowledged, WindowEvent
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.progress.ledger import Ledger, entry_record
from mm2.copy.progress.session import (
    EndedSession,
    FormerTopic,
    Lease,
    LedgerEntry,
    Mark,
    PositionHeader,
    PreviousCommit,
    Session,
    Start,
)
from mm2.copy.progress.target_progress import FoundBatch
from mm2.copy.spec import Assignment, TransactionsSpec
from mm2.copy.states import PartitionState
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.readers.log import KafkaBasedLog
from mm2.kafka.records.batch import TRANSACTIONAL
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.records.visibility import VisibleBatches
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.kafka.wire.fetch import Fetched
from tests.support.waiting import wait_until_async
from tests.unit.copy.batches import TP, Bench, batch, partition_events
from tests.unit.copy.executor.sessions import test_losses as losses_bench
from tests.unit.copy.executor.sessions import test_opening as opening_bench

EXACTLY_ONCE = TransactionsSpec("id")
INVALID_TXN_STATE = 48
UNKNOWN_SERVER_ERROR = -1
COORDINATOR_ERROR = BrokerFailure.of(15)
LEADER_NOT_AVAILABLE = BrokerFailure.of(5)
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
WORKER = {
    "bootstrap.servers": "127.0.0.1:1",
    "group.id": "g",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "statuses",
    "key.converter": BYTES,
    "value.converter": BYTES,
}


class Coordinator:
    """Ends transactions as the broker's: one that holds no record cannot be committed (`TransactionCoordinator.endTransaction`, Empty)."""

    implicit_partitions = True

    def __init__(self) -> None:
        self.records = 0
        self.fails: KafkaFailure | None = None
        self.ended: list[bool] = []

    def end(self, identity: ProducerIdentity, commit: bool) -> ProducerIdentity:
        self.ended.append(commit)
        if self.fails is not None:
            raise self.fails
        if commit and not self.records:
            raise BrokerFailure.of(INVALID_TXN_STATE)
        self.records = 0
        return ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)


class Positions:
    """The ledger's entries as they are written, and what Connect's offsets topic holds."""

    idle = True

    def __init__(self, committed: dict[TopicPartition, int | None]) -> None:
        self.committed = committed
        self.entries: list[LedgerEntry] = []

    def busy(self, _source: TopicPartition) -> bool:
        return False

    def lease(self, _source: TopicPartition) -> Lease:
        return Lease(5, len(self.entries))

    def commit(self, commit: Any, _committed: object) -> None:
        entry: LedgerEntry = commit.entry
        self.entries.append(
            entry.replace(previous=self.committed.get(entry.source), lease=Lease(5, 1 + len(self.entries)))
        )

    def flush(self) -> None:
        """Written at once."""

    def offset_record(self, _source: TopicPartition, position: int, _header: PositionHeader) -> tuple[int, Record]:
        return 0, Record(b"k", b"%d" % position)


class Scene:
    """A copier in exactly-once mode with one partition, copied up to offset 100 of a topic with the id "old"."""

    def __init__(self) -> None:
        self.bench = Bench(100, target=200, records=100)
        self.cursor = self.bench.cursor
        self.cursor.topic_id, self.cursor.leader_epoch, self.cursor.known_epoch = "old", 3, 3
        self.cursor.known_end = 100
        self.positions = Positions({TP: 100})
        self.coordinator = Coordinator()
        self.copier = copier = Copier(Assignment("b", "localhost", 1, "00"), 0)
        copier._cursors[TP] = self.cursor
        copier._positions = cast(Any, self.positions)
        copier._sink = cast(Any, SimpleNamespace(topic_ids={}))
        copier._source = cast(Any, self)
        ledger: Any = object()
        self.sent: list[int] = []
        sink = SimpleNamespace(hold=lambda **_: None, put=self._put, outbox=self._outbox)
        self.transactions = TaskTransactions(
            cast(Any, None), EXACTLY_ONCE, cast(Any, sink), "offsets", self._call, lambda _error: None
        )
        self.transactions._client = cast(Any, self.coordinator)
        self.transactions._identity = ProducerIdentity(1, 0)
        copier._commits = self.commits = TransactionCommits(
            copier._link,
            self.transactions,
            copier._cursors,
            copier._positions,
            ledger,
            "ledger",
            copier._sink,
            {},
            None,
            copier._reports.arrived,
            copier._awake,
        )
        self.commits.commit_unmoved()
        self.commits.begin()
        self.losses = Losses(
            losses_bench.COPY,
            cast(Any, None),
            cast(Any, self),
            cast(Any, None),
            cast(Any, SimpleNamespace(current={}, forget_ended=lambda _: None)),
            cast(Any, None),
            self._call,
            self.commits.then,
        )
        self.events = partition_events(
            copier._cursors,
            link=copier._link,
            source=copier._source,
            awake=copier._awake,
            losses=self.losses,
            commits=self.commits,
        )

        def acked(event: WindowEvent) -> None:
            if isinstance(event, RangeAcknowledged):
                self.events.handle(TP, event)
            else:
                self.bench.owner.handle(event)

        self.cursor.window.emit = acked

    def resume(self) -> None:
        """Nothing is fetched here."""

    async def _call(self, call: Any, *args: Any) -> Any:
        await asyncio.sleep(0)
        return call(*args)

    def _outbox(self, partition: TopicPartition, **_: Any) -> Outbox:
        return Outbox(partition, ProducerIdentity(1, 0), transactional=True)

    def _put(self, outbox: Outbox, outgoing: Any) -> None:
        """The offsets topic takes it."""
        self.coordinator.records += outgoing.count
        self.sent.append(outbox.partition.partition)
        outbox.stamp(outgoing)
        outbox.acked = outbox.next
        outgoing.acked(0)

    def copy(self, base: int, count: int) -> None:
        self.bench.fetch(batch(self.cursor.offset, count))
        self.ack(base)

    def ack(self, base: int) -> None:
        """The target takes the first batch."""
        outbox = self.bench.outbox
        outgoing = outbox.queue.popleft()
        outbox.stamp(outgoing)
        outbox.acked = outbox.next
        outgoing.acked(base)
        self.coordinator.records += outgoing.count

    def commit(self, fails: KafkaFailure | None = None) -> None:
        """The next transaction; with ``fails`` the executor dies before it is committed."""
        self.coordinator.fails = fails
        asyncio.run(self.commits.commit_transaction())
        assert (self.copier._link.reason == "") == (fails is None)

    def is_due(self) -> bool:
        """Whether the next transaction is to be committed."""
        return self.commits.is_due

    def successor(self) -> Start:
        """What is found by the executor that follows."""
        ledger = Ledger()
        for entry in self.positions.entries:
            row = entry_record(entry)
            ledger.apply(row.key, row.value)
        return ledger.start(TP, self.positions.committed[TP])


def _finds_the_new_topic(start: Start) -> bool:
    """Whether a successor detects that the source is the topic "new"."""
    scene = opening_bench.Scene(transactions=EXACTLY_ONCE)
    opening_bench.play(scene, lambda: scene.begin(start))
    PartitionFetchState(scene.cursor, 1 << 20, topic_id="new").check_topic()
    return ("source_recreated", "new") in scene.bench.owner.calls


# -- a source topic that was created again -----------------------------------------------------------------------------


def test_a_topic_that_was_created_again_is_copied_where_no_other_partition_has_something_to_commit() -> None:
    scene = Scene()
    scene.events.handle(TP, SourceRecreated("new"))
    assert (scene.cursor.offset, scene.cursor.suspended) == (0, True)
    scene.commit()
    assert not scene.cursor.suspended
    start = scene.successor()
    assert (start.position, start.moved) == (0, False)
    assert start.entry is not None
    assert start.entry.source_id == "new"


def test_a_position_of_the_old_topic_is_not_used_for_the_new_one() -> None:
    scene = Scene()
    scene.events.handle(TP, SourceRecreated("new"))
    scene.commit(fails=COORDINATOR_ERROR)
    start = scene.successor()
    assert start.position == 100
    assert start.entry is not None
    assert (start.entry.source_id, start.entry.lost) == ("old", ())
    assert _finds_the_new_topic(start), "0 to 99 of it would never be copied"


def test_a_position_unknown_to_the_ledger_is_not_used_for_the_new_topic() -> None:
    """Java has copied up to 100, or a user has set the position."""
    scene = Scene()
    scene.commits._previous[TP] = PreviousCommit(Mark(100, -1, 0), {}, 0, (0, 0, 0), 0)
    scene.positions.entries.clear()
    scene.events.handle(TP, SourceRecreated("new"))
    scene.commit(fails=COORDINATOR_ERROR)
    assert _finds_the_new_topic(scene.successor())


@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize("committed", [False, True])
def test_records_of_the_new_topic_count_when_they_are_committed(count: int, committed: bool) -> None:
    """Also where the new topic's position is the one that the old topic had."""
    scene = Scene()
    scene.events.handle(TP, SourceRecreated("new"))
    scene.coordinator.records = 1  # of another partition of this task
    scene.commit()
    scene.copy(300, count)
    scene.commit(None if committed else COORDINATOR_ERROR)
    start = scene.successor()
    assert (start.position, start.moved) == (count if committed else 0, False)
    assert not _finds_the_new_topic(start)


def test_a_user_may_set_the_position_back_to_that_of_the_old_topic() -> None:
    scene = Scene()
    scene.events.handle(TP, SourceRecreated("new"))
    scene.commit()
    scene.commits.commit_unmoved()
    scene.positions.committed[TP] = 100
    start = scene.successor()
    assert (start.position, start.moved) == (100, True)
    assert not _finds_the_new_topic(start)


def test_the_beginning_of_an_empty_log_is_kept_when_its_first_transaction_is_aborted() -> None:
    """With auto.offset.reset=latest the records of that transaction would be behind the new beginning."""
    scene = Scene()
    scene.positions.committed[TP] = None
    scene.positions.entries.clear()
    scene.cursor.begin(Mark(0, -1, 0))
    scene.commits.commit_unmoved()
    assert scene.successor().position == 0
    scene.copy(300, 5)
    scene.commit(fails=COORDINATOR_ERROR)
    assert scene.successor().position == 0


@pytest.mark.parametrize("event", ["none", "unreadable", "unvalidated"])
def test_without_a_position_auto_offset_reset_applies_until_the_first_commit(event: str) -> None:
    """From offset 0 all of the source would be copied with latest, and with earliest what retention has deleted would count as lost."""
    scene = Scene()
    scene.positions.committed[TP] = None
    scene.positions.entries.clear()
    scene.commits.start(TP, Start(None))
    scene.cursor.begin(Mark(1000, -1, 0))
    if event == "unreadable":  # as each answer with an error
        scene.events.handle(TP, Unreadable(LEADER_NOT_AVAILABLE))
    elif event == "unvalidated":
        scene.commits.remember_source(scene.cursor)
    scene.copy(0, 5)
    scene.commit(fails=COORDINATOR_ERROR)
    start = scene.successor()
    assert (start.position, start.moved) == (None, False)


# -- a source log that was truncated -----------------------------------------------------------------------------------


def test_a_truncated_log_is_recognized_after_a_crash() -> None:
    scene = Scene()
    scene.events.handle(TP, SourceDiverged(2, 50))
    scene.commit(fails=COORDINATOR_ERROR)
    start = scene.successor()
    assert start.entry is not None
    assert (start.position, start.entry.source_epoch, start.entry.lost) == (100, 3, ())


def test_a_log_that_was_cut_at_the_committed_position_needs_no_transaction() -> None:
    scene = Scene()
    scene.events.handle(TP, SourceDiverged(2, 100))
    assert scene.cursor.suspended
    scene.commit()
    assert (scene.cursor.suspended, scene.coordinator.ended, scene.sent) == (False, [], [])
    start = scene.successor()
    assert start.entry is not None
    assert (start.position, start.entry.source_epoch, start.entry.before) == (100, 2, None)


# -- a remote topic that has another name now --------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [False, True])
def test_the_topic_with_the_new_name_counts_when_its_first_transaction_is_committed(committed: bool) -> None:
    scene = Scene()
    before = scene.positions.entries[-1].replace(remote_topic="old", target_id="gone")
    scene.positions.entries[:] = [before]
    scene.commits.start(TP, scene.successor())
    scene.cursor.former = FormerTopic("old", 100)
    scene.cursor.window.trail.restart()
    scene.cursor.begin(Mark(100, -1, 0))
    scene.copy(0, 5)
    scene.commit(None if committed else COORDINATOR_ERROR)
    start = scene.successor()
    entry = start.entry
    assert entry is not None
    assert (start.position, start.moved) == (105 if committed else 100, False)
    if committed:
        assert (entry.remote_topic, entry.former, entry.mark.target) == ("A.t", FormerTopic("old", 100), 5)
    else:
        assert (entry.remote_topic, entry.target_id, entry.former, entry.mark) == ("old", "gone", None, before.mark)


def test_an_entry_of_an_older_version_is_undone_in_its_topic() -> None:
    scene = Scene()
    scene.copy(300, 5)
    scene.commit(fails=COORDINATOR_ERROR)
    entry = scene.positions.entries[-1]
    data = entry.replace(target_id="dst").to_json()
    del data["before_state"]["target"]
    undone = decode(LedgerEntry, data).undone()
    assert (undone.remote_topic, undone.target_id, undone.mark) == ("A.t", "dst", Mark(100, 200, 100))


# -- ends of transactions ----------------------------------------------------------------------------------------------


def test_a_transaction_whose_batches_were_all_rejected_is_empty() -> None:
    scene = Scene()
    scene.bench.fetch(batch(100, 1))
    outbox = scene.bench.outbox
    outbox.stamp(outbox.queue[0])
    outbox.state = OutboxState.REFUSED
    scene.commit()
    assert (scene.coordinator.ended, scene.positions.committed[TP]) == ([True], 100)
    assert (outbox.queue[0].at, outbox.next) == (-1, 0), "it is offered in the next one"


def test_a_transaction_with_rejected_batches_only_ends_before_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the coordinator would abort it and fence the producer, and the next offer would end the micro-batch."""
    scene, now = Scene(), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    outbox = scene.bench.outbox
    assert not scene.is_due()
    scene.bench.fetch(batch(100, 1))
    outbox.stamp(outbox.queue[0])
    assert not scene.is_due()
    now += EXACTLY_ONCE.timeout_ms / 2000
    assert not scene.is_due(), "its outcome is not known yet"
    outbox.state = OutboxState.REFUSED
    assert scene.is_due()
    scene.coordinator.records = 1  # the partition was added to the transaction
    scene.commit()
    assert (scene.coordinator.ended, scene.positions.committed[TP]) == ([True], 100)
    now += EXACTLY_ONCE.timeout_ms
    assert not scene.is_due(), "nothing was sent in the next one"
    outbox.stamp(outbox.queue[0])
    assert not scene.is_due()
    now += EXACTLY_ONCE.timeout_ms / 2000
    assert scene.is_due()


def test_a_transaction_with_an_added_partition_and_no_batch_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, now = Scene(), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    scene.coordinator.implicit_partitions = False
    scene.bench.outbox.enrolled = False
    assert not scene.is_due()
    scene.bench.outbox.enrolled = True
    assert not scene.is_due()
    now += EXACTLY_ONCE.timeout_ms / 2000
    assert scene.is_due()
    scene.coordinator.records = 1
    scene.commit()
    assert (scene.coordinator.ended, scene.is_due()) == ([True], False)


@pytest.mark.parametrize("implicit", [True, False])
def test_the_marker_of_a_transaction_whose_batches_were_rejected_is_of_no_other_producer(implicit: bool) -> None:
    """The partition is part of the transaction all the same, if another one has records in it."""
    scene = Scene()
    scene.coordinator.implicit_partitions = implicit
    scene.copy(200, 5)
    scene.commit()  # a marker at 205
    outbox = scene.bench.outbox
    if implicit:
        scene.bench.fetch(batch(105, 1))
        outbox.stamp(outbox.queue[0])
        outbox.state = OutboxState.REFUSED
    else:
        outbox.enrolled = True  # added, and held back since
    scene.coordinator.records = 1
    scene.commit()  # a marker at 206
    outbox.state = OutboxState.OPEN
    if not implicit:
        scene.bench.fetch(batch(105, 1))
    scene.ack(207)
    assert (scene.cursor.window.mark, scene.cursor.window.foreign) == (Mark(106, 208, 106), 0)
    scene.commit()  # a marker at 208
    scene.copy(210, 1)
    assert scene.cursor.window.foreign == 1, "209 is not ours"


def test_only_one_commit_runs_and_nothing_follows_an_interrupted_one() -> None:
    scene = Scene()
    recorded = False
    order: list[str] = []

    def positions() -> list[tuple[int, Record]]:
        order.append("positions")
        return [(0, Record(b"k", b"v"))]

    async def run() -> None:
        scene.copy(300, 5)
        first = asyncio.get_running_loop().create_task(
            scene.transactions.commit(positions, lambda: recorded, lambda: False)
        )
        await asyncio.sleep(0.01)
        assert not await scene.transactions.commit(positions, lambda: True, lambda: False)
        assert not scene.bench.outbox.stopped
        first.cancel()
        await asyncio.wait({first})
        assert not await scene.transactions.commit(positions, lambda: True, lambda: False)
        await scene.transactions.abort()

    asyncio.run(run())
    assert (order, scene.coordinator.ended, scene.bench.outbox.stopped) == ([], [], True)


def test_a_transaction_that_can_never_be_committed_is_abandoned() -> None:
    """The remote topic of an unanswered batch was created again, so the batch is never sent again: others would wait for ever."""
    scene = Scene()
    scene.transactions._spec = TransactionsSpec("id", timeout_ms=20)
    scene.copy(300, 5)
    scene.bench.fetch(batch(105, 1))
    outbox = scene.bench.outbox
    outbox.stamp(outbox.queue[0])
    scene.cursor.fail(PartitionState.RECREATED, "another topic")

    async def run() -> None:
        async with asyncio.timeout(3):  # before the lease ends, which the driver renews
            await scene.commits.commit_transaction()

    asyncio.run(run())
    assert scene.coordinator.ended == []
    assert scene.copier._link.reason == "the transaction was abandoned"


def test_an_offsets_topic_that_rejects_positions_is_reported_and_awaited_until_the_transaction_times_out() -> None:
    scene = Scene()
    scene.transactions._spec = TransactionsSpec("id", timeout_ms=20)
    well = SimpleNamespace(failure=None)
    scene.copier._endpoints = cast(Any, SimpleNamespace(offsets_sink=well, syncs=None))
    scene.copier._source = scene.copier._sink = cast(Any, well)
    cast(Any, scene.positions).outboxes = []

    def refuse(outbox: Outbox, outgoing: Any) -> None:
        outbox.stamp(outgoing)
        outbox.sent.append(outgoing)
        outbox.last_error = BrokerFailure.of(29, subject="writing to offsets-0")

    cast(Any, scene.transactions._sink).put = refuse
    scene.copy(300, 5)

    async def run() -> None:
        async with asyncio.timeout(3):  # before the lease ends, which the driver renews
            await scene.commits.commit_transaction()

    asyncio.run(run())
    assert scene.copier._failure().startswith("writing to offsets-0")
    assert (scene.coordinator.ended, scene.copier._link.reason) == ([], "the transaction was abandoned")


@pytest.mark.parametrize("unanswered", ["", "sent", "connection lost"])
def test_a_transaction_with_unanswered_batches_is_left_to_the_successor(unanswered: str) -> None:
    scene = Scene()
    scene.copy(300, 5)
    if unanswered:
        scene.bench.fetch(batch(105, 1))
        outbox = scene.bench.outbox
        outbox.stamp(outbox.queue[0])
        outgoing = outbox.queue.popleft()  # at the stop the queue is emptied
        if unanswered == "sent":
            outbox.sent.append(outgoing)
    asyncio.run(scene.transactions.abort())
    assert scene.coordinator.ended == ([] if unanswered else [False])


def test_no_second_transaction_follows_one_that_takes_longer_than_the_stop() -> None:
    scene = Scene()
    scene.copier._link.drain_s = 0.02
    scene.copy(300, 5)
    began = asyncio.Event()

    async def end(_call: Any, *_args: Any) -> Any:
        began.set()
        await asyncio.sleep(60)

    async def run() -> None:
        scene.transactions._call = end
        scene.commits._committing = asyncio.get_running_loop().create_task(scene.commits.commit_transaction())
        await began.wait()
        await scene.commits.finish(lambda: None, 0.01)
        scene.transactions._call = scene._call
        scene.copier._link.stop_requested = True
        scene.commits._in_transaction.append(cast(Any, (scene.cursor, None, 0)))
        entries = len(scene.positions.entries)
        await scene.commits.end(0.0)
        assert len(scene.positions.entries) == entries
        assert scene.coordinator.ended == []

    asyncio.run(run())


def test_nothing_is_sent_between_the_positions_and_the_end_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused batch is offered again after a while, but not in a transaction whose positions do not count it."""
    monkeypatch.setattr("mm2.copy.executor.producing.produce_outcomes._REFUSED_RETRY_S", 0.02)
    order: list[str] = []

    async def scenario(scene: sinks.Scene) -> None:
        line = sinks.Line(scene.sink, 1)
        box = scene.outbox(known=True, transactional=True)
        address = TopicPartition("offsets", 0)
        offsets = scene.outbox(address, known=True, transactional=True, waits_for_commit=False)
        scene.put(box, "a")
        await sinks.turn()
        line.answer((sinks.TP, sinks.TOO_LARGE, -1))
        assert box.refused

        async def call(work: Any, *args: Any) -> Any:
            return work(*args)

        transactions = TaskTransactions(scene.cluster, EXACTLY_ONCE, scene.sink, "offsets", call, lambda _error: None)
        transactions._identity = ProducerIdentity(7, 0)
        transactions._data, transactions._offsets = [box], {0: offsets}

        def end(identity: ProducerIdentity, _commit: bool) -> ProducerIdentity:
            order.append("end")
            return ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)

        transactions._client = cast(Any, SimpleNamespace(end=end, implicit_partitions=True))

        def positions() -> list[tuple[int, Record]]:
            order.append(f"positions, acknowledged {[name for name, _ in scene.acked]}")
            return [(0, Record(b"k", b"v"))]

        ending = asyncio.get_running_loop().create_task(transactions.commit(positions, lambda: True, lambda: False))
        await wait_until_async(lambda: len(line.requests) >= 2)
        await asyncio.sleep(0.05)  # the response of the offsets topic is late; meanwhile the limit was raised
        assert not line.requests[2:], "it would be in this transaction"
        line.answer((address, 0, 5))
        await ending
        assert order == ["positions, acknowledged []", "end"]
        await wait_until_async(lambda: len(line.requests) == 3)
        line.answer((sinks.TP, 0, 10))
        assert [name for name, _ in scene.acked] == ["a"], "it is offered in the next transaction"

    sinks.play(scenario)


@pytest.mark.parametrize("there", [False, True])
def test_a_batch_that_may_be_in_the_transaction_is_sent_again_before_it_counts_as_rejected(there: bool) -> None:
    """An error of the broker's own may come after the append. In the next transaction of version 2 its sequence is another one."""
    order: list[str] = []

    async def scenario(scene: sinks.Scene) -> None:
        line = sinks.Line(scene.sink, 1)
        box = scene.outbox(known=True, transactional=True)
        address = TopicPartition("offsets", 0)
        offsets = scene.outbox(address, known=True, transactional=True, waits_for_commit=False)

        async def call(work: Any, *args: Any) -> Any:
            return work(*args)

        transactions = TaskTransactions(scene.cluster, EXACTLY_ONCE, scene.sink, "offsets", call, lambda _error: None)
        transactions._identity = ProducerIdentity(7, 0)
        transactions._data, transactions._offsets = [box], {0: offsets}

        def end(identity: ProducerIdentity, _commit: bool) -> ProducerIdentity:
            order.append("end")
            return ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)

        transactions._client = cast(Any, SimpleNamespace(end=end, implicit_partitions=True))

        def positions() -> list[tuple[int, Record]]:
            order.append(f"positions, acknowledged {scene.acked}")
            return [(0, Record(b"k", b"v"))]

        scene.put(box, "a")
        await sinks.turn()
        line.answer((sinks.TP, UNKNOWN_SERVER_ERROR, -1))
        ending = asyncio.get_running_loop().create_task(transactions.commit(positions, lambda: True, lambda: False))
        for answered in range(3):
            await wait_until_async(functools.partial(lambda count: len(line.requests) > count, 1 + answered))
            assert order == []
            if there:
                line.answer((sinks.TP, 0, 10))  # a duplicate: this is where it was appended
                break
            line.answer((sinks.TP, UNKNOWN_SERVER_ERROR, -1))
        assert box.refused is not there
        await wait_until_async(lambda: order)
        await sinks.turn()
        line.answer((address, 0, 5))
        await ending
        assert order == [f"positions, acknowledged {[('a', 10)] if there else []}", "end"]

    sinks.play(scenario, **{"retry.backoff.ms": "5", "retry.backoff.max.ms": "10"})


def test_a_partition_that_was_added_to_one_transaction_is_added_to_the_next_one_too() -> None:
    """Before KIP-890 a batch of a partition that was not added would get no marker, and the next commit would show an aborted one."""
    order: list[str] = []

    class Line(sinks.Line):
        def send(self, buffers: Any, correlation_id: int) -> None:
            super().send(buffers, correlation_id)
            order.append("send")

    async def scenario(scene: sinks.Scene) -> None:
        line = Line(scene.sink, 1)
        box = scene.outbox(known=True, transactional=True)
        address = TopicPartition("offsets", 0)
        offsets = scene.outbox(address, known=True, transactional=True, waits_for_commit=False)
        late = asyncio.Event()

        def add(_identity: ProducerIdentity, partitions: list[TopicPartition]) -> None:
            order.append("add " + ",".join(tp.topic for tp in partitions))

        def end(identity: ProducerIdentity, _commit: bool) -> ProducerIdentity:
            order.append("end")
            return identity

        async def call(work: Any, *args: Any) -> Any:
            found = work(*args)
            if work is add:
                await late.wait()  # the thread that has the answer is kept from telling
            return found

        transactions = TaskTransactions(scene.cluster, EXACTLY_ONCE, scene.sink, "offsets", call, lambda _error: None)
        transactions._identity = ProducerIdentity(7, 0)
        transactions._data, transactions._offsets = [box], {0: offsets}
        transactions._client = cast(Any, SimpleNamespace(end=end, add_partitions=add, implicit_partitions=False))
        scene.enroll = transactions.enroll
        box.enrolled = False
        scene.put(box, "a")
        await wait_until_async(lambda: order == ["add t"])
        ending = asyncio.get_running_loop().create_task(
            transactions.commit(lambda: [(0, Record(b"k", b"v"))], lambda: True, lambda: False)
        )
        await wait_until_async(lambda: order[-1] == "send")
        line.answer((address, 0, 5))
        await asyncio.sleep(0.05)
        late.set()
        assert await ending
        await wait_until_async(lambda: order.count("send") == 2)
        assert order == ["add t", "send", "end", "add t", "send"]

    sinks.play(scenario)


class Pipeline:
    """`TaskTransactions` of one partition and the offsets topic, on a sink whose brokers the test plays."""

    def __init__(self, scene: sinks.Scene) -> None:
        self.scene = scene
        self.ended: list[str] = []
        self.address = TopicPartition("offsets", 0)
        scene.leaders(t=1, offsets=1)
        scene.sink.in_transactions("x", sinks.VERSION)
        self.line = sinks.Line(scene.sink, 1)
        self.box = scene.outbox(transactional=True)
        self.transactions = TaskTransactions(
            scene.cluster, EXACTLY_ONCE, scene.sink, "offsets", self._call, lambda _error: None
        )
        self.transactions._identity = ProducerIdentity(7, 0)
        self.transactions._client = cast(Any, SimpleNamespace(end=self._end, implicit_partitions=True))
        self.transactions.begin([self.box])

    async def _call(self, work: Any, *args: Any) -> Any:
        return work(*args)

    def _end(self, identity: ProducerIdentity, _commit: bool) -> ProducerIdentity:
        self.ended.append(f"acknowledged {[name for name, _ in self.scene.acked]}")
        return ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)

    def commit(self) -> asyncio.Task[bool]:
        return asyncio.get_running_loop().create_task(
            self.transactions.commit(lambda: [(0, Record(b"k", b"v"))], lambda: True, lambda: False)
        )

    async def commit_acknowledged(self) -> None:
        """Commit what is acknowledged, with the position."""
        before, ending = len(self.line.requests), self.commit()
        await wait_until_async(lambda: len(self.line.requests) > before or ending.done())
        offsets = self.transactions._offsets[0]
        offsets.address = BrokerAddress(1, 0)
        self.scene.sink.wake(offsets)
        await wait_until_async(lambda: len(self.line.requests) > before)
        self.line.answer((self.address, 0, 5))
        assert await ending

    async def reconnect(self, *, requests: int = 1) -> None:
        """The next connection to the same broker, over which so many requests arrive."""
        self.line = sinks.Line(self.scene.sink, 1)
        self.box.address = BrokerAddress(1, 0)
        self.scene.sink.wake(self.box)
        await wait_until_async(lambda: len(self.line.requests) >= requests)


def test_a_leader_that_may_not_know_the_producer_gets_one_batch_until_it_has_acknowledged_one() -> None:
    """It accepts any sequence, so it would append a batch behind one that it rejects."""

    async def scenario(scene: sinks.Scene) -> None:
        pipeline = Pipeline(scene)
        for name in "abc":
            scene.put(pipeline.box, name)
        await sinks.turn()
        assert pipeline.line.requests == [[(0, 1)]]
        pipeline.line.answer((sinks.TP, 0, 10))
        await sinks.turn()
        assert pipeline.line.requests[1:] == [[(1, 1)], [(2, 1)]]
        for base in (11, 12):
            pipeline.line.answer((sinks.TP, 0, base))
        await pipeline.commit_acknowledged()
        scene.put(pipeline.box, "d")
        scene.put(pipeline.box, "e")
        await sinks.turn()
        assert pipeline.line.requests[-2:] == [[(0, 1)], [(1, 1)]], "the marker has just been appended"

    sinks.play(scenario)


def test_a_leader_may_have_forgotten_a_producer_without_a_batch_in_the_last_transaction() -> None:
    async def scenario(scene: sinks.Scene) -> None:
        pipeline = Pipeline(scene)
        scene.put(pipeline.box, "a")
        await sinks.turn()
        pipeline.line.answer((sinks.TP, 0, 10))
        await pipeline.commit_acknowledged()
        await pipeline.commit_acknowledged()  # of other partitions
        before = len(pipeline.line.requests)
        scene.put(pipeline.box, "b")
        scene.put(pipeline.box, "c")
        await sinks.turn()
        assert pipeline.line.requests[before:] == [[(0, 1)]]

    sinks.play(scenario)


@pytest.mark.parametrize("code", [None, UNKNOWN_SERVER_ERROR])
def test_a_transaction_with_a_batch_of_unknown_outcome_behind_a_rejected_one_is_never_committed(
    code: int | None,
) -> None:
    """Its position is before the rejected batch, so the other one would be copied again."""

    async def scenario(scene: sinks.Scene) -> None:
        pipeline = Pipeline(scene)
        scene.put(pipeline.box, "a")
        await sinks.turn()
        pipeline.line.answer((sinks.TP, 0, 10))
        scene.put(pipeline.box, "b")
        scene.put(pipeline.box, "c", 3)
        await sinks.turn()
        pipeline.line.answer((sinks.TP, sinks.TOO_LARGE, -1))
        if code is None:
            pipeline.line.fail(sinks.GONE)
            await pipeline.reconnect()
        else:
            pipeline.line.answer((sinks.TP, code, -1))
            await wait_until_async(lambda: len(pipeline.line.requests) == 4)
        assert pipeline.line.requests[-1] == [(1, 1)]
        pipeline.line.answer((sinks.TP, sinks.TOO_LARGE, -1))
        await sinks.turn()
        assert scene.lost == [sinks.TOO_LARGE], "the micro-batch ends, and its successor aborts the transaction"
        assert not pipeline.box.refused
        ending = pipeline.commit()
        await asyncio.sleep(0.05)
        ending.cancel()
        await asyncio.wait({ending})
        assert pipeline.ended == []

    sinks.play(scenario, **{"retry.backoff.ms": "5", "retry.backoff.max.ms": "10"})


def test_a_stop_does_not_commit_a_transaction_with_a_batch_of_unknown_outcome() -> None:
    """Unsent batches are removed from the queue at a stop, and so are those that were to be sent again."""

    async def scenario(scene: sinks.Scene) -> None:
        pipeline = Pipeline(scene)
        scene.put(pipeline.box, "a")
        await sinks.turn()
        pipeline.line.fail(sinks.GONE)
        await sinks.turn()
        pipeline.box.queue.clear()
        ending = pipeline.commit()
        await asyncio.sleep(0.05)
        ending.cancel()
        await asyncio.wait({ending})
        assert (pipeline.ended, pipeline.transactions._offsets) == ([], {}), "no position was written"

    sinks.play(scenario)


def test_a_rejected_batch_behind_which_nothing_was_sent_does_not_delay_the_commit() -> None:
    """Also where its first request had no response."""

    async def scenario(scene: sinks.Scene) -> None:
        pipeline = Pipeline(scene)
        scene.put(pipeline.box, "a")
        scene.put(pipeline.box, "b", 3)
        await sinks.turn()
        pipeline.line.fail(sinks.GONE)
        await pipeline.reconnect()
        pipeline.line.answer((sinks.TP, sinks.TOO_LARGE, -1))
        assert (pipeline.box.refused, scene.lost) == (True, [])
        await pipeline.commit_acknowledged()
        assert pipeline.ended == ["acknowledged []"]

    sinks.play(scenario)


# -- from copy sessions to transactions --------------------------------------------------------------------------------


def test_aborting_the_first_transaction_restores_the_previous_session() -> None:
    session = Session(ProducerIdentity(7, 1), Mark(0, 100, 0))
    mark = Mark(80, 180, 80)
    earlier = LedgerEntry("t", 0, "", mark, None, "old", "", 3, session, end=100, known_epoch=3, retired=("older",))
    before = PreviousCommit(mark, {}, 0, (0, 0, 0), 0, earlier)
    entry = LedgerEntry("t", 0, "A.t", Mark(120, 230, 20), 80, "new", before=before, lease=Lease(5, 9))
    scene = Scene()
    scene.positions.entries = [entry]
    scene.positions.committed[TP] = 80
    start = scene.successor()
    assert start.entry is not None
    assert (start.position, start.entry.session, start.entry.retired) == (80, session, ("older",))


def test_skipped_records_are_in_no_transaction() -> None:
    """Else a crash in between would leave a position that the count of the session does not go with."""
    scene = Scene()
    scene.cursor.begin(Mark(100, 200, 100), skip=10, found=[FoundBatch(100, 200, 10)])
    scene.cursor.predecessor.finishing = True
    scene.bench.fetch(batch(100, 5))
    assert scene.cursor.window.position == 105
    entries = len(scene.positions.entries)
    scene.commit()
    assert (scene.coordinator.ended, len(scene.positions.entries), scene.positions.committed[TP]) == ([], entries, 100)
    assert scene.cursor.window.markers == 0


@pytest.mark.parametrize("support", ["disabled", "preparing", "enabled"])
def test_a_position_of_a_transaction_that_was_never_committed_counts_in_no_mode(
    support: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker gives a task the positions that it has read itself, also after exactly-once was switched off."""
    stores: dict[str, bool] = {}

    def reading(name: str, store: Any) -> Any:
        def made(*args: Any, **options: Any) -> Any:
            stores[name] = options["read_committed"]
            return store(*args, **options)

        return made

    for name in ("KafkaOffsetStore", "KafkaConfigStore"):
        monkeypatch.setattr(node, name, reading(name, getattr(node, name)))
    Node(WorkerConfig({**WORKER, "exactly.once.source.support": support}), Plugins(), worker_id="w", cluster_name="B")
    assert stores == {"KafkaOffsetStore": True, "KafkaConfigStore": support == "enabled"}
    data = encode_batch([Record(b"p", b"99")], producer=(5, 0, 0), attributes=TRANSACTIONAL)
    seen: list[int] = []
    address = TopicPartition("offsets", 0)
    settings = SimpleNamespace(request_timeout_ms=1000, client_rack="", decompression_max_bytes=1 << 20)
    cluster = cast(Any, SimpleNamespace(name="B", settings=settings))
    log = KafkaBasedLog(
        cluster,
        "offsets",
        on_record=lambda record: seen.append(int(record.value or b"")),
        read_committed=stores["KafkaOffsetStore"],
    )
    log._positions = {address: 0}
    log._take(Fetched(address, 0, 1, 0, 0, ((5, 0),), memoryview(data)))
    assert seen == []
    scene = Scene()
    scene.copy(200, 20)
    scene.commit(fails=COORDINATOR_ERROR)
    assert scene.successor().position == 100, "100 to 119 are of an aborted transaction on the target"


@pytest.mark.parametrize(("aborted", "found"), [((), 1), (((5, 0),), 0)])
def test_only_committed_positions_have_a_writer(aborted: tuple[tuple[int, int], ...], found: int) -> None:
    """Without its header a position of an aborted transaction would be taken for a user's."""
    data = encode_batch([Record(b"p", b"99")], producer=(5, 0, 0), attributes=TRANSACTIONAL)
    visible = VisibleBatches(memoryview(data), 0, aborted=aborted)
    assert (len(list(visible)), visible.position) == (found, 1)


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_the_producer_of_the_record_before_the_position_is_kept() -> None:
    """The end of the target may have been filled by another program; with an aborted transaction the one before it counts."""
    scene = Scene()
    scene.copy(200, 5)
    scene.commit()
    start = scene.successor()
    assert start.entry is not None
    assert (start.entry.mark, start.entry.written_by) == (Mark(105, 205, 105), 1)
    scene.transactions._identity = scene.bench.outbox.identity = ProducerIdentity(2, 0)
    scene.copy(206, 5)
    scene.commit(COORDINATOR_ERROR)
    assert scene.positions.entries[-1].written_by == 2
    start = scene.successor()
    assert start.entry is not None
    assert (start.entry.mark, start.entry.written_by) == (Mark(105, 205, 105), 1)


def test_the_previous_state_is_written_so_that_other_versions_read_the_rest() -> None:
    ended = EndedSession(ProducerIdentity(6, 0), Mark(0, 0, 0), "r", Mark(5, 5, 5))
    session, mark = Session(ProducerIdentity(7, 1), Mark(0, 100, 0), after=(ended,)), Mark(80, 180, 80)
    more = {"end": 100, "known_epoch": 4, "retired": ("older",), "former": FormerTopic("B.t", 4), "written_by": 7}
    state = LedgerEntry("t", 0, "A.t", mark, None, "old", "id", 3, session, **more)  # type: ignore[arg-type]
    before = PreviousCommit(mark, {"control": 1}, 2, (1, 2, 3), 1, state)
    entry = LedgerEntry("t", 0, "A.t", Mark(120, 230, 20), 80, "new", before=before, written_by=8)
    data = entry.to_json()
    assert json.dumps(data["before_state"], separators=(",", ":")) == (
        '{"id":"old","epoch":3,"known":4,"end":100,"retired":["older"],"session":{"producer":[7,1],"start":[0,100,0],'
        '"after":[[[6,0],[0,0,0],"r",[5,5,5],-1]]},"target":["A.t","id"],"former":["B.t",4],"written_by":7}'
    )
    data = json.loads(json.dumps(data))
    assert decode(LedgerEntry, data) == entry
    assert len(data["before"]) == 5, "a version before takes no sixth"
    del data["before_state"]["target"]
    assert decode(LedgerEntry, data).undone().remote_topic == "A.t", "older versions do not write the remote topic"
    del data["before_state"]
    earlier = decode(LedgerEntry, data)
    assert earlier == entry.replace(before=before._replace(entry=None))
    assert earlier.undone().source_id == "new", "older versions write no more"


@pytest.mark.parametrize("where", ["before", "before_state"])
@pytest.mark.parametrize("value", [5, "text", [], [[1, 2, 3], {}, 0, [0, 0, 0]], {"id": 7}, {"target": 5}])
def test_a_damaged_previous_state_is_rejected(where: str, value: Any) -> None:
    """Another client may write anything into the ledger, and its reader continues."""
    before = PreviousCommit(Mark(80, 180, 80), {}, 2, (1, 2, 3), 1, LedgerEntry("t", 0, "A.t", Mark(80, 180, 80)))
    entry = LedgerEntry("t", 0, "A.t", Mark(120, 230, 20), 80, before=before)
    data = entry.to_json() | {where: value}
    with pytest.raises(ValueError, match="LedgerEntry"):
        decode(LedgerEntry, data)
    ledger, record = Ledger(), entry_record(entry)
    ledger.apply(record.key, json.dumps(data).encode())
    assert ledger.entry(TP) is None


@pytest.mark.parametrize("text", ["a", "\x01", "\U0001f600", "\udc80"])
@pytest.mark.parametrize("where", ["stop", "read", "paused", "note"])
def test_an_entry_is_small_whatever_the_text_of_an_error(text: str, where: str) -> None:
    """The target would reject the record of one with megabytes, and with it those of all partitions of the lane."""
    scene, reason = Scene(), text * 2_000_000
    if where == "stop":
        scene.cursor.fail(PartitionState.FAILED, reason, at_source=True)
    elif where == "read":
        scene.cursor.set_read_error(PartitionState.UNREACHABLE, reason)
    elif where == "paused":
        scene.cursor.pause(reason, 1_000)
    else:
        scene.cursor.annotate(reason)
    entry = scene.commits.entry(scene.cursor)
    record = entry_record(entry)
    assert len(record.value or b"") < 16_000
    found = entry.note if entry.condition is None else entry.condition.reason
    assert found.endswith("… (1998000 more characters)")
    assert len(scene.cursor.current_state().reason) == len(found), "also in the report to the driver"
