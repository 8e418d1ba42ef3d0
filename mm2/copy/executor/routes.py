"""Records that transformations send to another topic or partition than the remote one.

They are not counted in the copy session of their source partition, because a look-up of the remote partition does not show
whether they have been written. In the default mode they are written by
producers without idempotence, over connections of their own, at least once. In exactly-once mode they belong to the
transaction of the task. In both the position passes a routed record only after it has been acknowledged.

A topic that does not exist is created with the partitions, replicas and configs of the remote topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.changes import ChangeDelayed, RoutedRecord
from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.outbox import Outbox, OutboxState, OutgoingBatch
from mm2.copy.executor.sink import Sink
from mm2.copy.executor.transaction import TaskTransactions
from mm2.copy.executor.window import SourceRange
from mm2.copy.spec import PartitionSpec
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.partitioner import partition_for
from mm2.kafka.records.batch import read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import ConfigSource, NewTopic, TopicInfo, TopicPartition

AT_LEAST_ONCE: Final = "at least once: transformations send records to other partitions"
_LOOK_AGAIN_S: Final = 0.1
_RETRY_S: Final = 2.0


@dataclass(slots=True)
class _RoutedTopic:
    """``partitions`` 0: not known yet; ``failure`` says why."""

    partitions: int = 0
    failure: KafkaFailure | None = None


class Routes:
    """Writes the routed records of all partitions of a micro-batch."""

    def __init__(self, endpoints: Endpoints, tasks: BackgroundTasks, cursors: Mapping[TopicPartition, Cursor]) -> None:
        self._endpoints = endpoints
        self._tasks = tasks
        self._cursors = cursors
        self._topics: dict[str, _RoutedTopic] = {}
        self._outboxes: dict[TopicPartition, Outbox] = {}
        self._used: dict[TopicPartition, dict[TopicPartition, Outbox]] = {}  # by source partition
        self._sink: Sink | None = None
        self._transactions: TaskTransactions | None = None
        self._log = structlog.get_logger(__name__)

    def in_transactions(self, transactions: TaskTransactions) -> None:
        """Routed records belong to the transactions of the task."""
        self._transactions = transactions
        transactions.on_drained = self._endpoints.source.resume

    @property
    def are_in_transactions(self) -> bool:
        """Whether routed records have been written in transactions, which must include all records read before."""
        return self._transactions is not None and bool(self._outboxes)

    @property
    def is_draining(self) -> bool:
        """Whether nothing may be read, because the transaction ends with all records that have been read."""
        return self._transactions is not None and self._transactions.is_draining

    def check_topic(self, part: PartitionSpec, topic: str) -> None:
        """Raise ChangeDelayed until the topic exists."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _RoutedTopic()
            self._tasks.spawn(self._prepare(part.remote_topic, topic, found))
        if not found.partitions:
            what = f"{part.source}: transformations send records to topic {topic}, which is not ready yet"
            raise ChangeDelayed(what if found.failure is None else f"{what}: {found.failure}", _LOOK_AGAIN_S)

    def send(self, cursor: Cursor, records: Sequence[RoutedRecord], codec: int) -> None:
        """Write records, of topics that exist; the position of the partition waits for them."""
        if self._transactions is None:
            cursor.conditions.note = cursor.conditions.note or AT_LEAST_ONCE
        by_partition: dict[TopicPartition, list[Record]] = {}
        for one in records:
            by_partition.setdefault(self._partition_of(cursor.spec, one), []).append(one.record)
        entry = SourceRange(cursor.offset, cursor.offset, routed=len(records))
        cursor.window.append(entry)
        used = self._used.setdefault(cursor.partition, {})
        for partition, some in by_partition.items():
            outbox = used[partition] = self._outbox(partition)
            outgoing = self._outgoing(some, codec, cursor, entry)
            entry.size += len(outgoing.data)
            cursor.window.waiting_bytes += len(outgoing.data)
            self._sink_of_data().put(outbox, outgoing)

    def error(self, cursor: Cursor) -> KafkaFailure | None:
        """Why routed records of a partition cannot be written at the moment."""
        errors = (outbox.last_error for outbox in self._of(cursor) if not outbox.idle)
        return next((error for error in errors if error is not None), None)

    def is_busy(self, cursor: Cursor) -> bool:
        """Whether routed records of a partition may be acknowledged soon."""
        return any(not outbox.idle and outbox.state is not OutboxState.REFUSED for outbox in self._of(cursor))

    def _of(self, cursor: Cursor) -> list[Outbox]:
        return list(self._used.get(cursor.partition, {}).values())

    def _partition_of(self, part: PartitionSpec, one: RoutedRecord) -> TopicPartition:
        if one.partition is not None:
            return TopicPartition(one.topic, one.partition)
        count, key = self._topics[one.topic].partitions, one.record.key
        return TopicPartition(one.topic, part.partition % count if key is None else partition_for(key, count))

    def _sink_of_data(self) -> Sink:
        if self._sink is None:
            self._sink = self._endpoints.another_sink() if self._transactions is None else self._endpoints.sink
        return self._sink

    def _outbox(self, partition: TopicPartition) -> Outbox:
        found = self._outboxes.get(partition)
        if found is not None:
            return found
        transactions = self._transactions
        if transactions is None:
            found = self._sink_of_data().outbox(partition, idempotent=False)
        else:
            # A producer has one sequence for each partition: share the outbox of a partition that is copied to it.
            own = (cursor.outbox for cursor in self._cursors.values() if cursor.spec.target == partition)
            found = next(own, None) or self._sink_of_data().outbox(partition, idempotent=True, transactional=True)
            transactions.add_routed(found)
        self._outboxes[partition] = found
        return found

    def _outgoing(self, records: list[Record], codec: int, cursor: Cursor, entry: SourceRange) -> OutgoingBatch:
        """A batch of routed records; it is cut in two where the target rejects its size."""
        data = encode_batch(records, codec=codec)

        def acked(_base: int) -> None:
            cursor.window.routed(entry, len(records))
            self._endpoints.source.resume()

        def cut() -> list[OutgoingBatch] | None:
            middle = len(records) // 2
            if not middle:
                return None
            return [self._outgoing(some, codec, cursor, entry) for some in (records[:middle], records[middle:])]

        return OutgoingBatch(memoryview(data), read_header(data), acked, cut)

    # -- topics --------------------------------------------------------------------------------------------------------

    async def _prepare(self, remote: str, topic: str, found: _RoutedTopic) -> None:
        """Find out the number of partitions of a topic; it is created if it does not exist."""
        while True:
            try:
                found.partitions = await self._endpoints.call(self._ensure, remote, topic)
                return
            except KafkaFailure as error:
                found.failure = error
            await asyncio.sleep(_RETRY_S)

    def _ensure(self, remote: str, topic: str) -> int:
        """Blocking. Raises KafkaFailure."""
        admin = Admin(self._endpoints.target_cluster)
        found = admin.describe_topics([topic])[topic]
        if isinstance(found, TopicInfo):
            return len(found.partitions)
        if not (isinstance(found, BrokerFailure) and found.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise found
        model, configs = admin.describe_topics([remote])[remote], admin.describe_configs([remote])[remote]
        if isinstance(model, KafkaFailure):
            raise model
        if isinstance(configs, KafkaFailure):
            raise configs
        replicas = max(len(partition.replicas) for partition in model.partitions.values())
        set_ones = {
            entry.name: entry.value
            for entry in configs.values()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value is not None
        }
        created = admin.create_topics([NewTopic(topic, len(model.partitions), replicas, set_ones)]).get(topic)
        if created is None:
            self._log.info("created a topic to which transformations send records", topic=topic, like=remote)
            return len(model.partitions)
        if isinstance(created, BrokerFailure) and created.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return self._ensure(remote, topic)
        raise created
