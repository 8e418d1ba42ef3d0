"""Commits: the ledger first, then Connect's offsets topic; whatever dies in between, a successor finds its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.executor.commit.positions import Commit, PendingRecords, Positions
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch, outgoing_of
from mm2.copy.progress.ledger import Ledger, entry_record
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import (
    POSITION_HEADER,
    Lease,
    LedgerEntry,
    Mark,
    PositionHeader,
    Seen,
    Session,
    Start,
    lease_of,
    start_of,
)
from mm2.copy.progress.written_positions import PositionRecord, offset_key, offset_value, summarize_writers
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition

T = TopicPartition("t", 3)
U = TopicPartition("u", 0)
SESSION = Session(ProducerIdentity(7, 0), Mark(0, 0, 0))


def entry_of(position: int, source: TopicPartition = T, *, session: Session | None = SESSION) -> LedgerEntry:
    return LedgerEntry(
        source.topic, source.partition, f"A.{source.topic}", Mark(position, position, position), session=session
    )


@dataclass
class Desk:
    """Two topics that acknowledge batches when the test calls for it, in the order in which they were sent."""

    sent: list[tuple[str, Outbox, OutgoingBatch]] = field(default_factory=list)
    log: list[tuple[str, int, Record]] = field(default_factory=list)
    committed: list[tuple[TopicPartition, int]] = field(default_factory=list)

    def note(self, entry: LedgerEntry) -> None:
        self.committed.append((entry.source, entry.mark.source))

    def stage(self, topic: str) -> PendingRecords:
        def put(outbox: Outbox, outgoing: OutgoingBatch) -> None:
            assert outbox.idle, "one batch of a partition at a time"
            outbox.queue.append(outgoing)
            self.sent.append((topic, outbox, outgoing))

        return PendingRecords(lambda address: Outbox(TopicPartition(topic, address), None), put)

    def positions(self, partitions: int = 25, *, offsets: bool = True, ledger: bool = True) -> Positions:
        return Positions(
            self.stage("offsets") if offsets else None,
            self.stage("ledger") if ledger else None,
            partitions=partitions,
            connector="MirrorSourceConnector",
            source_alias="A",
        )

    def ack(self) -> bool:
        """The oldest batch is in; False when there is none."""
        if not self.sent:
            return False
        topic, outbox, outgoing = self.sent.pop(0)
        outbox.queue.remove(outgoing)
        (view,) = iter_batches(outgoing.data)
        self.log += [(topic, outbox.partition.partition, record) for record in decode_batch(view)]
        outgoing.acked(100)
        return True

    def settle(self) -> None:
        while self.ack():
            pass

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for name, _, record in self.log if name == topic]


def commit(desk: Desk, positions: Positions, *rows: tuple[TopicPartition, int]) -> None:
    for source, position in rows:
        positions.commit(Commit(entry_of(position, source)), desk.note)
    positions.flush()


# -- bytes ----------------------------------------------------------------------------------------------------------------


def test_keys_and_values_of_positions_are_javas() -> None:
    # recorded from Kafka 4.3.0
    key = offset_key("MirrorSourceConnector", "A", T)
    assert key == b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"t"}]'
    assert offset_value(42) == b'{"offset":41}'


def test_names_outside_ascii_are_not_escaped() -> None:
    key = offset_key("Mirror", "Ä", TopicPartition('q"ö', 0))
    assert key == '["Mirror",{"cluster":"Ä","partition":0,"topic":"q\\"ö"}]'.encode()


def test_an_outgoing_batch_holds_its_records_without_a_producer() -> None:
    outgoing = outgoing_of([Record(b"a", b"1"), Record(b"b", None)], lambda: None)
    assert (outgoing.count, outgoing.header.producer_id, outgoing.at) == (2, -1, -1)


# -- the order of things --------------------------------------------------------------------------------------------------


def test_positions_go_to_the_partition_of_their_key() -> None:
    desk = Desk()
    commit(desk, desk.positions(), (T, 42))
    desk.settle()
    key = offset_key("MirrorSourceConnector", "A", T)
    (row,) = [row for row in desk.log if row[0] == "offsets"]
    assert row[1] == partition_for(key, 25)
    assert (row[2].key, row[2].value) == (key, b'{"offset":41}')


def test_the_ledger_is_written_first_with_the_position_in_the_offsets_topic() -> None:
    desk = Desk()
    positions = desk.positions()
    positions.start_at(T, 30, Lease(5))
    commit(desk, positions, (T, 42))
    assert [topic for topic, _, _ in desk.sent] == ["ledger"]
    assert (positions.busy(T), positions.idle) == (True, False)
    desk.ack()
    assert [topic for topic, _, _ in desk.sent] == ["offsets"]
    assert (desk.committed, positions.committed[T]) == ([], 30)
    desk.ack()
    assert (desk.committed, positions.committed[T]) == ([(T, 42)], 42)
    assert (positions.busy(T), positions.idle) == (False, True)
    assert json.loads(desk.values("ledger")[0] or b"")["previous"] == 30


def test_entries_that_arrive_meanwhile_are_written_together() -> None:
    desk = Desk()
    positions = desk.positions(1)
    commit(desk, positions, (T, 1))
    commit(desk, positions, (U, 9), (TopicPartition("v", 0), 8))
    assert len(desk.sent) == 1
    desk.ack()
    assert [(topic, outgoing.count) for topic, _, outgoing in desk.sent] == [("offsets", 1), ("ledger", 2)]
    desk.settle()
    assert desk.values("offsets") == [b'{"offset":0}', b'{"offset":8}', b'{"offset":7}']
    assert positions.idle


def test_chunks_and_tombstones_are_written_with_the_entry() -> None:
    desk = Desk()
    positions = desk.positions()
    positions.commit(Commit(entry_of(5), (SegmentChunk(66, [Segment(0, 0, 5)]),), (2,)), desk.note)
    positions.flush()
    desk.ack()
    keys = [json.loads(record.key or b"").get("chunk") for _, _, record in desk.log]
    assert (keys, desk.values("ledger")[1]) == ([66, 2, None], None)


def test_a_long_batch_of_the_ledger_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.commit.positions._BATCH_BYTES", 100)
    desk = Desk()
    positions = desk.positions(1)
    commit(desk, positions, *((TopicPartition("t", index), 1) for index in range(3)))
    desk.settle()
    assert len(desk.values("ledger")) == len(desk.committed) == 3
    assert positions.idle


def test_an_unchanged_position_is_not_written_again_but_the_ledger_may_be() -> None:
    desk = Desk()
    positions = desk.positions()
    positions.start_at(T, 42, Lease(5))
    commit(desk, positions, (T, 42))
    desk.settle()
    assert (len(desk.values("ledger")), desk.values("offsets"), desk.committed) == (1, [], [(T, 42)])


def test_nothing_is_written_before_the_first_offset() -> None:
    desk = Desk()
    commit(desk, desk.positions(), (T, 0))
    desk.settle()
    assert (desk.values("offsets"), desk.committed) == ([], [(T, 0)])


def test_a_rewind_is_written_too() -> None:
    desk = Desk()
    positions = desk.positions()
    positions.start_at(T, 50, Lease(5))
    commit(desk, positions, (T, 7))
    desk.settle()
    assert desk.values("offsets") == [b'{"offset":6}']


def test_in_a_transaction_only_the_ledger_is_written_here() -> None:
    desk = Desk()
    positions = desk.positions(offsets=False)
    commit(desk, positions, (T, 7))
    desk.settle()
    assert ([topic for topic, _, _ in desk.log], desk.committed) == (["ledger"], [(T, 7)])
    address, record = positions.offset_record(T, 7)
    assert (address, record.value) == (partition_for(record.key or b"", 25), b'{"offset":6}')


# -- without a ledger -----------------------------------------------------------------------------------------------------


def test_without_a_ledger_positions_are_written_immediately() -> None:
    desk = Desk()
    commit(desk, desk.positions(ledger=False), (T, 7))
    desk.settle()
    assert ([topic for topic, _, _ in desk.log], desk.committed) == (["offsets"], [(T, 7)])


@pytest.mark.parametrize("under_way", [True, False])
def test_a_ledger_that_rejects_writes_is_abandoned_and_blocks_no_position(under_way: bool) -> None:
    desk = Desk()
    positions = desk.positions(1)
    commit(desk, positions, (T, 7))
    commit(desk, positions, (U, 8))
    ((_, outbox, stuck),) = desk.sent
    if under_way:
        outbox.queue.remove(stuck)
        outbox.sent.append(stuck)
    desk.sent.clear()
    positions.without_ledger()
    desk.settle()
    assert desk.values("offsets") == [b'{"offset":6}', b'{"offset":7}']
    assert (positions.idle, desk.committed) == (True, [(T, 7), (U, 8)])
    stuck.acked(5)
    assert (desk.sent, desk.committed) == ([], [(T, 7), (U, 8)]), "a late answer changes nothing"
    commit(desk, positions, (T, 9))
    desk.settle()
    assert desk.values("offsets")[-1] == b'{"offset":8}'


# -- whatever dies in between ---------------------------------------------------------------------------------------------


def state_after(log: list[tuple[str, int, Record]]) -> tuple[LedgerEntry | None, int | None]:
    """What a successor reads: the ledger's entry, and the position."""
    ledger, position = Ledger(), None
    for topic, _, record in log:
        if topic == "ledger":
            ledger.apply(record.key, record.value)
        else:
            position = json.loads(record.value or b"")["offset"] + 1
    return ledger.entry(T), position


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.none() | st.integers(1, 60),
    st.data(),
)
def test_at_every_crash_point_a_successor_continues_at_the_mark_or_the_position(
    marks: list[int], committed: int | None, data: st.DataObject
) -> None:
    """``marks`` may go back: a source that was truncated. Each stands for as many records of the session."""
    desk = Desk()
    positions = desk.positions()
    positions.start_at(T, committed, Lease(5))
    written: list[Mark] = []
    for count, source in enumerate(marks):
        mark = Mark(source, 100 + count, count)
        written.append(mark)
        positions.commit(Commit(entry_of(0).replace(mark=mark)), desk.note)
        positions.flush()
        desk.settle()
    crash = data.draw(st.integers(0, len(desk.log)))
    entry, position = state_after(desk.log[:crash])
    position = committed if position is None else position
    start = start_of(entry, None, position)
    if entry is None:
        assert (start.position, start.entry) == (committed, None)
        return
    assert start.entry is not None
    assert (start.moved, start.entry.session) == (False, SESSION)
    assert start.position == entry.mark.source, "source and count are those of one mark"
    assert entry.mark == written[sum(topic == "ledger" for topic, _, _ in desk.log[:crash]) - 1]
    assert position in {entry.previous, entry.mark.source}


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted), st.data())
def test_a_position_of_java_or_a_user_wins_over_any_ledger(marks: list[int], data: st.DataObject) -> None:
    desk = Desk()
    positions = desk.positions()
    for source in marks:
        commit(desk, positions, (T, source))
        desk.settle()
    entry, position = state_after(desk.log)
    assert entry is not None
    foreign = data.draw(st.integers(0, 99).filter(lambda at: at not in (position, entry.previous)))
    start = start_of(entry, None, foreign)
    assert (start.position, start.moved) == (foreign, True)
    assert start.entry is not None
    assert start.entry.session is None


def test_a_position_that_was_confirmed_at_rest_may_be_set_back_or_removed() -> None:
    desk = Desk()
    positions = desk.positions()
    positions.start_at(T, None, Lease(5))
    commit(desk, positions, (T, 10))
    assert positions.is_settled(T), "nothing is in yet"
    desk.settle()
    assert not positions.is_settled(T)
    assert not positions.is_settled(T, ending=True), "worth to be waited for: a reset would not count"
    assert not start_of(state_after(desk.log)[0], None, None).moved, "as if it had ended between the two writes"
    commit(desk, positions, (T, 10))
    desk.settle()
    assert positions.is_settled(T)
    assert desk.values("offsets") == [b'{"offset":9}']
    entry, _ = state_after(desk.log)
    assert [start_of(entry, None, committed).moved for committed in (None, 5, 10)] == [True, True, False]
    commit(desk, positions, (T, 12))
    desk.settle()
    assert (positions.is_settled(T), positions.is_settled(T, ending=True)) == (False, True)


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted), st.integers(0, 6))
def test_without_a_session_only_the_position_counts(marks: list[int], crash: int) -> None:
    """In exactly-once mode the ledger is outside of the transaction: its mark may never have been committed."""
    desk = Desk()
    positions = desk.positions(offsets=False)
    for source in marks:
        positions.commit(Commit(entry_of(source, session=None)), desk.note)
        positions.flush()
        desk.settle()
    entry, _ = state_after(desk.log)
    committed = None if crash == 0 else marks[min(crash, len(marks)) - 1] - 1
    assert start_of(entry, None, committed).position == committed


def test_commits_abandoned_with_the_ledger_are_not_completed_twice() -> None:
    desk = Desk()
    positions = desk.positions()
    commit(desk, positions, (T, 5))
    desk.settle()
    positions.without_ledger()
    commit(desk, positions, (T, 9))
    desk.settle()
    entry, position = state_after(desk.log)
    start = start_of(entry, None, position)
    assert (start.position, start.moved) == (9, True)


# -- late writes (rules C2 to C4 of docs/explanation/copy-sessions.md) ---------------------------------------------------------


def test_a_position_describes_itself() -> None:
    desk = Desk()
    positions = desk.positions()
    session = Session(ProducerIdentity(7, 1), Mark(0, 100, 0))
    positions.start_at(T, 30, Lease(1_000), seen=Seen(7))
    assert not positions.is_entered(T)
    entry = LedgerEntry(T.topic, T.partition, "A.t", Mark(42, 142, 42), session=session)
    positions.commit(Commit(entry.replace(source_epoch=3, known_epoch=4, target_epoch=9)), desk.note)
    positions.flush()
    desk.settle()
    (record,) = [record for topic, _, record in desk.log if topic == "offsets"]
    ((name, value),) = record.headers
    assert name == POSITION_HEADER
    assert value is not None
    assert PositionHeader.from_bytes(value) == PositionHeader(
        Lease(1_000, 1), Mark(42, 142, 42), session, Seen(7), (3, 4, 9), "A.t"
    )
    (written,) = [record for topic, _, record in desk.log if topic == "ledger"]
    assert written.value is not None
    assert lease_of(written.value) == Lease(1_000, 1)
    assert positions.is_entered(T)


def test_records_shortly_before_an_own_position_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's position may be among it: the connector is to be stopped, and the task has not heard of it yet."""
    now = [100.0]
    monkeypatch.setattr("mm2.copy.executor.commit.positions.time.monotonic", lambda: now[0])
    desk = Desk()
    positions = desk.positions()
    positions.start_at(T, 30, Lease(1_000), seen=Seen(7))
    seen = []
    for position in range(40, 46):
        positions.commit(Commit(entry_of(position)), desk.note)
        positions.flush()
        desk.settle()
        seen.append(positions.seen(T))
        now[0] += 4.0
    assert [one.offset for one in seen] == [7, 7, 7, 101, 101, 101]


def test_a_late_entry_of_an_earlier_holder_is_ignored() -> None:
    ledger = Ledger()
    session = Session(ProducerIdentity(7, 1), Mark(0, 100, 0))
    newer = LedgerEntry(T.topic, T.partition, "A.t", Mark(42, 142, 42), 30, session=session, lease=Lease(2_000, 1))
    late = newer.replace(mark=Mark(35, 135, 35), lease=Lease(1_000, 99))
    for entry in (newer, late):
        record = entry_record(entry)
        ledger.apply(record.key, record.value)
    assert ledger.entry(T) == newer
    older_version = entry_record(newer.replace(mark=Mark(50, 150, 50), lease=Lease()))
    value = (older_version.value or b"").replace(b'"lease":[0,0],', b"")
    ledger.apply(older_version.key, value)
    found = ledger.entry(T)
    assert found is not None
    assert found.mark.source == 50, "an entry of a version before has no lease and comes later"


def started(entry: LedgerEntry, *records: tuple[int | None, Lease | None, int]) -> Start:
    """Where copying continues after these records of an offsets topic, (position, lease of ours or None, seen), at offsets 100, 101, …"""
    ledger = Ledger()
    row = entry_record(entry)
    ledger.apply(row.key, row.value)
    found = summarize_writers(
        [
            PositionRecord(
                100 + address,
                None if position is None else offset_value(position),
                None
                if lease is None
                else PositionHeader(lease, Mark(position or 0, -1, position or 0), SESSION, Seen(seen)),
            )
            for address, (position, lease, seen) in enumerate(records)
        ]
    )
    committed = records[-1][0]
    assert ledger.seen(T, "") == entry.seen.offset
    return ledger.start(T, committed, found)


ENTRY = LedgerEntry(
    T.topic, T.partition, "A.t", Mark(42, 142, 42), 40, session=SESSION, lease=Lease(20, 2), seen=Seen(101)
)


@pytest.mark.parametrize(
    ("records", "position", "moved"),
    [
        ([(40, Lease(20, 1), 100)], 42, False),
        ([(40, Lease(20, 1), 100), (35, Lease(10, 9), 90)], 42, False),
        ([(44, Lease(20, 3), 101)], 44, False),
        ([(40, Lease(20, 1), 100), (7, None, 0)], 7, True),
        ([(40, Lease(20, 1), 100), (7, None, 0), (41, Lease(10, 9), 90)], 7, True),
        ([(50, Lease(20, 1), 99), (40, None, 0)], 40, True),
        ([(40, Lease(20, 1), 100), (30, None, 0), (42, Lease(20, 2), 101)], 30, True),
        ([(40, Lease(20, 1), 100), (42, None, 0)], 42, True),
        ([(40, None, 0)], 42, False),
        ([(40, Lease(20, 1), 100), (None, None, 0)], None, True),
        ([(7, None, 0), (41, Lease(20, 1), 101)], 42, False),
    ],
    ids=[
        "a crash between ledger and position",
        "a predecessor's position landed late",
        "the ledger lost its newest entry",
        "a user's reset",
        "a user's reset with a late position after it",
        "a user's reset to the previous position",
        "a user's reset before the newest position of ours",
        "a user's reset to the mark",
        "what Java wrote, and the holder knew",
        "a user removed the position",
        "written by somebody while a holder ran, and overwritten by it",
    ],
)
def test_the_writer_of_a_position_decides_whether_it_is_used(
    records: list[tuple[int | None, Lease | None, int]], position: int | None, *, moved: bool
) -> None:
    start = started(ENTRY, *records)
    assert (start.position, start.moved) == (position, moved)
    assert start.entry is not None
    assert (start.entry.session is None) is moved


def test_a_take_over_has_a_larger_lease_also_when_clocks_differ() -> None:
    assert Lease(5_000, 7).taken_over(4_000) == Lease(5_001, 0)
    assert Lease(5_000, 7).taken_over(6_000) == Lease(6_000, 0)
    assert Lease(5_000, 7) < Lease(5_000, 7).following() < Lease(5_001)
