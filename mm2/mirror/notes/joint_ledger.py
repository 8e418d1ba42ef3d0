"""The ledgers of several source connectors with one alias, for a checkpoint connector, which does not know their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mm2.copy.progress.ledger import Ledger, ledger_topic
from mm2.copy.progress.segments import SegmentChunk
from mm2.copy.progress.session import LedgerEntry
from mm2.kafka.structs import TopicPartition
from mm2.reasons import OffsetReason


class JointLedger(Ledger):
    """Of each partition what the connector has written that copies it to the topic of ``remote_of``.

    Any client of a cluster that may create topics can create one with the name of a ledger. So an entry counts only in the ledger of the
    connector that it names, and not if it names another source cluster than ``cluster_id`` ("": not known); one that names this cluster
    is preferred. Read only: the ledgers, by topic, are updated by their readers.
    """

    def __init__(
        self, ledgers: Mapping[str, Ledger], alias: str, cluster_id: str, remote_of: Callable[[str], str]
    ) -> None:
        super().__init__()
        self._ledgers = ledgers
        self._alias = alias
        self._cluster_id = cluster_id
        self._remote_of = remote_of
        self._believed: dict[str, tuple[int, bool]] = {}  # by topic, as of this number of changes

    def _is_believed(self, topic: str, entry: LedgerEntry) -> bool:
        group, connector, cluster = entry.copy_id
        own = ledger_topic(self._alias, group, connector) if connector else ledger_topic(self._alias)  # of old versions
        return topic == own and (not cluster or not self._cluster_id or cluster == self._cluster_id)

    def _of(self, source: TopicPartition) -> Ledger | None:
        found = [
            (entry, ledger)
            for topic, ledger in self._ledgers.items()
            if (entry := ledger.entry(source)) is not None and self._is_believed(topic, entry)
        ]
        remote = self._remote_of(source.topic) if len(found) > 1 else ""

        def rank(one: tuple[LedgerEntry, Ledger]) -> tuple[bool, ...]:
            copy_id = one[0].copy_id
            return copy_id.cluster == self._cluster_id, one[0].remote_topic == remote, not copy_id.connector

        best = max(found, key=rank, default=None)
        return None if best is None else best[1]

    def _with_entries(self) -> list[Ledger]:
        """Those with an entry that counts."""
        for topic, ledger in self._ledgers.items():
            if topic not in self._believed or self._believed[topic][0] != ledger.changes:
                entries = (entry for tp in ledger.partitions() if (entry := ledger.entry(tp)) is not None)
                is_believed = any(self._is_believed(topic, entry) for entry in entries)
                self._believed[topic] = ledger.changes, is_believed
        return [ledger for topic, ledger in self._ledgers.items() if self._believed[topic][1]]

    def entry(self, source: TopicPartition) -> LedgerEntry | None:
        ledger = self._of(source)
        return None if ledger is None else ledger.entry(source)

    def chunks(self, source: TopicPartition) -> list[SegmentChunk]:
        ledger = self._of(source)
        return [] if ledger is None else ledger.chunks(source)

    def partitions(self) -> list[TopicPartition]:
        known = {source for ledger in self._ledgers.values() for source in ledger.partitions()}
        return sorted(source for source in known if self._of(source) is not None)

    @property
    def changes(self) -> int:
        return sum(ledger.changes for ledger in self._ledgers.values())

    def version(self, source: TopicPartition) -> int:
        return 0 if self._of(source) is None else sum(ledger.version(source) for ledger in self._ledgers.values())

    def notes(self, kind: str) -> dict[tuple[str, ...], dict[str, Any]]:
        return {name: value for ledger in self._with_entries() for name, value in ledger.notes(kind).items()}

    def group_reasons(self) -> dict[str, dict[TopicPartition, OffsetReason]]:
        return {group: reasons for ledger in self._with_entries() for group, reasons in ledger.group_reasons().items()}
