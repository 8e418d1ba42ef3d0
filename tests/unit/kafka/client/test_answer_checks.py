"""Answers that kafka-python decodes although no broker sends them."""

from __future__ import annotations

import socket
import struct
import threading
import tracemalloc

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from mm2.kafka.client.answer_checks import check_fields, check_frame, decode, largest_answer, only
from mm2.kafka.client.connection import Connection
from mm2.kafka.client.stream import Stream
from mm2.kafka.errors import CorruptBatch, DisconnectedFailure, KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from tests.fuzz.hostile_broker import HostileBroker, response_classes, valid_answer

_MIB = 1 << 20
_VERSION = 12
_LIST_OFFSETS = 2
_EMPTY = bytes(4) + b"\x01\x00" + bytes(4)  # throttle time, no brokers, no cluster id, controller


def connected(timeout_ms: int = 20_000) -> tuple[Connection, socket.socket]:
    """A connection to a broker, and the broker's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    settings = ClientSettings(bootstrap=(("x", 1),), request_timeout_ms=timeout_ms)
    return Connection(Stream(ours, "broker x:1"), "x", 1, settings, "broker x:1"), theirs


def asked(answer: bytes, *, announced: int | None = None) -> tuple[KafkaFailure, Connection]:
    """The failure of a Metadata request that is answered so, after the correlation id."""
    connection, theirs = connected()
    connection._versions = {MetadataRequest.API_KEY: (0, _VERSION)}

    def respond() -> None:
        theirs.recv(1 << 16)
        theirs.sendall(struct.pack(">ii", announced or len(answer) + 4, 1) + answer)
        theirs.close()

    thread = threading.Thread(target=respond)
    thread.start()
    with pytest.raises(KafkaFailure) as caught:
        connection.request(MetadataRequest(topics=[]))
    thread.join()
    return caught.value, connection


@pytest.mark.parametrize("size", [2**31 - 1, 256 * _MIB, 32 * _MIB + 1, -1])
def test_a_frame_that_no_broker_sends_is_refused_by_its_size(size: int) -> None:
    """Metadata is one of the largest answers."""
    failure, connection = asked(b"", announced=size)
    assert isinstance(failure, CorruptBatch)
    sentence = f"The broker x:1 sent an answer to a Metadata request of {size} bytes, the limit is 33554432."
    assert str(failure) == sentence
    assert connection.closed


def test_before_authentication_answers_are_small() -> None:
    """A listener that is no broker of the cluster can send these."""
    assert [largest_answer(name) >> 20 for name in ("ApiVersions", "SaslAuthenticate", "ListGroups", "Metadata")] == [
        1, 1, 8, 32,
    ]  # fmt: skip


def test_memory_for_a_raw_frame_is_taken_as_it_arrives() -> None:
    """The size is only a claim: 200 MB were allocated for it before."""
    connection, theirs = connected()
    theirs.sendall(struct.pack(">i", 200 * _MIB) + bytes(1000))
    theirs.close()
    buffer = bytearray(1 << 16)
    with pytest.raises(DisconnectedFailure):
        connection.receive_frame(buffer, timeout_s=20)
    assert len(buffer) < 20 * _MIB


def test_a_raw_frame_larger_than_the_steps_arrives_whole() -> None:
    """20 MB into a buffer of one byte."""
    connection, theirs = connected(timeout_ms=60_000)
    content = bytes(range(256)) * (20 * _MIB // 256)
    thread = threading.Thread(target=theirs.sendall, args=(struct.pack(">i", len(content)) + content,))
    thread.start()
    frame = connection.receive_frame(bytearray(1), timeout_s=60)
    thread.join()
    assert bytes(frame) == content
    theirs.close()


def test_an_integer_that_never_ends_is_refused() -> None:
    """kafka-python would read one of a megabyte for minutes."""
    failure, _ = asked(b"\x00" + _EMPTY + b"\xff" * _MIB + b"\x01")
    assert isinstance(failure, CorruptBatch)
    reason = f"an answer of {_MIB + 16} bytes has an integer of more than 4096 bytes"
    assert str(failure) == f"The broker x:1 sent an answer to a Metadata request that cannot be read: {reason}."
    with pytest.raises(CorruptBatch):
        check_frame(memoryview(b"\x80" * 4096))
    for before in (0, 1, 63, 64, 65, 5000):  # not every byte is looked at
        with pytest.raises(CorruptBatch):
            check_frame(memoryview(bytes(before) + b"\xff" * 4096 + bytes(100)))
    check_frame(memoryview((b"\xe4\xb8\xad" * 1000 + b".") * 1000))
    check_frame(memoryview((b"\xff" * 4095 + b"\x01") * 8192))  # the search of a 32 MB answer may not take minutes


def test_an_endless_number_of_tags_before_the_body_is_refused() -> None:
    """The header's own integers have at most five bytes."""
    failure, _ = asked(b"\xff" * 100 + _EMPTY)
    assert isinstance(failure, CorruptBatch)


def test_thousands_of_tags_are_refused_before_the_body_and_in_it() -> None:
    """As many as 32 MB hold took 7 s before the body and 15 s in it, for each answer."""
    tags = b"\xd0\x0f" + bytes(4000)  # 2000, each with number 0 and no bytes
    failure, _ = asked(tags + _EMPTY + b"\x01" + b"\x00")
    assert isinstance(failure, CorruptBatch)
    response = response_classes()[_LIST_OFFSETS]
    body = valid_answer(_LIST_OFFSETS, response.max_version, 1, 0)[1:]
    versioned = response[response.max_version]
    assert decode(memoryview(body), versioned).topics
    with pytest.raises(CorruptBatch, match="a structure of an answer has 2000 tagged fields"):
        decode(memoryview(body[:-1] + tags), versioned)


def test_memory_for_an_answer_is_taken_as_it_arrives() -> None:
    """The size is only a claim, of as many brokers and requests as there are at a time."""
    tracemalloc.start()
    try:
        failure, _ = asked(bytes(1000), announced=32 * _MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(failure, DisconnectedFailure)
    assert peak_bytes < 20 * _MIB


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\x00\x00", id="topics"),
        pytest.param(b"\x02\x00\x00\x02t" + bytes(16) + b"\x00\x00" + bytes(4) + b"\x00\x00", id="partitions"),
    ],
)
def test_a_null_array_is_refused(tail: bytes) -> None:
    """Callers iterate over what the schema says is never null."""
    failure, _ = asked(b"\x00" + _EMPTY + tail)
    assert isinstance(failure, CorruptBatch)
    assert isinstance(failure.__cause__, CorruptBatch)
    assert "is null" in str(failure.__cause__)


def test_an_array_of_two_billion_items_in_a_small_frame_is_refused() -> None:
    """It ends with the frame."""
    failure, _ = asked(b"\x00" + _EMPTY + b"\xff\xff\xff\xff\x07" + bytes(50))
    assert isinstance(failure, CorruptBatch)


def test_valid_answers_of_all_versions_pass() -> None:
    """Each of them with one item in each array."""
    broker = HostileBroker(1)
    broker.close()
    passed = 0
    for key, response in response_classes().items():
        for version in range(response.min_version, response.max_version + 1):
            if response.__name__ == "DescribeTopicPartitionsResponse":
                continue  # kafka-python cannot encode its cursor
            head = 1 if response.flexible_version_q(version) and response.__name__ != "ApiVersionsResponse" else 0
            answer = response.decode(memoryview(broker._answer(key, version))[head:], version=version)
            check_fields(answer)
            passed += 1
    assert passed > 250


def test_a_nullable_field_may_be_null() -> None:
    """The name of a topic from version 12 on, for topics that were asked for by id."""
    body = _EMPTY + b"\x02\x00\x00\x00" + bytes(16) + b"\x00\x01" + bytes(4) + b"\x00\x00"
    check_fields(MetadataResponse.decode(memoryview(body), version=12))


@pytest.mark.parametrize("count", [0, 2])
def test_an_answer_about_one_thing_has_one_part(count: int) -> None:
    """Another number raised ValueError or IndexError in the caller."""
    assert only(["part"], "broker") == "part"
    with pytest.raises(CorruptBatch, match=f"an answer about 1 broker has {count} of them"):
        only(["part"] * count, "broker")


def test_tagged_fields_in_many_structures_do_not_take_hours() -> None:
    """kafka-python copies the rest of the answer for each of them. Found by bin/fuzz --hostile, in DescribeGroups."""
    members = 200_000
    # no ids, no host, no metadata, no assignment; one tagged field with an unknown tag and without content
    member = b"\x01\x00\x01\x01\x01\x01" + b"\x01\x07\x00"
    group = b"\x00\x00\x01\x02g\x01\x01\x01" + varint_of(members + 1) + member * members + bytes(5)
    body = memoryview(bytes(4) + b"\x02" + group + b"\x00")
    few = bytes(4) + b"\x02" + b"\x00\x00\x01\x02g\x01\x01\x01\x03" + member * 2 + bytes(5) + b"\x00"
    response_class = response_classes()[15][6]
    assert len(decode(memoryview(few), response_class).groups[0].members) == 2
    with pytest.raises(CorruptBatch, match="tagged fields in too many structures"):
        decode(body, response_class)


def varint_of(number: int) -> bytes:
    """An unsigned integer of variable length."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))
