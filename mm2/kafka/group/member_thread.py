"""The thread of a group member: finds the coordinator, sends one request after another, and waits between failures.

`mm2.kafka.group.classic_member` and `mm2.kafka.consumer.server_assigned` define what it sends.
"""

from __future__ import annotations

import contextvars
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

import structlog

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure


class Retry(Exception):
    """The current attempt failed; the loop continues after ``wait_s``."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class MemberThread(ABC):
    """Base class of group members.

    ``changed`` guards the state that the membership thread shares with other threads, and is notified of changes.
    ``instance_id`` is set for a static member. ``coordinator_timeout_s`` limits each search for the coordinator (None:
    ``request.timeout.ms``), ``leave_timeout_s`` limits each step of leaving the group.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str,
        changed: threading.Condition,
        thread_name: str,
        leave_timeout_s: float,
        coordinator_timeout_s: float | None = None,
        instance_id: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._changed = changed
        self._leave_timeout_s = leave_timeout_s
        self._coordinator_timeout_s = coordinator_timeout_s
        self._instance_id = instance_id
        self._log = structlog.get_logger(type(self).__module__).bind(group=group_id, cluster=cluster.name)

        # Guarded by the condition.
        self._stopping = False

        # Only the membership thread accesses these.
        self._next_heartbeat_s = 0.0
        self._failures = 0
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        self._context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: self._context.run(self._run), name=thread_name, daemon=True)

    def start(self) -> None:
        """Start the membership thread."""
        self._context = contextvars.copy_context()  # so that its log lines name the starter's flow
        self._thread.start()

    @abstractmethod
    def _step(self) -> None:
        """Perform one step, or wait for at most a second if none is due. Called without the condition.

        Raises Retry, or the error that ends the membership.
        """

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """Handle the error that ended the membership thread. Called without the condition."""

    def _is_final(self, failure: KafkaFailure) -> bool:
        """Whether asking the coordinator again is useless. Called without the condition."""
        return not failure.retriable

    def _on_silence(self, failure: KafkaFailure, asked_s: float) -> None:
        """Handle a request, sent at ``asked_s`` (monotonic), that the coordinator did not answer.

        Called without the condition.
        """
        if self._failures == 0:
            self._log.warning("the coordinator cannot be reached", reason=str(failure))

    def _run(self) -> None:
        while True:
            try:
                with self._changed:
                    if self._stopping:
                        return
                self._step()
            except Retry as retry:
                self._log.debug("group attempt ended", reason=str(retry))
                self._pause(retry.wait_s)
            except Exception as error:  # noqa: BLE001 - reported to the user of the member
                self._fail(error)
                return

    def _ask(self, request: Any, timeout_s: float) -> Any:
        """Send a request to the coordinator and return its answer. Raises Retry, or the failure when it `_is_final`."""
        asked_s = time.monotonic()
        try:
            node = self._cluster.coordinator(self._group_id, timeout_s=self._coordinator_timeout_s)
            answer = self._cluster.send(node, request, timeout_s=timeout_s)
        except KafkaFailure as failure:
            self._cluster.invalidate_coordinator(self._group_id)
            if self._is_final(failure):
                raise
            self._on_silence(failure, asked_s)
            raise Retry(str(failure), self._next_wait_s()) from failure
        self._failures = 0
        return answer

    def _next_wait_s(self) -> float:
        self._failures += 1
        return self._backoff.delay_s(self._failures - 1)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._stopping and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
