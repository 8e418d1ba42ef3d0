"""Reads partitions without a group: batches as they are in the log, or the records of one partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, TimeoutFailure
from mm2.kafka.readers.fetch_reader import FetchReaderLimits, LeaderConnection
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.records.visibility import VisibleBatches
from mm2.kafka.structs import TopicInfo, TopicPartition

_LIMITS: Final = FetchReaderLimits(max_wait_ms=0, max_bytes=16 << 20, partition_bytes=4 << 20)
_ANSWER_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Batch:
    """One record batch with a valid CRC. ``view`` keeps the received frame in memory."""

    topic_partition: TopicPartition
    view: BatchView


class BatchReader:
    """Reads partitions that one broker leads, through one connection. Not thread-safe.

    ``positions`` are the next offsets to read; `poll` moves them. ``high_watermarks`` are those of the last responses.
    ``read_committed``: batches of aborted transactions are left out, and nothing after the last stable offset is read.
    ``with_control``: control batches are returned, too.
    """

    def __init__(
        self,
        cluster: Cluster,
        node_id: int,
        topics: Mapping[str, TopicInfo],
        *,
        read_committed: bool = False,
        with_control: bool = False,
    ) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._topics = dict(topics)
        self._limits = replace(_LIMITS, read_committed=read_committed)
        self._with_control = with_control
        self._leader = LeaderConnection(cluster.open_connection(node_id))

    @property
    def throttled(self) -> bool:
        """A quota was exceeded: the last response may have been empty although there are records (KIP-219)."""
        return self._leader.throttled

    def poll(self, *, max_wait_ms: int) -> list[Batch]:
        """The batches that arrive within ``max_wait_ms``, in order per partition, without control batches unless they are wanted.

        Raises KafkaFailure.
        """
        self._leader.send(self.positions, self._topics, replace(self._limits, max_wait_ms=max_wait_ms))
        # A separate buffer for each response: the returned batches are views into it.
        fetched, _ = self._leader.receive(bytearray(1 << 16), _ANSWER_TIMEOUT_S + max_wait_ms / 1000)
        batches: list[Batch] = []
        for one in fetched:
            tp = one.topic_partition
            if one.error_code:
                raise BrokerFailure.of(one.error_code, subject=f"reading {tp}", needed="READ")
            self.high_watermarks[tp] = one.high_watermark
            aborted = one.aborted if self._limits.read_committed else None
            visible = VisibleBatches(one.records, self.positions[tp], aborted=aborted, with_control=self._with_control)
            batches += [Batch(tp, view) for view in visible]
            self.positions[tp] = visible.position
        return batches

    def close(self) -> None:
        """Close the connection."""
        self._leader.connection.close()


def read_partition(
    cluster: Cluster,
    topic: TopicInfo,
    partition: int,
    *,
    start: int,
    end: int,
    patience_s: float = 30.0,
    read_committed: bool = False,
) -> Iterator[Record]:
    """The records of one partition from offset ``start`` to before ``end``, with one response in memory at a time.

    ``read_committed``: without records of aborted transactions; ``end`` is then at most the last stable offset.
    Raises KafkaFailure; TimeoutFailure when nothing arrives for ``patience_s`` before ``end`` is reached.
    """
    if start >= end:
        return
    tp = TopicPartition(topic.name, partition)
    leader = cluster.leader(topic.name, partition)
    reader = BatchReader(cluster, leader, {topic.name: topic}, read_committed=read_committed)
    reader.positions[tp] = start
    waited_s = 0.0
    limit = cluster.settings.decompression_max_bytes
    try:
        while reader.positions[tp] < end:
            before = reader.positions[tp]
            for batch in reader.poll(max_wait_ms=500):
                for record in decode_batch(batch.view, limit):
                    if start <= record.offset < end:
                        yield record
            waited_s = waited_s + 0.5 if reader.positions[tp] == before else 0.0
            if waited_s > patience_s:
                raise TimeoutFailure(
                    f"No records of {tp} of cluster {cluster.name} were returned from offset {before} on, before {end}."
                )
    finally:
        reader.close()
