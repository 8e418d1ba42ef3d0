"""The position sampler of bin/chaos detects a position above the high watermark on real brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.endurance.positions import PositionSampler, above
from tests.faults.environment import Topics
from tests.faults.oracle import Reader, Rows
from tests.support.cluster import LocalCluster, frozen
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_OFFSETS = "mm2-offsets.A.internal"


def write(producer: Producer, topic: str, count: int) -> None:
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0


def commit(producer: Producer, position: int) -> None:
    key = b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"t"}]'
    producer.produce(_OFFSETS, b'{"offset":%d}' % (position - 1), key, partition=0)
    assert producer.flush(60) == 0


def test_a_position_is_above_the_high_watermark_while_a_follower_has_not_fetched_its_records(tmp_path: Path) -> None:
    patient = {"replica.lag.time.max.ms": "60000", "broker.session.timeout.ms": "60000"}
    with LocalCluster("Q", tmp_path, overrides=patient) as cluster:
        topics = Topics(cluster)
        topics.create("A.t", assignment=[[1, 2]])
        topics.create("t", assignment=[[1]])
        topics.create(_OFFSETS, assignment=[[1]])
        wait_until(lambda: topics.leader("A.t") == (1, {1, 2}), 60, what="two replicas in sync")
        leader_only = Producer(
            {"bootstrap.servers": cluster.broker(1).bootstrap, "acks": 1, "linger.ms": 0, "log_level": 0}
        )
        write(leader_only, "t", 20)
        write(leader_only, "A.t", 10)
        reader = Reader(cluster.bootstrap, "read_committed")
        wait_until(lambda: reader.range("A.t", 0)[1] == 10, 60, what="a high watermark of 10")
        sampler = PositionSampler(cluster.broker(1).bootstrap, "A")
        sampler.start()
        commit(leader_only, 10)
        wait_until(lambda: sampler.sampled == 1, 60, what="a sample")
        with frozen(cluster.broker(2)):
            write(leader_only, "A.t", 10)
            commit(leader_only, 15)
            wait_until(lambda: sampler.sampled == 2, 60, what="a second sample")
        time.sleep(2.5)  # a later response of the same leader confirms the previous one
        commit(leader_only, 20)
        wait_until(lambda: sampler.sampled == 3, 60, what="a third sample")
        sampler.halt()
        source, target = (_equal(reader, topic) for topic in ("t", "A.t"))
        reader.close()
    first, second, third = sampler.claims["t", 0]
    assert (first.position, second.position, second.high_watermark, third.position) == (10, 15, 10, 20)
    assert sampler.latest == {("t", 0): 20}
    verdict = above(0, sampler.claims["t", 0], source, target)
    (sentence,) = verdict.above
    assert "position 15, high watermark 10; the 5 records from source offset 10 on reach target offset 14" in sentence
    assert not verdict.uncertain


def _equal(reader: Reader, topic: str) -> Rows:
    """Rows in which the n-th records of both topics are equal."""
    return Rows((message.offset() or 0, message.offset() or 0) for message in reader.messages(topic, 0))
