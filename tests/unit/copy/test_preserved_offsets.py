"""The gaps of a partition with preserved offsets, against a model of a broker, with requests that arrive late."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from mm2.copy.changes import ChangeDelayed, Changer, Passing
from mm2.copy.executor.partition.events import BATCHES_QUEUED, GapDue, PartitionEvent
from mm2.copy.executor.partition.gap_queue import FILLED_AT_ONCE, GapQueue
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.partition.outgoing_records import CopiedRange
from mm2.copy.executor.partition.window import SourceRange, Window, runs
from mm2.copy.executor.sessions import preserved_starts
from mm2.copy.executor.sessions.preserved_starts import PartitionEnds, PreservedStart, Wanted, start_at
from mm2.copy.markers import FIRST_PRODUCER_ID, SPAN, Marker, is_ours, marker_at, next_generation
from mm2.copy.progress.session import Mark
from mm2.copy.progress.target_progress import records_at
from mm2.copy.states import PartitionState
from mm2.kafka.records.batch import read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from tests.unit.copy.batches import Bench, batch, holed, marker, of_epoch, record

TP = TopicPartition("A.t", 0)
#: `MM2_HISTORIES=1000000 pytest tests/unit/copy/test_preserved_offsets.py -k histories` is the long run.
HISTORIES = int(os.environ.get("MM2_HISTORIES", "1000"))


class Data(NamedTuple):
    """One batch of a source log or of a Produce request: source offset and number of its records."""

    first: int
    records: int


@dataclass
class Broker:
    """A partition of a target: idempotent batches by their first record's number, and markers as ProducerAppendInfo
    accepts them.
    """

    log: list[int | None] = field(default_factory=list)  # source offset of each record; None: a marker
    sequence: int = 0
    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)

    def produce(self, one: Data, sequence: int) -> int:
        """The base offset; -1 for a batch that is rejected, or is there already."""
        if sequence != self.sequence:
            return -1
        self.sequence += one.records
        base = len(self.log)
        self.log += range(one.first, one.first + one.records)
        return base

    def append(self, markers: list[Marker]) -> bool:
        """False when one of them is rejected."""
        accepted = True
        for producer_id, epoch, coordinator_epoch in markers:
            known = self.epochs.get(producer_id, (-1, -1))
            if epoch < known[0] or coordinator_epoch < known[1]:
                accepted = False
                continue
            self.epochs[producer_id] = epoch, coordinator_epoch
            self.log.append(None)
        return accepted


@dataclass
class Source:
    """A source log: its batches, and its log end offset."""

    batches: list[Data]
    end: int

    @property
    def records(self) -> list[int]:
        return [offset for one in self.batches for offset in range(one.first, one.first + one.records)]

    def expected(self) -> list[int | None]:
        there = set(self.records)
        return [offset if offset in there else None for offset in range(self.end)]


def random_source(chance: random.Random) -> Source:
    """Runs of records with holes before, between and after them."""
    at, batches = 0, []
    for _ in range(chance.randint(0, 8)):
        hole, count = chance.randint(0, 4), chance.randint(1, 4)
        batches.append(Data(at + hole, count))
        at += hole + count
    return Source(batches, at + chance.randint(0, 3))


def queue_of(outbox: Outbox, events: list[PartitionEvent] | None = None) -> GapQueue:
    found: list[Any] = [] if events is None else events
    return GapQueue(outbox, Window(TP, found.append), found.append)


def send(queue: GapQueue, one: OutgoingBatch) -> None:
    """As `OutgoingRecords.send` does."""
    (queue.waiting or queue.outbox.queue).append(one)


@dataclass
class Writer:
    """A micro-batch: the product's queue of batches and gaps, with requests to the model."""

    broker: Broker
    source: Source
    sequences: dict[int, int]
    late: list[list[Marker]]  # of predecessors, still unanswered

    def __post_init__(self) -> None:
        self.outbox = Outbox(TP, ProducerIdentity(1, 0))
        self.queue = queue_of(self.outbox)
        self.queue.begin(is_clean=not self.late)
        start = len(self.broker.log)
        for one in self.source.batches:
            rest = Data(max(one.first, start), one.first + one.records - max(one.first, start))
            if rest.records <= 0:
                continue
            if rest.first > start:
                self.queue.fill(SourceRange(start, rest.first))
            send(self.queue, outgoing(rest))
            start = rest.first + rest.records
        if start < self.source.end:
            self.queue.fill(SourceRange(start, self.source.end))

    def step(self, most: int, *, lost: bool, applied: bool) -> bool:
        """One request of at most so many markers, or one batch; False when nothing is left.

        ``lost``: the writer ends before the answer. ``applied``: the request is on the target then, otherwise it may
        arrive later.
        """
        if self.outbox.queue:
            one = self.outbox.queue[0]
            data = Data(one.header.base_offset, one.count)
            if lost and not applied:
                return False
            base = self.broker.produce(data, self.sequences[data.first])
            assert base in {data.first, -1}, "a batch was appended at another offset"
            if lost:
                return False
            self.outbox.queue.popleft()
            self.queue.advance()
            return True
        first, after = self.queue.next_gap
        return first >= 0 and self.fill(max(first, self.queue.reached), after, most, lost=lost, applied=applied)

    def fill(self, start: int, after: int, most: int, *, lost: bool, applied: bool) -> bool:
        """The same for target offsets ``start .. after-1``, with markers."""
        if not self.queue.is_known:
            self.queue.generation = next_generation(
                [epoch for epoch, _ in self.broker.epochs.values()], is_clean=self.queue.is_fenced
            )
            self.queue.is_known = self.queue.is_fenced = True
            # Two dead writers of which no marker was appended have the same generation, see `mm2.copy.markers`.
            self.late[:] = [one for one in self.late if one[0].producer_epoch < self.queue.generation]
            self.queue.filled(len(self.broker.log))
            return True
        markers = [marker_at(offset, self.queue.generation) for offset in range(start, min(after, start + most))]
        if lost and not applied:
            self.late.append(markers)
            return False
        accepted = self.broker.append(markers)
        if lost:
            return False
        self.queue.is_known = accepted
        if accepted:
            self.queue.filled(len(self.broker.log))
        else:
            self.queue.is_clean = self.queue.is_fenced = False
        return True


@dataclass
class Ids:
    """The transactional ids of a partition: their epochs, open transactions, and markers that are not written yet."""

    broker: Broker
    epochs: list[int] = field(default_factory=lambda: [0] * 3)
    states: list[str] = field(default_factory=lambda: [""] * 3)

    def claim(self) -> list[int]:
        """InitProducerId for each: it returns when an open transaction is aborted."""
        for number in range(len(self.epochs)):
            self.write(number)
            self.epochs[number] += 1
        return [*self.epochs]

    def add(self, number: int, epoch: int) -> bool:
        """AddPartitionsToTxn; False when it is fenced."""
        if epoch != self.epochs[number]:
            return False
        if self.states[number] == "ended":  # CONCURRENT_TRANSACTIONS until the marker is written
            self.write(number)
        self.states[number] = "open"
        return True

    def end(self, number: int, epoch: int) -> bool:
        """EndTxn; False when it is fenced."""
        if epoch != self.epochs[number] or not self.states[number]:
            return False
        self.states[number] = "ended"
        return True

    def write(self, number: int) -> None:
        """The coordinator writes the marker of a transaction."""
        if self.states[number]:
            self.states[number] = ""
            self.broker.log.append(None)


@dataclass
class TransactionWriter(Writer):
    """Fills with transactions without records."""

    ids: Ids | None = None
    claimed: list[int] = field(default_factory=list)

    def fill(self, start: int, after: int, most: int, *, lost: bool, applied: bool) -> bool:
        """As the product: claim, read the end of the log, end as many transactions, wait for the markers."""
        ids = self.ids
        assert ids is not None
        if not self.claimed:
            self.claimed = ids.claim()
            if not lost:
                self.queue.is_known = True
                self.queue.filled(len(self.broker.log))
            return not lost
        for index, _ in enumerate(range(start, min(after, start + most))):
            number = index % len(self.claimed)
            assert ids.add(number, self.claimed[number])
            if lost and not applied:
                return False
            assert ids.end(number, self.claimed[number])
        if lost:
            return False
        for number in range(len(self.claimed)):
            ids.write(number)
        self.queue.filled(len(self.broker.log))
        return True


def outgoing(data: Data) -> OutgoingBatch:
    records = [Record(None, b"", (), 0) for _ in range(data.records)]
    one = encode_batch(records, base_offset=data.first)
    return OutgoingBatch(memoryview(one), read_header(one), lambda _base: None)


@pytest.mark.parametrize("seed", range(0, HISTORIES, 1_000))
def test_all_histories_end_with_the_source_s_offsets(seed: int) -> None:
    """Whatever is lost, whenever late requests of dead writers arrive, and whether markers or transactions fill the gaps."""
    for number in range(seed, seed + 1_000):
        chance = random.Random(number)
        source, broker = random_source(chance), Broker()
        if number % 4 == 0:
            fill_with_transactions(chance, source, broker)
        elif number % 4 == 1:
            fill_with_either(chance, source, broker)
        else:
            fill_with_markers(chance, source, broker)
        assert broker.log == source.expected(), f"seed {number}"


def fill_with_markers(chance: random.Random, source: Source, broker: Broker) -> None:
    """Copy with some writers that end before the last one does not."""
    sequences = {offset: number for number, offset in enumerate(source.records)}
    late: list[list[Marker]] = []
    most = chance.randint(1, 5)
    for _ in range(chance.randint(0, 6)):
        writer = Writer(broker, source, sequences, late)
        for _ in range(chance.randint(0, 6)):
            if late and chance.random() < 0.3:
                broker.append(late.pop(chance.randrange(len(late))))
            if not writer.step(most, lost=False, applied=True):
                break
        writer.step(most, lost=True, applied=chance.random() < 0.5)
        if late and chance.random() < 0.5:
            broker.append(late.pop(0))
    writer = Writer(broker, source, sequences, late)
    while writer.step(most, lost=False, applied=True):
        if late and chance.random() < 0.5:
            broker.append(late.pop(chance.randrange(len(late))))
    for markers in late:
        broker.append(markers)


def fill_with_transactions(chance: random.Random, source: Source, broker: Broker) -> None:
    """The same. A dead writer's requests arrive late, and markers of its transactions are written late."""
    sequences = {offset: number for number, offset in enumerate(source.records)}
    ids, most = Ids(broker), chance.randint(1, 5)
    dead: list[list[int]] = []
    for is_last in [*[False] * chance.randint(0, 6), True]:
        writer = TransactionWriter(broker, source, sequences, [], ids)
        steps = 1_000 if is_last else chance.randint(0, 6)
        for _ in range(steps):
            if writer.claimed and dead and chance.random() < 0.3:
                number = chance.randrange(3)
                assert not ids.add(number, chance.choice(dead)[number]), "fenced"
            if not writer.claimed and chance.random() < 0.3:
                ids.write(chance.randrange(3))
            if not writer.step(most, lost=False, applied=True):
                break
        if not is_last:
            writer.step(most, lost=True, applied=chance.random() < 0.5)
            if writer.claimed:
                dead.append(writer.claimed)
            if chance.random() < 0.5:
                ids.write(chance.randrange(3))


def fill_with_either(chance: random.Random, source: Source, broker: Broker) -> None:
    """Rights are granted and revoked between writers. The ledger shows a writer that transactions may be open."""
    sequences = {offset: number for number, offset in enumerate(source.records)}
    ids, most = Ids(broker), chance.randint(1, 5)
    late: list[list[Marker]] = []
    dead: list[list[int]] = []
    has_transactions = False
    for is_last in [*[False] * chance.randint(0, 6), True]:
        if has_transactions:
            ids.claim()
        while late and chance.random() < 0.3:
            broker.append(late.pop())
        has_transactions = chance.random() < 0.5
        if has_transactions:
            late.clear()  # the broker that rejects this writer's markers also rejects those of its predecessors
            writer: Writer = TransactionWriter(broker, source, sequences, [], ids)
        else:
            writer = Writer(broker, source, sequences, late)
        for _ in range(1_000 if is_last else chance.randint(0, 6)):
            if late and chance.random() < 0.3:
                broker.append(late.pop(chance.randrange(len(late))))
            if dead and chance.random() < 0.3:
                number = chance.randrange(3)
                assert not ids.add(number, chance.choice(dead)[number]), "fenced"
            if not writer.step(most, lost=False, applied=True):
                break
        if not is_last:
            writer.step(most, lost=True, applied=chance.random() < 0.5)
            if isinstance(writer, TransactionWriter) and writer.claimed:
                dead.append(writer.claimed)
            if chance.random() < 0.5:
                ids.write(chance.randrange(3))
    for markers in late:
        broker.append(markers)
    for number in range(3):
        ids.write(number)


def test_markers_of_later_offsets_and_generations_are_ordered() -> None:
    assert marker_at(5, 0).coordinator_epoch < marker_at(6, 0).coordinator_epoch
    assert marker_at(5, 1).coordinator_epoch < marker_at(5, 0).coordinator_epoch
    assert marker_at(5, 1).producer_epoch > marker_at(5, 0).producer_epoch
    assert marker_at(SPAN - 1, 0).coordinator_epoch == (1 << 31) - 1
    assert marker_at(SPAN, 0).producer_id == FIRST_PRODUCER_ID + 1
    assert is_ours(marker_at(10**9, 3).producer_id)
    assert not is_ours(10**6)
    assert marker_at(0, 1 << 20).producer_epoch == (1 << 15) - 1


@pytest.mark.parametrize(
    ("epochs", "clean", "expected"),
    [([], True, 0), ([], False, 1), ([3, 1], True, 3), ([3, 1], False, 4), ([32767], False, 32767)],
)
def test_a_writer_after_a_crash_has_a_new_generation(epochs: list[int], clean: bool, expected: int) -> None:
    assert next_generation(epochs, is_clean=clean) == expected


@pytest.mark.parametrize(
    ("ends", "wanted", "expected"),
    [
        (PartitionEnds(0, 10, 0, 0), None, PreservedStart(0, 0)),
        (PartitionEnds(7, 10, 0, 0), None, PreservedStart(0, 7)),
        (PartitionEnds(7, 10, 0, 0), 3, PreservedStart(0, 7)),
        (PartitionEnds(7, 10, 0, 0), 9, PreservedStart(0, 9)),
        (PartitionEnds(7, 10, 0, 0), 99, PreservedStart(0, 10)),
        (PartitionEnds(7, 10, 2, 5), 9, PreservedStart(5, 5)),
        (PartitionEnds(7, 10, 10, 10), None, PreservedStart(10, 10)),
        (PartitionEnds(7, 10, 5, 5), None, PreservedStart(5, 5)),
    ],
)
def test_copying_starts_at_the_end_of_the_target(
    ends: PartitionEnds, wanted: int | None, expected: PreservedStart
) -> None:
    assert start_at(ends, Wanted(wanted), "A.t-0 of B", "t-0 of A") == expected


@pytest.mark.parametrize(
    ("ends", "wanted", "expected"),
    [
        (PartitionEnds(120, 200, 0, 100), 120, PreservedStart(100, 120)),
        (PartitionEnds(120, 200, 0, 100), 90, PreservedStart(100, 100)),
        (PartitionEnds(120, 200, 0, 100), 999, PreservedStart(100, 200)),
    ],
)
def test_a_position_that_a_user_sets_after_the_end_of_the_target_counts(
    ends: PartitionEnds, wanted: int, expected: PreservedStart
) -> None:
    """Otherwise a lost range could not be acknowledged."""
    assert start_at(ends, Wanted(wanted, is_set=True), "A.t-0 of B", "t-0 of A") == expected


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (PartitionEnds(120, 200, 100, 100), PreservedStart(100, 120)),
        (PartitionEnds(120, 200, 0, 100), PreservedStart(100, 100)),
    ],
)
def test_a_source_that_was_trimmed_before_anything_was_copied_has_lost_nothing(
    ends: PartitionEnds, expected: PreservedStart
) -> None:
    """The offsets before were filled, and the fillers deleted. If there are records, they were copied."""
    assert start_at(ends, Wanted(120, is_new=True), "A.t-0 of B", "t-0 of A") == expected


def test_a_target_that_ends_after_the_source_is_refused() -> None:
    found = start_at(PartitionEnds(0, 10, 0, 11), Wanted(), "A.t-0 of B", "t-0 of A")
    assert found.refusal == "A.t-0 of B ends at offset 11, after t-0 of A, which ends at 10"


def test_only_look_ups_one_after_another_show_that_a_target_ends_after_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hours later, one stale response must not stop the partition."""
    monkeypatch.setattr(preserved_starts, "_AHEAD_SINCE", {})
    found = [preserved_starts._ahead_s(("A", "B", TP), now_s) for now_s in (100, 104, 110, 7_000, 7_009)]
    assert found == [0, 4, 10, 0, 9]


def test_batches_wait_for_the_gaps_before_them() -> None:
    events: list[PartitionEvent] = []
    outbox = Outbox(TP, ProducerIdentity(1, 0))
    queue = queue_of(outbox, events)
    gaps = [SourceRange(5, 7), SourceRange(7, 9)]
    send(queue, outgoing(Data(0, 5)))
    for gap in gaps:
        queue.fill(gap)
    send(queue, outgoing(Data(9, 1)))
    assert [one.header.base_offset for one in outbox.queue] == [0]
    assert events == [], "a batch is in flight"
    outbox.queue.clear()
    queue.advance()
    assert queue.next_gap == (5, 9)
    assert not queue.is_last
    queue.filled(8)
    assert (len(outbox.queue), [gap.done for gap in gaps]) == (0, [False, False]), "one of the two gaps is left"
    queue.filled(9)
    assert outbox.end_offset == 9, "it is looked up whether the target still has the markers"
    assert [one.header.base_offset for one in outbox.queue] == [9]
    assert [gap.done for gap in gaps] == [True, True]
    assert events == [GapDue(0), BATCHES_QUEUED]


def test_a_batch_that_is_left_out_becomes_a_gap_before_what_was_queued() -> None:
    outbox = Outbox(TP, ProducerIdentity(1, 0))
    queue = queue_of(outbox)
    outbox.queue.append(outgoing(Data(3, 2)))
    queue.fill_first(SourceRange(0, 3))
    assert queue.next_gap == (0, 3)
    assert not outbox.queue
    queue.filled(3)
    assert [one.header.base_offset for one in outbox.queue] == [3]


def test_a_long_gap_is_filled_in_steps() -> None:
    queue = queue_of(Outbox(TP, None))
    for start in range(0, 5 * FILLED_AT_ONCE, FILLED_AT_ONCE):
        queue.fill(SourceRange(start, start + FILLED_AT_ONCE))
    assert queue.next_gap == (0, FILLED_AT_ONCE)
    assert queue.next_end == 5 * FILLED_AT_ONCE, "a predecessor may have filled more"
    assert queue.filled(2 * FILLED_AT_ONCE + 3)
    assert queue.next_gap == (2 * FILLED_AT_ONCE, 3 * FILLED_AT_ONCE)
    assert queue.reached == 2 * FILLED_AT_ONCE + 3


def test_a_stop_keeps_only_what_is_being_filled() -> None:
    queue = queue_of(Outbox(TP, None))
    queue.fill(SourceRange(0, 2))
    send(queue, outgoing(Data(2, 1)))
    assert not queue.is_settled(0)
    queue.stop()
    assert len(queue.waiting) == 1
    queue.filled(2)
    assert queue.is_settled(2)
    assert not queue.is_settled(1)


def test_runs_are_records_with_consecutive_offsets() -> None:
    assert [*runs([1, 2, 5, 7, 8])] == [(1, 2), (5, 1), (7, 2)]


# -- the cursor ------------------------------------------------------------------------------------------------------------


class Preserving(Bench):
    """A cursor with preserved offsets, before a target log that grows by what it sends and fills."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__(offset, is_preserved=True, target=offset)
        self.end = offset
        self.queue.begin(is_clean=True)

    def settle(self) -> None:
        """The target takes everything, in order."""
        while self.outbox.queue or self.queue.is_filling:
            if self.outbox.queue:
                first = self.end
                self.end += sum(one.count for one in self.outbox.queue)
                self.ack(first)
                self.queue.advance()
            else:
                self.end = self.queue.next_gap[1]
                self.queue.filled(self.end)


def test_holes_within_a_batch_are_filled_between_its_runs() -> None:
    bench = Preserving()
    bench.fetch(holed(0, 9, [2, 3, 7]))
    bench.settle()
    assert bench.keys() == [[b"k002", b"k003"], [b"k007"]]
    assert bench.cursor.window.mark == Mark(10, 10, 3)
    assert bench.gaps == {"compacted": 7}
    assert [(first, base) for first, _, base, _ in bench.owner.acks] == [(2, 2), (7, 7)]


def test_the_marker_at_the_end_of_the_source_is_filled_at_once() -> None:
    bench = Preserving()
    bench.fetch(batch(0, 3), marker(3, 1))
    bench.settle()
    assert (bench.end, bench.cursor.window.mark) == (4, Mark(4, 4, 3))
    assert bench.gaps == {"control": 1}


def test_a_batch_at_another_offset_stops_the_position() -> None:
    bench = Preserving()
    bench.fetch(batch(0, 3))
    bench.ack(1)
    assert bench.owner.calls == [("misplaced", 0, 1)]
    assert bench.cursor.window.position == 0


def test_offsets_before_the_start_of_the_copy_are_filled_and_not_counted() -> None:
    bench = Preserving()
    bench.cursor.outgoing.fill_leading_gap(FILLED_AT_ONCE + 5)
    assert bench.queue.next_gap == (0, FILLED_AT_ONCE)
    bench.fetch(batch(FILLED_AT_ONCE + 5, 2))
    bench.settle()
    assert bench.cursor.window.mark == Mark(FILLED_AT_ONCE + 7, FILLED_AT_ONCE + 7, 2)
    assert bench.gaps == {}


def test_a_record_in_the_dead_letter_topic_leaves_its_offset() -> None:
    bench = Preserving()
    bench.fetch_each(batch(0, 1), batch(1, 1), batch(2, 1))
    entry = bench.cursor.window.entries[0]
    bench.cursor.quarantine(entry, "quarantined")
    bench.settle()
    assert (bench.end, bench.cursor.window.mark) == (3, Mark(3, 3, 2))
    assert bench.gaps == {"quarantined": 1}


def test_what_a_predecessor_has_copied_is_read_again_for_its_gaps_and_not_sent() -> None:
    bench = Preserving()
    bench.cursor.outgoing.copied = CopiedRange(7, 5)
    bench.end = 7
    bench.fetch(batch(0, 3), marker(3, 1), batch(4, 6))
    bench.settle()
    assert bench.keys() == [[b"k007", b"k008", b"k009"]]
    assert bench.cursor.window.mark == Mark(10, 10, 8)
    assert bench.gaps == {"control": 1}
    assert bench.cursor.outgoing.copied is None


@pytest.mark.parametrize(
    ("epochs", "other", "is_stopped"), [((5, 6), b"new", True), ((5, 6), b"v", False), ((5, 5), b"new", False)]
)
def test_changed_records_of_a_new_leader_are_compared_with_what_a_predecessor_has_copied(
    epochs: tuple[int, int], other: bytes, *, is_stopped: bool
) -> None:
    bench = Preserving()
    changes = SimpleNamespace(apply=lambda _part, record, **_: record, close=lambda: None)
    bench.cursor.changes = Changer(cast(Any, changes), lambda call: call())
    there = [record(offset)._replace(value=other if offset >= 3 else b"v") for offset in range(7)]
    bench.cursor.outgoing.copied = CopiedRange(7, 7, records_at(there), 5)
    bench.end = 7
    bench.fetch(of_epoch(batch(0, 3), epochs[0]), of_epoch(batch(3, 7), epochs[1]))
    bench.settle()
    condition = bench.cursor.conditions.stop
    if not is_stopped:
        assert condition is None
        assert bench.keys() == [[b"k007", b"k008", b"k009"]]
        return
    assert condition is not None
    assert condition.state == PartitionState.DIVERGED
    assert "A.t-0 has another record at offset 3 than t-0" in condition.reason
    assert (bench.keys(), bench.cursor.window.position) == ([], 3)


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize(("first", "position"), [(3, 3), (4, 7)])
def test_a_record_of_the_source_where_a_predecessor_has_filled_a_gap_stops_the_partition(
    first: int, position: int, *, is_changed: bool
) -> None:
    """After a crash an unclean election on the source has replaced a transaction marker by a record."""
    bench = Preserving()
    if is_changed:
        changes = SimpleNamespace(apply=lambda _part, record, **_: record, close=lambda: None)
        bench.cursor.changes = Changer(cast(Any, changes), lambda call: call())
    bench.cursor.outgoing.copied = CopiedRange(7, 6, markers=((3, 4),))
    bench.end = 7
    bench.fetch_each(batch(0, 3), *([marker(3, 1)] if first == 4 else []), batch(first, 7 - first))
    bench.settle()
    condition = bench.cursor.conditions.stop
    assert bench.cursor.window.position == position
    if first == 4:
        assert condition is None
        return
    assert condition is not None
    assert condition.state == PartitionState.DIVERGED
    assert "A.t-0 has no record at offset 3, where t-0 has one that was not there before" in condition.reason


def test_an_election_that_replaces_the_marker_read_last_is_found_by_its_leader_epoch() -> None:
    bench = Preserving()
    bench.fetch(of_epoch(batch(0, 3), 5), of_epoch(marker(3, 1), 5))
    bench.settle()
    bench.cursor.diverged(5, 3)
    assert (bench.end, bench.owner.calls) == (4, [("diverged", 5, 3)])


def test_a_record_that_a_predecessor_has_copied_is_not_skipped_for_an_error_that_may_pass() -> None:
    bench = Preserving()

    def apply(_part: Any, record: Any, *, may_pass: bool) -> Any:
        if record.offset in {3, 7} and not may_pass:
            raise ChangeDelayed("busy", 0.0)
        return Passing("skipped") if record.offset in {3, 7} else record

    changer = SimpleNamespace(apply=apply, close=lambda: None)
    bench.cursor.changes = Changer(cast(Any, changer), lambda call: call())
    bench.cursor.outgoing.copied = CopiedRange(7, 7)
    bench.outbox.looked_up = True
    bench.end = 7
    bench.fetch(batch(0, 10))
    assert (bench.cursor.offset, bench.gaps) == (3, {})
    bench.cursor.offset = 7
    bench.cursor.outgoing.copied = None
    bench.fetch(batch(0, 10))
    assert (bench.cursor.offset, bench.cursor.suspended) == (8, True)


def test_fewer_records_on_the_source_than_a_predecessor_has_copied_do_not_change_the_count() -> None:
    bench = Preserving()
    bench.cursor.outgoing.copied = CopiedRange(7, 7)
    bench.end = 7
    bench.fetch(holed(0, 9, [2, 8]))
    bench.settle()
    assert bench.keys() == [[b"k008"]]
    assert bench.cursor.window.mark == Mark(10, 10, 8)
