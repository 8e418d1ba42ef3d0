import threading
import time

import pytest

from mm2.mirror.formats import Heartbeat
from mm2.mirror.heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask

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
    assert time.monotonic() - started < 2


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
