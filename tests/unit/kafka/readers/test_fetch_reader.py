"""The fetch reader, and the readers that use it, on a scripted cluster."""

from __future__ import annotations

import socket
import struct
import threading
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.fetching import Fetcher
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, RefusedFailure, TimeoutFailure
from mm2.kafka.readers.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.readers.log import KafkaBasedLog
from mm2.kafka.readers.reader import read_partition
from mm2.kafka.records.batch import CONTROL, TRANSACTIONAL
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import TopicInfo, TopicPartition
from mm2.kafka.wire.fetch import Fetched
from mm2.observer.polling.timestamps import BatchTimestampReader
from mm2.verify.pace import RateLimit
from mm2.verify.reading import RangeReader
from tests.unit.kafka.fetch_cluster import FetchCluster, codes, legacy_message

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
LIMITS = FetchReaderLimits(max_wait_ms=10, max_bytes=1 << 20, partition_bytes=1 << 20)
MARKER = Record(b"\0\0\0\0", b"\0\0\0\0\0\0", timestamp=1)


def batch(first: int, *values: bytes, producer: int = -1, attributes: int = 0) -> bytes:
    records = [Record(None, value, timestamp=1000 + first) for value in values]
    identity = (-1, -1, -1) if producer < 0 else (producer, 0, 0)
    return bytes(encode_batch(records, base_offset=first, producer=identity, attributes=attributes))


def abort_marker(first: int, producer: int) -> bytes:
    attributes = TRANSACTIONAL | CONTROL
    return bytes(encode_batch([MARKER], base_offset=first, producer=(producer, 0, 0), attributes=attributes))


def in_epoch(epoch: int, data: bytes) -> bytes:
    return data[:12] + struct.pack(">i", epoch) + data[16:]


def spoilt(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def cluster_of(leaders: dict[TopicPartition, int], **settings: str) -> tuple[FetchCluster, Cluster]:
    cluster = FetchCluster(leaders, **settings)
    return cluster, cast(Cluster, cluster)


def receive_all(reader: FetchReader) -> dict[TopicPartition, Fetched | KafkaFailure]:
    results: dict[TopicPartition, Fetched | KafkaFailure] = {}
    while reader.has_results:
        results.update(reader.receive(1))
    return results


# -- the reader


def test_each_leader_is_asked_once_for_its_partitions() -> None:
    cluster, client = cluster_of({T0: 1, T1: 2, U0: 1})
    for tp in (T0, T1, U0):
        cluster.batches[tp] = [batch(5, b"v")]
    reader = FetchReader(client)
    reader.send({T0: 5, T1: 5, U0: 6}, LIMITS)
    assert reader.in_flight == {T0, T1, U0}
    reader.send({T0: 5, T1: 5, U0: 6}, LIMITS)
    results = receive_all(reader)
    assert cluster.requests == [(1, {T0: 5, U0: 6}), (2, {T1: 5})]
    assert codes(results) == {T0: 0, T1: 0, U0: 0}
    assert not reader.in_flight
    assert cluster.opened == 2
    reader.close()
    assert cluster.in_use == []


def test_a_failure_belongs_to_its_partition() -> None:
    cluster, client = cluster_of({T0: 1, T1: 1})
    cluster.batches = {T0: [batch(0, b"v")], T1: [batch(0, b"v")]}
    cluster.errors[T1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    reader = FetchReader(client)
    reader.send({T0: 0, T1: 0}, LIMITS)
    results = reader.receive(1)
    assert codes(results) == {T0: 0, T1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert str(results[T1]).startswith("Reading t-1 of cluster B: NOT_LEADER_OR_FOLLOWER")
    assert cluster.invalidated == ["t"]
    reader.close()


def test_an_offset_out_of_range_does_not_refresh_the_metadata() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(7, b"v")]
    reader = FetchReader(client, backoff=Backoff(60_000, 60_000))
    reader.send({T0: 3}, LIMITS)
    assert codes(reader.receive(1)) == {T0: ErrorCode.OFFSET_OUT_OF_RANGE}
    assert cluster.invalidated == []
    reader.send({T0: 7}, LIMITS)
    assert codes(reader.receive(1)) == {T0: 0}
    reader.close()


def test_a_failed_partition_waits_for_its_back_off_while_others_are_read() -> None:
    cluster, client = cluster_of({T0: 1, T1: 2})
    cluster.batches[T1] = [batch(0, b"v")]
    cluster.refusing = {1}
    reader = FetchReader(client, backoff=Backoff(60_000, 60_000))
    reader.send({T0: 0, T1: 0}, LIMITS)
    assert codes(receive_all(reader)) == {T0: "RefusedFailure", T1: 0}
    cluster.refusing = set()
    reader.send({T0: 0, T1: 0}, LIMITS)
    assert cluster.requests == [(2, {T1: 0}), (2, {T1: 0})]
    receive_all(reader)
    assert set(reader._retries) == {T0}
    reader._retries[T0] = (1, time.monotonic() + 0.01)
    assert reader.receive(60) == {}, "ends with the back-off"
    reader.send({T0: 0}, LIMITS)
    assert codes(receive_all(reader)) == {T0: 0}
    reader.close()


def test_a_delay_that_ends_before_the_wait_ends_it() -> None:
    """Nothing was requested, because the delay ended after `send`: verification waited for a minute, and failed."""
    cluster, client = cluster_of({T0: 1})
    cluster.refusing = {1}
    reader = FetchReader(client, backoff=Backoff(60_000, 60_000))
    reader.send({T0: 0}, LIMITS)
    assert codes(reader.receive(600)) == {T0: "RefusedFailure"}
    reader.send({T0: 0}, LIMITS)
    reader._retries[T0] = (1, time.monotonic())
    time.sleep(0.001)
    assert reader.receive(600) == {}
    reader.close()


@pytest.mark.parametrize(("leaders", "code"), [({}, 3), ({T0: -1}, 5)])
def test_a_partition_without_a_leader_is_a_failure(leaders: dict[TopicPartition, int], code: int) -> None:
    cluster, client = cluster_of(leaders)
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    assert codes(reader.receive(1)) == {T0: code}
    assert cluster.invalidated == ["t"]


def test_the_error_of_a_topic_in_the_metadata_is_reported() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.topic_errors["t"] = BrokerFailure.of(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    assert reader.receive(1) == {T0: cluster.topic_errors["t"]}


def test_failed_metadata_fail_all_partitions() -> None:
    cluster, client = cluster_of({T0: 1, U0: 1})
    failure = RefusedFailure("no broker")

    def metadata(*_: object, **__: object) -> None:
        raise failure

    cluster.metadata = metadata  # type: ignore[method-assign, assignment]
    reader = FetchReader(client)
    reader.send({T0: 0, U0: 0}, LIMITS)
    assert reader.receive(1) == {T0: failure, U0: failure}


def test_a_lost_connection_fails_its_partitions_and_is_opened_again() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"v")]
    cluster.hanging_up = {1}
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    assert codes(reader.receive(1)) == {T0: "DisconnectedFailure"}
    assert cluster.in_use == []
    cluster.hanging_up = set()
    reader.send({T0: 0}, LIMITS)
    assert codes(reader.receive(1)) == {T0: 0}
    assert cluster.opened == 2
    reader.close()


def test_a_leader_that_does_not_answer_is_disconnected() -> None:
    cluster, client = cluster_of({T0: 1, T1: 2})
    cluster.batches[T1] = [batch(0, b"v")]
    cluster.unresponsive = {1}
    reader = FetchReader(client, timeout_s=0.05)
    reader.send({T0: 0, T1: 0}, LIMITS)
    results = receive_all(reader)
    assert codes(results) == {T0: "TimeoutFailure", T1: 0}
    assert str(results[T0]) == "The broker 1 did not answer a Fetch request in time."
    reader.close()


def test_a_changed_leader_is_found() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"v")]
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    receive_all(reader)
    cluster.leaders[T0] = 2
    reader.send({T0: 1}, LIMITS)
    receive_all(reader)
    assert cluster.requests == [(1, {T0: 0}), (2, {T0: 1})]
    reader.close()


def test_a_wake_up_ends_the_wait() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.unresponsive = {1}
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"\0")
        assert reader.receive(60, wake=ours) == {}
    assert reader.in_flight == {T0}
    reader.close()


def test_abort_ends_a_wait_of_another_thread_and_later_requests() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.unresponsive = {1}
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    timer = threading.Timer(0.05, reader.abort)
    timer.start()
    assert codes(reader.receive(60)) == {T0: "DisconnectedFailure"}
    timer.join()
    reader.send({T0: 0}, LIMITS)
    assert codes(reader.receive(60)) == {T0: "DisconnectedFailure"}


def test_isolation_and_limits_are_sent() -> None:
    cluster, client = cluster_of({T0: 1})
    reader = FetchReader(client)
    reader.send({T0: 0}, FetchReaderLimits(7, 1000, 100, 3, read_committed=True), last_epochs={T0: 4})
    (call,) = cluster.calls
    assert (call.max_wait_ms, call.max_bytes, call.min_bytes, call.read_committed) == (7, 1000, 3, True)
    assert (call.reads[0].max_bytes, call.reads[0].fetched_epoch) == (100, 4)
    receive_all(reader)
    reader.close()


def test_the_callers_buffer_holds_the_response() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"x" * 100)]
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    buffer = bytearray(8)
    (result,) = reader.receive(1, buffer=buffer).values()
    assert isinstance(result, Fetched)
    assert result.records.obj is buffer
    assert reader.bytes_received > 100
    reader.close()


# -- one partition


def test_a_partition_is_read_from_a_start_to_an_end() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [
        batch(0, b"0", b"1", b"2"),
        legacy_message(3, b"3"),
        batch(4, b"aborted", producer=7, attributes=TRANSACTIONAL),
        abort_marker(5, 7),
        batch(6, b"6", b"7"),
    ]
    cluster.aborted[T0] = [(7, 4)]
    topic = TopicInfo("t", "", False, cluster.metadata(["t"]).topics["t"].partitions)
    values = [record.value for record in read_partition(client, topic, 0, start=1, end=7, read_committed=True)]
    assert values == [b"1", b"2", b"3", b"6"]
    assert cluster.in_use[0].closed


# -- KafkaBasedLog


class ScriptedLog:
    """A log whose poll loop is run by the test."""

    def __init__(self, cluster: Cluster, *partitions: TopicPartition, read_committed: bool = False) -> None:
        self.seen: list[tuple[int, int]] = []
        log = KafkaBasedLog(
            cluster,
            "t",
            on_record=lambda record: self.seen.append((record.partition, record.offset)),
            read_committed=read_committed,
        )
        self.log = cast(Any, log)
        self.log._positions = dict.fromkeys(partitions, 0)
        self.log._offsets = lambda _when, _isolation="": dict.fromkeys(partitions, 4)


def test_a_round_of_a_log_reads_all_leaders() -> None:
    cluster, client = cluster_of({T0: 1, T1: 2})
    cluster.batches = {T0: [batch(0, b"a")], T1: [batch(0, b"b", b"c")]}
    scripted = ScriptedLog(client, T0, T1)
    scripted.log._poll()
    assert sorted(scripted.seen) == [(0, 0), (1, 0), (1, 1)]
    assert scripted.log.positions == {0: 1, 1: 2}
    assert {call.max_wait_ms for call in cluster.calls} == {0}, "the first round does not wait for records"
    cluster.calls.clear()
    scripted.log._end_round(None)
    scripted.log._poll()
    assert {call.max_wait_ms for call in cluster.calls} == {250}
    scripted.log._reader.close()


def test_a_log_that_was_truncated_is_read_from_its_start() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(4, b"a")]
    scripted = ScriptedLog(client, T0)
    scripted.log._poll()
    assert (scripted.seen, scripted.log.positions) == ([], {0: 4})
    scripted.log._poll()
    assert (scripted.seen, scripted.log.positions) == ([(0, 4)], {0: 5})
    scripted.log._reader.close()


def test_a_log_that_was_truncated_and_has_grown_again_is_read_from_its_start() -> None:
    """The position is within the log, so only the leader epoch of the last batch shows that records were replaced."""
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a"), in_epoch(3, batch(1, b"b"))]
    scripted = ScriptedLog(client, T0)
    scripted.log._offsets = lambda _when, _isolation="": {T0: 0}
    for _ in range(2):
        scripted.log._poll()
    cluster.batches[T0] = [batch(0, b"a"), in_epoch(4, batch(1, b"x", b"y"))]
    cluster.diverging[T0] = (0, 1)
    for _ in range(2):
        scripted.log._poll()
    assert scripted.seen == [(0, 0), (0, 1), (0, 0), (0, 1), (0, 2)]
    assert [read.fetched_epoch for call in cluster.calls for read in call.reads] == [-1, 3, 3, -1]
    scripted.log._reader.close()


def test_a_log_delivers_what_precedes_a_corrupt_batch() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a"), spoilt(batch(1, b"b"))]
    scripted = ScriptedLog(client, T0)
    with pytest.raises(CorruptBatch):
        scripted.log._poll()
    assert (scripted.seen, scripted.log.positions) == ([(0, 0)], {0: 1})
    scripted.log._reader.close()


def test_a_log_raises_the_failure_of_a_partition() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.errors[T0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    scripted = ScriptedLog(client, T0)
    with pytest.raises(BrokerFailure, match="NOT_LEADER_OR_FOLLOWER"):
        scripted.log._poll()
    scripted.log._reader.close()


def test_the_buffer_of_a_log_is_small_again_after_large_responses() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"x" * 100_000)]
    scripted = ScriptedLog(client, T0)
    scripted.log._poll()
    assert len(scripted.log._buffer) > 1 << 16
    scripted.log._poll()
    assert len(scripted.log._buffer) == 1 << 16
    scripted.log._reader.close()


# -- a range of a verification


def ranged(
    cluster: Cluster, first: int, after: int, *, patience_s: float = 60.0, committed: bool = False
) -> RangeReader:
    return RangeReader(
        cluster,
        BufferPool(),
        T0,
        first,
        after,
        read_committed=committed,
        pace=RateLimit(0),
        patience_s=patience_s,
        on_response=lambda: None,
    )


def offsets_of(reader: RangeReader) -> list[int]:
    found = []
    while (view := reader.read()) is not None:
        found.append(view.base_offset)
    reader.close()
    return found


def test_a_range_is_read_with_one_request_ahead() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a", b"b"), batch(2, b"c")]
    reader = ranged(client, 0, 4)
    assert reader.read() is not None
    assert [offsets[T0] for _, offsets in cluster.requests] == [0, 3]
    assert reader.bytes > 100
    assert (reader.log_start, reader.log_end) == (0, 3)
    assert offsets_of(reader) == [2], "two empty responses at the high watermark end the range"
    assert cluster.in_use == []


def test_the_log_ends_after_the_records_that_were_read() -> None:
    """A follower's high watermark may be older than the records of the same response."""
    _, client = cluster_of({T0: 1})
    reader = ranged(client, 0, 2)
    data = memoryview(batch(0, b"a", b"b"))
    reader._take(Fetched(T0, 0, high_watermark=1, last_stable_offset=1, log_start_offset=0, aborted=(), records=data))
    assert reader.log_end == 2
    assert offsets_of(reader) == [0]


def test_failures_are_retried_while_a_range_is_read() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a")]
    cluster.errors[T0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert offsets_of(ranged(client, 0, 1)) == [0]


def test_a_permanent_failure_ends_a_range_at_once() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.errors[T0] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(BrokerFailure, match="TOPIC_AUTHORIZATION_FAILED"):
        offsets_of(ranged(client, 0, 1))


def test_a_range_without_data_ends_with_the_patience() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.unresponsive = {1}
    with pytest.raises(TimeoutFailure):
        offsets_of(ranged(client, 0, 1, patience_s=0.01))


def test_a_corrupt_batch_is_read_twice_before_the_range_ends() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a"), spoilt(batch(1, b"b"))]
    reader = ranged(client, 0, 2)
    first = reader.read()
    assert first is not None
    assert first.base_offset == 0
    with pytest.raises(CorruptBatch):
        reader.read()
    assert [offsets[T0] for _, offsets in cluster.requests] == [0, 1]
    reader.close()


# -- the timestamp of a batch


def test_timestamps_are_read_without_a_session() -> None:
    cluster, client = cluster_of({T0: 1, T1: 1, U0: -1})
    cluster.batches = {T0: [batch(0, b"a", b"b"), batch(2, b"c")], T1: []}
    cluster.errors[T1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    reader = BatchTimestampReader(client, 1.0)
    found = reader.read([(T0, 1), (T1, 0), (U0, 0)])
    assert {tp: (stamp.first, stamp.last, stamp.timestamp_ms) for tp, stamp in found.items()} == {T0: (0, 1, 1000)}
    again = reader.read([(T0, 2)])
    assert again[T0].timestamp_ms == 1002
    assert cluster.opened == 1
    reader.close()


def test_timestamps_of_an_unreachable_leader_are_left_out() -> None:
    cluster, client = cluster_of({T0: 1, T1: 2})
    cluster.batches = {T0: [batch(0, b"a")], T1: [batch(0, b"b")]}
    cluster.refusing = {1}
    reader = BatchTimestampReader(client, 1.0)
    assert set(reader.read([(T0, 0), (T1, 0)])) == {T1}
    cluster.refusing = set()
    assert set(reader.read([(T0, 0)])) == {T0}
    reader.close()


# -- a consumer


class Consumer:
    """A fetcher whose poll loop is run by the test."""

    def __init__(self, cluster: Cluster, **props: str) -> None:
        given = {"bootstrap.servers": "localhost:1", "group.id": "g", "fetch.max.wait.ms": "1"}
        settings = ConsumerSettings.from_props({**given, **{key.replace("_", "."): v for key, v in props.items()}})
        self.gone = 0
        self.fetcher: Any = Fetcher(cluster, settings, threading.Condition(), on_gone=self._on_gone)

    def _on_gone(self) -> None:
        self.gone += 1

    def values(self, limit: int = 500) -> list[bytes | None]:
        return [record.value for record in self.fetcher.take(limit)]

    def close(self) -> None:
        self.fetcher._reader.close()
        self.fetcher._wake_read.close()
        self.fetcher._wake_write.close()


def test_a_consumer_reads_one_response_ahead() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a", b"b"), batch(2, b"c")]
    consumer = Consumer(client)
    consumer.fetcher.assign([T0])
    consumer.fetcher.seek(T0, 1)
    consumer.fetcher._round()
    consumer.fetcher._round()
    assert [offsets[T0] for _, offsets in cluster.requests] == [1], "the next one follows when this one is taken"
    assert consumer.values(1) == [b"b"]
    assert consumer.fetcher.position(T0) == 2
    assert consumer.values() == [b"c"]
    assert consumer.fetcher.position(T0) == 3
    consumer.fetcher._round()
    assert cluster.requests[-1] == (1, {T0: 3})
    consumer.close()


def test_a_consumer_skips_aborted_transactions_under_read_committed() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [
        batch(0, b"aborted", producer=7, attributes=TRANSACTIONAL),
        abort_marker(1, 7),
        batch(2, b"c"),
        abort_marker(3, 8),
    ]
    cluster.aborted[T0] = [(7, 0)]
    consumer = Consumer(client, isolation_level="read_committed")
    consumer.fetcher.assign([T0])
    consumer.fetcher.seek(T0, 0)
    consumer.fetcher._round()
    assert consumer.values() == [b"c"]
    assert consumer.values() == []
    assert consumer.fetcher.position(T0) == 4
    consumer.close()


def test_a_response_to_an_earlier_position_is_dropped() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a"), batch(1, b"b")]
    consumer = Consumer(client)
    consumer.fetcher.assign([T0])
    consumer.fetcher.seek(T0, 0)
    answer = cluster.answer

    def seek_and_answer(node: int, frame: bytes) -> bytes | None:
        consumer.fetcher.seek(T0, 1)
        cluster.answer = answer  # type: ignore[method-assign]
        return answer(node, frame)

    cluster.answer = seek_and_answer  # type: ignore[method-assign]
    consumer.fetcher._round()
    assert consumer.values() == []
    consumer.fetcher._round()
    assert consumer.values() == [b"b"]
    consumer.close()


def test_an_offset_out_of_range_leaves_a_consumer_without_a_position() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(5, b"a")]
    consumer = Consumer(client)
    consumer.fetcher.assign([T0])
    assert consumer.fetcher.without_position() == {T0: False}
    consumer.fetcher.seek(T0, 0)
    consumer.fetcher._round()
    assert consumer.fetcher.without_position() == {T0: True}
    consumer.close()


def test_a_truncated_log_moves_a_consumer_back() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.diverging[T0] = (3, 2)
    consumer = Consumer(client)
    consumer.fetcher.assign([T0])
    consumer.fetcher.seek(T0, 9)
    consumer.fetcher._round()
    assert consumer.fetcher.is_ready
    assert consumer.values() == []
    assert consumer.fetcher.position(T0) == 2
    assert not consumer.fetcher.is_ready
    consumer.close()


def test_records_before_a_truncation_are_not_skipped() -> None:
    """The fetched offset is ahead of the position: records of a response have not been returned yet."""
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a", b"b", b"c", b"d")]
    consumer = Consumer(client)
    consumer.fetcher.assign([T0])
    consumer.fetcher.seek(T0, 0)
    consumer.fetcher._round()
    assert consumer.values(1) == [b"a"]
    cluster.diverging[T0] = (3, 3)
    cluster.batches[T0] = [batch(0, b"a", b"b", b"c", b"x")]
    consumer.fetcher._round()
    returned = consumer.values()
    consumer.fetcher._round()
    assert returned + consumer.values() == [b"b", b"c", b"x"]
    consumer.close()


def test_records_that_were_fetched_are_returned_before_an_offset_out_of_range() -> None:
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a", b"b")]
    consumer = Consumer(client)
    consumer.fetcher.assign([T0])
    consumer.fetcher.seek(T0, 0)
    consumer.fetcher._round()
    assert consumer.values(1) == [b"a"]
    cluster.batches[T0] = [batch(9, b"c")]
    consumer.fetcher._round()
    assert consumer.fetcher.without_position() == {}
    assert consumer.values() == [b"b"]
    assert consumer.fetcher.without_position() == {T0: True}
    consumer.close()


def test_a_response_to_another_request_is_rejected() -> None:
    """A response that arrives late must not be read as that to the next request."""
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a")]
    answer = cluster.answer

    def late(node: int, frame: bytes) -> bytes:
        valid = bytearray(answer(node, frame) or b"")
        valid[7] ^= 1
        return bytes(valid)

    cluster.answer = late  # type: ignore[method-assign]
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    (failure,) = reader.receive(1.0).values()
    assert isinstance(failure, CorruptBatch)
    assert reader.in_flight == frozenset()
    reader.close()


def test_a_response_with_another_partition_is_rejected() -> None:
    """Each reader would have looked for the position of a partition that it does not read."""
    cluster, client = cluster_of({T0: 1})
    cluster.batches[T0] = [batch(0, b"a")]
    share = cluster._share
    cluster._share = lambda *args: replace(share(*args), partition=126)  # type: ignore[method-assign]
    reader = FetchReader(client)
    reader.send({T0: 0}, LIMITS)
    results = reader.receive(1.0)
    assert isinstance(results[T0], CorruptBatch)
    assert set(results) == {T0}
    reader.close()


def test_failures_of_a_consumer() -> None:
    cluster, client = cluster_of({T0: 1})
    unknown, forbidden = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    passing = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR, unknown]
    cluster.errors[T0] = [*passing, forbidden]
    consumer = Consumer(client)
    consumer.fetcher.assign([T0])
    consumer.fetcher.seek(T0, 0)
    while cluster.errors[T0]:
        assert consumer.fetcher.failure is None
        consumer.fetcher._round()
    consumer.fetcher._round()
    assert consumer.gone == 1
    assert isinstance(consumer.fetcher.failure, BrokerFailure)
    assert consumer.fetcher.failure.code == forbidden
    consumer.close()


def test_a_leader_that_answers_at_once_with_nothing_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an end it was asked as often as it answered."""
    cluster = FetchCluster({T0: 1})
    reader = FetchReader(cast(Cluster, cluster))
    limits = FetchReaderLimits(3_600_000, 1 << 20, 1 << 20)
    monkeypatch.setattr("mm2.kafka.backoff._HASTY", Backoff(3_600_000, 3_600_000))
    for _ in range(50):
        reader.send({T0: 0}, limits)
        reader.receive(0.0)
    assert len(cluster.requests) == 8, "then there is a pause"
    reader.close()
