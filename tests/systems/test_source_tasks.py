"""Source tasks from outside: topics they create (KIP-158), client settings (A3), transformations, bad records, blocked producers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.readers.reader import BatchReader
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all, read_committed
from tests.integration.connect_toy import CONNECTOR as COUNTING
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.sink_events import BYTES
from tests.systems.task_toys import MODULE
from tests.systems.workers import DistributedWorker, distributed_props

GZIP = 1


@pytest.fixture
def source(folder: Path) -> Path:
    file = folder / "source.txt"
    file.write_text("".join(f"line {number}\n" for number in range(30)))
    return file


def file_source(topic: str, source: Path, **more: str) -> dict[str, str]:
    return {"connector.class": "FileStreamSource", "file": str(source), "topic": topic, **more}


def values(broker: LocalKafka, topic: str) -> list[str]:
    return [m.value().decode() for m in read_all(broker.bootstrap, topic)]


def describe(broker: LocalKafka, topic: str) -> tuple[int, dict[str, Any]]:
    """Number of partitions and settings of a topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions
    return len(partitions), {name: entry.value for name, entry in found.result(60).items()}


def exists(broker: LocalKafka, topic: str) -> bool:
    return topic in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics


def test_topics_are_created_with_the_settings_of_the_matching_group(
    worker: DistributedWorker, broker: LocalKafka, unique: str, source: Path
) -> None:
    creation = {
        "topic.creation.groups": "compacted",
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.compacted.include": ".*-table",
        "topic.creation.compacted.partitions": "1",
        "topic.creation.compacted.cleanup.policy": "compact",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    for topic in (unique, f"{unique}-table"):
        worker.rest.create(topic, file_source(topic, source, **creation))
        worker.rest.await_running(topic, 1)
    wait_until(
        lambda: exists(broker, unique) and sorted(values(broker, unique)) == sorted(source.read_text().split("\n")[:-1])
    )
    assert describe(broker, unique)[0] == 2
    # Records without a key are rejected there, but the topic was created.
    wait_until(lambda: exists(broker, f"{unique}-table"), detail=worker.tail)
    partitions, settings = describe(broker, f"{unique}-table")
    assert (partitions, settings["cleanup.policy"]) == (1, "compact")
    for topic in (unique, f"{unique}-table"):
        worker.rest.delete(topic)


def test_a_connector_whose_topic_is_never_created_can_be_deleted_and_its_task_ends(
    worker: DistributedWorker, broker: LocalKafka, unique: str, source: Path
) -> None:
    worker.rest.create(unique, file_source(unique, source))
    worker.rest.await_running(unique, 1)
    time.sleep(1)
    assert worker.rest.offsets(unique) == []
    began = time.monotonic()
    worker.rest.delete(unique)
    wait_until(lambda: worker.rest.http.get(f"/connectors/{unique}/status").status_code == 404)
    assert time.monotonic() - began < 10 * PATIENCE
    assert not exists(broker, unique)


def test_a03_records_are_compressed_by_the_producer_settings_of_worker_or_connector(
    worker: DistributedWorker, broker: LocalKafka, unique: str, source: Path
) -> None:
    create_topic(broker.bootstrap, unique)
    worker.rest.create(unique, file_source(unique, source, **{"producer.override.compression.type": "gzip"}))
    wait_until(lambda: len(values(broker, unique)) == 30, detail=worker.tail)
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="B")
    info = cluster.metadata([unique]).topics[unique]
    reader = BatchReader(cluster, cluster.leader(unique, 0), {unique: info})
    reader.positions[TopicPartition(unique, 0)] = 0
    batches = reader.poll(max_wait_ms=1000)
    assert batches
    assert {batch.view.header.codec for batch in batches if batch.view.header is not None} == {GZIP}
    reader.close()
    cluster.close()
    worker.rest.delete(unique)


def test_transformations_apply_in_order_and_dropped_records_are_not_written(
    worker: DistributedWorker, broker: LocalKafka, unique: str, source: Path
) -> None:
    target = f"{unique}-renamed"
    create_topic(broker.bootstrap, target)
    package = "org.apache.kafka.connect.transforms"
    transforms = {
        "transforms": "rename,hoist,extract,drop",
        "transforms.rename.type": f"{package}.RegexRouter",
        "transforms.rename.regex": "(.*)",
        "transforms.rename.replacement": "$1-renamed",
        "transforms.hoist.type": f"{package}.HoistField$Value",
        "transforms.hoist.field": "line",
        "transforms.extract.type": f"{package}.ExtractField$Value",
        "transforms.extract.field": "line",
        "transforms.drop.type": f"{package}.Filter",
        "transforms.drop.predicate": "elsewhere",
        "transforms.drop.negate": "true",
        "predicates": "elsewhere",
        "predicates.elsewhere.type": f"{package}.predicates.TopicNameMatches",
        "predicates.elsewhere.pattern": ".*-renamed",
    }
    worker.rest.create(unique, file_source(unique, source, **transforms))
    wait_until(lambda: values(broker, target) == source.read_text().split("\n")[:-1], detail=worker.tail)
    topics = f"/connectors/{unique}/topics"
    wait_until(lambda: worker.rest.get(topics) == {unique: {"topics": [target]}}, detail=worker.tail)
    worker.rest.delete(unique)


def test_bad_records_are_left_out_when_all_errors_are_tolerated_and_end_the_task_otherwise(
    worker: DistributedWorker, broker: LocalKafka, unique: str
) -> None:
    create_topic(broker.bootstrap, unique)
    bytes_only = {"key.converter": BYTES, "value.converter": BYTES, "header.converter": BYTES}
    config = {"connector.class": COUNTING, "topic": unique, "bad.at": "5", **bytes_only}
    tolerant = {"errors.tolerance": "all", "errors.log.enable": "true", "errors.log.include.messages": "true"}
    worker.rest.create(unique, {**config, **tolerant})
    wait_until(lambda: values(broker, unique)[:6] == ["1", "2", "3", "4", "6", "7"], detail=worker.tail)
    worker.rest.await_running(unique, 1)
    log = worker.log.read_text()
    assert "Error encountered in task" in log
    assert "KEY_CONVERTER" in log
    assert "source_offset" in log  # by errors.log.include.messages
    worker.rest.delete(unique)
    strict = f"{unique}-strict"
    worker.rest.create(strict, {**config, "topic": unique})
    wait_until(lambda: worker.rest.states(strict) == ["RUNNING", "FAILED"], detail=worker.tail)
    # The offsets before it were committed when it failed.
    assert [entry["offset"]["count"] for entry in worker.rest.offsets(strict)] == [4]
    worker.rest.delete(strict)


@pytest.mark.parametrize("exactly_once", ["disabled", "enabled"])
@pytest.mark.timeout(240)
def test_records_without_source_partition_and_offset_are_written(
    broker: LocalKafka, unique: str, folder: Path, exactly_once: str
) -> None:
    create_topic(broker.bootstrap, unique)
    props = {**distributed_props(broker.bootstrap, f"{unique}-workers"), "exactly.once.source.support": exactly_once}
    config = {
        "connector.class": f"{MODULE}.TransactionalConnector",
        "topic": unique,
        "no.offsets": "true",
        "most": "50",
        "key.converter": BYTES,
        "value.converter": BYTES,
    }
    with DistributedWorker(folder / "worker", props) as worker:
        worker.rest.create(unique, config)
        wait_until(lambda: len(read_committed(broker.bootstrap, unique)) == 50, detail=worker.tail)
        time.sleep(2)  # offsets are committed
        worker.rest.await_running(unique, 1)
        assert "not committed" not in worker.log.read_text()
        worker.rest.stop(unique)
        assert worker.rest.offsets(unique) == []
