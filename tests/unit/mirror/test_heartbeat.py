import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from mm2.mirror.client.freshness import FreshnessWatch
from mm2.mirror.common.formats import Heartbeat
from mm2.mirror.heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask
from mm2.mirror.policy import DefaultReplicationPolicy

PROPS = {
    "name": "MirrorHeartbeatConnector",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
    "target.cluster.bootstrap.servers": "127.0.0.1:1",
    "enabled": "false",
}


def test_a_heartbeat_is_one_record_in_partition_0() -> None:
    task = MirrorHeartbeatTask()
    task.start({**PROPS, "emit.heartbeats.interval.seconds": "0"})
    before = int(time.time() * 1000)
    records = task.poll()
    assert records is not None
    (record,) = records
    beat = Heartbeat.decode(record.key, record.value)
    assert (beat.source, beat.target) == ("A", "B")
    assert before <= beat.timestamp_ms <= int(time.time() * 1000)
    assert (record.topic, record.partition, record.timestamp) == ("heartbeats", 0, beat.timestamp_ms)
    assert record.source_partition == {"sourceClusterAlias": "A", "targetClusterAlias": "B"}
    assert record.source_offset == {"offset": 0}


def test_a_stop_ends_the_wait_immediately() -> None:
    task = MirrorHeartbeatTask()
    task.start({**PROPS, "emit.heartbeats.interval.seconds": "3600"})
    threading.Timer(0.1, task.stop).start()
    started = time.monotonic()
    assert task.poll() is None
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("off", [{"emit.heartbeats.enabled": "false"}, {"emit.heartbeats.interval.seconds": "-1"}])
def test_heartbeats_of_a_disabled_flow_are_emitted_unless_disabled(off: dict[str, str]) -> None:
    connector = MirrorHeartbeatConnector()
    connector.start(PROPS)
    assert connector.task_configs(8) == [PROPS], "nothing that Java does not write"
    connector.stop()
    connector = MirrorHeartbeatConnector()
    connector.start({**PROPS, **off})
    assert connector.task_configs(8) == []
    connector.stop()


def watched(records: dict[str, list[Heartbeat]]) -> FreshnessWatch:
    """The heartbeats of these topics."""
    policy = DefaultReplicationPolicy()
    policy.configure({})

    def read(topic: str, _timeout_s: float, start: int) -> list[Any]:
        rows = [SimpleNamespace(offset=n, key=one.key(), value=one.value()) for n, one in enumerate(records[topic])]
        return rows[start:]

    client: Any = SimpleNamespace(
        heartbeat_topics=lambda: set(records),
        replication_policy=lambda: policy,
        offset=lambda _topic, _at_ms: 0,
        read=read,
    )
    return FreshnessWatch(client)


def test_a_topic_full_of_heartbeats_does_not_fill_the_memory_and_hides_no_others() -> None:
    """Any client of a source may create a topic `x.heartbeats`; it is copied as every heartbeats topic is."""
    records = {"A.x.heartbeats": [Heartbeat(f"{n:030}", "B", 1) for n in range(1_500)], "A.heartbeats": []}
    watch = watched(records)
    assert len(watch.look()) == 1_000
    records["A.heartbeats"] += [Heartbeat("A", "B", n) for n in range(5)]
    with capture_logs() as logs:
        seen = watch.look()
    assert (len(seen), seen[0].topic, seen[0].heartbeat) == (1_000, "A.heartbeats", Heartbeat("A", "B", 4))
    assert watch.left_out == 501
    assert logs == [], "logged once, before"


def test_heartbeats_with_long_aliases_are_left_out() -> None:
    records = {"heartbeats": [Heartbeat("A" * 256, "B", 1), Heartbeat("A", "B" * 256, 1), Heartbeat("A" * 255, "B", 1)]}
    watch = watched(records)
    with capture_logs() as logs:
        assert [len(one.heartbeat.source) for one in watch.look()] == [255]
    assert (watch.left_out, len(logs)) == (2, 1)
