"""Effect of exactly-once on settings, and rejected configurations."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mm2.config.configdef import AbstractConfig, ConfigDef
from mm2.config.keys.connector_keys import source_connector_config
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect.api import SourceConnector, Task
from mm2.connect.plugins import Plugins
from mm2.connect.runtime.exactly_once_settings import (
    Boundary,
    ExactlyOnceSupport,
    TransactionBoundaries,
    leader_transactional_id,
    preflight,
    task_transactional_id,
    transactions_of,
)
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_offset_store import KafkaOffsetStore
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings

BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
TASK = ConnectorTaskId("MirrorSourceConnector", 2)
CONNECTOR = {"connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector"}
ENABLED = ExactlyOnceSupport.ENABLED


def worker_config(**settings: str) -> WorkerConfig:
    return WorkerConfig(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "group.id": "A-mm2",
            "config.storage.topic": "configs",
            "offset.storage.topic": "offsets",
            "status.storage.topic": "statuses",
            "key.converter": BYTES,
            "value.converter": BYTES,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
    )


def worker(**settings: str) -> Worker:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}), name="T")
    store = KafkaOffsetStore(cluster, InternalTopic("offsets", "offset.storage.", 1, 1), start_timeout_s=1)
    return Worker("w", worker_config(**settings), Plugins(), store, cluster_name="T")


class Plain(SourceConnector):
    def version(self) -> str:
        return "1"

    def start(self, props: dict[str, str]) -> None: ...

    def stop(self) -> None: ...

    def task_class(self) -> type[Task]:
        raise NotImplementedError

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return []

    def config(self) -> ConfigDef:
        return ConfigDef()


class Answering(Plain):
    """Returns the same result, or raises the same error, for both methods."""

    def __init__(self, answer: bool | Exception) -> None:
        self.answer = answer

    def exactly_once_support(self, props: Mapping[str, str]) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        return self.exactly_once_support(props)


def test_transactional_ids_equal_connect_s() -> None:
    assert leader_transactional_id("A-mm2") == "connect-cluster-A-mm2"
    assert task_transactional_id("A-mm2", TASK) == "A-mm2-MirrorSourceConnector-2"


def test_the_worker_setting_ignores_case() -> None:
    assert ExactlyOnceSupport.of(worker_config()) is ExactlyOnceSupport.DISABLED
    assert ExactlyOnceSupport.of(worker_config(exactly__once__source__support="Preparing")) == "preparing"


def test_task_producers_get_their_own_transactional_id_only_when_enabled() -> None:
    for support in ("disabled", "preparing"):
        props = worker(exactly__once__source__support=support).producer_props(TASK, CONNECTOR)
        assert props["enable.idempotence"] == "false"
        assert "transactional.id" not in props
    enabled = worker(exactly__once__source__support="enabled", producer__enable__idempotence="false")
    props = enabled.producer_props(
        TASK, {**CONNECTOR, "producer.override.transactional.id": "mine", "producer.override.acks": "1"}
    )
    assert props["enable.idempotence"] == "true"
    assert props["transactional.id"] == "A-mm2-MirrorSourceConnector-2"
    assert props["max.in.flight.requests.per.connection"] == "1"


def test_settings_that_cannot_be_changed_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    enabled = worker(exactly__once__source__support="enabled")
    enabled.producer_props(TASK, {**CONNECTOR, "producer.override.enable.idempotence": "TRUE"})
    assert "client setting ignored" not in capsys.readouterr().out
    enabled.producer_props(TASK, {**CONNECTOR, "producer.override.transactional.id": "mine"})
    assert "client setting ignored" in capsys.readouterr().out


def connector_config(**settings: str) -> AbstractConfig:
    props = {"name": "c", "connector.class": "X", **{key.replace("__", "."): value for key, value in settings.items()}}
    return AbstractConfig(source_connector_config(props), props)


def test_the_default_interval_is_that_of_offset_commits() -> None:
    worker_settings = worker_config(offset__flush__interval__ms="7000")
    by_default = transactions_of(connector_config(), worker_settings, {})
    assert by_default == TransactionBoundaries(Boundary.POLL, 7000, 60_000)
    given = connector_config(transaction__boundary="INTERVAL", transaction__boundary__interval__ms="0")
    assert transactions_of(given, worker_settings, {"transaction.timeout.ms": "9000"}) == TransactionBoundaries(
        Boundary.INTERVAL, 0, 9000
    )
    by_connector = connector_config(transaction__boundary="Connector")
    assert transactions_of(by_connector, worker_settings, {}).boundary is Boundary.CONNECTOR


REQUIRED = {"exactly.once.support": "Required"}


@pytest.mark.parametrize(
    ("connector", "output"),
    [
        (Plain(), "The connector does not implement the API required for preflight validation of exactly-once source"),
        (Answering(False), "The connector does not support exactly-once semantics with the provided configuration."),
        (Answering(ValueError("no idea")), "An unexpected error occurred during validation: no idea"),
        (
            Answering(ValueError()),
            "An unexpected error occurred during validation; please see the worker logs for more details.",
        ),
    ],
)
def test_a_connector_without_exactly_once_support_is_one_error_only_when_required(
    connector: Plain, output: str
) -> None:
    ((key, message),) = preflight(connector, REQUIRED, ENABLED)
    assert key == "exactly.once.support"
    assert message.startswith(output)
    assert preflight(connector, {"exactly.once.support": "requested"}, ENABLED) == []
    assert preflight(connector, {}, ENABLED) == []


def test_a_connector_with_exactly_once_support_is_valid_when_the_worker_enables_it() -> None:
    assert preflight(Answering(True), REQUIRED, ENABLED) == []
    for support in (ExactlyOnceSupport.DISABLED, ExactlyOnceSupport.PREPARING):
        ((key, message),) = preflight(Answering(True), REQUIRED, support)
        assert key == "exactly.once.support"
        assert message == "This worker does not have exactly-once source support enabled."


@pytest.mark.parametrize(
    ("connector", "output"),
    [
        (
            Plain(),
            "The connector does not support connector-defined transaction boundaries with the given configuration.",
        ),
        (Answering(ValueError("no idea")), "An unexpected error occurred during validation: no idea"),
    ],
)
def test_a_connector_that_cannot_define_boundaries_is_one_error(connector: Plain, output: str) -> None:
    ((key, message),) = preflight(connector, {"transaction.boundary": "connector"}, ENABLED)
    assert key == "transaction.boundary"
    assert message.startswith(output)


def test_a_connector_can_define_boundaries_if_it_supports_them() -> None:
    assert preflight(Answering(True), {"transaction.boundary": "connector"}, ENABLED) == []
