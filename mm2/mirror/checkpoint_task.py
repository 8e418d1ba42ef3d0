"""MirrorCheckpointTask: translates committed group offsets to the target (spec mirrormaker §5.2, §5.4, §5.5).

Deviations: when the offset-syncs topic is missing or unreadable at start, reading it is tried until it works (Java's
task stays RUNNING and dead); a poll that waits ends at once at stop; idle groups of the target are looked at directly
before their offsets are written, not an interval earlier, so that a group that has just gone idle is not taken for a
new one (KAFKA-19794).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from typing import Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig
from mm2.config.mirror_keys import MIRROR_CHECKPOINT_CONFIG
from mm2.connect.api import SourceRecord, SourceTask
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure
from mm2.kafka.log import KafkaBasedLog, LogRecord
from mm2.kafka.structs import GroupDescription, OffsetAndMetadata, TopicPartition
from mm2.mirror import plugins
from mm2.mirror.checkpoint_store import CheckpointStore, offsets_to_sync
from mm2.mirror.clients import Kind, MirrorClients, Side
from mm2.mirror.complaints import Complaints
from mm2.mirror.formats import Checkpoint, FormatError, OffsetSync
from mm2.mirror.offset_sync_store import OffsetSyncStore
from mm2.mirror.scheduler import Scheduler
from mm2.mirror.syncs_topic import syncs_side, syncs_topic

log = structlog.get_logger(__name__)

ASSIGNED_GROUPS_KEY: Final = "task.assigned.groups"
EMIT_INTERVAL_KEY: Final = "emit.checkpoints.interval.seconds"
SYNC_GROUPS_KEY: Final = "sync.group.offsets.enabled"
SYNC_GROUPS_INTERVAL_KEY: Final = "sync.group.offsets.interval.seconds"

_READ_TIMEOUT_S: Final = 30.0
_SHORTEST_INTERVAL_S: Final = 0.1
_NOT_READY_S: Final = 0.2
_STOP_TIMEOUT_S: Final = 2.0


class MirrorCheckpointTask(SourceTask):
    """Polls the offsets of its groups on the source; what is news becomes a record of the checkpoints topic."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards the checkpoints, which poll and the group sync both use
        self._complaints = Complaints()
        self._clusters: list[Cluster] = []
        self._log: KafkaBasedLog | None = None
        self._syncs: OffsetSyncStore | None = None
        self._checkpoints_readable = False

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        """Opens clients and starts reading both topics in the background; polls give nothing until that is done."""
        config = AbstractConfig(MIRROR_CHECKPOINT_CONFIG, props)
        self._props = props
        self._clients = MirrorClients(props, task=True)
        self._policy = plugins.replication_policy(props)
        self._topic_filter = plugins.topic_filter(props)
        self._checkpoints_topic = self._policy.checkpoints_topic(self._clients.source_alias)
        self._groups = decode_groups(props[ASSIGNED_GROUPS_KEY])
        self._checkpoints = CheckpointStore(self._groups)
        self._interval_s = max(float(config.int(EMIT_INTERVAL_KEY)), _SHORTEST_INTERVAL_S)
        self._due = time.monotonic() + self._interval_s
        self._source_admin = self._admin(Side.SOURCE)
        self._target_admin = self._admin(Side.TARGET)
        context = {"flow": self._clients.flow, "connector": self.context.connector, "task": self.context.task_id}
        self._scheduler = Scheduler(f"checkpoints-{self._clients.flow}-{self.context.task_id}", context=context)
        self._scheduler.once("Loading checkpoints", self._load_checkpoints)
        self._scheduler.once("Reading offset syncs", self._follow_syncs)
        group_sync_s = config.int(SYNC_GROUPS_INTERVAL_KEY)
        if config.bool(SYNC_GROUPS_KEY) and group_sync_s > 0:
            self._scheduler.every(group_sync_s, "Syncing group offsets", self._sync_groups, delay_s=group_sync_s)
        self._scheduler.start()

    def _admin(self, side: Side) -> Admin:
        cluster, admin = self._clients.admin(side, f"checkpoint-{side.value}-admin")
        self._clusters.append(cluster)
        return admin

    def _consumer_cluster(self, side: Side, role: str) -> Cluster:
        cluster = self._clients.cluster(side, Kind.CONSUMER, role)
        self._clusters.append(cluster)
        if self._stopping.is_set():
            cluster.close()
        return cluster

    # -- what is known from before

    def _load_checkpoints(self) -> None:
        """Read the checkpoints topic once. When that is not possible, older syncs must not be used either."""
        topic = self._checkpoints_topic
        cluster = self._consumer_cluster(Side.TARGET, "checkpoints-target-consumer")
        reader = KafkaBasedLog(cluster, topic, on_record=self._on_checkpoint, partitions=(0,))
        try:
            reader.start(_READ_TIMEOUT_S)
            self._checkpoints_readable = True
            log.info("Loaded checkpoints.", topic=topic, groups=len(self._checkpoints.groups()))
        except KafkaFailure as failure:
            with self._lock:
                self._checkpoints = CheckpointStore(self._groups)  # a part may be older than what was emitted since
            if not self._stopping.is_set():
                log.warning(
                    "Checkpoints cannot be read, so offsets are translated from the newest offset syncs on only.",
                    topic=topic,
                    cluster=cluster.name,
                    reason=str(failure),
                )
        finally:
            reader.stop()
            cluster.close()

    def _on_checkpoint(self, record: LogRecord) -> None:
        try:
            checkpoint = Checkpoint.decode(record.key, record.value)
        except FormatError as error:
            log.debug("Not a checkpoint.", offset=record.offset, reason=str(error))
            return
        with self._lock:
            self._checkpoints.put(checkpoint)

    def _follow_syncs(self) -> bool:
        """Read the offset-syncs topic to its end and go on reading it in the background."""
        side, topic = syncs_side(self._props), syncs_topic(self._props)
        store = OffsetSyncStore(must_read_to_end=not self._checkpoints_readable)

        def on_sync(record: LogRecord) -> None:
            try:
                store.update(OffsetSync.decode(record.key, record.value))
            except FormatError as error:
                log.debug("Not an offset sync.", offset=record.offset, reason=str(error))

        cluster = self._consumer_cluster(side, f"offset-syncs-{side.value}-consumer")
        reader = KafkaBasedLog(cluster, topic, on_record=on_sync, partitions=(0,))
        self._log = reader
        try:
            if self._stopping.is_set():
                return False
            reader.start(_READ_TIMEOUT_S)
        except KafkaFailure as failure:
            cluster.close()
            self._clusters.remove(cluster)
            sentence = (
                f"Offset syncs cannot be read from topic {topic} of cluster {cluster.name}, so no group offset is "
            )
            sentence += f"translated until they can: {failure}"
            if not self._stopping.is_set():
                self._complaints.say("syncs", sentence)
            return False
        store.first_read_done()
        self._syncs = store
        self._complaints.over("syncs")
        log.info("Following offset syncs.", topic=topic, cluster=cluster.name)
        return True

    # -- checkpoints

    def poll(self) -> list[SourceRecord] | None:
        """The checkpoints that are news, once per interval; None at stop and while nothing can be translated yet."""
        if self._stopping.wait(max(0.0, self._due - time.monotonic())):
            return None
        syncs = self._syncs
        if syncs is None:
            self._due = time.monotonic() + min(self._interval_s, _NOT_READY_S)
            return None
        self._due = max(self._due + self._interval_s, time.monotonic())
        answers = self._source_admin.list_group_offsets(self._groups)
        if self._stopping.is_set():
            return None
        self._complain_of(answers)
        records = []
        for group in self._groups:
            offsets = answers[group]
            if isinstance(offsets, KafkaFailure):
                continue
            for partition, committed in sorted(offsets.items()):
                checkpoint = self._translated(syncs, group, partition, committed)
                if checkpoint is not None:
                    records.append(self._record(checkpoint))
        return records or None

    def _complain_of(self, answers: Mapping[str, object]) -> None:
        """One sentence when the source does not answer at all, else one for each group whose offsets are not known."""
        failures = {f"group {group}": answer for group, answer in answers.items() if isinstance(answer, KafkaFailure)}
        first = next(iter(failures.values()), None)
        if isinstance(first, ConnectFailure) and len(failures) == len(answers):
            self._complaints.say("source", f"No group offsets can be read: {first}")
            return
        self._complaints.over("source")
        for subject, failure in failures.items():
            self._complaints.say(subject, f"The offsets of {subject} cannot be read: {failure}")
        self._complaints.keep_only("group ", failures)

    def _translated(
        self, syncs: OffsetSyncStore, group: str, partition: TopicPartition, committed: OffsetAndMetadata
    ) -> Checkpoint | None:
        """The checkpoint of one committed offset, if there is one and it is news; it counts as emitted then."""
        if committed.offset < 0 or not self._topic_filter.should_replicate_topic(partition.topic):
            return None
        downstream = syncs.translate(partition.topic, partition.partition, committed.offset)
        if downstream is None or downstream < 0:
            return None
        topic = self._topic_on_target(partition.topic)
        checkpoint = Checkpoint(
            group, topic, partition.partition, committed.offset, downstream, committed.metadata or ""
        )
        with self._lock:
            if not self._checkpoints.is_news(checkpoint):
                return None
            self._checkpoints.put(checkpoint)
        return checkpoint

    def _topic_on_target(self, topic: str) -> str:
        if self._policy.topic_source(topic) == self._clients.target_alias:
            return self._policy.original_topic(topic)  # it came from there: its records are at home
        return self._policy.format_remote_topic(self._clients.source_alias, topic)

    def _record(self, checkpoint: Checkpoint) -> SourceRecord:
        return SourceRecord(
            source_partition=dict(checkpoint.connect_partition()),
            source_offset={"offset": 0},
            topic=self._checkpoints_topic,
            partition=0,
            key=checkpoint.key(),
            value=checkpoint.value(),
            timestamp=int(time.time() * 1000),
        )

    # -- group offsets on the target

    def _sync_groups(self) -> bool:
        """Commit checkpoints as offsets of groups that are idle or unknown on the target."""
        if self._syncs is None:
            return False
        with self._lock:
            groups = self._checkpoints.groups()
        if not groups:
            return True
        described = self._target_admin.describe_groups(groups)
        idle = [group for group in groups if _state(described[group]) == "empty"]
        committed = self._target_admin.list_group_offsets(idle) if idle else {}
        for group in groups:
            state = _state(described[group])
            on_target = {} if state == "dead" else committed.get(group)
            if state not in {"dead", "empty"} or on_target is None or isinstance(on_target, KafkaFailure):
                reason = on_target or (described[group] if isinstance(described[group], KafkaFailure) else None)
                if reason is not None:
                    self._complaints.say(f"sync of {group}", f"The offsets of group {group} are not synced: {reason}")
                else:
                    log.debug("Group is in use on the target.", group=group, state=state)
                continue
            with self._lock:
                wanted = offsets_to_sync(self._checkpoints.of(group), on_target)
            if wanted:
                self._commit(group, wanted)
        return True

    def _commit(self, group: str, wanted: dict[TopicPartition, OffsetAndMetadata]) -> None:
        answers = self._target_admin.alter_group_offsets(group, wanted)
        failures = {partition: answer for partition, answer in answers.items() if isinstance(answer, KafkaFailure)}
        if not failures:
            self._complaints.over(f"sync of {group}")
            log.debug("Synced group offsets.", group=group, partitions=len(wanted))
            return
        partition, failure = next(iter(failures.items()))
        sentence = f"Offsets of group {group} for {len(failures)} partitions, first {partition}, cannot be written on "
        sentence += f"{self._clients.target_alias}: {failure}"
        if isinstance(failure, BrokerFailure) and failure.code == ErrorCode.UNKNOWN_MEMBER_ID:
            sentence += " Consumers of the target are probably using this group."
        self._complaints.say(f"sync of {group}", sentence)

    def stop(self) -> None:
        self._stopping.set()
        if not hasattr(self, "_scheduler"):
            return  # start failed before there was anything to stop
        self._scheduler.stop(0)
        for cluster in list(self._clusters):
            cluster.close()
        if self._log is not None:
            self._log.stop()
        self._scheduler.stop(_STOP_TIMEOUT_S)


def _state(description: GroupDescription | KafkaFailure) -> str:
    """State of a group on the target in lower case; `dead` when it does not exist, `unknown` when that is not known."""
    if isinstance(description, BrokerFailure) and description.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return "dead"
    return "unknown" if isinstance(description, KafkaFailure) else description.state.lower()


def encode_groups(groups: list[str]) -> str:
    r"""A comma-separated list. Java breaks on ids that contain commas; here they (and `\`) are escaped with `\`."""
    return ",".join(re.sub(r"([\\,])", r"\\\1", group) for group in groups)


def decode_groups(text: str) -> list[str]:
    """The list of `encode_groups`."""
    return [re.sub(r"\\(.)", r"\1", item, flags=re.DOTALL) for item in re.findall(r"(?:[^\\,]|\\.)+", text, re.DOTALL)]
