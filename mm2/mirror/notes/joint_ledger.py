"""The ledgers of several source connectors with one alias, for a checkpoint connector, which does not know their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.segments import SegmentChunk
from mm2.copy.progress.session import LedgerEntry
from mm2.kafka.structs import TopicPartition
from mm2.reasons import OffsetReason


class JointLedger(Ledger):
    """Of each partition what the connector has written that copies it to the topic of ``remote_of``.

    Read only: the ledgers are updated by their readers.
    """

    def __init__(self, ledgers: Sequence[Ledger], remote_of: Callable[[str], str]) -> None:
        super().__init__()
        self._ledgers = ledgers
        self._remote_of = remote_of

    def _of(self, source: TopicPartition) -> Ledger | None:
        known = [ledger for ledger in self._ledgers if ledger.version(source)]
        remote = self._remote_of(source.topic) if len(known) > 1 else ""
        for ledger in known:
            if len(known) == 1 or ((entry := ledger.entry(source)) is not None and entry.remote_topic == remote):
                return ledger
        return known[0] if known else None

    def entry(self, source: TopicPartition) -> LedgerEntry | None:
        ledger = self._of(source)
        return None if ledger is None else ledger.entry(source)

    def chunks(self, source: TopicPartition) -> list[SegmentChunk]:
        ledger = self._of(source)
        return [] if ledger is None else ledger.chunks(source)

    def partitions(self) -> list[TopicPartition]:
        return sorted({source for ledger in self._ledgers for source in ledger.partitions()})

    @property
    def changes(self) -> int:
        return sum(ledger.changes for ledger in self._ledgers)

    def version(self, source: TopicPartition) -> int:
        return sum(ledger.version(source) for ledger in self._ledgers)

    def notes(self, kind: str) -> dict[tuple[str, ...], dict[str, Any]]:
        return {name: value for ledger in self._ledgers for name, value in ledger.notes(kind).items()}

    def group_reasons(self) -> dict[str, dict[TopicPartition, OffsetReason]]:
        return {group: reasons for ledger in self._ledgers for group, reasons in ledger.group_reasons().items()}
