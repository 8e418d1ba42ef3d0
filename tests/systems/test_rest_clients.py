"""Third-party Connect clients from PyPI: `kafka-connect-py` and `kafka-connect-api`."""

from __future__ import annotations

import kafka_connect
import pytest
from kafka_connect_api import errors
from kafka_connect_api.kafka_connect_api import Api, Cluster, Connector

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_toy import CONNECTOR
from tests.integration.copy_flow import create
from tests.support.waiting import wait_until
from tests.systems.counting import counting
from tests.systems.workers import DistributedWorker


def test_kafka_connect_py_works(worker: DistributedWorker, broker: LocalKafka, unique: str) -> None:
    create(broker, unique)
    config = counting(unique, 2)
    client = kafka_connect.KafkaConnect(url=worker.rest.url)
    assert client.get_cluster_info()["kafka_cluster_id"]
    created = client.create_connector({"name": unique, "config": config})
    assert created["name"] == unique
    worker.rest.await_running(unique, 2)
    assert unique in client.list_connectors()
    assert client.get_connector_config(unique)["topic"] == unique
    client.pause_connector(unique)
    wait_until(lambda: client.get_connector_status(unique)["connector"]["state"] == "PAUSED", 30)
    client.resume_connector(unique)
    worker.rest.await_running(unique, 2)
    client.restart_connector(unique, include_tasks=True, only_failed=False)
    worker.rest.await_running(unique, 2)
    client.update_connector(unique, {**config, "tasks.max": "1"})
    worker.rest.await_running(unique, 1)
    assert client.validate_connector_config("CountingConnector", {**config, "name": unique})["error_count"] == 0
    client.delete_connector(unique)
    assert unique not in client.list_connectors()


def test_kafka_connect_api_works(worker: DistributedWorker, broker: LocalKafka, unique: str) -> None:
    create(broker, unique)
    cluster = Cluster(Api("127.0.0.1", port=worker.port))
    assert cluster.kafka_cluster == worker.rest.get("/")["kafka_cluster_id"]
    connector = Connector(cluster, unique)
    with pytest.raises(errors.GenericNotFound):
        connector.exists()
    connector.config = counting(unique, 2)
    assert connector.exists()
    assert unique in cluster.connectors
    worker.rest.await_running(unique, 2)
    assert [task.is_running() for task in connector.tasks] == [True, True]
    connector.pause()
    wait_until(lambda: connector.state == "PAUSED", 30)
    connector.resume()
    worker.rest.await_running(unique, 2)
    connector.restart()
    connector.restart_all_tasks()
    worker.rest.await_running(unique, 2)
    assert connector.connector_class == CONNECTOR
    cluster.root_logger = "INFO"
    assert cluster.root_logger["level"] == "INFO"
    connector.delete()
    with pytest.raises(errors.GenericNotFound):
        connector.exists()
