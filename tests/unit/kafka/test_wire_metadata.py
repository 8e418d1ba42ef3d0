"""Metadata answers decoded by hand compared with kafka-python's schemas."""

from __future__ import annotations

import struct
import time
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataResponse

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.structs import Broker, PartitionInfo, topic_id_text
from mm2.kafka.wire.metadata import KnownTopics, MetadataAnswer, decode

VERSIONS = range(1, 14)
_TOPIC = MetadataResponse.MetadataResponseTopic
_PARTITION = _TOPIC.MetadataResponsePartition
_BROKER = MetadataResponse.MetadataResponseBroker

names = st.text(min_size=1, max_size=20) | st.integers(100, 300).map("n".__mul__)
numbers = st.integers(-1, 2**31 - 1)
nodes = st.lists(numbers, max_size=4) | st.integers(120, 140).map(lambda count: [*range(count)])
partitions = st.builds(
    _PARTITION,
    error_code=st.sampled_from([0, 5, 9]),
    partition_index=st.integers(0, 2**31 - 1),
    leader_id=numbers,
    leader_epoch=numbers,
    replica_nodes=nodes,
    isr_nodes=nodes,
    offline_replicas=nodes,
)
topics = st.builds(
    _TOPIC,
    error_code=st.sampled_from([0, 3, 29]),
    name=names,
    topic_id=st.just(uuid.UUID(int=0)) | st.uuids(),
    is_internal=st.booleans(),
    partitions=st.lists(partitions, max_size=5, unique_by=lambda one: one.partition_index),
    authorized_operations=st.none() | st.sets(st.integers(0, 30)),
)
answers = st.fixed_dictionaries(
    {
        "throttle_time_ms": st.integers(0, 1000),
        "brokers": st.lists(
            st.builds(_BROKER, node_id=numbers, host=names, port=numbers, rack=st.none() | names), max_size=4
        ),
        "cluster_id": st.none() | names,
        "controller_id": numbers,
        "topics": st.lists(topics, max_size=4),
        "authorized_operations": st.none(),
        "error_code": st.sampled_from([0, 129]),
    }
)


def encoded(version: int, values: dict[str, Any]) -> bytes:
    return bytes(MetadataResponse(version=version, **values).encode())


def plain(answer: MetadataAnswer) -> tuple[Any, ...]:
    """What `theirs` returns."""
    shown = [(topic.error_code, topic.info, topic.authorized_operations) for topic in answer.topics]
    return list(answer.brokers), answer.cluster_id, answer.controller_id, shown, answer.error_code


def theirs(data: bytes, version: int) -> tuple[Any, ...]:
    """kafka-python's result in the structures of this project."""
    answer = MetadataResponse[version].decode(data)
    shown = []
    for topic in answer.topics:
        found = {
            one.partition_index: PartitionInfo(
                one.leader_id,
                one.leader_epoch if version >= 7 else -1,
                tuple(one.replica_nodes),
                tuple(one.isr_nodes),
                tuple(one.offline_replicas or ()) if version >= 5 else (),
            )
            for one in topic.partitions
        }
        topic_id = topic_id_text(topic.topic_id) if version >= 10 else ""
        info = (topic.name, topic_id, bool(topic.is_internal), dict(sorted(found.items())))
        operations = topic.authorized_operations if version >= 8 else None
        shown.append((topic.error_code, info, None if operations is None else set(operations)))
    brokers = [Broker(one.node_id, one.host, one.port, one.rack) for one in answer.brokers]
    cluster_id = answer.cluster_id if version >= 2 else None
    return brokers, cluster_id, answer.controller_id, shown, answer.error_code if version >= 13 else 0


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=10)
@given(values=answers)
def test_every_answer_is_read_as_kafka_python_reads_it(version: int, values: dict[str, Any]) -> None:
    data = encoded(version, values)
    brokers, cluster_id, controller_id, shown, error_code = plain(decode(memoryview(data), version))
    found = [(code, (i.name, i.topic_id, i.internal, i.partitions), operations) for code, i, operations in shown]
    assert (brokers, cluster_id, controller_id, found, error_code) == theirs(data, version)
    assert all([*i.partitions] == sorted(i.partitions) for _, i, _ in shown)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=10)
@given(pool=st.lists(topics, min_size=1, max_size=6), data=st.data())
def test_answers_are_the_same_with_topics_of_earlier_ones(version: int, pool: list[Any], data: st.DataObject) -> None:
    """The pool has topics with the same name that differ in other fields."""
    values: dict[str, Any] = {"throttle_time_ms": 0, "brokers": [], "cluster_id": "c", "controller_id": 1}
    known = KnownTopics()
    for _ in range(3):
        chosen = data.draw(st.lists(st.sampled_from(pool), max_size=4))
        answer = encoded(version, {**values, "topics": chosen, "authorized_operations": None, "error_code": 0})
        assert decode(memoryview(answer), version, known) == decode(memoryview(answer), version)


def answer_about(*names: str, leader: int = 1) -> memoryview:
    """An answer of version 13 about topics of one partition each."""
    led = _PARTITION(
        error_code=0, partition_index=0, leader_id=leader, leader_epoch=1, replica_nodes=[1], isr_nodes=[1],
        offline_replicas=[],
    )  # fmt: skip
    fields = {"error_code": 0, "topic_id": uuid.UUID(int=1), "is_internal": False, "authorized_operations": None}
    values = {
        "throttle_time_ms": 0,
        "brokers": [],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [_TOPIC(name=name, partitions=[led], **fields) for name in names],
        "authorized_operations": None,
        "error_code": 0,
    }
    return memoryview(encoded(13, values))


def test_only_topics_that_have_changed_are_decoded_again() -> None:
    known = KnownTopics()
    a, b = decode(answer_about("a", "b"), 13, known).topics
    decode(answer_about("b"), 13, known)  # about fewer topics
    again = decode(answer_about("a", "b"), 13, known).topics
    assert again[0] is a
    assert again[1] is b
    (moved, _) = decode(answer_about("a", "b", leader=2), 13, known).topics
    assert moved.info.partitions[0].leader == 2


def test_deleted_topics_are_not_kept() -> None:
    known = KnownTopics()
    decode(answer_about("a", "b", "c"), 13, known)
    decode(answer_about("b", "d"), 13, known)
    assert sorted(known._topics) == ["b", "d"]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=10)
@given(values=answers, data=st.data())
def test_a_cut_answer_is_an_error(version: int, values: dict[str, Any], data: st.DataObject) -> None:
    whole = encoded(version, values)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises((struct.error, IndexError, ValueError, CorruptBatch)):
        decode(memoryview(whole)[:size], version)


@pytest.mark.parametrize("version", [1, 13])
@pytest.mark.parametrize("place", ["brokers", "topics", "partitions", "replica_nodes", "name", "host"])
def test_null_where_the_protocol_has_none_is_an_error(version: int, place: str) -> None:
    partition = {
        "error_code": 0,
        "partition_index": 1,
        "leader_id": 1,
        "leader_epoch": 1,
        "replica_nodes": [1],
        "isr_nodes": [1],
        "offline_replicas": [],
    }
    topic = {"error_code": 0, "name": "t", "topic_id": uuid.UUID(int=1), "is_internal": False}
    broker = {"node_id": 1, "host": "h", "port": 1, "rack": None}
    parts: dict[str, Any] = {}
    for fields in (partition, topic, broker, parts):
        fields.update({place: None} if place in fields else {})
    topic["partitions"] = None if place == "partitions" else [_PARTITION(**partition)]
    values = {
        "throttle_time_ms": 0,
        "brokers": None if place == "brokers" else [_BROKER(**broker)],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": None if place == "topics" else [_TOPIC(**topic, authorized_operations=None)],
        "authorized_operations": None,
        "error_code": 0,
    }
    data = encoded(version, values)
    with pytest.raises(CorruptBatch, match="is null"):
        decode(memoryview(data), version)


@pytest.mark.parametrize("version", [8, 13])
def test_claimed_counts_take_neither_time_nor_memory(version: int) -> None:
    count = b"\x7f\xff\xff\xff" if version < 9 else b"\xff\xff\xff\xff\x07"
    began_s = time.process_time()
    with pytest.raises((struct.error, IndexError, ValueError, CorruptBatch)):
        decode(memoryview(bytes(4) + count + b"\1" * 1000), version)
    assert time.process_time() - began_s < 60
