from mm2.kafka.client.cluster import Cluster
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import config_of, flow_props, partitions_of, running, running_task
from tests.support.waiting import wait_until


def test_a_heartbeat_has_javas_bytes(kafka_a: LocalKafka, kafka_b: LocalKafka) -> None:
    props = flow_props("MirrorHeartbeatConnector", kafka_a, kafka_b, enabled="false")
    with running(MirrorHeartbeatConnector(), props) as (connector, _):
        wait_until(lambda: partitions_of(kafka_b, "heartbeats") == 1, 30, what="creation of the heartbeats topic")
        assert config_of(kafka_b, "heartbeats", "cleanup.policy") == "compact"
        (config,) = connector.task_configs(5)
    with running_task(MirrorHeartbeatTask(), config) as task:
        records = task.poll()
    assert records is not None
    (record,) = records
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    sent = Producer(cluster).send(
        record.topic, [Record(record.key, record.value, (), record.timestamp)], record.partition, timeout_s=10
    )
    cluster.close()
    assert sent[0].partition == 0
    assert record.key.hex() == "000141000142"
    assert record.value.hex() == "0000" + (record.timestamp or 0).to_bytes(8, "big").hex()
