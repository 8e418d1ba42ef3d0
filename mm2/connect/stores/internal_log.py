"""An internal topic and its log: created or checked, read to its end, tailed, written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from mm2.connect.api import ConnectError
from mm2.connect.stores.internal_topic import InternalTopic, ensure
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.log import KafkaBasedLog, LogProgress, LogRecord, OnBatches
from mm2.kafka.producer import Producer


class InternalLog:
    """What the three stores share. ``on_record`` or ``on_batches`` runs on the log's thread. Thread-safe.

    ``start_timeout_s`` limits the creation of the topic, and separately reading it. ``single_partition``: reject a
    topic with more partitions. ``read_committed``: records of open and aborted transactions are skipped, and reading to
    the end waits for open ones. ``stopping`` is set when the store ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: InternalTopic,
        *,
        on_record: Callable[[LogRecord], None] | None = None,
        on_batches: OnBatches | None = None,
        start_timeout_s: float,
        single_partition: bool = False,
        read_committed: bool = False,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.stopping = threading.Event()
        self._start_timeout_s = start_timeout_s
        self._single_partition = single_partition
        self._producer = Producer(cluster)
        self._log = KafkaBasedLog(
            cluster,
            topic.name,
            on_record=on_record,
            on_batches=on_batches,
            producer=self._producer,
            read_committed=read_committed,
        )

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.topic.name

    @property
    def progress(self) -> LogProgress | None:
        """The progress of reading in `start`; None before reading begins."""
        return self._log.progress

    def start(self) -> None:
        """Create or check the topic and read all of it. Raises ConnectError or KafkaFailure.

        Does not wait for a transaction that a dead worker has left open: the next task or leader aborts it. In Java, a
        worker that was killed cannot start before the transaction has timed out (a minute).
        """
        ensure(
            Admin(self.cluster),
            self.topic,
            self.cluster.name,
            timeout_s=self._start_timeout_s,
            single_partition=self._single_partition,
            stopping=self.stopping,
        )
        self._log.start(self._start_timeout_s, to_stable=True)
        if self._single_partition and self._log.partitions != 1:
            raise ConnectError(
                f"Topic '{self.name}' supplied via the '{self.topic.key}' property is required to have a single partition, "
                f"but it has {self._log.partitions} on cluster {self.cluster.name}"
            )

    def stop(self) -> None:
        """Stop reading and abort writes in progress."""
        self.stop_writing()
        self._log.stop()

    def stop_writing(self) -> None:
        """Abort writes in progress; reading continues until `stop`."""
        self.stopping.set()
        self._producer.close()

    def read_to_end(self, timeout_s: float) -> None:
        """Wait until all current records of the topic have been passed to ``on_record``.

        Raises KafkaFailure on a timeout.
        """
        self._log.read_to_end(timeout_s)

    def send_all(self, records: Iterable[tuple[bytes | None, bytes | None]], *, timeout_s: float) -> None:
        """Write (key, value) pairs in order and wait for the acknowledgements.

        Raises KafkaFailure; some pairs may have been written then.
        """
        self._log.send_all(records, timeout_s=timeout_s)
