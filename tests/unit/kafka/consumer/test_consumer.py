"""Settings of a consumer and assignment of partitions; tests with a broker are in tests/systems."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from mm2.config.configdef import ConfigException
from mm2.kafka.consumer.assignors import (
    BUILT_IN,
    CooperativeSticky,
    Member,
    RangeAssignor,
    RoundRobin,
    Sticky,
    Subscription,
    partitions_of,
    topics_of,
)
from mm2.kafka.consumer.fetching import Fetcher
from mm2.kafka.consumer.settings import ConsumerSettings, OffsetReset
from mm2.kafka.errors import BatchOverLimit, CorruptBatch
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import EARLIEST, TopicPartition
from tests.support.waiting import wait_until
from tests.unit.kafka.fetch_cluster import FetchCluster

CLIENTS = "org.apache.kafka.clients.consumer"


def settings(**props: str) -> ConsumerSettings:
    given = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    return ConsumerSettings.from_props({**given, **{key.replace("__", "."): value for key, value in props.items()}})


def test_defaults_equal_java_s() -> None:
    made = settings()
    assert made.assignors == (RangeAssignor, CooperativeSticky)
    assert not made.is_cooperative
    assert (made.session_timeout_ms, made.heartbeat_interval_ms, made.max_poll_interval_ms) == (45_000, 3_000, 300_000)
    assert (made.max_poll_records, made.fetch_max_wait_ms, made.max_partition_fetch_bytes) == (500, 500, 1_048_576)
    assert not made.read_committed


def test_partitions_are_kept_over_a_rebalance_only_when_every_assignor_can() -> None:
    assert settings(partition__assignment__strategy=f"{CLIENTS}.CooperativeStickyAssignor").is_cooperative
    mixed = settings(partition__assignment__strategy=f"{CLIENTS}.CooperativeStickyAssignor, {CLIENTS}.RangeAssignor")
    assert mixed.assignors == (CooperativeSticky, RangeAssignor)
    assert not mixed.is_cooperative


def test_offsets_are_reset_as_configured() -> None:
    assert settings(auto__offset__reset="Earliest").offset_reset == OffsetReset(EARLIEST)
    assert settings(auto__offset__reset="none").offset_reset.is_none
    assert settings(auto__offset__reset="by_duration:P1DT2H3M4S").offset_reset.age_ms == 93_784_000


@pytest.mark.parametrize(
    ("key", "value", "output"),
    [
        ("group__id", " ", "needs one"),
        ("group__protocol", "eager", r"String must be one of \(case insensitive\): CONSUMER, CLASSIC"),
        ("group__remote__assignor", "uniform", "cannot be set when group.protocol=CLASSIC"),
        ("isolation__level", "dirty", "read_committed"),
        ("partition__assignment__strategy", "com.acme.Mine", "RangeAssignor"),
        ("auto__offset__reset", "by_duration:P", "by_duration"),
        ("max__poll__records", "0", "at least 1"),
        ("max__poll__records", "many", "Not a number"),
        ("check__crcs", "perhaps", "true or false"),
        ("heartbeat__interval__ms", "45000", r"less than session\.timeout\.ms"),
    ],
)
def test_impossible_settings_are_reported_in_one_sentence(key: str, value: str, output: str) -> None:
    with pytest.raises(ConfigException, match=output) as raised:
        settings(**{key: value})
    assert key.replace("__", ".") in str(raised.value)


def test_keys_of_the_classic_protocol_are_refused_with_java_s_sentence_when_the_coordinator_assigns() -> None:
    made = settings(group__protocol="Consumer", group__remote__assignor="range")
    assert (made.server_assigned, made.remote_assignor) == (True, "range")
    with pytest.raises(ConfigException) as raised:
        settings(
            group__protocol="consumer",
            session__timeout__ms="9000",
            heartbeat__interval__ms="100",
            partition__assignment__strategy="RangeAssignor",
        )
    assert str(raised.value) == (
        "partition.assignment.strategy, heartbeat.interval.ms, session.timeout.ms cannot be set when "
        "group.protocol=CONSUMER"
    )


@pytest.mark.parametrize("checked", [True, False])
def test_a_damaged_batch_is_only_returned_without_check_crcs(checked: bool) -> None:
    """No broker accepts a damaged batch, so this cluster is simulated."""
    tp, spoilt = TopicPartition("t", 0), bytearray(encode_batch([Record(b"k", b"value", timestamp=1)], base_offset=0))
    spoilt[spoilt.index(b"value")] ^= 1
    cluster, changed = FetchCluster({tp: 1}), threading.Condition()
    cluster.batches[tp] = [bytes(spoilt)]
    made = settings() if checked else settings(check__crcs="false")
    fetcher = Fetcher(cast(Any, cluster), made, changed, on_gone=lambda: None)
    with changed:
        fetcher.assign([tp])
        fetcher.seek(tp, 0)
    fetcher.start()
    try:
        wait_until(lambda: fetcher.is_ready)
        if checked:
            with pytest.raises(CorruptBatch, match="CRC"):
                fetcher.take(10)
        else:
            assert [record.value for record in fetcher.take(10)] == [b"walue"]
    finally:
        fetcher.close()


def test_a_batch_over_the_limit_fails_the_reader_with_its_partition() -> None:
    """The records before it are returned. A sink task fails with this sentence."""
    tp = TopicPartition("t", 0)
    cluster, changed = FetchCluster({tp: 1}, decompression_max_bytes="1000"), threading.Condition()
    bomb = encode_batch([Record(b"k", bytes(5000))], codec="zstd", base_offset=1)
    cluster.batches[tp] = [bytes(encode_batch([Record(b"k", b"v")])), bytes(bomb)]
    fetcher = Fetcher(cast(Any, cluster), settings(), changed, on_gone=lambda: None)
    with changed:
        fetcher.assign([tp])
        fetcher.seek(tp, 0)
    fetcher.start()
    try:
        wait_until(lambda: fetcher.is_ready)
        assert [record.offset for record in fetcher.take(1)] == [0]
        sentence = r"t-0 of cluster B: the batch at offsets 1..1 is not decompressed: .* 1000 bytes \(decompression"
        with pytest.raises(BatchOverLimit, match=sentence):
            fetcher.take(1)
    finally:
        fetcher.close()


#: Hand-written version 3 of ConsumerProtocolSubscription.json of Kafka 4.3.0: topics t and u, no user data, t-0 and t-1 owned.
SUBSCRIPTION = "000300000002000174000175ffffffff00000001000174000000020000000000000001"


def test_a_subscription_is_sent_in_the_newest_version() -> None:
    owned = frozenset({TopicPartition("t", 1), TopicPartition("t", 0)})
    data = RangeAssignor.metadata(Subscription(frozenset({"u", "t"}), owned, owned, generation=5))
    assert data.hex() == SUBSCRIPTION + "00000005" + "ffff"
    assert topics_of(data) == {"t", "u"}


@pytest.mark.parametrize("assignor", BUILT_IN.values(), ids=lambda assignor: assignor.name)
def test_every_partition_is_assigned_once(assignor: type[RangeAssignor]) -> None:
    both, one = frozenset({"t", "u"}), frozenset({"t"})
    members = [
        Member("b", None, assignor.metadata(Subscription(both))),
        Member("a", None, assignor.metadata(Subscription(one))),
        Member("c", None, assignor.metadata(Subscription(both | {"missing"}))),
    ]
    assigned = {member: partitions_of(data) for member, data in assignor.assign(members, {"t": 7, "u": 2}).items()}
    everything = [tp for partitions in assigned.values() for tp in partitions]
    assert sorted(everything) == sorted(
        [*(TopicPartition("t", n) for n in range(7)), *(TopicPartition("u", n) for n in (0, 1))]
    )
    assert all(tp.topic == "t" for tp in assigned["a"])


def test_a_cooperative_leader_assigns_no_partition_that_is_still_owned() -> None:
    topics = frozenset({"t"})
    all_of_them = frozenset(TopicPartition("t", n) for n in range(4))
    had = CooperativeSticky.metadata(Subscription(topics, all_of_them, all_of_them, 3))
    new = CooperativeSticky.metadata(Subscription(topics))
    first = CooperativeSticky.assign([Member("old", None, had), Member("new", None, new)], {"t": 4})
    kept = partitions_of(first["old"])
    assert len(kept) == 2
    assert partitions_of(first["new"]) == frozenset()
    again = CooperativeSticky.metadata(Subscription(topics, kept, kept, 4))
    second = CooperativeSticky.assign([Member("old", None, again), Member("new", None, new)], {"t": 4})
    assert partitions_of(second["old"]) == kept
    assert partitions_of(second["new"]) == all_of_them - kept


def test_sticky_members_keep_the_partitions_they_revoked() -> None:
    topics, had = frozenset({"t"}), frozenset({TopicPartition("t", 3)})
    remembering = Sticky.metadata(Subscription(topics, frozenset(), had, 2))
    assigned = Sticky.assign(
        [Member("a", None, Sticky.metadata(Subscription(topics))), Member("b", None, remembering)], {"t": 4}
    )
    assert TopicPartition("t", 3) in partitions_of(assigned["b"])
    assert RoundRobin.metadata(Subscription(topics)).hex().endswith("ffff")


def test_an_empty_assignment_is_no_assignment() -> None:
    assert partitions_of(b"") == frozenset()
