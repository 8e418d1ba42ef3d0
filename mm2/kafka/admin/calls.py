"""Retry loop of all admin calls: repeats a request only for the items that failed with a retriable error."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeVar

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import (
    BrokerFailure,
    DisconnectedFailure,
    DnsFailure,
    KafkaFailure,
    RefusedFailure,
    Right,
    TimeoutFailure,
    value_of,
)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Ask = Callable[[list[Key], float], Mapping[Key, Value | KafkaFailure]]

#: After these errors a request can be repeated safely: the broker did not execute it.
NOT_DONE: Final = frozenset(
    {ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
COORDINATOR_MOVED: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_MAX_LOST_CONNECTIONS: Final = 2


class AdminCalls:
    """Base of the admin call groups: holds the cluster and the retry loop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def _timeout_ms(self) -> int:
        return self.cluster.settings.request_timeout_ms

    def _subject(self, kind: str, name: object) -> str:
        return f"{kind} {name} of cluster {self.cluster.name}"

    def _outcome(
        self, kind: str, name: object, code: int, message: str | None = None, *, needed: Right
    ) -> BrokerFailure | None:
        """None for success, otherwise the failure of one item. ``needed`` is the right that the request requires."""
        return BrokerFailure.of(code, message, subject=self._subject(kind, name), needed=needed) if code else None

    def _settle(
        self,
        keys: Iterable[Key],
        ask: Ask[Key, Value],
        *,
        again: frozenset[ErrorCode] = frozenset(),
        repeatable: bool,
        timeout_s: float | None = None,
    ) -> dict[Key, Value | KafkaFailure]:
        """Ask for all keys, and again for those with an error code in `again`, until the deadline.

        `timeout_s` sets the deadline (default: `default.api.timeout.ms` if it is set, otherwise the request timeout).

        `ask(keys, timeout_s)` may raise for all keys or answer for some of them. `repeatable`: the request is
        idempotent, so it is sent again after a lost connection (brokers close idle connections without notice).
        """
        settings = self.cluster.settings
        limit_ms = settings.api_timeout_ms or settings.request_timeout_ms
        deadline = time.monotonic() + (limit_ms / 1000 if timeout_s is None else timeout_s)
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        results: dict[Key, Value | KafkaFailure] = {}
        pending = order = list(dict.fromkeys(keys))
        attempt = lost = 0
        while pending:
            answers: dict[Key, Value | KafkaFailure] = {}
            try:
                answers.update(ask(pending, max(0.0, deadline - time.monotonic())))
            except KafkaFailure as failure:
                answers = dict.fromkeys(pending, failure)
            for key in pending:
                results[key] = answers[key] if key in answers else _unanswered(self.cluster.name, key)
            delay_s = backoff.delay_s(attempt)
            if self.cluster.closed or time.monotonic() + delay_s >= deadline:
                break
            failures = [results[key] for key in pending]
            if any(isinstance(failure, DisconnectedFailure) for failure in failures):
                lost += 1
            retry_lost = repeatable and lost <= _MAX_LOST_CONNECTIONS
            pending = [key for key in pending if _may_repeat(results[key], again, retry_lost=retry_lost)]
            attempt += 1
            if pending:
                time.sleep(delay_s)
        return {key: results[key] for key in order}

    def _ask_any(self, request: Callable[[], Any]) -> Any:
        """Send a read-only request to any broker and return the answer. Raises KafkaFailure."""
        answers = self._settle(
            [""], lambda _, timeout_s: {"": self.cluster.send(None, request(), timeout_s=timeout_s)}, repeatable=True
        )
        return value_of(answers[""])


def unreachable(failure: KafkaFailure, code: ErrorCode, subject: str, *, repeatable: bool) -> KafkaFailure:
    """Convert a lost or refused connection to a leader or coordinator into `code`, which means that it has moved.

    The caller then looks up the leader or coordinator again and retries the item. Two kinds of failures are returned
    unchanged: those that another broker would return too, and a lost connection when the request may have been executed
    and must not be repeated.
    """
    gone = (
        (RefusedFailure, DnsFailure, TimeoutFailure, DisconnectedFailure)
        if repeatable
        else (RefusedFailure, DnsFailure)
    )
    return BrokerFailure.of(code, str(failure), subject=subject) if isinstance(failure, gone) else failure


def _may_repeat(outcome: object, again: frozenset[ErrorCode], *, retry_lost: bool) -> bool:
    if isinstance(outcome, BrokerFailure):
        return outcome.code in again
    return retry_lost and isinstance(outcome, DisconnectedFailure)


def _unanswered(cluster: str, key: object) -> BrokerFailure:
    return BrokerFailure.of(
        ErrorCode.UNKNOWN_SERVER_ERROR, "missing from the response", subject=f"{key} of cluster {cluster}"
    )
