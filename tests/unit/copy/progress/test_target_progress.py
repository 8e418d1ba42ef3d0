"""Progress of a producer on the target, from the producer state, the end offset and the tail of the log. Responses are simulated."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import FetchResponse

from mm2.copy.progress.session import SEQUENCES, EndedSession, Mark
from mm2.copy.progress.target_progress import (
    FoundBatch,
    InconsistentTarget,
    Prints,
    ProgressQuestion,
    ReappearedSession,
    TargetLookUp,
    TargetProgress,
    WrittenRange,
    fingerprint,
)
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure
from mm2.kafka.readers.reader import Batch
from mm2.kafka.records.batch import LOG_APPEND_TIME
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import (
    EARLIEST,
    Metadata,
    OffsetInfo,
    PartitionInfo,
    ProducerIdentity,
    ProducerState,
    TopicInfo,
    TopicPartition,
)
from tests.unit.copy.batches import batch, marker, record, view_of

T, U = TopicPartition("A.t", 0), TopicPartition("A.u", 0)
OURS = ProducerIdentity(7, 2)
SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")


class Target:
    """What a target answers, in place of requests to it."""

    def __init__(self) -> None:
        self.producers: dict[TopicPartition, Any] = {T: {}, U: {}}
        self.ends: dict[TopicPartition, Any] = {T: OffsetInfo(0, -1, 3), U: OffsetInfo(0, -1, 3)}
        self.watermarks: list[int] = []  # answers before the log end
        self.log_start = 0
        self.policy = "delete"
        self.tails: list[tuple[TopicPartition, bytearray]] = []
        self.read: list[dict[TopicPartition, tuple[int, int]]] = []
        self.failure: Exception | None = None
        self.look_up = TargetLookUp(Cluster(SETTINGS, name="B"))
        look_up: Any = self.look_up
        self.topic_id = ""
        settings = SimpleNamespace(decompression_max_bytes=1 << 20)
        look_up._cluster = SimpleNamespace(
            name="B",
            settings=settings,
            metadata=lambda _topics: self._metadata(),
            leader=lambda _topic, _partition: 1,
            metadata_of=lambda _leader, _topics: self._metadata(),
        )
        look_up._admin = SimpleNamespace(
            describe_producers=lambda partitions, **_: {tp: self.producers[tp] for tp in partitions},
            list_offsets=self._list_offsets,
            describe_configs=lambda topics: {
                topic: {"cleanup.policy": SimpleNamespace(value=self.policy)} for topic in topics
            },
        )
        look_up._batches = self._batches

    def _metadata(self) -> Metadata:
        partitions = {0: PartitionInfo(1, 3, (), ())}
        return Metadata("id", 1, {}, {tp.topic: TopicInfo(tp.topic, self.topic_id, False, partitions) for tp in (T, U)})

    def _list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, log_end: bool = False, **_: Any
    ) -> dict[TopicPartition, Any]:
        if set(wanted.values()) == {EARLIEST}:
            return dict.fromkeys(wanted, OffsetInfo(self.log_start, -1, -1))
        if not log_end and self.watermarks:
            return dict.fromkeys(wanted, OffsetInfo(self.watermarks.pop(0), -1, 3))
        return {tp: self.ends[tp] for tp in wanted}

    def _batches(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, with_control: bool = False
    ) -> Iterator[tuple[TopicPartition, Batch]]:
        if ranges:
            self.read.append(dict(ranges))
        if self.failure is not None:
            raise self.failure
        for tp, data in self.tails:
            header = view_of(data).header
            assert header is not None
            first, end = ranges.get(tp, (0, 0))
            if header.base_offset < end and header.last_offset >= first and (with_control or not header.is_control):
                yield tp, Batch(tp, view_of(data))

    def remembers(self, tp: TopicPartition, last_sequence: int, identity: ProducerIdentity = OURS) -> None:
        producer, epoch = identity.producer_id, identity.producer_epoch
        self.producers[tp] = {producer: ProducerState(producer, epoch, last_sequence, 0, -1, -1)}

    def ends_at(self, end: int) -> None:
        self.ends[T] = OffsetInfo(end, -1, 3)

    def ask(self, known: int, behind: int, floor: int = -1, leader_epoch: int = -1) -> Any:
        return self.look_up.progress({T: ProgressQuestion(OURS, known, behind, floor, leader_epoch)})[T]


def test_the_leader_remembers_the_producer_and_the_offsets_agree() -> None:
    target = Target()
    target.remembers(T, 109)
    target.ends_at(260)
    found = target.ask(100, 250)
    assert found == TargetProgress(110, 260, 3, (FoundBatch(100, 250, 10),))
    assert (found.offset_of(104, 6), found.offset_of(104, 7), found.target_end) == (254, -1, 260)
    assert target.read == []


def test_the_leader_s_last_sequence_is_located_in_the_log_after_foreign_records() -> None:
    target = Target()
    target.remembers(T, 104)
    target.ends_at(258)
    target.tails = [
        (T, batch(250, 3, producer=(7, 2, 100))),
        (T, batch(253, 3, producer=(9, 0, 0))),
        (T, batch(256, 2, producer=(7, 2, 103))),
    ]
    found = target.ask(100, 250)
    assert found == TargetProgress(105, 258, 3, (FoundBatch(100, 250, 3), FoundBatch(103, 256, 2)))
    assert (found.offset_of(103, 2), found.offset_of(101, 3)) == (256, -1)


def test_the_response_of_another_leader_is_discarded() -> None:
    target = Target()
    target.remembers(T, 109)
    target.ends[T] = OffsetInfo(260, -1, 4)
    target.tails = [(T, batch(250, 3, producer=(7, 2, 100))), (T, batch(253, 7, producer=(9, 0, 0)))]
    assert target.ask(100, 250).records == 103


def test_sequences_wrap() -> None:
    target = Target()
    target.remembers(T, 4)
    assert target.ask(SEQUENCES - 3, -1).records == SEQUENCES + 5


def test_another_epoch_is_another_producer() -> None:
    target = Target()
    target.remembers(T, 109, ProducerIdentity(7, 3))
    target.ends_at(250)
    assert target.ask(100, 250) == TargetProgress(100, 250, 3)


def test_a_log_that_ends_before_what_was_acknowledged_was_cut_off() -> None:
    target = Target()
    target.ends_at(240)
    assert target.ask(100, 250) == TargetProgress(90, 240, 3)
    target.ends_at(0)
    assert target.ask(100, 250) == TargetProgress(0, 0, 3)
    target.ends_at(95)
    assert target.ask(4, -1, 100) == TargetProgress(0, 95, 3), "before the session"


def test_a_producer_forgotten_by_the_leader_is_searched_in_the_log() -> None:
    target = Target()
    target.ends_at(259)
    target.tails = [
        (T, batch(250, 3, producer=(7, 2, 100))),
        (T, batch(253, 2, producer=(9, 0, 0))),
        (T, batch(255, 4, producer=(7, 2, 103))),
    ]
    assert target.ask(100, 250) == TargetProgress(107, 259, 3, (FoundBatch(100, 250, 3), FoundBatch(103, 255, 4)))
    assert target.read == [{T: (249, 250)}, {T: (250, 259)}]


def test_a_batch_that_is_known_in_part_counts_from_there() -> None:
    target = Target()
    target.ends_at(254)
    target.tails = [(T, batch(248, 6, producer=(7, 2, 98)))]
    assert target.ask(100, 250) == TargetProgress(104, 254, 3, (FoundBatch(100, 250, 4),))


def test_where_the_last_target_offset_is_not_known_the_session_is_read_from_its_start() -> None:
    target = Target()
    target.ends_at(103)
    target.tails = [(T, batch(100, 2, producer=(7, 2, 0))), (T, batch(102, 1, producer=(7, 2, 2)))]
    assert target.ask(1, -1, 100).records == 3
    assert target.read == [{T: (100, 103)}]


def test_records_of_others_at_the_end_do_not_count() -> None:
    target = Target()
    target.ends_at(252)
    target.tails = [(T, batch(250, 2, producer=(9, 0, 0)))]
    assert target.ask(100, 250) == TargetProgress(100, 252, 3)


@pytest.mark.parametrize(("behind", "end"), [(-1, 999), (250, 250)])
def test_without_a_tail_of_a_remembered_producer_nothing_is_read(behind: int, end: int) -> None:
    target = Target()
    target.remembers(T, 99)
    target.ends_at(end)
    assert target.ask(100, behind) == TargetProgress(100, end, 3)
    assert target.read == []


def test_the_high_watermark_is_awaited() -> None:
    target = Target()
    target.remembers(T, 109)
    target.ends_at(260)
    target.watermarks = [250, 259]
    assert target.ask(100, 250).records == 110
    assert target.watermarks == []


def test_a_high_watermark_that_stays_behind_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.progress.target_progress._STABLE_TIMEOUT_S", 0.05)
    target = Target()
    target.remembers(T, 109)
    target.ends_at(260)
    target.watermarks = [250] * 1000
    found = target.ask(100, 250)
    assert isinstance(found, BrokerFailure)
    assert found.retriable
    assert "the high watermark 250 has not reached the log end 260" in str(found)


def test_an_answer_in_an_older_leader_epoch_is_discarded() -> None:
    target = Target()
    target.ends_at(250)
    found = target.ask(100, 250, leader_epoch=4)
    assert isinstance(found, BrokerFailure)
    assert found.retriable
    assert target.ask(100, 250, leader_epoch=3) == TargetProgress(100, 250, 3)


@pytest.mark.parametrize(("second", "found_at"), [((7, 2, 100), 100), ((7, 2, 105), 105)], ids=["doubled", "missing"])
def test_batches_that_do_not_continue_the_count_are_no_progress(second: tuple[int, int, int], found_at: int) -> None:
    target = Target()
    target.ends_at(256)
    target.tails = [(T, batch(250, 3, producer=(7, 2, 100))), (T, batch(253, 3, producer=second))]
    found = target.ask(100, 250)
    assert isinstance(found, InconsistentTarget)
    assert f"begins with record {found_at}, but record 103 was expected" in str(found)


def test_a_target_that_deletes_or_compacts_may_have_gaps() -> None:
    target = Target()
    target.ends_at(256)
    target.tails = [(T, batch(253, 3, producer=(7, 2, 103)))]
    assert isinstance(target.ask(100, 250), InconsistentTarget)
    target.policy = "compact,delete"
    assert target.ask(100, 250).records == 106
    target.policy, target.log_start = "delete", 253
    assert target.ask(100, 250).records == 106


@pytest.mark.parametrize("known", [1_000_000, (1 << 30) + 5000, 3_000_000_000])
def test_records_left_by_retention_are_counted_from_what_is_known(known: int) -> None:
    """The target offset after the known records is unknown, so the log is read from its start."""
    target = Target()
    target.log_start = known - 1000
    target.ends_at(known + 500)
    for first in (known - 1000, known - 500, known):
        target.tails.append((T, batch(first, 500, producer=(7, 2, first % SEQUENCES))))
    found = target.ask(known, -1, 0)
    assert (found.records, found.target_end) == (known + 500, known + 500)
    assert found.batches[0] == FoundBatch(known - 1000, known - 1000, 500)


def _long_batch(first: int, count: int) -> bytearray:
    """A batch whose header names so many records. Its records are not read."""
    data = batch(first, 1, producer=(7, 2, first % SEQUENCES))
    struct.pack_into(">i", data, 23, count - 1)
    return data


def test_of_a_long_session_more_than_the_sequences_may_be_left() -> None:
    known = 2 * SEQUENCES
    target = Target()
    target.log_start = 100
    target.ends_at(known + 2)
    step = SEQUENCES // 4
    for first in range(100, known, step):
        target.tails.append((T, _long_batch(first, min(step, known + 2 - first))))
    assert target.ask(known, -1, 0).records == known + 2


def test_records_are_not_counted_below_zero() -> None:
    target = Target()
    target.log_start = 60
    target.ends_at(1_500_000_010)
    target.tails = [(T, batch(1_500_000_000, 10, producer=(7, 2, 1_500_000_000)))]
    assert target.ask(0, -1, 0).records == 1_500_000_010


def test_more_records_than_offsets_are_a_contradiction() -> None:
    target = Target()
    target.ends_at(250)
    assert target.ask(100, 250, 150).records == 100
    found = target.ask(101, 250, 150)
    assert isinstance(found, InconsistentTarget)
    assert "100 offsets from 150 to 250, but 101 records" in str(found)


# -- other records where acknowledged ones were ----------------------------------------------------------------------------


def refilled(end: int, *, kept: int = 190, first: int = 150) -> Target:
    """The session began at 150 and had 100 records; the log was put back to ``kept``, and another program has written up to the end."""
    target = Target()
    target.ends_at(end)
    own = [(T, batch(offset, 8, producer=(7, 2, offset - first))) for offset in range(first, kept, 8)]
    target.tails = [*own, *((T, batch(offset, 1, producer=(9, 0, offset))) for offset in range(kept, end))]
    return target


@pytest.mark.parametrize("end", [220, 250, 280], ids=["fewer", "as many", "more"])
@pytest.mark.parametrize("remembered", [None, 39])
def test_records_of_others_where_acknowledged_ones_were_do_not_count(end: int, remembered: int | None) -> None:
    """Whether the log is shorter than it was, as long, or longer; and whether its leader remembers the producer or not."""
    target = refilled(end)
    if remembered is not None:
        target.remembers(T, remembered)
    found = target.ask(100, 250, 150)
    assert found == TargetProgress(40, end, 3, replaced_from=190)
    assert found.own_end == 190


def test_a_marker_of_another_producer_is_not_a_record_of_the_session() -> None:
    target = refilled(249)
    target.ends_at(250)
    target.tails.append((T, marker(249, 0)))
    assert target.ask(100, 250, 150) == TargetProgress(40, 250, 3, replaced_from=190)


def test_in_a_merge_the_position_is_behind_the_records_of_other_sessions() -> None:
    """The record before the position is not the session's, and its own last one may be lost nevertheless."""
    target = refilled(250)

    def ask(own_end: int, end: int = 250) -> object:
        target.ends_at(end)
        return target.look_up.progress({T: ProgressQuestion(OURS, 40, 250, 150, own_end=own_end)})[T]

    assert ask(190) == TargetProgress(40, 250, 3)
    assert ask(-1) == TargetProgress(40, 250, 3), "not known"
    assert ask(190, 220) == TargetProgress(10, 220, 3), "at most so many are lost"
    assert ask(200, 195) == TargetProgress(0, 195, 3)
    assert ask(200) == TargetProgress(30, 250, 3, replaced_from=190), "others have filled what was lost"


@pytest.mark.parametrize("case", ["nothing is left", "another count", "a later batch", "offsets are preserved"])
def test_a_contradiction_that_does_not_show_what_is_left_is_reported_with_both_numbers(case: str) -> None:
    target = refilled(250, kept=150 if case == "nothing is left" else 190)
    if case in {"another count", "offsets are preserved"}:
        target.remembers(T, 30)
    if case == "a later batch":
        target.tails[-1] = (T, batch(249, 1, producer=(7, 2, 120)))
    is_preserved = case == "offsets are preserved"
    question = ProgressQuestion(OURS, 100, 250, 150, is_preserved=is_preserved)
    found = target.look_up.progress({T: question})[T]
    assert isinstance(found, InconsistentTarget)
    left = 0 if is_preserved or case == "nothing is left" else 40
    assert f"where 100 records of the copy session were acknowledged up to offset 250; {left} of them" in str(found)


def test_a_last_record_that_cannot_be_read_any_more_is_no_contradiction() -> None:
    """Retention or compaction has removed it, or READ is not granted."""
    target = refilled(250)
    target.log_start = 250
    assert target.ask(100, 250, 150) == TargetProgress(100, 250, 3)
    target.log_start, target.tails = 0, []
    assert target.ask(100, 250, 150) == TargetProgress(100, 250, 3)
    target.failure = BrokerFailure.of(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert target.ask(100, 250, 150) == TargetProgress(100, 250, 3)


def test_a_leader_that_remembers_fewer_records_contradicts_a_log_that_has_none_of_them() -> None:
    target = Target()
    target.log_start = 250
    target.ends_at(250)
    target.remembers(T, 39)
    found = target.ask(100, 250, 150)
    assert isinstance(found, InconsistentTarget)
    assert "has a last sequence after 40 records" in str(found)


def test_a_topic_that_was_created_again_is_no_truncated_one() -> None:
    target = Target()
    target.ends_at(0)
    question = ProgressQuestion(OURS, 100, 250, topic_id="old")
    assert target.look_up.progress({T: question})[T] == TargetProgress(0, 0, 3), "brokers before 2.8 have no topic ids"
    target.topic_id = "new"
    found = target.look_up.progress({T: question})[T]
    assert isinstance(found, BrokerFailure)
    assert (found.retriable, found.stale_metadata) == (True, True)


def test_without_describe_producers_the_log_is_read() -> None:
    target = Target()
    target.producers[T] = BrokerFailure.of(35)
    target.ends_at(252)
    target.tails = [(T, batch(250, 2, producer=(7, 2, 100)))]
    assert target.ask(100, 250).records == 102


def test_a_partition_that_cannot_be_asked_does_not_disturb_another() -> None:
    target = Target()
    target.remembers(U, 4)
    target.ends[U] = OffsetInfo(5, -1, 3)
    failure = BrokerFailure.of(29)
    target.ends[T] = failure
    found = target.look_up.progress({T: ProgressQuestion(OURS, 1, 1), U: ProgressQuestion(OURS, 0, 0)})
    assert (found[T], found[U]) == (failure, TargetProgress(5, 5, 3, (FoundBatch(0, 0, 5),)))


def test_a_log_that_cannot_be_read_is_a_failure_of_its_partition() -> None:
    target = Target()
    target.ends = {T: OffsetInfo(252, -1, 3), U: OffsetInfo(10, -1, 3)}
    target.failure = DisconnectedFailure("gone")
    target.remembers(U, 2)
    found = target.look_up.progress({T: ProgressQuestion(OURS, 100, 250), U: ProgressQuestion(OURS, 3, 10)})
    assert found == {T: target.failure, U: TargetProgress(3, 10, 3)}


def fetch_answer(records: bytes | bytearray, *, throttle_ms: int = 0) -> memoryview:
    """Of version 12; without ``records`` as of a quota that is exceeded (`IncrementalFetchContext.getThrottledResponse`)."""
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=256,
        last_stable_offset=256,
        log_start_offset=0,
        aborted_transactions=[],
        preferred_read_replica=-1,
        records=records,
    )
    responses = [topic(topic="A.t", partitions=[part])] if records else []
    response = FetchResponse(throttle_time_ms=throttle_ms, error_code=0, session_id=5, responses=responses)
    return memoryview(bytes(5) + bytes(response.encode(version=12)))


def answering(target: Target, *answers: memoryview) -> None:
    """What its leader answers to Fetch requests."""
    look_up: Any = target.look_up
    del look_up._batches
    waiting = [*answers]
    look_up._cluster.leader = lambda _topic, _partition: 1
    look_up._cluster.open_connection = lambda _node: SimpleNamespace(
        maybe_reauthenticate=lambda **_: None,
        version_of=lambda _request, most: most,
        next_correlation_id=lambda: 0,
        client_id="c",
        send_buffers=lambda _buffers: None,
        receive_frame=lambda _buffer, **_: waiting.pop(0),
        close=lambda: None,
    )


def test_responses_emptied_by_a_quota_are_not_the_end_of_the_log() -> None:
    target = Target()
    answering(
        target,
        fetch_answer(batch(250, 3, producer=(7, 2, 100))),
        *(fetch_answer(b"", throttle_ms=50) for _ in range(4)),
        fetch_answer(batch(253, 3, producer=(7, 2, 103))),
    )
    target.remembers(T, 99)
    target.ends_at(256)
    assert target.ask(100, 250).records == 106


@pytest.mark.parametrize(("producer", "foreign"), [((7, 2, 2), -1), ((9, 0, 0), 253)])
def test_what_was_written_are_runs_of_markers_and_the_first_record_of_another_producer(
    producer: tuple[int, int, int], foreign: int
) -> None:
    target = Target()
    ours = batch(247, 2, producer=(7, 2, 0)), marker(249, 0), marker(250, 0), batch(251, 1, producer=(7, 2, 2))
    answering(target, fetch_answer(b"".join([*ours, marker(252, 0), batch(253, 3, producer=producer)])))
    written = target.look_up.written(T, 247, 256, {OURS})
    assert written == WrittenRange(foreign, ((249, 251), (252, 253)))


def test_fingerprints_are_of_our_records_in_that_range() -> None:
    target = Target()
    target.tails = [(T, batch(8, 4, producer=(7, 2, 0))), (T, batch(12, 1, producer=(9, 0, 0)))]
    found = target.look_up.fingerprints(T, 9, 11, OURS, 9)
    assert found == Prints([fingerprint(record(9)), fingerprint(record(10))])


def test_a_target_that_stamps_records_itself_is_compared_without_timestamps() -> None:
    """LogAppendTime replaces the timestamps of records."""
    target = Target()
    stamped = batch(8, 2, producer=(7, 2, 0), attributes=LOG_APPEND_TIME)
    target.tails = [(T, batch(6, 2, producer=(7, 2, 0))), (T, stamped)]
    found = target.look_up.fingerprints(T, 7, 10, OURS, 9)
    assert found == Prints([fingerprint(record(offset), with_time=False) for offset in (7, 8, 9)], with_time=False)
    assert found.values[0] == fingerprint(record(7)._replace(timestamp=5), with_time=False)


def test_a_fingerprint_is_of_what_a_copy_keeps() -> None:
    base = Record(b"k", b"v", (("h", b"1"),), 5, 10)
    same = Record(b"k", b"v", (("h", b"1"),), 5, 99)
    others = [
        Record(b"K", b"v", (("h", b"1"),), 5),
        Record(b"k", None, (("h", b"1"),), 5),
        Record(b"k", b"v", (), 5),
        Record(b"k", b"v", (("h", b"1"),), 6),
    ]
    assert fingerprint(base) == fingerprint(same)
    assert fingerprint(base) not in {fingerprint(other) for other in others}


# -- sessions that ended before --------------------------------------------------------------------------------------------

BEFORE = ProducerIdentity(5, 0)
ENDED = EndedSession(BEFORE, Mark(0, 100, 0), "isolation=read_committed", Mark(50, 250, 150))


def ask_ended(target: Target, *ended: EndedSession, start: int = 250) -> Any:
    question = ProgressQuestion(OURS, 0, start, start, ended=ended)
    return target.look_up.progress({T: question})[T]


def test_records_that_a_former_leader_has_brought_back_are_found() -> None:
    target = Target()
    target.ends_at(253)
    target.tails = [(T, batch(250, 3, producer=(5, 0, 150)))]
    progress = TargetProgress(153, 253, 3, (FoundBatch(150, 250, 3),))
    assert ask_ended(target, ENDED) == TargetProgress(0, 253, 3, reappeared=ReappearedSession(ENDED, progress))
    other = ENDED._replace(producer=ProducerIdentity(4, 0), mark=Mark(50, 250, 10))
    assert ask_ended(target, other, ENDED).reappeared == ReappearedSession(ENDED, progress)


def test_without_such_records_the_session_before_has_ended() -> None:
    target = Target()
    target.ends_at(253)
    target.tails = [(T, batch(250, 3, producer=(99, 0, 0)))]
    assert ask_ended(target, ENDED) == TargetProgress(0, 253, 3)
    target.log_start, target.tails = 252, []  # what was there is deleted
    assert ask_ended(target, ENDED, start=253) == TargetProgress(0, 253, 3)


@pytest.mark.parametrize("target_offset", [200, -1])
def test_a_session_before_is_read_from_the_start_of_the_next_one(target_offset: int) -> None:
    """It was counted up to there, possibly over terabytes."""
    target = Target()
    target.ends_at(253)
    target.tails = [(T, batch(250, 3, producer=(5, 0, 150)))]
    before = ENDED._replace(mark=Mark(50, target_offset, 150))
    progress = TargetProgress(153, 253, 3, (FoundBatch(150, 250, 3),))
    assert ask_ended(target, before) == TargetProgress(0, 253, 3, reappeared=ReappearedSession(before, progress))
    assert [asked for asked in target.read if asked[T][0] >= 250] == [{T: (250, 253)}] * 2


def test_records_of_two_sessions_at_once_contradict_each_other() -> None:
    target = Target()
    target.ends_at(255)
    target.tails = [(T, batch(250, 3, producer=(5, 0, 150))), (T, batch(253, 2, producer=(7, 2, 0)))]
    found = ask_ended(target, ENDED)
    assert isinstance(found, InconsistentTarget)
    assert "has 3 records of a copy session that ended before they appeared" in str(found)


def test_own_records_are_counted_by_producer() -> None:
    target = Target()
    target.tails = [
        (T, batch(250, 3, producer=(5, 0, 150))),
        (T, batch(253, 2, producer=(7, 1, 0))),  # an earlier epoch: that of a session before (rule S9)
        (T, batch(255, 4, producer=(9, 0, 0))),
    ]
    assert target.look_up.count_own(T, 250, 259, {OURS.producer_id}) == 2
    assert target.look_up.count_own(T, 250, 259, {OURS.producer_id, BEFORE.producer_id}) == 5


def test_own_records_that_retention_has_removed_do_not_count() -> None:
    """The start of the range was removed after the search began."""
    target = Target()
    batches = target._batches

    def from_start(ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[tuple[TopicPartition, Batch]]:
        if ranges[T][0] < target.log_start:
            raise BrokerFailure.of(ErrorCode.OFFSET_OUT_OF_RANGE)
        yield from batches(ranges)

    look_up: Any = target.look_up
    look_up._batches = from_start
    target.tails = [(T, batch(252, 3, producer=(7, 2, 102))), (T, batch(255, 1, producer=(9, 0, 0)))]
    target.log_start = 253
    assert target.look_up.count_own(T, 250, 259, {OURS.producer_id}) == 2
    target.log_start = 259
    assert target.look_up.count_own(T, 250, 259, {OURS.producer_id}) == 0
    target.failure, target.log_start = BrokerFailure.of(ErrorCode.OFFSET_OUT_OF_RANGE), 0
    with pytest.raises(BrokerFailure):
        target.look_up.count_own(T, 250, 259, {OURS.producer_id})


@pytest.mark.parametrize("end", [250, 280])
def test_records_of_others_in_place_of_those_of_the_session_before_are_found(end: int) -> None:
    target = refilled(end)
    before = EndedSession(OURS, Mark(0, 150, 0), "isolation=read_committed", Mark(50, 250, 100))
    question = ProgressQuestion(BEFORE, 0, 250, 250, ended=(before,))
    assert target.look_up.progress({T: question})[T] == TargetProgress(0, end, 3, replaced_from=190)
