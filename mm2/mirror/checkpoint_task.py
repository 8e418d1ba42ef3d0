"""MirrorCheckpointTask: translates committed group offsets to the target.

Deviations from Java:

- Offsets are translated exactly where the ledger has the segments (`mm2.mirror.translator`), also for topics that came
  from the target, which makes failback of groups possible.
- If the offset-syncs topic is missing or unreadable at start, reading it is retried. Java's task stays RUNNING without
  effect.
- A waiting poll returns at once at stop; the first poll after a start does not wait.
- The state of a group on the target is read directly before its offsets are written, not an interval earlier. A group
  that has just become idle is not mistaken for a new one (KAFKA-19794).
- When a topic of the target is deleted, its checkpoints are discarded, and an offset that offset syncs yield must exist
  in the log: checkpoints and syncs may refer to a target that was recreated since.
- The reason why an offset cannot be translated or is not written is kept in the ledger.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig
from mm2.config.mirror_keys import MIRROR_CHECKPOINT_CONFIG
from mm2.connect.api import SourceRecord, SourceTask
from mm2.copy.ledger import LedgerLog, group_record, ledger_topic
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure
from mm2.kafka.log import KafkaBasedLog, LogRecord
from mm2.kafka.producer import Producer, RecordMetadata
from mm2.kafka.structs import EARLIEST, LATEST, GroupDescription, OffsetAndMetadata, OffsetInfo, TopicPartition
from mm2.metrics.mirror import metric_formats
from mm2.mirror import plugins
from mm2.mirror.checkpoint_latency import LATENCY_RESOURCE, CheckpointLatencies
from mm2.mirror.checkpoint_store import CheckpointStore, offsets_to_sync
from mm2.mirror.clients import ClientKind, MirrorClients, Side
from mm2.mirror.discovery import chunks
from mm2.mirror.filters import TopicFilter, close_quietly
from mm2.mirror.formats import Checkpoint, FormatError, OffsetSync
from mm2.mirror.group_offsets import ASSIGNED_SHARE_GROUPS_KEY, GROUPS_PER_CALL, GroupOffsets, of_another_copy
from mm2.mirror.offset_sync_store import OffsetSyncStore
from mm2.mirror.promotions import promoted
from mm2.mirror.recurring_errors import RecurringErrors
from mm2.mirror.scheduler import Scheduler
from mm2.mirror.syncs_topic import syncs_side, syncs_topic
from mm2.mirror.translator import TopicIds, Translator, Untranslated
from mm2.reasons import OffsetReason, OffsetReasonCode

log = structlog.get_logger(__name__)

ASSIGNED_GROUPS_KEY: Final = "task.assigned.groups"
EMIT_INTERVAL_KEY: Final = "emit.checkpoints.interval.seconds"
SYNC_GROUPS_KEY: Final = "sync.group.offsets.enabled"
SYNC_GROUPS_INTERVAL_KEY: Final = "sync.group.offsets.interval.seconds"

_READ_TIMEOUT_S: Final = 30.0
_LOOK_TIMEOUT_S: Final = 5.0
_WRITE_TIMEOUT_S: Final = 5.0
_SHORTEST_INTERVAL_S: Final = 0.1
_NOT_READY_S: Final = 0.2
_STOP_TIMEOUT_S: Final = 2.0


class MirrorCheckpointTask(SourceTask):
    """Polls the committed offsets of its groups on the source and emits a checkpoint when one has to change."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._paused = False
        self._lock = threading.Lock()  # guards the checkpoints, which poll and the group sync both use
        self._recurring = RecurringErrors()
        self._clusters: list[Cluster] = []
        self._logs: list[KafkaBasedLog | LedgerLog] = []
        self._checkpoints_readable = False
        self._ledgers_looked_for = 0
        self._producer: Producer | None = None
        self._target_ids: dict[str, str] = {}  # ids of the topics that the checkpoints refer to
        self._untranslated: dict[str, dict[TopicPartition, OffsetReason]] = {}
        self._not_synced: dict[str, dict[TopicPartition, OffsetReason]] = {}
        self._ledger_reasons: dict[str, dict[TopicPartition, OffsetReason]] | None = (
            None  # reasons in the ledger; None until it was read
        )
        self._telling = threading.Lock()

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        """Open the clients and start reading both topics in the background.

        Poll returns nothing until both are read.
        """
        config = AbstractConfig(MIRROR_CHECKPOINT_CONFIG, props)
        self._props = props
        self._clients = MirrorClients(props, task=True)
        self._policy = plugins.replication_policy(props)
        self._topic_filter = plugins.topic_filter(props)
        self._checkpoints_topic = self._policy.checkpoints_topic(self._clients.source_alias)
        share_groups = decode_groups(props.get(ASSIGNED_SHARE_GROUPS_KEY, ""))
        self._groups = decode_groups(props[ASSIGNED_GROUPS_KEY]) + share_groups
        self._checkpoints = CheckpointStore(self._groups)
        self._interval_s = max(float(config.int(EMIT_INTERVAL_KEY)), _SHORTEST_INTERVAL_S)
        self._due = time.monotonic()
        self._translator = Translator(self._policy, self._clients.source_alias, self._clients.target_alias)
        self._source_admin = self._admin(Side.SOURCE)
        self._target_admin = self._admin(Side.TARGET)
        self._source_groups = GroupOffsets(self._source_admin, share_groups, stable=False)
        self._target_groups = GroupOffsets(self._target_admin, share_groups)
        context = {"flow": self._clients.flow, "connector": self.context.connector, "task": self.context.task_id}
        measured = self.context.resources.get(LATENCY_RESOURCE)
        self._measured = measured if isinstance(measured, CheckpointLatencies) else CheckpointLatencies()
        self._latencies = self._measured.begin(
            self._clients.source_alias, self._clients.target_alias, self.context.task_id, metric_formats(props)
        )
        self._scheduler = Scheduler(f"checkpoints-{self._clients.flow}-{self.context.task_id}", context=context)
        self._scheduler.once("Loading checkpoints", self._load_checkpoints)
        self._scheduler.once("Reading the ledger", self._follow_ledger)
        self._scheduler.once("Reading the ledger of the way back", self._follow_home_ledger)
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
        cluster = self._clients.cluster(side, ClientKind.CONSUMER, role)
        self._clusters.append(cluster)
        if self._stopping.is_set():
            cluster.close()
        return cluster

    # -- state from earlier runs

    def _load_checkpoints(self) -> None:
        """Read the checkpoints topic once. If this is not possible, older syncs must not be used either."""
        topic = self._checkpoints_topic
        cluster = self._consumer_cluster(Side.TARGET, "checkpoints-target-consumer")
        reader = KafkaBasedLog(cluster, topic, on_record=self._on_checkpoint, partitions=(0,))
        try:
            reader.start(_READ_TIMEOUT_S)
            self._checkpoints_readable = True
            log.info("Loaded checkpoints.", topic=topic, groups=len(self._checkpoints.groups()))
        except KafkaFailure as failure:
            with self._lock:
                self._checkpoints = CheckpointStore(self._groups)  # may be older than those emitted since
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
            if record.value is None:
                group, topic, partition = Checkpoint.decode_key(record.key)
                with self._lock:
                    self._checkpoints.forget(group, TopicPartition(topic, partition))
                return
            checkpoint = Checkpoint.decode(record.key, record.value)
        except FormatError as error:
            log.debug("Not a checkpoint.", offset=record.offset, reason=str(error))
            return
        with self._lock:
            self._checkpoints.put(checkpoint)

    def _follow_ledger(self) -> bool:
        """Follow the ledger of this flow."""
        found = self._ledger_of(Side.TARGET, self._clients.source_alias)
        if found is not None:
            self._translator.ledger = found.ledger
            groups = frozenset(self._groups)
            with self._telling:
                self._ledger_reasons = {
                    group: reasons for group, reasons in found.ledger.group_reasons().items() if group in groups
                }
        return found is not None

    def _follow_home_ledger(self) -> bool:
        """Follow the ledger of the flow in the opposite direction, if there is one."""
        found = self._ledger_of(Side.SOURCE, self._clients.target_alias)
        if found is not None:
            self._translator.home_ledger = found.ledger
        return found is not None

    def _ledger_of(self, side: Side, alias: str) -> LedgerLog | None:
        """Read and follow a ledger; None if there is none, which is not an error: Java has no ledger."""
        topic = ledger_topic(alias)
        try:
            admin = self._target_admin if side is Side.TARGET else self._source_admin
            if (
                self._stopping.is_set()
                or topic not in admin.cluster.metadata([topic], timeout_s=_LOOK_TIMEOUT_S).topics
            ):
                return None
            settings = self._clients.settings(side, ClientKind.CONSUMER, "ledger-consumer")
            reader = LedgerLog(settings, topic, name=self._clients.alias(side))
            self._logs.append(reader)
            try:
                reader.start(_READ_TIMEOUT_S)
            except KafkaFailure as failure:
                reader.stop()
                self._logs.remove(reader)
                if not self._stopping.is_set():
                    sentence = (
                        f"The ledger {topic} of cluster {self._clients.alias(side)} cannot be read, so offsets are "
                    )
                    self._recurring.report(topic, sentence + f"translated by offset syncs alone: {failure}")
                return None
            self._recurring.resolve(topic)
            log.info("Following a ledger.", topic=topic, cluster=self._clients.alias(side))
            return reader
        finally:
            self._ledgers_looked_for += 1

    def _follow_syncs(self) -> bool:
        """Read the offset-syncs topic to its end, then continue to read it in the background."""
        side, topic = syncs_side(self._props), syncs_topic(self._props)
        store = OffsetSyncStore(must_read_to_end=not self._checkpoints_readable)

        def on_sync(record: LogRecord) -> None:
            try:
                store.update(OffsetSync.decode(record.key, record.value))
            except FormatError as error:
                log.debug("Not an offset sync.", offset=record.offset, reason=str(error))

        cluster = self._consumer_cluster(side, f"offset-syncs-{side.value}-consumer")
        reader = KafkaBasedLog(cluster, topic, on_record=on_sync, partitions=(0,))
        self._logs.append(reader)
        try:
            if self._stopping.is_set():
                return False
            metadata = cluster.metadata([topic], timeout_s=_LOOK_TIMEOUT_S)
            if topic not in metadata.topics:  # the reader would wait for the topic
                raise metadata.errors.get(topic) or BrokerFailure.of(3, subject=f"topic {topic}")
            reader.start(_READ_TIMEOUT_S)
        except KafkaFailure as failure:
            cluster.close()
            self._clusters.remove(cluster)
            self._logs.remove(reader)
            sentence = (
                f"Offset syncs cannot be read from topic {topic} of cluster {cluster.name}, so group offsets are "
            )
            sentence += f"translated by the ledger alone until they can: {failure}"
            if not self._stopping.is_set():
                self._recurring.report("syncs", sentence)
            return False
        store.first_read_done()
        self._translator.syncs = store
        self._recurring.resolve("syncs")
        log.info("Following offset syncs.", topic=topic, cluster=cluster.name)
        return True

    # -- checkpoints

    def poll(self) -> list[SourceRecord] | None:
        """Return the checkpoints to emit, once per interval; None at stop and while nothing can be translated yet."""
        if self._stopping.wait(max(0.0, self._due - time.monotonic())):
            return None
        if not self._is_ready():
            self._due = time.monotonic() + min(self._interval_s, _NOT_READY_S)
            return None
        self._due = max(self._due + self._interval_s, time.monotonic())
        answers = self._source_groups.read(self._groups)
        if self._stopping.is_set():
            return None
        self._complain_of(answers)
        offsets = {
            group: {
                partition: committed
                for partition, committed in sorted(found.items())
                if committed.offset >= 0 and is_wanted(partition.topic, self._topic_filter, self._translator)
            }
            for group, found in answers.items()
            if not isinstance(found, KafkaFailure)
        }
        topics = {partition.topic for found in offsets.values() for partition in found}
        on_source = self._topic_ids(self._source_admin, topics)
        on_target = self._topic_ids(self._target_admin, map(self._translator.topic_on_target, topics))
        self._forget_renewed(on_target)
        news, reasons = self._translated(offsets, on_source, on_target)
        self._untranslated.update(reasons)
        self._tell()
        return [self._record(checkpoint) for checkpoint in news] or None

    def _is_ready(self) -> bool:
        """Whether the search for ledgers has finished and a ledger or the offset syncs can be used."""
        if self._ledgers_looked_for < len((Side.SOURCE, Side.TARGET)):
            return False
        return self._translator.syncs is not None or self._translator.ledger is not None

    @staticmethod
    def _topic_ids(admin: Admin, topics: Iterable[str]) -> TopicIds:
        """Topic ids; empty if the cluster does not answer, which is reported elsewhere."""
        wanted = set(topics)
        if not wanted:
            return {}
        try:
            metadata = admin.cluster.metadata(wanted, timeout_s=_LOOK_TIMEOUT_S)
        except KafkaFailure:
            return {}
        found: dict[str, str | None] = {topic: info.topic_id for topic, info in metadata.topics.items()}
        for topic, failure in metadata.errors.items():
            if failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                found[topic] = None
        return found

    def _complain_of(self, answers: Mapping[str, object]) -> None:
        """Report one error if the source does not answer at all, else one per group whose offsets cannot be read."""
        failures = {f"group {group}": answer for group, answer in answers.items() if isinstance(answer, KafkaFailure)}
        first = next(iter(failures.values()), None)
        if isinstance(first, ConnectFailure) and len(failures) == len(answers):
            self._recurring.report("source", f"No group offsets can be read: {first}")
            return
        self._recurring.resolve("source")
        for subject, failure in failures.items():
            self._recurring.report(subject, f"The offsets of {subject} cannot be read: {failure}")
        self._recurring.keep_only("group ", failures)

    def _forget_renewed(self, on_target: TopicIds) -> None:
        """Forget the checkpoints of target topics that were deleted and recreated since the last poll."""
        known = {topic: now for topic, now in on_target.items() if now}
        renewed = {topic for topic, now in known.items() if self._target_ids.get(topic, now) != now}
        with self._lock:
            self._checkpoints.forget_topics(renewed)
        self._target_ids = self._target_ids | known

    def _translated(
        self,
        offsets: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]],
        on_source: TopicIds,
        on_target: TopicIds,
    ) -> tuple[list[Checkpoint], dict[str, dict[TopicPartition, OffsetReason]]]:
        """Translate the offsets.

        Return the checkpoints to emit, which are stored as emitted, and by group the reasons why other offsets could
        not be translated.
        """
        reasons: dict[str, dict[TopicPartition, OffsetReason]] = {group: {} for group in offsets}
        news: list[Checkpoint] = []
        inexact: list[tuple[TopicPartition, Checkpoint]] = []
        gone_back: list[Checkpoint] = []
        for group, commits in offsets.items():
            for partition, committed in commits.items():
                found = self._translator.translate(partition, committed.offset, on_source, on_target)
                metadata = committed.metadata or ""
                if isinstance(found, Untranslated):
                    reasons[group][partition] = found.reason
                    remote = self._translator.topic_on_target(partition.topic)
                    place = TopicPartition(remote, partition.partition)
                    with self._lock:
                        # A topic that is missing, or not yet known to this broker, is checked by its id once it is
                        # there.
                        if found.was_undone and on_target.get(remote, "") is not None:
                            self._checkpoints.forget(group, place)
                        if found.lies_before and self._checkpoints.has_gone_back(group, place, committed.offset):
                            gone_back.append(Checkpoint(group, remote, place.partition, committed.offset, 0, metadata))
                    continue
                checkpoint = Checkpoint(
                    group, found.topic, partition.partition, committed.offset, found.offset, metadata
                )
                with self._lock:
                    is_news = self._checkpoints.is_news(checkpoint, is_exact=found.is_exact)
                if is_news and found.is_exact:
                    news.append(checkpoint)
                elif is_news:
                    inexact.append((partition, checkpoint))
        doubts = self._doubts([checkpoint for _, checkpoint in inexact])
        for (partition, checkpoint), doubt in zip(inexact, doubts, strict=True):
            if doubt:
                reasons[checkpoint.group][partition] = doubt
            else:
                news.append(checkpoint)
        news += self._from_the_beginning(gone_back)
        with self._lock:
            for checkpoint in news:
                self._checkpoints.put(checkpoint)
        return news, reasons

    def _from_the_beginning(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Checkpoints at the remote log start offset, for groups that went back to before all known offsets.

        The stored checkpoints would make them skip records that they want to read again. If a log start offset is not
        known now, its checkpoint follows with a later poll.
        """
        places = [TopicPartition(checkpoint.topic, checkpoint.partition) for checkpoint in checkpoints]
        starts = self._target_admin.list_offsets(dict.fromkeys(places, EARLIEST)) if places else {}
        return [
            replace(checkpoint, downstream_offset=start.offset)
            for place, checkpoint in zip(places, checkpoints, strict=True)
            if not isinstance(start := starts[place], KafkaFailure)
        ]

    def _doubts(self, checkpoints: Sequence[Checkpoint]) -> list[OffsetReason | None]:
        """For each checkpoint the reason to reject it; None if its offset exists on the target."""
        places = [TopicPartition(checkpoint.topic, checkpoint.partition) for checkpoint in checkpoints]
        ends = self._ends(places)
        return [
            self._doubt(place, checkpoint.downstream_offset, ends[place])
            for place, checkpoint in zip(places, checkpoints, strict=True)
        ]

    def _ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        return self._target_admin.list_offsets(dict.fromkeys(places, LATEST)) if places else {}

    def _doubt(self, place: TopicPartition, offset: int, end: OffsetInfo | KafkaFailure) -> OffsetReason | None:
        if isinstance(end, KafkaFailure):
            message = f"where {place} ends on {self._clients.target_alias} is not known: {end}"
            return OffsetReason(OffsetReasonCode.OTHER, message)
        return of_another_copy(place, offset, end.offset)

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

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        """Record the latency of a checkpoint that the target has acknowledged."""
        if metadata is not None and record.timestamp is not None:
            group, topic, partition = Checkpoint.decode_key(record.key)
            self._latencies.add(group, TopicPartition(topic, partition), time.time() * 1000 - record.timestamp)

    # -- reasons why some offsets are missing

    @property
    def reasons(self) -> dict[str, dict[TopicPartition, OffsetReason]]:
        """Reasons by group and partition.

        The partition is one of the source if its offset cannot be translated, one of the target if its offset is not
        written.
        """
        both: dict[str, dict[TopicPartition, OffsetReason]] = {}
        for found in (dict(self._untranslated), dict(self._not_synced)):
            for group, reasons in found.items():
                if reasons:
                    both.setdefault(group, {}).update(reasons)
        return both

    def _tell(self) -> None:
        """Write changed `reasons` to the ledger; without a ledger they are only kept in memory."""
        with self._telling:
            written, reasons = self._ledger_reasons, self.reasons
            if written is None:
                return
            changed = [group for group in written.keys() | reasons.keys() if written.get(group) != reasons.get(group)]
            if not changed:
                return
            count = sum(map(len, reasons.values()))
            log.info(
                "Some offsets are not on the target." if count else "All offsets are on the target.", partitions=count
            )
            if self._producer is None:
                cluster = self._clients.cluster(Side.TARGET, ClientKind.PRODUCER, "checkpoint-target-producer")
                self._clusters.append(cluster)
                self._producer = Producer(cluster)
            topic = ledger_topic(self._clients.source_alias)
            records = [group_record(group, reasons.get(group, {})) for group in sorted(changed)]
            try:
                self._producer.send(topic, records, 0, timeout_s=_WRITE_TIMEOUT_S)
            except KafkaFailure as failure:
                if not self._stopping.is_set():
                    self._recurring.report(
                        "reasons", f"Why offsets are missing cannot be written to {topic}: {failure}"
                    )
                return
            self._recurring.resolve("reasons")
            self._ledger_reasons = reasons

    # -- group offsets on the target

    def _sync_groups(self) -> bool:
        """Commit checkpoints as offsets of groups that are idle or do not exist on the target."""
        if self._paused:
            return True
        if not self._is_ready():
            return False
        with self._lock:
            groups = self._checkpoints.groups()
        for some in chunks(groups, GROUPS_PER_CALL):
            self._sync_some(some)
        self._tell()
        return True

    def _sync_some(self, groups: list[str]) -> None:
        with self._lock:
            checkpoints = {group: self._checkpoints.of(group) for group in groups}
        places = {partition for found in checkpoints.values() for partition in found}
        on_target = self._topic_ids(self._target_admin, {place.topic for place in places})
        standing = {place for place in places if self._is_as_it_was(place.topic, on_target)}
        ends = self._ends(standing)
        handed_over = self._handed_over()
        # The group states are read last, as close as possible to the commit.
        described = self._target_admin.describe_groups(groups)
        idle = [group for group in groups if group_state(described[group]) == "empty"]
        committed = self._target_groups.read(idle)
        for group in groups:
            state = group_state(described[group])
            present = {} if state == "dead" else committed.get(group)
            wanted = {
                tp: found
                for tp, found in checkpoints[group].items()
                if tp in standing and self._is_remote(tp) and tp.topic not in handed_over
            }
            if state not in {"dead", "empty"} or present is None or isinstance(present, KafkaFailure):
                failure = present or described[group]
                if isinstance(failure, KafkaFailure):
                    self._recurring.report(
                        f"sync of {group}", f"The offsets of group {group} are not synced: {failure}"
                    )
                    reason = OffsetReason(OffsetReasonCode.OTHER, str(failure))
                else:
                    message = f"the group is in use on {self._clients.target_alias} ({state})"
                    reason = OffsetReason(OffsetReasonCode.IN_USE, message)
                self._not_synced[group] = dict.fromkeys(wanted, reason)
                continue
            self._not_synced[group] = {
                tp: OffsetReason(
                    OffsetReasonCode.AHEAD,
                    f"on {self._clients.target_alias} the group is ahead, at {present[tp].offset}",
                )
                for tp, found in wanted.items()
                if tp in present and present[tp].offset > found.downstream_offset
            } | {tp: handed_over[tp.topic] for tp in checkpoints[group] if tp.topic in handed_over}
            moved = offsets_to_sync(wanted, present)
            doubts = {tp: doubt for tp, to in moved.items() if (doubt := self._doubt(tp, to.offset, ends[tp]))}
            self._not_synced[group] |= doubts
            if sure := {tp: to for tp, to in moved.items() if tp not in doubts}:
                self._commit(group, sure)

    def _is_as_it_was(self, topic: str, on_target: TopicIds) -> bool:
        """Whether the topic exists and is the one that the checkpoints refer to."""
        now = on_target.get(topic, "")
        return now is not None and (not now or self._target_ids.get(topic, now) == now)

    def _handed_over(self) -> dict[str, OffsetReason]:
        """Reasons why no offsets are written for remote topics that were failed over or promoted.

        Their groups now commit on the target.
        """
        ledger = self._translator.ledger
        if ledger is None:
            return {}
        return {
            one.remote_topic: OffsetReason(OffsetReasonCode.OTHER, str(one.pause)) for one in promoted(ledger).values()
        }

    def _is_remote(self, partition: TopicPartition) -> bool:
        """Whether offsets of groups are written for this partition.

        Topics that came back from the target get checkpoints only: a group's offset on the source may be the one that
        the opposite flow has committed. Writing it back would revert commits made on the target since.
        """
        is_from_source = self._policy.came_from(self._clients.source_alias, partition.topic)
        return is_from_source and not self._translator.came_under_its_name(partition)

    def _commit(self, group: str, wanted: dict[TopicPartition, OffsetAndMetadata]) -> None:
        answers = self._target_groups.write(group, wanted)
        failures = {partition: answer for partition, answer in answers.items() if isinstance(answer, KafkaFailure)}
        if not failures:
            self._recurring.resolve(f"sync of {group}")
            log.debug("Synced group offsets.", group=group, partitions=len(wanted))
            return
        partition, failure = next(iter(failures.items()))
        self._not_synced[group] |= {
            tp: OffsetReason(OffsetReasonCode.OTHER, str(answer)) for tp, answer in failures.items()
        }
        sentence = f"Offsets of group {group} for {len(failures)} partitions, first {partition}, cannot be written on "
        sentence += f"{self._clients.target_alias}: {failure}"
        if isinstance(failure, BrokerFailure) and failure.code in {
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.NON_EMPTY_GROUP,
        }:
            sentence += " Consumers of the target are probably using this group."
        self._recurring.report(f"sync of {group}", sentence)

    def pause(self) -> None:
        """Stop writing group offsets as well. Java's task continues to write them."""
        self._paused = True

    def resume(self) -> None:
        """Write group offsets again, starting with the next interval."""
        self._paused = False

    def stop(self) -> None:
        self._stopping.set()
        if not hasattr(self, "_scheduler"):
            return  # start failed before anything was opened
        self._measured.end(self._latencies)
        self._scheduler.stop(0)
        for cluster in list(self._clusters):
            cluster.close()
        for reader in list(self._logs):
            reader.stop()
        self._scheduler.stop(_STOP_TIMEOUT_S)
        close_quietly(self._topic_filter)


def group_state(description: GroupDescription | KafkaFailure) -> str:
    """The state of a group in lower case; `dead` if it does not exist, `unknown` if the state is not known."""
    if isinstance(description, BrokerFailure) and description.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return "dead"
    return "unknown" if isinstance(description, KafkaFailure) else description.state.lower()


def is_wanted(topic: str, topics: TopicFilter, translator: Translator) -> bool:
    """Whether offsets of this source topic are translated: it is replicated, or it is a copy of a replicated topic."""
    home = translator.home_of(topic)
    return topics.should_replicate_topic(topic) or (home is not None and topics.should_replicate_topic(home))


def encode_groups(groups: list[str]) -> str:
    r"""Encode a comma-separated list.

    Java cannot read ids that contain commas; here they are escaped with `\`, and so is a `\` where it would escape
    something. All other ids are written as Java writes them.
    """
    return ",".join(re.sub(r"\\(?=[\\,]|\Z)", r"\\\\", group).replace(",", r"\,") for group in groups)


def decode_groups(text: str) -> list[str]:
    """Decode the list that `encode_groups` or Java wrote."""
    items = re.findall(r"(?:[^\\,]|\\.|\\\Z)+", text, re.DOTALL)
    return [re.sub(r"\\([\\,])", r"\1", item) for item in items]
