"""Read topics like a consumer without a group: batches as they are in the log, decoded on request."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.errors import BrokerFailure, TimeoutFailure
from mm2.kafka.records.batch import BatchView, check_crc, iter_batches
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.records.transactions import AbortedTransactions
from mm2.kafka.structs import TopicInfo, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import FetchSession, Position

_PARTITION_BYTES = 4 << 20
_FETCH_BYTES = 16 << 20
_ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Batch:
    """One record batch, its CRC checked. `view` lives in the received frame and is good as long as anybody holds it."""

    topic_partition: TopicPartition
    view: BatchView


class BatchReader:
    """Reads partitions that one broker leads, through one connection. Not thread-safe.

    `positions` are the next offsets to read; `poll` moves them. `high_watermarks` are those of the last answers.
    `read_committed`: batches of aborted transactions are left out, and nothing behind the last stable offset is read.
    `throttled`: a quota was exceeded, so the last response may have been empty although there are records (KIP-219).
    """

    def __init__(
        self, cluster: Cluster, node_id: int, topics: Mapping[str, TopicInfo], *, read_committed: bool = False
    ) -> None:
        self._read_committed = read_committed
        self.positions: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._topics = dict(topics)
        self._has_ids = all(info.topic_id for info in topics.values())
        self._session = FetchSession({name: topic_id_bytes(info.topic_id) for name, info in topics.items()})
        self._connection: Connection = cluster.open_connection(node_id)

    @property
    def throttled(self) -> bool:
        return self._session.throttle_ms > 0

    def poll(self, *, max_wait_ms: int) -> list[Batch]:
        """What came within `max_wait_ms`, in order per partition, control batches left out. Raises KafkaFailure."""
        connection = self._connection
        connection.maybe_reauthenticate()
        version = connection.version_of(fetch.REQUEST, fetch.MAX_VERSION if self._has_ids else fetch.TOPIC_IDS_FROM - 1)
        wanted = {
            tp: Position(offset, self._topics[tp.topic].partitions[tp.partition].leader_epoch, _PARTITION_BYTES)
            for tp, offset in self.positions.items()
        }
        frame = self._session.request(
            version,
            connection.next_correlation_id(),
            connection.client_id,
            wanted,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            read_committed=self._read_committed,
        )
        connection.send_buffers([frame])
        # A buffer of its own for each answer: the batches handed out are views into it.
        answer = connection.receive_frame(bytearray(1 << 16), timeout_s=_ANSWER_TIMEOUT_S + max_wait_ms / 1000)
        batches: list[Batch] = []
        for fetched in self._session.response(version, answer):
            tp = fetched.topic_partition
            if fetched.error_code:
                raise BrokerFailure.of(fetched.error_code, subject=f"reading {tp}")
            self.high_watermarks[tp] = fetched.high_watermark
            aborted = AbortedTransactions(fetched.aborted) if self._read_committed else None
            batches += self._take(tp, fetched.records, aborted)
        return batches

    def close(self) -> None:
        self._connection.close()

    def _take(self, tp: TopicPartition, records: memoryview, aborted: AbortedTransactions | None) -> Iterator[Batch]:
        for view in iter_batches(records):
            header = view.header
            if header is None:
                self.positions[tp] = view.base_offset + 1
                yield Batch(tp, view)
                continue
            if header.last_offset < self.positions[tp]:
                continue
            check_crc(header, view.data)
            self.positions[tp] = header.last_offset + 1
            is_aborted = aborted is not None and aborted.covers(
                view
            )  # also for control batches: they end a transaction
            if not (header.is_control or is_aborted):
                yield Batch(tp, view)


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
    """The records of one partition from offset `start` to before `end`, one fetched answer in memory at a time.

    `read_committed`: without those of aborted transactions; `end` is then at most the last stable offset.
    Raises KafkaFailure; TimeoutFailure when nothing comes for `patience_s` though `end` is not reached.
    """
    if start >= end:
        return
    tp = TopicPartition(topic.name, partition)
    leader = cluster.leader(topic.name, partition)
    reader = BatchReader(cluster, leader, {topic.name: topic}, read_committed=read_committed)
    reader.positions[tp] = start
    waited_s = 0.0
    try:
        while reader.positions[tp] < end:
            before = reader.positions[tp]
            for batch in reader.poll(max_wait_ms=500):
                for record in decode_batch(batch.view):
                    if start <= record.offset < end:
                        yield record
            waited_s = waited_s + 0.5 if reader.positions[tp] == before else 0.0
            if waited_s > patience_s:
                raise TimeoutFailure(
                    f"{tp} of cluster {cluster.name} has nothing to read at offset {before}, before {end}"
                )
    finally:
        reader.close()
