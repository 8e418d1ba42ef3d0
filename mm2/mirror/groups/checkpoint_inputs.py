"""What a checkpoint task reads before and while it translates: earlier checkpoints, two ledgers, the offset syncs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.copy.progress.ledger import Ledger, LedgerLog, is_ledger_of
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.structs import MAX_TOPIC_NAME, TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.formats import Checkpoint, FormatError, OffsetSync
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.common.scheduler import Job
from mm2.mirror.common.syncs_topic import syncs_side, syncs_topic
from mm2.mirror.groups.checkpoint_store import CheckpointStore
from mm2.mirror.groups.group_reasons import GroupReasons
from mm2.mirror.groups.offset_sync_store import OffsetSyncStore
from mm2.mirror.groups.translator import Translator
from mm2.mirror.notes.joint_ledger import JointLedger
from mm2.mirror.policy import ReplicationPolicy
from mm2.mirror.topics.routing import TopicRoute

log = structlog.get_logger("mm2.mirror.checkpoint_inputs")

#: Without a record. The newest segment of a topic, of up to 1 GB, is not compacted and may take minutes to read.
_READ_TIMEOUT_S: Final = 30.0
_METADATA_TIMEOUT_S: Final = 5.0
_LEDGERS_AGAIN_S: Final = 60.0


def ledgers_of(clients: MirrorClients, side: Side, admin: Admin) -> list[str]:
    """The existing ledgers of this flow on the target, or of the opposite flow on the source. Raises KafkaFailure."""
    if clients.are_of_file:
        wanted = clients.ledger_topic if side is Side.TARGET else clients.opposite_ledger_topic
        return [wanted] if wanted in admin.cluster.metadata([wanted], timeout_s=_METADATA_TIMEOUT_S).topics else []
    alias = clients.source_alias if side is Side.TARGET else clients.target_alias
    return sorted(name for name in admin.list_topics() if is_ledger_of(name, alias))


@dataclass(eq=False)
class CheckpointInputs:
    """The topics that one checkpoint task reads, and its `translator`, which uses them.

    `jobs` run on the task's scheduler. ``stopping`` is set before `close` is called.
    """

    _clients: MirrorClients
    _policy: ReplicationPolicy
    _route: TopicRoute
    _admins: Mapping[Side, Admin]
    _checkpoints: CheckpointStore
    _reasons: GroupReasons
    _recurring: RecurringErrors
    _stopping: threading.Event

    def __post_init__(self) -> None:
        self.translator = Translator(self._policy, self._clients.source_alias, self._clients.target_alias, self._route)
        self._followed: dict[Side, dict[str, LedgerLog]] = {side: {} for side in Side}
        self._checkpoints_topic = self._policy.checkpoints_topic(self._clients.source_alias)
        self._clusters: list[Cluster] = []
        self._logs: list[KafkaBasedLog | LedgerLog] = []
        self._checkpoints_readable = False
        self._searched_for_ledger: set[Side] = set()

    def jobs(self) -> Sequence[tuple[str, Job]]:
        """The jobs that read the topics, with their names, to be run in this order by one thread."""
        return (
            ("Loading checkpoints", self._load_checkpoints),
            ("Reading the ledger", self._follow_ledger),
            ("Reading the ledger of the opposite flow", self._follow_opposite_ledger),
            ("Reading offset syncs", self._follow_syncs),
        )

    def recurring_jobs(self) -> Sequence[tuple[float, str, Job]]:
        """Jobs to be repeated after so many seconds each time."""
        return () if self._clients.are_of_file else ((_LEDGERS_AGAIN_S, "Looking for ledgers", self._look_for_ledgers),)

    @property
    def are_ready(self) -> bool:
        """Whether the search for ledgers has finished and a ledger or the offset syncs can be used."""
        if len(self._searched_for_ledger) < len(Side):
            return False
        return self.translator.syncs is not None or self.translator.ledger is not None

    def close(self) -> None:
        """Close the connections and stop the readers, which ends a job in progress."""
        for cluster in list(self._clusters):
            cluster.close()
        for reader in list(self._logs):
            reader.stop()

    def _cluster(self, side: Side, role: str) -> Cluster:
        cluster = self._clients.cluster(side, ClientKind.CONSUMER, role)
        self._clusters.append(cluster)
        if self._stopping.is_set():
            cluster.close()
        return cluster

    # -- earlier checkpoints

    def _load_checkpoints(self) -> None:
        """Read the checkpoints topic once. If this is not possible, older syncs must not be used either."""
        topic = self._checkpoints_topic
        cluster = self._cluster(Side.TARGET, "checkpoints-target-consumer")
        reader = KafkaBasedLog(cluster, topic, on_record=self._on_checkpoint, partitions=(0,))
        self._logs.append(reader)
        try:
            reader.start(_READ_TIMEOUT_S)
            self._checkpoints_readable = True
            log.info("Loaded checkpoints.", topic=topic, groups=len(self._checkpoints.groups()))
        except KafkaFailure as failure:
            self._checkpoints.clear()  # they may be older than those emitted since
            if not self._stopping.is_set():
                log.warning(
                    "Checkpoints cannot be read, so offsets are translated from the newest offset syncs on only.",
                    topic=topic,
                    cluster=cluster.name,
                    reason=str(failure),
                )
        finally:
            reader.stop()
            self._logs.remove(reader)
            cluster.close()

    def _on_checkpoint(self, record: LogRecord) -> None:
        try:
            if record.value is None:
                group, topic, partition = Checkpoint.decode_key(record.key)
                self._checkpoints.forget(group, TopicPartition(topic, partition))
                return
            checkpoint = Checkpoint.decode(record.key, record.value)
        except FormatError as error:
            log.debug("Not a checkpoint.", offset=record.offset, reason=str(error))
            return
        if len(checkpoint.topic) <= MAX_TOPIC_NAME:  # another client may write anything into the topic
            self._checkpoints.put(checkpoint)

    # -- ledgers

    def _follow_ledger(self) -> bool:
        """Follow the ledger of this flow."""
        try:
            found = self._ledger_on(Side.TARGET)
            if found is not None:
                self.translator.ledger = found
                self._reasons.follow(found, next(iter(self._followed[Side.TARGET])))
            return found is not None
        finally:
            self._searched_for_ledger.add(Side.TARGET)

    def _follow_opposite_ledger(self) -> bool:
        """Follow the ledger of the flow in the opposite direction, if there is one."""
        try:
            found = self._ledger_on(Side.SOURCE)
            if found is not None:
                self.translator.home_ledger = found
            return found is not None
        finally:
            self._searched_for_ledger.add(Side.SOURCE)

    def _look_for_ledgers(self) -> None:
        """Follow the ledgers of connectors that were created since."""
        if (found := self._ledger_on(Side.TARGET)) is not None:
            self.translator.ledger = found
        if (found := self._ledger_on(Side.SOURCE)) is not None:
            self.translator.home_ledger = found

    def _ledger_on(self, side: Side) -> Ledger | None:
        """Follow the ledgers on this side; None if there is none, which is not an error: Java has no ledger."""
        if self._stopping.is_set():
            return None
        followed = self._followed[side]
        for topic in ledgers_of(self._clients, side, self._admins[side]):
            if topic not in followed and (reader := self._follow(side, topic)) is not None:
                followed[topic] = reader
        ledgers = {topic: reader.ledger for topic, reader in followed.items()}
        if self._clients.are_of_file or not ledgers:
            return next(iter(ledgers.values()), None)
        copied_from = Side.SOURCE if side is Side.TARGET else Side.TARGET
        cluster_id = ""
        with suppress(KafkaFailure):  # the source may be down
            cluster_id = self._admins[copied_from].describe_cluster().cluster_id or ""
        return JointLedger(ledgers, self._clients.alias(copied_from), cluster_id, self._remote_of(side))

    def _remote_of(self, side: Side) -> Callable[[str], str]:
        """The remote topic, on this side, of a topic of the other side."""
        if side is Side.TARGET:
            return self.translator.topic_on_target
        return functools.partial(self._policy.format_remote_topic, self._clients.target_alias)

    def _follow(self, side: Side, topic: str) -> LedgerLog | None:
        """Read and follow a ledger; None if it cannot be read."""
        cluster = self._clients.alias(side)
        reader = self._clients.ledger_log(side, topic)
        self._logs.append(reader)
        try:
            reader.start(_READ_TIMEOUT_S)
        except KafkaFailure as failure:
            self._logs.remove(reader)
            if not self._stopping.is_set():
                self._recurring.report(
                    topic,
                    f"The ledger {topic} of cluster {cluster} cannot be read, so offsets are translated by offset "
                    f"syncs alone: {failure}",
                )
            return None
        self._recurring.resolve(topic)
        log.info("Following a ledger.", topic=topic, cluster=cluster)
        return reader

    # -- offset syncs

    def _follow_syncs(self) -> bool:
        """Read the offset-syncs topic to its end, then continue to read it in the background."""
        side, topic = syncs_side(self._clients.props), syncs_topic(self._clients.props)
        store = OffsetSyncStore(must_read_to_end=not self._checkpoints_readable)

        def on_sync(record: LogRecord) -> None:
            try:
                store.update(OffsetSync.decode(record.key, record.value))
            except FormatError as error:
                log.debug("Not an offset sync.", offset=record.offset, reason=str(error))

        cluster = self._cluster(side, f"offset-syncs-{side.value}-consumer")
        reader = KafkaBasedLog(cluster, topic, on_record=on_sync, partitions=(0,))
        self._logs.append(reader)
        try:
            if self._stopping.is_set():
                return False
            metadata = cluster.metadata([topic], timeout_s=_METADATA_TIMEOUT_S)
            if topic not in metadata.topics:  # the reader would wait for the topic
                raise metadata.errors.get(topic) or BrokerFailure.of(3, subject=f"topic {topic}")
            reader.start(_READ_TIMEOUT_S)
        except KafkaFailure as failure:
            cluster.close()
            self._clusters.remove(cluster)
            self._logs.remove(reader)
            if not self._stopping.is_set():
                self._recurring.report(
                    "syncs",
                    f"Offset syncs cannot be read from topic {topic} of cluster {cluster.name}, so group offsets are "
                    f"translated by the ledger alone until they can: {failure}",
                )
            return False
        store.first_read_done()
        self.translator.syncs = store
        self._recurring.resolve("syncs")
        log.info("Following offset syncs.", topic=topic, cluster=cluster.name)
        return True
