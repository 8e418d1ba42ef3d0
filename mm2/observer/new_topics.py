"""Finds partitions of the source with records that the flow is to copy and has not discovered yet.

The flow finds new topics and partitions when it refreshes its topics, by default every ten minutes. Until then no ledger and no
assignment contains them, although all their records would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from mm2.copy.ledger import Ledger
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.mirror.clients import Side
from mm2.mirror.discovery import see_topics
from mm2.mirror.filters import close_quietly
from mm2.mirror.ledgers import Ledgers, copied_to
from mm2.mirror.preparation import Preparation, preparations
from mm2.mirror.promotions import promoted
from mm2.mirror.provenance import Provenance
from mm2.mirror.recurring_errors import RecurringErrors
from mm2.mirror.source_connector import topic_selection
from mm2.observer.polls import FlowClients

#: Interval of the poll: a list of all topics of a cluster is a large response.
NEW_TOPICS_S: Final = 60.0
_REASON: Final = "nothing was copied yet: new topics are found after refresh.topics.interval.seconds at the latest"


class NewTopicsPoll:
    """Polls for such partitions; ``found`` has them, with the time when they were first seen.

    The reader sets ``ledger`` (None: not read yet), and ``assigned`` to the partitions that the tasks have.
    """

    def __init__(self, clients: FlowClients) -> None:
        """Raises ConfigException and ConnectError; opens nothing."""
        self.found: Mapping[TopicPartition, Preparation] = {}
        self.ledger: Ledger | None = None
        self.assigned: Collection[TopicPartition] = ()
        self._selection = topic_selection(clients.props)
        self._source, self._target = clients.cluster(Side.SOURCE), clients.cluster(Side.TARGET)
        self._admin = Admin(self._source)
        target_admin = Admin(self._target)
        self._ledgers = Ledgers(clients.mirror, target_admin)
        self._provenance = Provenance(
            self._admin, target_admin, self._selection, self._ledgers, _Unreported(), lambda _: False
        )
        self._refused: set[str] = set()  # they came from the target

    def __call__(self) -> None:
        """List the topics of the source. Raises KafkaFailure."""
        ledger = self.ledger
        if ledger is None:
            return
        selected = see_topics(self._admin, self._is_selected, {}).partitions
        known = {*self.assigned, *preparations(ledger), *ledger.partitions()}
        topics = {tp.topic for tp in known}
        new = selected.keys() - topics - self._refused
        if self._selection.route:
            new -= self._selection.unroutable(selected, lambda: copied_to(ledger)).keys()
        if not self._selection.names_show_origin and new:
            allowed = self._provenance.foreseen(new)
            self._refused |= new - allowed
            new = allowed
        copied = selected.keys() & topics - promoted(ledger).keys()
        missing = {TopicPartition(topic, number) for topic in new | copied for number in range(selected[topic])} - known
        self.found = {tp: self.found.get(tp) or self._preparation(tp) for tp in sorted(self._with_records(missing))}

    def close(self) -> None:
        """Abort the requests in flight."""
        self._ledgers.stop()
        self._source.close()
        self._target.close()
        close_quietly(self._selection.topic_filter)

    def _is_selected(self, topic: str) -> bool:
        selection = self._selection
        return selection.should_replicate(topic) and not selection.policy.is_heartbeats_topic(topic)

    def _with_records(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        starts = self._admin.list_offsets(dict.fromkeys(partitions, EARLIEST)) if partitions else {}
        ends = self._admin.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}
        return [
            tp
            for tp in partitions
            if isinstance(start := starts[tp], OffsetInfo)
            and isinstance(end := ends[tp], OffsetInfo)
            and start.offset < end.offset
        ]

    def _preparation(self, tp: TopicPartition) -> Preparation:
        remote, since_ms = self._selection.remote(tp.topic), time.time_ns() // 1_000_000
        return Preparation(tp.topic, tp.partition, remote, PartitionState.PREPARING, _REASON, since_ms)


class _Unreported(RecurringErrors):
    """The flow itself logs which topics it refuses."""

    def report(self, subject: str, message: str, *, is_note: bool = False) -> None:
        pass
