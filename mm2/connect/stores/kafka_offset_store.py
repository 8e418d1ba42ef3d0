"""The offsets topic with the source offsets (KafkaOffsetBackingStore)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mm2.connect.api import ConnectError
from mm2.connect.stores.internal_log import InternalLog
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.offset_json import OffsetJson
from mm2.connect.stores.offset_store import OffsetStore, SourceOffset
from mm2.connect.stores.offset_table import OffsetTable
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.key_values import collect
from mm2.kafka.log import LogProgress
from mm2.kafka.records.batch import BatchView


class KafkaOffsetStore(OffsetStore):
    """Source offsets of all connectors of a worker, or of a connector with its own topic. Thread-safe.

    ``read_committed``: offsets count only when their transaction is committed; with exactly-once support the tasks
    write them together with their records.
    """

    def __init__(
        self, cluster: Cluster, topic: InternalTopic, *, start_timeout_s: float, read_committed: bool = False
    ) -> None:
        self._table = OffsetTable()
        self._log = InternalLog(
            cluster,
            topic,
            on_batches=self._take,
            start_timeout_s=start_timeout_s,
            read_committed=read_committed,
        )

    @property
    def topic(self) -> str:
        return self._log.name

    @property
    def progress(self) -> LogProgress | None:
        return self._log.progress

    def start(self) -> None:
        """Create or check the topic and read all of it. Raises ConnectError or KafkaFailure."""
        self._log.start()

    def stop(self) -> None:
        self._log.stop()

    def offsets(
        self, connector: str, partitions: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> list[dict[str, Any] | None]:
        self.refresh(timeout_s)
        return [self._table.offset(connector, partition) for partition in partitions]

    def all_offsets(self, connector: str, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        self.refresh(timeout_s)
        return self._table.all_offsets(connector)

    def refresh(self, timeout_s: float) -> None:
        try:
            self._log.read_to_end(timeout_s)
        except KafkaFailure as failure:
            raise ConnectError(
                f"The source offsets in topic {self._log.name} of cluster {self._log.cluster.name} cannot be read: {failure}"
            ) from failure

    def records(self, connector: str, offsets: Iterable[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        """The records for these offsets; a removal covers every key that is equal to the partition."""
        found: list[tuple[bytes, bytes | None]] = []
        for partition, offset in offsets:
            value = OffsetJson.value(offset)
            keys = (
                self._table.keys_of(connector, partition) if value is None else [OffsetJson.key(connector, partition)]
            )
            found += [(key, value) for key in keys]
        return found

    def write(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        records = self.records(connector, offsets)
        if not records:
            return
        try:
            self._log.send_all(records, timeout_s=timeout_s)
        except KafkaFailure as failure:
            raise ConnectError(
                f"Source offsets of connector {connector} were not written to topic {self._log.name} of cluster "
                f"{self._log.cluster.name}: {failure}"
            ) from failure

    def _take(self, _partition: int, views: Sequence[BatchView], position: int) -> None:
        self._table.update(collect(views, position))
