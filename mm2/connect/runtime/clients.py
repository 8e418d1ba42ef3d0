"""Settings of the clients of a connector and its tasks (Worker of Connect).

They combine Connect's own settings, the worker's settings for clients of the kind, and the connector's overrides as far
as the worker's policy allows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect.api import ConnectError, SinkConnector
from mm2.connect.override_policies import (
    ClientType,
    ConnectorClientConfigOverridePolicy,
    ConnectorClientConfigRequest,
)
from mm2.connect.runtime.exactly_once_settings import task_transactional_id
from mm2.connect.stores.config_state import ConnectorTaskId

log = structlog.get_logger(__name__)

# Java's Long.MAX_VALUE and Integer.MAX_VALUE, as its worker writes them.
_PRODUCER: Final = {
    "acks": "all",
    "max.block.ms": str(2**63 - 1),
    "delivery.timeout.ms": str(2**31 - 1),
    "max.in.flight.requests.per.connection": "1",
    "enable.idempotence": "false",
    "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
}
_CONSUMER: Final = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
}
_PREFIXES: Final = ("admin.", "producer.", "consumer.")


def sink_group_id(connector: str) -> str:
    """The consumer group of a sink connector that does not override it."""
    return f"connect-{connector}"


class ClientProps:
    """``policy`` None: every override is allowed. All methods raise ConnectError for an override that is rejected."""

    def __init__(self, config: WorkerConfig, policy: ConnectorClientConfigOverridePolicy | None) -> None:
        self._config = config
        self._policy = policy
        self._bootstrap = ",".join(config.list("bootstrap.servers"))
        self._worker = {key: str(value) for key, value in config.originals.items()}

    def producer(
        self, connector: str, props: Mapping[str, str], connector_class: type[Any], *, client_id: str
    ) -> dict[str, str]:
        """Settings of a producer; ``props`` is the connector's configuration, provider references resolved."""
        made = self._producer(connector, props, connector_class, client_id=client_id)
        if made["enable.idempotence"].strip().lower() == "true":
            log.warning(
                "enable.idempotence has no effect without transactions; a retry may duplicate a record",
                connector=connector,
                key="enable.idempotence",
            )
        return made

    def _producer(
        self, connector: str, props: Mapping[str, str], connector_class: type[Any], *, client_id: str
    ) -> dict[str, str]:
        return {
            "bootstrap.servers": self._bootstrap,
            **_PRODUCER,
            "client.id": client_id,
            **_behind(self._worker, "producer."),
            **self._overrides(connector, props, connector_class, ClientType.PRODUCER),
        }

    def exactly_once_producer(
        self, task: ConnectorTaskId, props: Mapping[str, str], connector_class: type[Any]
    ) -> dict[str, str]:
        """Settings of a task's transactional producer; overrides of required settings are replaced with a warning."""
        made = self._producer(task.connector, props, connector_class, client_id=f"connector-producer-{task}")
        given = "producer.enable.idempotence" in self._worker or "producer.override.enable.idempotence" in props
        if not given:
            del made["enable.idempotence"]
        forced = {
            "enable.idempotence": "true",
            "transactional.id": task_transactional_id(self._config.str("group.id"), task),
        }
        return _forced(made, forced)

    def consumer(
        self, connector: str, props: Mapping[str, str], connector_class: type[Any], *, client_id: str
    ) -> dict[str, str]:
        """Settings of a consumer in the connector's group."""
        return {
            "group.id": sink_group_id(connector),
            "client.id": client_id,
            "bootstrap.servers": self._bootstrap,
            **_CONSUMER,
            **_behind(self._worker, "consumer."),
            **self._overrides(connector, props, connector_class, ClientType.CONSUMER),
        }

    def offsets_consumer(
        self, connector: str, props: Mapping[str, str], connector_class: type[Any], *, exactly_once: bool
    ) -> dict[str, str]:
        """Settings of the consumer of a source connector's own offsets topic."""
        made = self.consumer(connector, props, connector_class, client_id=f"connector-consumer-{connector}")
        made.pop("group.id")
        if exactly_once:
            return _forced(made, {"isolation.level": "read_committed"})
        return {"isolation.level": "read_committed", **made}

    def admin(
        self, connector: str, props: Mapping[str, str], connector_class: type[Any], *, client_id: str
    ) -> dict[str, str]:
        """Settings of an admin client."""
        return {
            "bootstrap.servers": self._bootstrap,
            "client.id": client_id,
            **{key: value for key, value in self._worker.items() if not key.startswith(_PREFIXES)},
            **_behind(self._worker, "admin."),
            **self._overrides(connector, props, connector_class, ClientType.ADMIN),
        }

    def _overrides(
        self, connector: str, props: Mapping[str, str], connector_class: type[Any], client: ClientType
    ) -> dict[str, str]:
        given = _behind(props, f"{client.value}.override.")
        if self._policy is None or not given:
            return given
        kind = "sink" if issubclass(connector_class, SinkConnector) else "source"
        request = ConnectorClientConfigRequest(connector, kind, connector_class, client, given)
        refused = [message for value in self._policy.validate(request) for message in value.errors]
        if refused:
            raise ConnectError(f"Client Config Overrides not allowed: {' '.join(refused)}")
        return given


def _forced(props: Mapping[str, str], forced: Mapping[str, str]) -> dict[str, str]:
    for key, value in forced.items():
        given = props.get(key)
        if given is not None and given.strip().lower() != value.lower():
            log.warning("client setting ignored, exactly-once requires another value", key=key, ignored=given)
    return {**props, **forced}


def _behind(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Keys that start with ``prefix``, without it, and their values."""
    return {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix) and key != prefix}
