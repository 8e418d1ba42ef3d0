"""Finds out how many records of a copy session are on the target, and at which offsets (rules L1 to L6 of
docs/explanation/copy-sessions.md).

The leader's producer state is used where it agrees with the offsets of the log. Otherwise the batch headers in the
log are read. All calls block and run on background threads.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from mm2.copy.progress.session import EndedSession, LedgerEntry, Mark, count_after
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure, value_of
from mm2.kafka.readers.reader import Batch, BatchReader
from mm2.kafka.records.batch import BatchHeader
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import EARLIEST, LATEST, Metadata, OffsetInfo, ProducerIdentity, ProducerState, TopicPartition

_POLL_MS: Final = 100
_POLL_TIMEOUT_S: Final = 10.0
_EMPTY_ANSWERS: Final = 3
#: Timeout of each request of a look-up. The caller repeats the whole look-up until it succeeds.
_REQUEST_TIMEOUT_S: Final = 5.0
_STABLE_TIMEOUT_S: Final = 2.0
_STABLE_POLL_S: Final = 0.02
_COMMITTED_STEP: Final = 10_000
#: Time for which a look-up must be permanently rejected before delivery becomes at-least-once (rule L5).
LOOK_UP_REFUSED_S: Final = 10.0
#: Answers about a topic that was deleted, or deleted and created again.
GONE: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)


class ProgressQuestion(NamedTuple):
    """What is known of a session before a look-up.

    ``records`` of it are known to be on the target, which ended at offset ``behind`` (-1: unknown) after the last of
    them. ``floor`` is the target offset where the session began (-1: unknown), ``leader_epoch`` the highest known one
    of the target partition (-1: unknown): a response with a lower one is stale. So is a response about a topic with
    another id than ``topic_id`` ("": unknown). ``ended`` are sessions before it of which records may still appear. With
    ``is_preserved`` there may be markers and fillers behind the last record. ``own_end``: other sessions write to the partition, too,
    so ``behind`` may be after their records, and the last known record of this one is before this offset (-1: unknown).
    """

    producer: ProducerIdentity
    records: int
    behind: int
    floor: int = -1
    leader_epoch: int = -1
    topic_id: str = ""
    ended: tuple[EndedSession, ...] = ()
    is_preserved: bool = False
    own_end: int | None = None


class FoundBatch(NamedTuple):
    """A batch of a session in the target log: number of its first record in the session, its target offset, its
    number of records.
    """

    at: int
    offset: int
    records: int


@dataclass(frozen=True, slots=True)
class TargetProgress:
    """``records`` of the session are on the target, all below the high watermark. The log ended at offset ``end`` in
    ``leader_epoch``. ``batches`` are those after the known ones. ``reappeared`` is a session before this one of which
    records have appeared since it ended. ``replaced_from``: other programs have written from this target offset on, where
    acknowledged records were lost (-1: no such offset is known).
    """

    records: int
    end: int
    leader_epoch: int = -1
    batches: tuple[FoundBatch, ...] = ()
    reappeared: ReappearedSession | None = None
    replaced_from: int = -1

    @property
    def own_end(self) -> int:
        """The target offset before which no acknowledged record is known to be missing."""
        return self.end if self.replaced_from < 0 else self.replaced_from

    def offset_of(self, at: int, count: int) -> int:
        """The target offset of the session's record number ``at``; -1 when it and the next ``count - 1`` records are
        not known to be contiguous.
        """
        first = self._offset_of(at)
        return first if first >= 0 and self._offset_of(at + count - 1) == first + count - 1 else -1

    @property
    def target_end(self) -> int:
        """The target offset after the last record found; -1 when none was found."""
        return self.batches[-1].offset + self.batches[-1].records if self.batches else -1

    def _offset_of(self, at: int) -> int:
        return next((b.offset + at - b.at for b in self.batches if b.at <= at < b.at + b.records), -1)


class ReappearedSession(NamedTuple):
    """A session that has ended before a former leader, elected again, brought back records of it (rule R3)."""

    session: EndedSession
    progress: TargetProgress


class InconsistentTarget(KafkaFailure):
    """The target log contradicts the count of a session: records are missing, duplicated or out of order (rule L3)."""


@dataclass(frozen=True, slots=True)
class Prints:
    """Fingerprints of records on the target, in order. ``with_time``: the timestamps are part of them."""

    values: list[int]
    with_time: bool = True


@dataclass(frozen=True, slots=True)
class RecordsAt:
    """Timestamp and hash of the content of records, by offset. ``with_time``: the timestamps are those of the producer. ``markers``: offsets
    of transaction markers, as far as they were read.
    """

    values: dict[int, tuple[int | None, int]]
    with_time: bool = True
    markers: frozenset[int] = frozenset()

    def differs(self, other: RecordsAt) -> int | None:
        """The first offset at which both have a record, and not the same one, or the other one has a marker; None: there is none."""
        with_time = self.with_time and other.with_time
        for offset, (timestamp, content) in sorted(self.values.items()):
            found = other.values.get(offset)
            if offset in other.markers:
                return offset
            if found is not None and (found[1] != content or (with_time and found[0] != timestamp)):
                return offset
        return None


def records_at(records: Iterable[Record]) -> RecordsAt:
    """These records, to compare them with others."""
    return RecordsAt({record.offset: (record.timestamp, _content(record)) for record in records})


class WrittenRange(NamedTuple):
    """What is at some offsets of the target: the first one with a record of another producer (-1: there is none), and those
    before it with transaction markers, as (first, after) in order.
    """

    foreign: int
    markers: tuple[tuple[int, int], ...] = ()


class _Tail(Enum):
    """What is at the target offset of the last known record of a session."""

    OWN = auto()
    OTHER = auto()
    UNKNOWN = auto()
    """Retention, DeleteRecords or compaction have removed it, or it may not be read."""


class TargetLookUp:
    """Look-ups on the target cluster. They need READ on the topics (DescribeProducers, Fetch)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)

    def progress(
        self, questions: Mapping[TopicPartition, ProgressQuestion]
    ) -> dict[TopicPartition, TargetProgress | KafkaFailure]:
        """The progress of each partition's session; InconsistentTarget among the failures is final."""
        if not questions:
            return {}
        found: dict[TopicPartition, TargetProgress | KafkaFailure] = {}
        # Older metadata may name a deposed leader. The producer state read here is older than the log end read next.
        metadata = self._cluster.metadata(sorted({tp.topic for tp in questions}))
        described = self._admin.describe_producers(questions, timeout_s=_REQUEST_TIMEOUT_S)
        ends = self.stable_ends({tp: asked.leader_epoch for tp, asked in questions.items()})
        for tp, end in ends.items():
            if isinstance(end, OffsetInfo) and end.leader_epoch != _leader_epoch(metadata, tp):
                described[tp] = {}  # this state may come from another leader
        tails = self._tails(questions, described, ends)
        for tp, end in ends.items():
            if isinstance(end, KafkaFailure):
                found[tp] = end
                continue
            topic = metadata.topics.get(tp.topic)
            if topic is not None and questions[tp].topic_id and topic.topic_id not in {"", questions[tp].topic_id}:
                # Stale metadata or a recreated topic: its offsets are not those of the session.
                subject = f"{tp} of cluster {self._cluster.name}"
                found[tp] = BrokerFailure.of(ErrorCode.INCONSISTENT_TOPIC_ID, subject=subject)
                continue
            try:
                found[tp] = self._checked(tp, questions[tp], described[tp], end, tails.get(tp, _Tail.UNKNOWN))
            except KafkaFailure as error:
                found[tp] = error
        return found

    def _checked(
        self,
        tp: TopicPartition,
        question: ProgressQuestion,
        described: dict[int, ProducerState] | KafkaFailure,
        end: OffsetInfo,
        tail: _Tail | KafkaFailure,
    ) -> TargetProgress:
        tail = value_of(tail)
        last = _last_known(question)
        remembered = None if last is None else _remembered(last, described)
        is_short = (
            remembered is not None and last is not None and remembered < last.records and end.offset >= last.behind >= 0
        )
        if last is not None and (tail is _Tail.OTHER or (is_short and tail is not _Tail.OWN)):
            self._check_topic(tp, question.topic_id)
            progress = self._without_replaced(tp, last, remembered, end)
            return progress if question.records else dataclasses.replace(progress, records=0)
        progress = self._check_ended(tp, question, described, end)
        if progress.records < question.records:
            self._check_topic(tp, question.topic_id)
        return progress

    def _check_topic(self, tp: TopicPartition, topic_id: str) -> None:
        """Raises KafkaFailure unless the leader that returned the log end still has the topic with this id.

        ListOffsets names topics only: the topic may have been recreated after the metadata was read.
        """
        if not topic_id:
            return
        leader = self._cluster.leader(tp.topic, tp.partition)
        topic = self._cluster.metadata_of(leader, [tp.topic]).topics.get(tp.topic)
        if topic is None or topic.topic_id not in {"", topic_id}:
            subject = f"{tp} of cluster {self._cluster.name}"
            raise BrokerFailure.of(ErrorCode.INCONSISTENT_TOPIC_ID, subject=subject)

    # -- the end of the log ------------------------------------------------------------------------------------------

    def stable_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        """The log end of each partition, once the high watermark has reached it (rules L1 and L4).

        ``epochs`` are the highest known leader epochs (-1: unknown): a response with a lower one is stale.
        """
        ends = self._admin.list_offsets(
            dict.fromkeys(epochs, LATEST), in_current_epoch=True, log_end=True, timeout_s=_REQUEST_TIMEOUT_S
        )
        settled: dict[TopicPartition, OffsetInfo | KafkaFailure] = {}
        open_: dict[TopicPartition, OffsetInfo] = {}
        for tp, end in ends.items():
            if isinstance(end, KafkaFailure):
                settled[tp] = end
            elif 0 <= end.leader_epoch < epochs[tp]:
                settled[tp] = BrokerFailure.of(
                    ErrorCode.FENCED_LEADER_EPOCH,
                    f"the response has leader epoch {end.leader_epoch}, but epoch {epochs[tp]} is known",
                    subject=f"{tp} of cluster {self._cluster.name}",
                )
            else:
                open_[tp] = end
        deadline = time.monotonic() + _STABLE_TIMEOUT_S
        while open_:
            watermarks = self._admin.list_offsets(
                dict.fromkeys(open_, LATEST), in_current_epoch=True, timeout_s=_REQUEST_TIMEOUT_S
            )
            for tp, watermark in watermarks.items():
                end = open_[tp]
                if isinstance(watermark, KafkaFailure):
                    settled[tp] = watermark
                elif watermark.leader_epoch != end.leader_epoch:
                    settled[tp] = BrokerFailure.of(
                        ErrorCode.NOT_LEADER_OR_FOLLOWER, subject=f"{tp} of cluster {self._cluster.name}"
                    )
                elif watermark.offset >= end.offset:
                    settled[tp] = end
                elif time.monotonic() > deadline:
                    settled[tp] = BrokerFailure.of(
                        ErrorCode.NOT_ENOUGH_REPLICAS,
                        f"the high watermark {watermark.offset} has not reached the log end {end.offset}",
                        subject=f"{tp} of cluster {self._cluster.name}",
                    )
                if tp in settled:
                    del open_[tp]
            if open_:
                time.sleep(_STABLE_POLL_S)
        return settled

    # -- the last known record -----------------------------------------------------------------------------------------

    def _tails(
        self,
        questions: Mapping[TopicPartition, ProgressQuestion],
        described: Mapping[TopicPartition, dict[int, ProducerState] | KafkaFailure],
        ends: Mapping[TopicPartition, OffsetInfo | KafkaFailure],
    ) -> dict[TopicPartition, _Tail | KafkaFailure]:
        """What is where each session's last known record has to be, for those of which the leader does not remember it
        (rule L8): the end of the log may be right although other programs have written it.
        """
        asked: dict[TopicPartition, int] = {}
        for tp, question in questions.items():
            end, last = ends[tp], _last_known(question)
            if isinstance(end, KafkaFailure) or last is None or end.offset < question.floor or last.is_preserved:
                continue
            behind = min(last.behind, end.offset)
            remembered = _remembered(last, described[tp])
            is_remembered = remembered is not None and remembered >= last.records and behind == last.behind
            is_cut = (
                last.own_end is not None and behind < last.behind
            )  # before it there may be a record of another session
            if last.records > last.behind - behind and behind > 0 and not (is_remembered or is_cut):
                asked[tp] = behind - 1
        if not asked:
            return {}
        found: dict[TopicPartition, _Tail | KafkaFailure] = {}
        for tp, header in self.headers_at(asked).items():
            last = _last_known(questions[tp])
            if isinstance(header, KafkaFailure):
                found[tp] = _Tail.UNKNOWN if header.is_final else header
            elif last is not None:
                found[tp] = _Tail.OWN if _is_own(header, last, asked[tp]) else _Tail.OTHER
        return found

    def headers_at(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, BatchHeader | KafkaFailure | None]:
        """The header of the batch at each of these offsets, None for a message of before 0.11. An offset whose record retention,
        DeleteRecords or compaction has removed is left out. Raises KafkaFailure.
        """
        starts = self._admin.list_offsets(dict.fromkeys(offsets, EARLIEST), timeout_s=_REQUEST_TIMEOUT_S)
        found: dict[TopicPartition, BatchHeader | KafkaFailure | None] = {}
        asked = dict(offsets)
        for tp in offsets:
            start = starts[tp]
            if isinstance(start, KafkaFailure):
                found[tp] = start
                del asked[tp]
            elif start.offset > asked[tp]:
                del asked[tp]
        try:
            return found | self._headers_at(asked)
        except KafkaFailure:
            pass  # one of them may be the cause
        for tp, offset in asked.items():
            try:
                found |= self._headers_at({tp: offset})
            except KafkaFailure as error:
                found[tp] = error
        return found

    def committed(self, entries: Mapping[TopicPartition, LedgerEntry]) -> set[TopicPartition]:
        """Those of these source partitions whose entry was written in a transaction that is committed on the target, where its last
        record still is. A remote topic that does not exist or may not be read shows nothing. Raises KafkaFailure.
        """
        found: set[TopicPartition] = set()
        waiting = {source: entry for source, entry in entries.items() if entry.mark.target > 0}
        while waiting:
            asked = {entry.target: source for source, entry in waiting.items()}  # one of those of a merge
            marks = {target: waiting.pop(source).mark.target for target, source in asked.items()}
            visible = self._visible_or_none({target: (mark - 1, mark) for target, mark in marks.items()})
            for target, source in asked.items():
                writer = entries[source].written_by
                if any(_has_written(writer, batch, marks[target] - 1) for batch in visible.get(target, ())):
                    found.add(source)
        return found

    def newest_committed(self, entry: LedgerEntry) -> Mark | None:
        """The mark of an entry that was written in a transaction, or the one before it: the newest whose transaction is committed on the
        target, or of which the target has lost the end. None: neither is. Raises KafkaFailure.
        """
        tp = entry.target
        ends = self._admin.list_offsets({tp: LATEST}, "read_committed", timeout_s=_REQUEST_TIMEOUT_S)
        end = value_of(ends[tp]).offset
        marks = [entry.mark] if entry.before is None else [entry.mark, _mark_in(tp.topic, entry.undone())]
        for mark in marks:
            if 0 <= mark.target <= end:
                batches = self._visible({tp: (mark.target - 1, mark.target)})
                is_committed = any(_last_offset(batch) >= mark.target - 1 for _, batch in batches)
            elif mark == marks[-1]:
                is_committed = mark.target >= 0
            elif marks[-1].target < 0:
                is_committed = False
            else:  # a part of the transaction may be left
                batches = self._visible({tp: (max(0, marks[-1].target), end)})
                is_committed = any(_has_written(entry.written_by, batch) for _, batch in batches)
            if is_committed:
                return mark
        return None

    def own_end(self, tp: TopicPartition, first: int, producer_id: int) -> tuple[int, int]:
        """The number of records from offset ``first`` on that this producer has written in transactions that are committed, and the
        offset after the last one. Raises KafkaFailure.
        """
        records, after = 0, first
        stable = self._admin.list_offsets({tp: LATEST}, "read_committed", timeout_s=_REQUEST_TIMEOUT_S)
        for _, batch in self._visible({tp: (first, value_of(stable[tp]).offset)}):
            if _has_written(producer_id, batch):
                records += _last_offset(batch) + 1 - max(batch.view.base_offset, first)
                after = _last_offset(batch) + 1
        return records, after

    def _visible(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[tuple[TopicPartition, Batch]]:
        """The batches of no aborted transaction at these offsets. Raises KafkaFailure, also while a transaction is open there."""
        starts = self._admin.list_offsets(dict.fromkeys(ranges, EARLIEST), timeout_s=_REQUEST_TIMEOUT_S)
        cut = {tp: (max(first, value_of(starts[tp]).offset), after) for tp, (first, after) in ranges.items()}
        yield from self._batches({tp: at for tp, at in cut.items() if at[0] < at[1]}, read_committed=True)

    def _visible_or_none(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, list[Batch]]:
        """The same by partition, without those that do not exist, may not be read, or have a transaction open there."""
        stable = self._admin.list_offsets(dict.fromkeys(ranges, LATEST), "read_committed", timeout_s=_REQUEST_TIMEOUT_S)
        asked: dict[TopicPartition, tuple[int, int]] = {}
        for tp, end in stable.items():
            if isinstance(end, BrokerFailure) and (end.is_final or end.code in GONE):
                continue
            if value_of(end).offset >= ranges[tp][1]:
                asked[tp] = ranges[tp]
        found: dict[TopicPartition, list[Batch]] = defaultdict(list)
        try:
            for tp, batch in self._visible(asked):
                found[tp].append(batch)
        except KafkaFailure as failure:
            if len(asked) == 1:
                if failure.is_final:
                    return {}
                raise
            for tp, at in asked.items():  # one of them may be the cause
                found |= self._visible_or_none({tp: at})
        return found

    def committed_end(self, tp: TopicPartition, end: int) -> int:
        """The offset after the last record before ``end`` that is not one of an aborted transaction; the start of the log if there is
        none. Raises KafkaFailure, also while a transaction is open before ``end``.
        """
        after, step = end, _COMMITTED_STEP
        while after > 0:
            first = max(0, after - step)
            if found := list(self._visible({tp: (first, after)})):
                return min(_last_offset(found[-1][1]) + 1, end)
            after, step = first, 10 * step
        return 0

    def _headers_at(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, BatchHeader | None]:
        ranges = {tp: (at, at + 1) for tp, at in offsets.items()}
        return {
            tp: batch.view.header
            for tp, batch in self._batches(ranges, with_control=True)
            if batch.view.base_offset <= offsets[tp] <= _last_offset(batch)
        }

    def _without_replaced(
        self, tp: TopicPartition, question: ProgressQuestion, remembered: int | None, end: OffsetInfo
    ) -> TargetProgress:
        """The progress of a session that has lost acknowledged records, where other programs have written since: what it still
        has is searched by halves. Raises InconsistentTarget where the evidence does not show what it has.
        """
        behind = min(question.behind, end.offset)
        first = max(question.floor, self._start_of(tp), question.behind - question.records)
        low, high = first, behind  # own before the first of them, if it is after ``first``; not own before the second
        while not question.is_preserved and high - low > 1:
            middle = (low + high) // 2
            batches = self._batches({tp: (middle - 1, middle)}, with_control=True)
            own = [batch for _, batch in batches if _is_own(batch.view.header, question, middle - 1)]
            if own:
                low = min(max(middle, _last_offset(own[0]) + 1), high - 1)
            else:
                high = middle
        records = question.records - (question.behind - low)
        # Of a session that lost its end, a later batch may have been appended by a leader that did not remember the producer.
        is_continued = any(True for _ in self._headers(tp, question.producer, low, end.offset))
        if low == first or is_continued or remembered not in {None, records}:
            state = "no state" if remembered is None else f"a last sequence after {remembered} records"
            message = (
                f"{tp} of cluster {self._cluster.name} has other records at offset {behind - 1}, before its end "
                f"{end.offset}, where {question.records} records of the copy session were acknowledged up to offset "
                f"{question.behind}; {low - first} of them were found from offset {first} on, and the leader has {state} of "
                "its producer; reset the position of this partition to copy the lost records again"
            )
            raise InconsistentTarget(message)
        return TargetProgress(records, end.offset, end.leader_epoch, replaced_from=low)

    # -- the session's records ---------------------------------------------------------------------------------------

    def _check_ended(
        self,
        tp: TopicPartition,
        question: ProgressQuestion,
        described: dict[int, ProducerState] | KafkaFailure,
        end: OffsetInfo,
    ) -> TargetProgress:
        """The progress of the session, and whether records of one before it have appeared."""
        progress = self._settle(tp, question, described, end)
        reappeared: list[ReappearedSession] = []
        for ended in question.ended:
            mark = ended.mark
            # They were counted up to the start of the session.
            behind = max(mark.target, question.floor)
            asked = ProgressQuestion(ended.producer, mark.records, behind, ended.start.target)
            try:
                found = self._settle(tp, asked, described, end)
            except BrokerFailure as error:
                if not error.is_final:
                    raise
                continue  # deleted by retention: nothing has appeared at the end of the log
            if found.records > mark.records:
                reappeared.append(ReappearedSession(ended, found))
        if not reappeared:
            return progress
        if len(reappeared) > 1 or progress.records:
            message = (
                f"{tp} of cluster {self._cluster.name} has {reappeared[0].progress.records - reappeared[0].session.mark.records} records "
                "of a copy session that ended before they appeared, and records of a later session"
            )
            raise InconsistentTarget(message)
        return dataclasses.replace(progress, reappeared=reappeared[0])

    def _settle(
        self,
        tp: TopicPartition,
        question: ProgressQuestion,
        described: dict[int, ProducerState] | KafkaFailure,
        end: OffsetInfo,
    ) -> TargetProgress:
        known, behind = question.records, question.behind
        if end.offset < question.floor:
            # Truncated before the session.
            return TargetProgress(0, end.offset, end.leader_epoch)
        if end.offset < behind:
            # Truncated before acknowledged records. Assume that only this session writes there.
            left = known - (behind - end.offset)
            return TargetProgress(max(0, left), end.offset, end.leader_epoch)
        remembered = _remembered(question, described)
        if remembered is not None:
            if behind >= 0 and end.offset - behind == remembered - known:
                batches = (FoundBatch(known, behind, remembered - known),) if remembered > known else ()
                return TargetProgress(remembered, end.offset, end.leader_epoch, batches)
            if behind < 0 and question.floor < 0:
                return TargetProgress(remembered, end.offset, end.leader_epoch)
        first = behind if behind >= 0 else question.floor
        if not 0 <= first < end.offset:
            self._check_room(tp, question, known, end.offset)
            return TargetProgress(known, end.offset, end.leader_epoch)
        start = self._start_of(tp)
        is_cut = start > first
        if is_cut and behind < 0:
            found = _nearest(self._read(tp, question.producer, start, end.offset, None), known)
        else:
            count = known if behind >= 0 else 0
            found = self._read(tp, question.producer, max(first, start), end.offset, count, is_cut=is_cut)
        if is_cut and not found:
            if remembered is not None:
                return TargetProgress(remembered, end.offset, end.leader_epoch)
            message = f"the log starts at {start}, but the records from {first} on have to be counted"
            raise BrokerFailure.of(
                ErrorCode.OFFSET_OUT_OF_RANGE, message, subject=f"{tp} of cluster {self._cluster.name}"
            )
        if isinstance(described, BrokerFailure) and described.is_final and not found and behind < 0:
            raise described
        records = max(known, found[-1].at + found[-1].records) if found else known
        self._check_room(tp, question, records, end.offset)
        return TargetProgress(records, end.offset, end.leader_epoch, tuple(found))

    def _check_room(self, tp: TopicPartition, question: ProgressQuestion, records: int, end: int) -> None:
        if question.floor >= 0 and end - question.floor < records:
            message = (
                f"{tp} of cluster {self._cluster.name} has {end - question.floor} offsets from {question.floor} to {end}, "
                f"but {records} records of the copy session were counted"
            )
            raise InconsistentTarget(message)

    def _read(
        self,
        tp: TopicPartition,
        producer: ProducerIdentity,
        first: int,
        end: int,
        count: int | None,
        *,
        is_cut: bool = False,
    ) -> list[FoundBatch]:
        """The session's batches at target offsets ``first .. end-1``. The first one must have record number
        ``count``, or a later one where retention or DeleteRecords has removed the start of the log (``is_cut``).
        None: any number; it is known modulo 2^31.
        """
        found: list[FoundBatch] = []
        for header in self._headers(tp, producer, first, end):
            before = max(0, first - header.base_offset)  # known records of the batch
            at = header.base_sequence + before
            at = at if count is None else count_after(at - 1, count)
            count = at if count is None else count
            if at != count and not (is_cut and not found and at > count):
                self._check_gap(tp, header, at, count)
            found.append(FoundBatch(at, header.base_offset + before, header.last_offset_delta + 1 - before))
            count = found[-1].at + found[-1].records
        return found

    def _check_gap(self, tp: TopicPartition, header: BatchHeader, at: int, expected: int) -> None:
        """Records may be missing only where the target is compacted. There are never too many."""
        if at > expected and self._is_compacted(tp):
            return
        message = (
            f"{tp} of cluster {self._cluster.name} has a batch of the copy session at offset {header.base_offset} that begins "
            f"with record {at}, but record {expected} was expected"
        )
        raise InconsistentTarget(message)

    def _start_of(self, tp: TopicPartition) -> int:
        """The log start offset."""
        return value_of(self._admin.list_offsets({tp: EARLIEST}, timeout_s=_REQUEST_TIMEOUT_S)[tp]).offset

    def _is_compacted(self, tp: TopicPartition) -> bool:
        configs = self._admin.describe_configs([tp.topic])[tp.topic]
        if isinstance(configs, KafkaFailure):
            if configs.is_final:
                return False
            raise configs
        policy = configs.get("cleanup.policy")
        return policy is not None and "compact" in (policy.value or "")

    def _headers(self, tp: TopicPartition, producer: ProducerIdentity, first: int, end: int) -> Iterator[BatchHeader]:
        for _, batch in self._batches({tp: (first, end)}):
            header = batch.view.header
            if header is not None and ProducerIdentity(header.producer_id, header.producer_epoch) == producer:
                yield header

    def end_of(self, partition: TopicPartition, first: int, end: int, producer: ProducerIdentity) -> int:
        """The target offset after the producer's last batch at ``first .. end-1``; ``first`` when there is none.
        Raises KafkaFailure.
        """
        behind = first
        for header in self._headers(partition, producer, first, end):
            behind = header.last_offset + 1
        return behind

    def count_own(self, partition: TopicPartition, first: int, end: int, producers: AbstractSet[int]) -> int:
        """The number of records of these producer ids, in any epoch, at target offsets ``first .. end-1``, without those that
        retention or DeleteRecords has removed. Raises KafkaFailure.
        """
        try:
            return self._count_own(partition, first, end, producers)
        except BrokerFailure as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE or (start := self._start_of(partition)) <= first:
                raise
        return self._count_own(partition, start, end, producers) if start < end else 0

    def _count_own(self, partition: TopicPartition, first: int, end: int, producers: AbstractSet[int]) -> int:
        headers = (batch.view.header for _, batch in self._batches({partition: (first, end)}))
        return sum(
            min(header.last_offset + 1, end) - max(header.base_offset, first)
            for header in headers
            if header is not None and header.producer_id in producers
        )

    def behind_markers(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets where own records end, each before the end of its log -> the offsets after the transaction marker
        there, if there is one. Raises KafkaFailure.
        """
        behind = {tp: end + 1 for tp, end in ends.items()}
        for tp, batch in self._batches({tp: (end, end + 1) for tp, end in ends.items()}):  # without markers
            header = batch.view.header
            if header is not None and header.base_offset <= ends[tp] <= header.last_offset:
                behind[tp] = ends[tp]
        return behind

    def fingerprints(
        self, partition: TopicPartition, first: int, end: int, identity: ProducerIdentity, newest: int
    ) -> Prints:
        """Fingerprints of the ``newest`` own records at target offsets ``first .. end-1``, in order. Raises
        KafkaFailure.

        A topic with LogAppendTime does not keep the records' timestamps, so they are left out of the fingerprints.
        """
        records: deque[tuple[int | None, int]] = deque(maxlen=newest)
        with_time = True
        for _, batch in self._batches({partition: (first, end)}):
            header = batch.view.header
            if header is None or ProducerIdentity(header.producer_id, header.producer_epoch) != identity:
                continue
            with_time = with_time and not header.is_log_append_time
            records.extend(
                (record.timestamp, _content(record))
                for record in decode_batch(batch.view, self._cluster.settings.decompression_max_bytes)
                if first <= record.offset < end
            )
        return Prints([_print(timestamp if with_time else -1, content) for timestamp, content in records], with_time)

    def records_at(self, partition: TopicPartition, first: int, end: int, *, with_markers: bool = False) -> RecordsAt:
        """The records at offsets ``first .. end-1``. Raises KafkaFailure."""
        values: dict[int, tuple[int | None, int]] = {}
        markers: set[int] = set()
        with_time = True
        for _, batch in self._batches({partition: (first, end)}, with_control=with_markers):
            header = batch.view.header
            if header is not None and header.is_control:
                markers.update(range(header.base_offset, header.last_offset + 1))
                continue
            with_time = with_time and not (header is not None and header.is_log_append_time)
            for record in decode_batch(batch.view, self._cluster.settings.decompression_max_bytes):
                if first <= record.offset < end:
                    values[record.offset] = record.timestamp, _content(record)
        return RecordsAt(values, with_time, frozenset(markers))

    def foreign_runs(
        self, partition: TopicPartition, first: int, end: int, producers: AbstractSet[int], *, read_committed: bool
    ) -> list[tuple[int, int, int]]:
        """The records at offsets ``first .. end-1`` that none of these producer ids has written, as (first, after, records) in
        order. ``read_committed``: without those of aborted transactions. Raises KafkaFailure.
        """
        found: list[tuple[int, int, int]] = []
        for _, batch in self._batches({partition: (first, end)}, read_committed=read_committed):
            header = batch.view.header
            if header is not None and header.producer_id in producers:
                continue
            start, after = max(batch.view.base_offset, first), min(_last_offset(batch) + 1, end)
            if start >= after:
                continue
            if found and found[-1][1] == start:
                start, records = found[-1][0], found.pop()[2] + after - start
            else:
                records = after - start
            found.append((start, after, records))
        return found

    def foreign_offset(
        self, partition: TopicPartition, first: int, end: int, producers: AbstractSet[ProducerIdentity]
    ) -> int:
        """The first offset in ``first .. end-1`` with a record of another producer; -1: there is none. Raises
        KafkaFailure.
        """
        return self.written(partition, first, end, producers).foreign

    def written(
        self, partition: TopicPartition, first: int, end: int, producers: AbstractSet[ProducerIdentity]
    ) -> WrittenRange:
        """What these producers, others and markers have put at offsets ``first .. end-1``. Raises KafkaFailure."""
        markers: list[tuple[int, int]] = []
        for _, batch in self._batches({partition: (first, end)}, with_control=True):
            header = batch.view.header
            if header is not None and header.is_control:
                at = markers.pop()[0] if markers and markers[-1][1] == header.base_offset else header.base_offset
                markers.append((at, header.last_offset + 1))
            elif header is None or ProducerIdentity(header.producer_id, header.producer_epoch) not in producers:
                return WrittenRange(max(first, batch.view.base_offset), tuple(markers))
        return WrittenRange(-1, tuple(markers))

    def _batches(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        with_control: bool = False,
        read_committed: bool = False,
    ) -> Iterator[tuple[TopicPartition, Batch]]:
        """The batches at these offsets, in order per partition. Raises KafkaFailure."""
        if not ranges:
            return
        metadata = self._cluster.metadata(sorted({tp.topic for tp in ranges}))
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, (first, _) in ranges.items():
            by_leader[self._cluster.leader(tp.topic, tp.partition)][tp] = first
        for leader, positions in by_leader.items():
            topics = {tp.topic: metadata.topics[tp.topic] for tp in positions}
            reader = BatchReader(
                self._cluster, leader, topics, with_control=with_control, read_committed=read_committed
            )
            try:
                reader.positions = dict(positions)
                moved_s = time.monotonic()
                empty = 0
                while reader.positions:
                    before = dict(reader.positions)
                    for batch in reader.poll(max_wait_ms=_POLL_MS):
                        header = batch.view.header
                        if header is None or header.base_offset < ranges[batch.topic_partition][1]:
                            yield batch.topic_partition, batch
                    has_moved = reader.positions != before
                    if has_moved:
                        empty, moved_s = 0, time.monotonic()
                    elif not reader.throttled:  # by a quota, which returns empty responses
                        empty += 1
                    for tp, at in list(reader.positions.items()):
                        end = ranges[tp][1]
                        # Compaction and retention may have removed all records up to an end below the high watermark.
                        is_empty = empty >= _EMPTY_ANSWERS and reader.high_watermarks.get(tp, -1) >= end
                        if at >= end or is_empty:
                            del reader.positions[tp]
                    if not has_moved and reader.positions and time.monotonic() - moved_s > _POLL_TIMEOUT_S:
                        message = f"cluster {self._cluster.name} returns no records of {', '.join(map(str, before))}"
                        raise TimeoutFailure(message)
            finally:
                reader.close()


def _nearest(found: list[FoundBatch], known: int) -> list[FoundBatch]:
    """The same batches, whose numbers are known modulo 2^31 only, with the last one nearest to ``known`` records."""
    if not found:
        return found
    end = found[-1].at + found[-1].records
    shift = max(0, count_after(end - 1, known) - end)
    return [batch._replace(at=batch.at + shift) for batch in found]


def _last_known(question: ProgressQuestion) -> ProgressQuestion | None:
    """The question about the session that wrote the last known record: this one, or one that ended before it; None: not known."""
    if question.own_end is not None:
        return question._replace(behind=question.own_end) if question.records and question.own_end > 0 else None
    if question.records:
        return question if question.behind >= 0 else None
    known = (ended for ended in question.ended if ended.mark.records and 0 < ended.mark.target <= question.floor)
    newest = max(known, key=lambda ended: ended.mark.target, default=None)
    if newest is None:
        return None
    mark = newest.mark
    return question._replace(
        producer=newest.producer, records=mark.records, behind=mark.target, floor=newest.start.target, ended=()
    )


def _remembered(question: ProgressQuestion, described: dict[int, ProducerState] | KafkaFailure) -> int | None:
    """How many records of a session the leader's state of its producer shows; None: it has none."""
    state = None if isinstance(described, KafkaFailure) else described.get(question.producer.producer_id)
    if state is None or state.producer_epoch != question.producer.producer_epoch:
        return None
    return count_after(state.last_sequence, question.records)


def _last_offset(batch: Batch) -> int:
    header = batch.view.header
    return batch.view.base_offset if header is None else header.last_offset


def _mark_in(topic: str, entry: LedgerEntry) -> Mark:
    """The mark of an entry; its target offset is unknown if it is one of another remote topic."""
    return entry.mark if entry.remote_topic == topic else entry.mark._replace(target=-1)


def _has_written(producer_id: int, batch: Batch, offset: int = -1) -> bool:
    """Whether this producer has written a batch, which has this offset (-1: any)."""
    header = batch.view.header
    return header is not None and header.producer_id == producer_id and offset <= header.last_offset


def _is_own(header: BatchHeader | None, question: ProgressQuestion, offset: int) -> bool:
    """Whether a batch has, at this offset, the record of a session that was acknowledged there, if its records are without a
    gap from there to the last known one.
    """
    if header is None or header.is_control or not header.base_offset <= offset <= header.last_offset:
        return False
    wanted = question.records - (question.behind - offset)
    number = count_after(header.base_sequence + offset - header.base_offset, wanted + 1) - 1
    is_expected = number == wanted or question.own_end is not None
    return ProducerIdentity(header.producer_id, header.producer_epoch) == question.producer and is_expected


def _leader_epoch(metadata: Metadata, tp: TopicPartition) -> int:
    topic = metadata.topics.get(tp.topic)
    partition = None if topic is None else topic.partitions.get(tp.partition)
    return -1 if partition is None else partition.leader_epoch


def fingerprint(record: Record, *, with_time: bool = True) -> int:
    """Hash of the content that copies of a record share; comparable within this process only."""
    return _print(record.timestamp if with_time else -1, _content(record))


def _content(record: Record) -> int:
    return hash((record.key, record.value, record.headers))


def _print(timestamp: int | None, content: int) -> int:
    return hash((timestamp, content))
