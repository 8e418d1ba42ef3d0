"""Configs of topics and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from mm2.kafka.admin.calls import NOT_DONE, AdminCalls
from mm2.kafka.client.answer_checks import only
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import AlterOp, ConfigEntry, ConfigSource

_TOPIC: Final = 2  # resource types of the Configs APIs
_BROKER: Final = 4


class ConfigCalls(AdminCalls):
    """Describe and alter configs of topics; describe configs of brokers."""

    def describe_configs(
        self, topics: Iterable[str], keys: Iterable[str] | None = None
    ) -> dict[str, dict[str, ConfigEntry] | KafkaFailure]:
        """Describe the configs of each topic by name, defaults included: all of them, or those in ``keys``.

        A topic that does not exist or may not be described is a failure, never empty.
        """
        wanted = None if keys is None else list(keys)

        def ask(names: list[str], timeout_s: float) -> dict[str, dict[str, ConfigEntry] | KafkaFailure]:
            resources = [
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=name, configuration_keys=wanted
                )
                for name in names
            ]
            request = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
            answer = self.cluster.send(None, request, timeout_s=timeout_s)
            return {
                result.resource_name: self._outcome(
                    "Topic", result.resource_name, result.error_code, result.error_message, needed="DESCRIBE_CONFIGS"
                )
                or {config.name: _entry(config) for config in result.configs}
                for result in answer.results
            }

        return self._settle(topics, ask, repeatable=True)

    def describe_broker(self, node_id: int, names: Iterable[str]) -> dict[str, str | None]:
        """Values of the named configs of a broker. Configs that the broker does not have are omitted.

        Raises KafkaFailure.
        """
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_BROKER, resource_name=str(node_id), configuration_keys=list(names)
                )
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        answer = self.cluster.send(node_id, request)
        result = only(answer.results, "broker")
        failure = self._outcome(
            "Broker", result.resource_name, result.error_code, result.error_message, needed="DESCRIBE_CONFIGS"
        )
        if failure is not None:
            raise failure
        return {config.name: config.value for config in result.configs}

    def incremental_alter_configs(
        self, changes: Mapping[str, Sequence[AlterOp]], *, validate_only: bool = False
    ) -> dict[str, KafkaFailure | None]:
        """Apply the changes of each topic, all or none (KIP-339). Needs brokers 2.3 or newer."""

        def ask(names: list[str], timeout_s: float) -> dict[str, KafkaFailure | None]:
            resources = [_resource(name, changes[name]) for name in names]
            request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
            answer = self.cluster.send(None, request, timeout_s=timeout_s)
            return {
                result.resource_name: self._outcome(
                    "Topic", result.resource_name, result.error_code, result.error_message, needed="ALTER_CONFIGS"
                )
                for result in answer.responses
            }

        return self._settle(changes, ask, again=NOT_DONE, repeatable=validate_only)


def _resource(name: str, ops: Sequence[AlterOp]) -> Any:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    return resource(
        resource_type=_TOPIC,
        resource_name=name,
        configs=[resource.AlterableConfig(name=op.name, config_operation=int(op.op), value=op.value) for op in ops],
    )


def _entry(config: Any) -> ConfigEntry:
    try:
        source = ConfigSource(config.config_source)
    except ValueError:
        source = ConfigSource.UNKNOWN
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=source,
        is_default=source is ConfigSource.DEFAULT_CONFIG,
        read_only=bool(config.read_only),
        sensitive=bool(config.is_sensitive),
    )
