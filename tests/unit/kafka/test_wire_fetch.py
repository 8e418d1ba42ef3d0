"""The hand-written Fetch compared with kafka-python's schemas, byte for byte, and incremental sessions (KIP-227)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, FetchResponse

from mm2.kafka.errors import BrokerFailure, CorruptBatch
from mm2.kafka.structs import TopicPartition
from mm2.kafka.varint import uvarint
from mm2.kafka.wire.fetch import MAX_VERSION, MIN_VERSION, TOPIC_IDS_FROM, FetchSession, Position

IDS = {"orders": uuid.UUID(int=0x1234), "clicks-ü": uuid.UUID(int=0xABCD)}
VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)
T0, T1, U0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks-ü", 0)
WANTED = {T0: Position(41, 3, 1 << 20), T1: Position(1 << 40, -1, 1, 6), U0: Position(0, 0, 7)}


def session() -> FetchSession:
    return FetchSession({name: topic_id.bytes for name, topic_id in IDS.items()})


def ask(
    fetch: FetchSession,
    version: int,
    wanted: Mapping[TopicPartition, Position],
    touched: list[TopicPartition] | None = None,
) -> bytes:
    return fetch.request(
        version,
        77,
        "mm2-cliënt",
        wanted,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=8 << 20,
        read_committed=True,
        touched=touched,
    )


def theirs(
    version: int,
    changed: Mapping[TopicPartition, Position],
    forgotten: list[TopicPartition],
    session_id: int,
    epoch: int,
) -> bytes:
    """The same content encoded by kafka-python's schema."""

    def name(topic: str) -> dict[str, Any]:
        return {"topic": topic} if version < TOPIC_IDS_FROM else {"topic_id": IDS[topic]}

    topic_class, forget_class = FetchRequest.FetchTopic, FetchRequest.ForgottenTopic
    topics: dict[str, list[Any]] = {}
    for tp, position in changed.items():
        topics.setdefault(tp.topic, []).append(
            topic_class.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=-1,
                partition_max_bytes=position.max_bytes,
            )
        )
    gone: dict[str, list[int]] = {}
    for tp in forgotten:
        gone.setdefault(tp.topic, []).append(tp.partition)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=8 << 20,
        isolation_level=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[topic_class(partitions=parts, **name(topic)) for topic, parts in topics.items()],
        forgotten_topics_data=[forget_class(partitions=parts, **name(topic)) for topic, parts in gone.items()],
        rack_id="",
    )
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="mm2-cliënt")
    return bytes(request.encode(header=True, framed=True))


def answer(
    version: int,
    rows: Mapping[TopicPartition, dict[str, Any]],
    *,
    session_id: int = 99,
    error_code: int = 0,
) -> memoryview:
    """A response frame without size prefix, as the channel returns it."""
    topic_class = FetchResponse.FetchableTopicResponse
    part = topic_class.PartitionData
    topics: dict[str, list[Any]] = {}
    for tp, fields in rows.items():
        base = {
            "partition_index": tp.partition,
            "error_code": 0,
            "high_watermark": 0,
            "last_stable_offset": 0,
            "log_start_offset": 0,
            "aborted_transactions": [],
            "preferred_read_replica": -1,
            "records": b"",
        }
        if "aborted" in fields:
            aborted = fields.pop("aborted")
            fields["aborted_transactions"] = aborted and [
                part.AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in aborted
            ]
        if "diverging" in fields:
            epoch, end_offset = fields.pop("diverging")
            fields["diverging_epoch"] = part.EpochEndOffset(epoch=epoch, end_offset=end_offset)
            fields["current_leader"] = part.LeaderIdAndEpoch(leader_id=4, leader_epoch=9)
        topics.setdefault(tp.topic, []).append(part(**{**base, **fields}))
    responses = [
        topic_class(topic=name, topic_id=IDS.get(name, uuid.UUID(int=1)), partitions=parts)
        for name, parts in topics.items()
    ]
    response = FetchResponse(
        throttle_time_ms=33, error_code=error_code, session_id=session_id, responses=responses, node_endpoints=[]
    )
    body = bytes(response.encode(version=version))
    return memoryview((77).to_bytes(4, "big") + (b"\x00" if version >= 12 else b"") + body)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_full_request_equals_kafka_python_s_byte_for_byte(version: int) -> None:
    assert ask(session(), version, WANTED) == theirs(version, WANTED, [], 0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_changed_partitions_are_sent_and_forgotten_ones_listed(version: int) -> None:
    fetch = session()
    ask(fetch, version, WANTED)
    fetch.response(version, answer(version, {}, session_id=99))
    moved = {T0: Position(42, 3, 1 << 20), U0: WANTED[U0]}
    assert ask(fetch, version, moved) == theirs(version, {T0: moved[T0]}, [T1], 99, 1)
    fetch.response(version, answer(version, {}, session_id=99))
    assert ask(fetch, version, moved) == theirs(version, {}, [], 99, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_is_added_again_is_sent_again(version: int) -> None:
    fetch = session()
    ask(fetch, version, WANTED)
    fetch.response(version, answer(version, {}))
    without = {T0: WANTED[T0], U0: WANTED[U0]}
    ask(fetch, version, without)
    fetch.response(version, answer(version, {}))
    assert ask(fetch, version, WANTED) == theirs(version, {T1: WANTED[T1]}, [], 99, 2)


def test_unchanged_partitions_are_not_compared_unless_the_session_restarts() -> None:
    fetch, whole = session(), session()
    assert ask(fetch, 17, WANTED, touched=[]) == ask(whole, 17, WANTED)
    for each in (fetch, whole):
        each.response(17, answer(17, {}))
    wanted = {T0: WANTED[T0]._replace(offset=42), T1: WANTED[T1]}
    assert ask(fetch, 17, wanted, touched=[T0, U0]) == ask(whole, 17, wanted)
    for each in (fetch, whole):
        each.reset()
    assert ask(fetch, 17, wanted, touched=[]) == ask(whole, 17, wanted)


@pytest.mark.parametrize("field", ["offset", "leader_epoch", "max_bytes", "last_fetched_epoch"])
def test_every_part_of_a_position_counts_as_a_change(field: str) -> None:
    fetch = session()
    ask(fetch, 12, WANTED)
    fetch.response(12, answer(12, {}))
    old = WANTED[T1]
    new = old._replace(**{field: 5})
    assert ask(fetch, 12, {**WANTED, T1: new}) == theirs(12, {T1: new}, [], 99, 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", [70, 71])
def test_a_forgotten_session_restarts_with_all_partitions(version: int, code: int) -> None:
    fetch = session()
    ask(fetch, version, WANTED)
    fetch.response(version, answer(version, {}))
    ask(fetch, version, WANTED)
    with pytest.raises(BrokerFailure) as failure:
        fetch.response(version, answer(version, {}, session_id=0, error_code=code))
    assert failure.value.code == code
    assert ask(fetch, version, WANTED) == theirs(version, WANTED, [], 0, 0)


def test_a_broker_without_session_cache_gets_a_full_request_each_time() -> None:
    fetch = session()
    ask(fetch, 12, WANTED)
    fetch.response(12, answer(12, {}, session_id=0))
    assert ask(fetch, 12, WANTED) == theirs(12, WANTED, [], 0, 0)


def test_a_new_connection_starts_a_new_session() -> None:
    fetch = session()
    ask(fetch, 12, WANTED)
    fetch.response(12, answer(12, {}))
    fetch.reset()
    assert ask(fetch, 12, WANTED) == theirs(12, WANTED, [], 0, 0)


def test_session_epochs_wrap_to_one() -> None:
    fetch = session()
    ask(fetch, 12, WANTED)
    fetch.response(12, answer(12, {}))
    fetch.epoch = 0x7FFFFFFF
    ask(fetch, 12, WANTED)
    fetch.response(12, answer(12, {}))
    assert fetch.epoch == 1


def test_a_reset_during_a_request_discards_the_session_of_its_response() -> None:
    # The topic was recreated meanwhile: the broker's session must not keep the old id.
    fetch = session()
    ask(fetch, 13, WANTED)
    fetch.response(13, answer(13, {}))
    ask(fetch, 13, WANTED)
    fetch.reset()
    fetch.response(13, answer(13, {}, session_id=99))
    assert ask(fetch, 13, WANTED) == theirs(13, WANTED, [], 0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_parsed(version: int) -> None:
    rows: dict[TopicPartition, dict[str, Any]] = {
        T0: {
            "high_watermark": 100,
            "last_stable_offset": 90,
            "log_start_offset": 5,
            "aborted": [(7, 50), (8, 60)],
            "records": b"some bytes",
        },
        T1: {"error_code": 1, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1},
        U0: {"aborted": None, "records": None, "preferred_read_replica": 2},
    }
    fetch = session()
    frame = answer(version, rows)
    found = {fetched.topic_partition: fetched for fetched in fetch.response(version, frame)}
    assert list(found) == [T0, T1, U0]
    first = found[T0]
    assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (100, 90, 5)
    assert first.aborted == ((7, 50), (8, 60))
    assert bytes(first.records) == b"some bytes"
    assert first.records.obj is frame.obj, "records are a view into the frame, not a copy"
    assert (found[T1].error_code, found[T1].high_watermark) == (1, -1)
    assert (found[U0].aborted, len(found[U0].records)) == ((), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_diverging_epoch_and_throttle_time_are_parsed(version: int) -> None:
    fetch = session()
    first, second = fetch.response(version, answer(version, {T0: {"diverging": (7, 1 << 40)}, T1: {}}))
    assert first.diverging == ((7, 1 << 40) if version >= 12 else None)
    assert second.diverging is None
    assert fetch.throttle_ms == 33


def test_a_truncated_epoch_is_corrupt() -> None:
    frame = bytes(answer(12, {T0: {"diverging": (7, 8)}}))
    tag = (7).to_bytes(4, "big") + (8).to_bytes(8, "big") + b"\x00"
    assert frame.count(b"\x0d" + tag) == 1
    with pytest.raises(CorruptBatch, match="does not parse"):
        session().response(12, memoryview(frame.replace(b"\x0d" + tag, b"\x05" + tag[:5])))


def test_an_unterminated_length_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="more than five bytes"):
        session().response(12, memoryview(bytes(4) + b"\x80" * (1 << 20)))


@pytest.mark.parametrize("version", range(TOPIC_IDS_FROM, MAX_VERSION + 1))
def test_partitions_with_an_unknown_topic_id_are_ignored(version: int) -> None:
    frame = answer(version, {TopicPartition("old", 0): {"error_code": 100, "records": b"x"}, T0: {}})
    assert [fetched.topic_partition for fetched in session().response(version, frame)] == [T0]


def test_the_ids_of_a_recreated_topic_and_of_a_new_one_are_recognized_from_the_next_response_on() -> None:
    ids = {"orders": bytes(16)}
    fetch = FetchSession(ids)
    response = answer(17, {T0: {}, U0: {}})
    assert fetch.response(17, response) == []
    ids["orders"] = IDS["orders"].bytes
    assert [fetched.topic_partition for fetched in fetch.response(17, response)] == [T0]
    ids["clicks-ü"] = IDS["clicks-ü"].bytes
    assert [fetched.topic_partition for fetched in fetch.response(17, response)] == [T0, U0]
    ids["orders"] = bytes(16)
    assert [fetched.topic_partition for fetched in fetch.response(17, response)] == [U0]


@pytest.mark.parametrize("version", [7, 11, 12, 17])
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_truncated_responses_are_corrupt(version: int, data: st.DataObject) -> None:
    frame = answer(version, {T0: {"records": b"some bytes", "aborted": [(1, 2)]}, U0: {}})
    size = data.draw(st.integers(4, len(frame) - 2))
    with pytest.raises(CorruptBatch, match="does not parse"):
        session().response(version, frame[:size])


@pytest.mark.parametrize("version", [7, 12, 17])
@settings(max_examples=200, deadline=None)
@given(place=st.integers(4, 120), value=st.integers(0, 255))
def test_damaged_responses_raise_documented_errors(version: int, place: int, value: int) -> None:
    frame = bytearray(answer(version, {T0: {"records": b"some bytes", "aborted": [(1, 2)]}, U0: {}}))
    frame[4 + place % (len(frame) - 4)] = value
    with contextlib.suppress(CorruptBatch, BrokerFailure):
        session().response(version, memoryview(frame))


@pytest.mark.parametrize("version", [11, 12, 17])
def test_more_partitions_than_the_session_has_are_corrupt(version: int) -> None:
    """Objects of a partition take ten times its bytes; a broker returns what was requested."""
    fetch = session()
    fetch.response(version, answer(version, {TopicPartition("orders", index): {} for index in range(1000)}))
    with pytest.raises(CorruptBatch, match="partitions beyond the 0 of the session"):
        fetch.response(version, answer(version, {TopicPartition("orders", index): {} for index in range(1001)}))


def test_empty_fields_and_topics_of_a_large_response_are_corrupt() -> None:
    """A hostile broker could block the loop for a minute with a response of 256 MB of them."""
    count = 1_100
    tags = bytes(4) + uvarint(count) + bytes(2) * count
    topics = bytes(15) + uvarint(count + 1) + bytes(18) * count
    for rest, reason in ((tags, "1100 tagged fields"), (topics, "1100 topics for a session of 0 partitions")):
        with pytest.raises(CorruptBatch, match=reason):
            session().response(17, memoryview(rest + bytes(20)))


@pytest.mark.parametrize("version", [11, 12])
def test_more_aborted_transactions_than_records_are_corrupt(version: int) -> None:
    """They are claimed only; a quarter of a million is possible."""
    frame = bytes(answer(version, {T0: {"aborted": [(7, 50)]}}))
    row = (7).to_bytes(8, "big") + (50).to_bytes(8, "big")
    one = b"\x02" + row if version >= 12 else (1).to_bytes(4, "big") + row
    many = b"\xff\xff\xff\x7f" + row if version >= 12 else (1 << 28).to_bytes(4, "big") + row
    assert frame.count(one) == 1
    with pytest.raises(CorruptBatch, match="aborted transactions"):
        session().response(version, memoryview(frame.replace(one, many)))


def test_unknown_tagged_fields_are_skipped() -> None:
    """Each takes three bytes in the answer; none is kept."""
    frame = bytes(answer(12, {T0: {"diverging": (7, 8)}}))
    (fetched,) = session().response(12, memoryview(frame[:-1] + b"\x03\x7e\x00\x7f\x01x"))
    assert fetched.diverging == (7, 8)
