"""A connector's configuration as read by the runtime."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.config.connector_keys import SINK_CONNECTOR_CONFIG, source_connector_config
from mm2.connect.api import ConnectError, Connector, SinkConnector

log = structlog.get_logger(__name__)


class TooManyTasks(ConnectError):
    """A connector has more tasks than ``tasks.max`` and ``tasks.max.enforce`` allow (KIP-1004)."""


def connector_config(props: Mapping[str, str], connector_class: type[Connector]) -> AbstractConfig:
    """The keys that all connectors of its kind share. Raises ConfigException."""
    is_sink = issubclass(connector_class, SinkConnector)
    return AbstractConfig(SINK_CONNECTOR_CONFIG if is_sink else source_connector_config(props), props)


def check_count(connector: str, count: int, config: AbstractConfig) -> None:
    """Raises TooManyTasks."""
    most = config.int("tasks.max")
    if count <= most:
        return
    message = (
        f"The connector {connector} has generated {count} tasks, which is greater than {most}, the maximum number of "
        "tasks it is configured to create (tasks.max)"
    )
    if config.bool("tasks.max.enforce"):
        raise TooManyTasks(message)
    log.warning("too many tasks, allowed by tasks.max.enforce=false", connector=connector, tasks=count, tasks_max=most)
