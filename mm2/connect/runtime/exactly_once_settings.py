"""Exactly-once source support: names, settings and checks (KIP-618). This module does not connect to brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect.api import Connector, SourceConnector
from mm2.connect.stores.config_state import ConnectorTaskId

log = structlog.get_logger(__name__)

SUPPORT_KEY: Final = "exactly.once.source.support"
REQUIRED_KEY: Final = "exactly.once.support"
BOUNDARY_KEY: Final = "transaction.boundary"
INTERVAL_KEY: Final = "transaction.boundary.interval.ms"

_DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 60_000


class ExactlyOnceSupport(StrEnum):
    """Values of ``exactly.once.source.support``. Rolling restarts change it one step at a time."""

    DISABLED = "disabled"
    #: The leader writes to the config topic in transactions; tasks do not use transactions yet.
    PREPARING = "preparing"
    ENABLED = "enabled"

    @classmethod
    def of(cls, config: WorkerConfig) -> ExactlyOnceSupport:
        """The value in a worker's configuration."""
        return cls(config.str(SUPPORT_KEY).lower())


class Boundary(StrEnum):
    """What ends a transaction."""

    POLL = "poll"
    INTERVAL = "interval"
    #: The task defines the boundaries, see `mm2.connect.api.TransactionContext`.
    CONNECTOR = "connector"


@dataclass(frozen=True)
class TransactionBoundaries:
    """How a task groups its records into transactions."""

    boundary: Boundary
    #: For INTERVAL: the minimum time between two commits.
    interval_ms: int
    #: After this time the cluster aborts an open transaction and fences its producer.
    timeout_ms: int


def leader_transactional_id(group_id: str) -> str:
    """The transactional id with which the leader of a group writes to the config topic."""
    return f"connect-cluster-{group_id}"


def task_transactional_id(group_id: str, task: ConnectorTaskId) -> str:
    """The transactional id of a task's producer, the same on every worker."""
    return f"{group_id}-{task.connector}-{task.task}"


def transactions_of(
    config: AbstractConfig, worker: WorkerConfig, producer_props: Mapping[str, str]
) -> TransactionBoundaries:
    """The transaction settings in a connector's configuration."""
    boundary = config.str(BOUNDARY_KEY).lower()
    interval_ms = config.get(INTERVAL_KEY)
    timeout = producer_props.get("transaction.timeout.ms", "").strip()
    return TransactionBoundaries(
        Boundary(boundary),
        worker.int("offset.flush.interval.ms") if interval_ms is None else int(interval_ms),
        int(timeout) if timeout else _DEFAULT_TRANSACTION_TIMEOUT_MS,
    )


def preflight(connector: Connector, props: Mapping[str, str], support: ExactlyOnceSupport) -> list[tuple[str, str]]:
    """Errors in a connector's exactly-once settings as (key, message) pairs, with Java's messages.

    Invalid values are not reported here; the configuration's definition reports them.
    """
    problems = []
    if props.get(REQUIRED_KEY, "").lower() == "required":
        if support is not ExactlyOnceSupport.ENABLED:
            problems.append((REQUIRED_KEY, "This worker does not have exactly-once source support enabled."))
        if reason := _unsupported(connector, props):
            problems.append((REQUIRED_KEY, reason))
    if props.get(BOUNDARY_KEY, "").lower() == Boundary.CONNECTOR and (reason := _unbounded(connector, props)):
        problems.append((BOUNDARY_KEY, reason))
    return problems


def _unsupported(connector: Connector, props: Mapping[str, str]) -> str | None:
    try:
        answer = connector.exactly_once_support(props) if isinstance(connector, SourceConnector) else False
    except Exception as error:
        log.exception("connector failed to report whether it supports exactly-once")
        return _unexpected(error)
    if answer is None:
        return (
            "The connector does not implement the API required for preflight validation of exactly-once source support. "
            "Please consult the documentation for the connector to determine whether it supports exactly-once semantics, "
            'and then consider reconfiguring the connector to use the value "requested" for this property (which will '
            "disable this preflight check and allow the connector to be created)."
        )
    return None if answer else "The connector does not support exactly-once semantics with the provided configuration."


def _unbounded(connector: Connector, props: Mapping[str, str]) -> str | None:
    try:
        able = isinstance(connector, SourceConnector) and connector.can_define_transaction_boundaries(props)
    except Exception as error:
        log.exception("connector failed to report whether it defines transaction boundaries")
        return _unexpected(error)
    if able:
        return None
    return (
        "The connector does not support connector-defined transaction boundaries with the given configuration. Please "
        "reconfigure it to use a different transaction boundary definition."
    )


def _unexpected(error: Exception) -> str:
    text = str(error).strip()
    detail = f": {text}" if text else "; please see the worker logs for more details."
    return f"An unexpected error occurred during validation{detail}"
