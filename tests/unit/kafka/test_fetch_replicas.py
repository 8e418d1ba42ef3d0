"""`FetchReader` with a rack: followers are read, and left when they fail (KIP-392). Broker 1 leads, broker 2 follows."""

from __future__ import annotations

import time
from typing import cast

import pytest

from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.fetch_reader import FetchReader
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.fetch import Fetched
from mm2.verify.pace import RateLimit
from mm2.verify.reading import RangeReader
from tests.unit.kafka.fetch_cluster import FetchCluster, codes
from tests.unit.kafka.readers.test_fetch_reader import LIMITS, T0, T1, batch, receive_all


def in_rack(**settings: str) -> FetchCluster:
    cluster = FetchCluster({T0: 1}, client_rack="b", **settings)
    cluster.followers = {T0: 2}
    cluster.batches[T0] = [batch(0, b"a"), batch(1, b"b")]
    return cluster


def read(reader: FetchReader, offset: int = 0, epoch: int = -1) -> dict[TopicPartition, Fetched | KafkaFailure]:
    reader.send({T0: offset}, LIMITS, last_epochs={T0: epoch})
    return receive_all(reader)


def asked(cluster: FetchCluster) -> list[tuple[int, str]]:
    """Broker and rack of each request since the last call."""
    found = [(node, call.rack) for (node, _), call in zip(cluster.requests, cluster.calls, strict=True)]
    cluster.requests.clear()
    cluster.calls.clear()
    return found


def following(cluster: FetchCluster) -> FetchReader:
    """A reader that reads the follower."""
    reader = FetchReader(cast(Cluster, cluster))
    assert read(reader) == {}
    assert codes(read(reader)) == {T0: 0}
    assert asked(cluster) == [(1, "b"), (2, "b")]
    return reader


def test_the_replica_that_the_leader_names_is_read() -> None:
    reader = following(in_rack())
    reader.close()


def test_without_a_rack_the_leader_is_read() -> None:
    cluster = FetchCluster({T0: 1})
    cluster.followers = {T0: 2}
    cluster.batches[T0] = [batch(0, b"a")]
    reader = FetchReader(cast(Cluster, cluster))
    assert codes(read(reader)) == {T0: 0}
    assert asked(cluster) == [(1, "")]
    reader.close()


def test_an_offset_out_of_range_on_a_follower_is_looked_for_on_the_leader() -> None:
    cluster = in_rack()
    reader = following(cluster)
    cluster.behind = 1
    assert read(reader, 2) == {}
    assert cluster.invalidated == []
    assert codes(read(reader, 2)) == {T0: 0}
    assert asked(cluster)[:2] == [(2, "b"), (1, "")]
    reader.close()


def test_a_diverging_epoch_of_a_follower_is_compared_with_the_leader() -> None:
    cluster = in_rack()
    reader = following(cluster)
    cluster.diverging[T0] = (0, 1)
    assert read(reader, 1, epoch=0) == {}
    cluster.diverging[T0] = (0, 1)
    found = read(reader, 1, epoch=0)[T0]
    assert isinstance(found, Fetched)
    assert found.diverging == (0, 1)
    assert asked(cluster) == [(2, "b"), (1, "")]
    reader.close()


@pytest.mark.parametrize("failure", ["hanging_up", "refusing"])
def test_a_lost_follower_is_replaced_by_the_leader(failure: str) -> None:
    cluster = in_rack()
    reader = following(cluster)
    if failure == "refusing":
        reader._release(2)
    getattr(cluster, failure).add(2)
    assert read(reader, 1) == {}
    assert codes(read(reader, 1)) == {T0: 0}
    assert asked(cluster)[-1] == (1, "")
    reader._held.clear()
    assert read(reader, 1) == {}  # the leader names the follower again
    reader.close()


def test_a_new_leader_epoch_ends_reading_from_the_follower_and_the_leader_compares_first() -> None:
    cluster = in_rack()
    reader = following(cluster)
    cluster.epoch = 1
    assert codes(read(reader, 1, epoch=0)) == {T0: 0}
    assert read(reader, 1, epoch=0) == {}
    assert codes(read(reader, 1, epoch=0)) == {T0: 0}
    assert asked(cluster) == [(1, ""), (1, "b"), (2, "b")]
    reader.close()


def test_the_leader_is_asked_again_after_the_maximum_age_of_metadata() -> None:
    cluster = in_rack(metadata_max_age_ms="50")
    reader = following(cluster)
    time.sleep(0.06)
    assert read(reader, 1) == {}
    assert asked(cluster) == [(1, "b")]
    reader.close()


def test_partitions_without_a_position_to_compare_wait_for_those_with_one() -> None:
    cluster = in_rack()
    cluster.leaders[T1] = 1
    cluster.batches[T1] = [batch(0, b"a")]
    reader = FetchReader(cast(Cluster, cluster))
    reader.send({T0: 0, T1: 0}, LIMITS, last_epochs={T1: 0})
    assert codes(receive_all(reader)) == {T1: 0}
    reader.send({T0: 0, T1: 0}, LIMITS, last_epochs={T1: 0})
    assert codes(receive_all(reader)) == {T1: 0}
    assert [(node, set(offsets)) for node, offsets in cluster.requests] == [(1, {T1}), (1, {T0, T1})]
    reader.close()


def test_verify_reads_the_replica_and_does_not_end_at_its_lower_high_watermark() -> None:
    cluster = in_rack()
    cluster.behind = 1
    reader = RangeReader(
        cast(Cluster, cluster), BufferPool(), T0, 0, 2,
        read_committed=False, pace=RateLimit(0), patience_s=5, on_response=lambda: catch_up(cluster),
    )  # fmt: skip
    views = [reader.read(), reader.read(), reader.read()]
    assert [view and view.base_offset for view in views] == [0, 1, None]
    assert reader.log_end == 2
    assert {node for node, _ in cluster.requests[1:]} == {2}
    reader.close()


def catch_up(cluster: FetchCluster) -> None:
    if len(cluster.requests) > 6:
        cluster.behind = 0
        cluster.errors.clear()


def test_other_errors_of_a_follower_refresh_the_metadata() -> None:
    cluster = in_rack()
    reader = following(cluster)
    cluster.errors[T0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert read(reader, 1) == {}
    assert cluster.invalidated == ["t"]
    assert codes(read(reader, 1)) == {T0: 0}
    assert asked(cluster) == [(2, "b"), (1, "")]
    reader.close()
