"""Why offsets of groups are not on the target: the reasons of one checkpoint task, and their copy in the ledger."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final, TypeAlias

import structlog

from mm2.copy.progress.ledger import Ledger, group_record
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.reasons import OffsetReason

log = structlog.get_logger("mm2.mirror.group_reasons")

_WRITE_TIMEOUT_S: Final = 5.0

ReasonsByGroup: TypeAlias = dict[str, dict[TopicPartition, OffsetReason]]


class GroupReasons:
    """The current reasons by group. ``stopping`` is set before `close` is called.

    `untranslated` has partitions of the source, and only the task's thread changes it. `not_synced` has partitions of
    the target, and only the scheduler's thread changes it. Both replace the reasons of one group at a time.
    """

    def __init__(
        self, groups: Collection[str], clients: MirrorClients, recurring: RecurringErrors, stopping: threading.Event
    ) -> None:
        self._groups = frozenset(groups)
        self._clients = clients
        self._recurring = recurring
        self._stopping = stopping
        #: Why offsets cannot be translated.
        self.untranslated: ReasonsByGroup = {}
        #: Why translated offsets are not committed on the target.
        self.not_synced: ReasonsByGroup = {}
        self._lock = threading.Lock()
        self._topic = ""
        self._written: ReasonsByGroup | None = None  # reasons in the ledger; None until it was read
        self._cluster: Cluster | None = None
        self._producer: Producer | None = None

    def follow(self, ledger: Ledger, topic: str) -> None:
        """Start with the reasons that ``ledger`` contains, and write to ``topic``; without a ledger, reasons are only kept in memory."""
        with self._lock:
            self._topic = topic
            self._written = {
                group: reasons for group, reasons in ledger.group_reasons().items() if group in self._groups
            }

    def current(self) -> ReasonsByGroup:
        """All reasons by group and partition."""
        both: ReasonsByGroup = {}
        for found in (dict(self.untranslated), dict(self.not_synced)):
            for group, reasons in found.items():
                if reasons:
                    both.setdefault(group, {}).update(reasons)
        return both

    def write(self) -> None:
        """Write the reasons that have changed to the ledger."""
        with self._lock:
            written, reasons = self._written, self.current()
            if written is None:
                return
            changed = [group for group in written.keys() | reasons.keys() if written.get(group) != reasons.get(group)]
            if not changed:
                return
            count = sum(map(len, reasons.values()))
            log.info(
                "Some offsets are not on the target." if count else "All offsets are on the target.", partitions=count
            )
            topic = self._topic
            records = [group_record(group, reasons.get(group, {})) for group in sorted(changed)]
            try:
                self._opened().send(topic, records, 0, timeout_s=_WRITE_TIMEOUT_S)
            except KafkaFailure as failure:
                if not self._stopping.is_set():
                    self._recurring.report(
                        "reasons", f"The reasons why offsets are missing cannot be written to {topic}: {failure}"
                    )
                return
            self._recurring.resolve("reasons")
            self._written = reasons

    def close(self) -> None:
        """Close the connections, which ends a write in progress."""
        if self._cluster is not None:
            self._cluster.close()

    def _opened(self) -> Producer:
        if self._producer is None:
            self._cluster = self._clients.cluster(Side.TARGET, ClientKind.PRODUCER, "checkpoint-target-producer")
            self._producer = Producer(self._cluster)
            if self._stopping.is_set():
                self._cluster.close()
        return self._producer
