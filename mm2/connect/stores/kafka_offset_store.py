"""Source offsets on Kafka: the worker's topic, and a connector's own topic (KafkaOffsetBackingStore; KIP-618)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.stores.internal_topic import InternalLog, InternalTopic
from mm2.connect.stores.offset_store import OffsetStore, SourceOffset
from mm2.connect.stores.offset_table import OffsetJson, OffsetTable
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.key_values import collect
from mm2.kafka.readers.log import LogProgress
from mm2.kafka.records.batch import BatchView

log = structlog.get_logger(__name__)


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


_COPY_S = 30.0


def own_topic(named: str, shared: str, *, elsewhere: bool, exactly_once: bool) -> str | None:
    """The connector's own offsets topic; None when its offsets are in ``shared``, the worker's topic.

    ``named`` is the connector's ``offsets.storage.topic``; ``elsewhere``: its producers write to another cluster, which
    then contains its own topic. With exactly-once support, offsets must be in the cluster of the records, so there is
    an own topic even if ``named`` is empty: it has the name of the worker's topic
    (Worker.offsetStoreForExactlyOnceSourceTask).
    """
    topic = named or (shared if elsewhere and exactly_once else "")
    return topic if topic and (elsewhere or topic != shared) else None


class ConnectorOffsetStore(OffsetStore):
    """Reads ``own`` (`offsets.storage.topic`) first and ``shared``, the worker's store, for offsets missing in it.

    Writes to ``own`` are copied to ``shared`` afterwards on a best-effort basis, so that a connector can continue if
    its own topic is no longer configured. Removals go to ``shared`` first, and if that fails nothing is removed;
    otherwise a removed offset would reappear from ``shared``.

    Starts and stops ``own`` only.
    """

    def __init__(self, own: OffsetStore, shared: OffsetStore) -> None:
        self._own = own
        self._shared = shared
        self._copies: dict[tuple[str, bytes], SourceOffset] = {}
        self._news = threading.Condition()
        # Held during writes to the shared store, so that no copy overtakes a removal.
        self._sharing = threading.Lock()
        self._stopping = False
        self._copier: threading.Thread | None = None

    @property
    def topic(self) -> str:
        return self._own.topic

    @property
    def progress(self) -> LogProgress | None:
        return self._own.progress

    def start(self) -> None:
        self._own.start()

    def stop(self) -> None:
        """Copies that `flush` has not waited for are dropped: they could overwrite those of a successor."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        self._own.stop()

    def offsets(
        self, connector: str, partitions: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> list[dict[str, Any] | None]:
        deadline = time.monotonic() + timeout_s
        shared = self._shared.offsets(connector, partitions, timeout_s)
        own = self._own.offsets(connector, partitions, _remaining_s(deadline))
        return [there if here is None else here for here, there in zip(own, shared, strict=True)]

    def all_offsets(self, connector: str, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        deadline = time.monotonic() + timeout_s
        found = {}
        for store in (self._shared, self._own):
            for partition, offset in store.all_offsets(connector, _remaining_s(deadline)):
                found[OffsetJson.key(connector, partition)] = (partition, offset)
        return [found[key] for key in sorted(found)]

    def refresh(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._shared.refresh(timeout_s)
        self._own.refresh(_remaining_s(deadline))

    def records(self, connector: str, offsets: Iterable[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        return self._own.records(connector, offsets)

    def write(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        wanted = list(offsets)
        self.before_commit(connector, wanted, timeout_s)
        self._own.write(connector, wanted, _remaining_s(deadline))
        self.after_commit(connector, wanted)

    def before_commit(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        """Remove from the shared store the offsets that will be removed from the connector's own."""
        removed = [(partition, None) for partition, offset in offsets if offset is None]
        if not removed:
            return
        deadline = time.monotonic() + timeout_s
        if not self._sharing.acquire(timeout=timeout_s):
            raise ConnectError(
                f"Offsets of connector {connector} were not removed: copying to the worker's topic has not finished"
            )
        try:
            with self._news:
                for partition, _ in removed:
                    self._copies.pop((connector, OffsetJson.key(connector, partition)), None)
            self._shared.write(connector, removed, _remaining_s(deadline))
        finally:
            self._sharing.release()

    def after_commit(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        """Copy offsets from the connector's own store to the shared one; returns immediately."""
        with self._news:
            for partition, offset in offsets:
                if offset is not None:
                    self._copies[connector, OffsetJson.key(connector, partition)] = (partition, offset)
            if self._copies and self._copier is None and not self._stopping:
                self._copier = threading.Thread(target=self._copy, name=f"offset-copies-{self.topic}", daemon=True)
                self._copier.start()
            self._news.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all copies are made or given up; False after ``timeout_s``."""
        with self._news:
            return self._news.wait_for(lambda: not self._copies, timeout_s)

    def _copy(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._copies or self._stopping)
                if self._stopping:
                    return
            with self._sharing:
                with self._news:
                    batch = dict(self._copies)
                by_connector: dict[str, list[SourceOffset]] = {}
                for (connector, _), offset in batch.items():
                    by_connector.setdefault(connector, []).append(offset)
                for connector, offsets in by_connector.items():
                    self._copy_some(connector, offsets)
            with self._news:
                for key, offset in batch.items():
                    if self._copies.get(key) is offset:
                        del self._copies[key]
                self._news.notify_all()

    def _copy_some(self, connector: str, offsets: Sequence[SourceOffset]) -> None:
        try:
            self._shared.write(connector, offsets, _COPY_S)
        except ConnectError as error:
            # The offsets are durable in the connector's own topic, and the next commit copies newer ones.
            log.warning("offsets not copied to the worker's own topic", connector=connector, reason=str(error))


def _remaining_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
