"""MirrorCheckpointTask: translates committed group offsets to the target.

Deviations from Java:

- Offsets are translated exactly where the ledger has the segments (`mm2.mirror.groups.translator`), also for topics that came
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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.keys.mirror_keys import MIRROR_CHECKPOINT_CONFIG, is_job_on
from mm2.connect.api import SourceRecord, SourceTask
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import ConnectFailure, KafkaFailure, failures_in
from mm2.kafka.producer.producer import RecordMetadata
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.metrics.mirror import metric_formats
from mm2.mirror.common import plugins
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.formats import Checkpoint
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.common.scheduler import Scheduler
from mm2.mirror.filters import close_quietly
from mm2.mirror.groups.checkpoint_inputs import CheckpointInputs
from mm2.mirror.groups.checkpoint_latency import LATENCY_RESOURCE, CheckpointLatencies
from mm2.mirror.groups.checkpoint_store import CheckpointStore
from mm2.mirror.groups.followed_groups import is_wanted
from mm2.mirror.groups.group_offsets import ASSIGNED_SHARE_GROUPS_KEY, GroupOffsets
from mm2.mirror.groups.group_reasons import GroupReasons, ReasonsByGroup
from mm2.mirror.groups.group_sync import GroupOffsetSync
from mm2.mirror.groups.other_flows import OtherFlows
from mm2.mirror.groups.target_logs import TargetLogs, topic_ids
from mm2.mirror.groups.translator import TopicIds, Translated, Untranslated
from mm2.mirror.policy import ReplicationPolicy
from mm2.mirror.topics.routing import NO_ROUTE, TopicRoute, topic_route
from mm2.mirror.topics.selection import names_show_origin
from mm2.reasons import OffsetReason

log = structlog.get_logger(__name__)

ASSIGNED_GROUPS_KEY: Final = "task.assigned.groups"
EMIT_INTERVAL_KEY: Final = "emit.checkpoints.interval.seconds"
SYNC_GROUPS_INTERVAL_KEY: Final = "sync.group.offsets.interval.seconds"

_SHORTEST_INTERVAL_S: Final = 0.1
_NOT_READY_S: Final = 0.2
_STOP_TIMEOUT_S: Final = 2.0


class MirrorCheckpointTask(SourceTask):
    """Polls the committed offsets of its groups on the source and emits a checkpoint when one has to change.

    The task's thread polls. The scheduler's thread reads the inputs and writes the offsets of groups.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._paused = False
        self._recurring = RecurringErrors()
        self._clusters: list[Cluster] = []
        # The committed offsets for which nothing is left to do, and what that depends on, see `_without_settled`.
        self._settled: dict[str, Mapping[TopicPartition, OffsetAndMetadata]] = {}
        self._basis: object = None

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        """Open the clients and start to read the inputs in the background.

        Poll returns nothing until they have been read.
        """
        config = AbstractConfig(MIRROR_CHECKPOINT_CONFIG, props)
        clients = MirrorClients(props, task=True, group=self.context.worker.group_id)
        policy = plugins.replication_policy(props)
        self._topic_filter = plugins.topic_filter(props)
        self._checkpoints_topic = policy.checkpoints_topic(clients.source_alias)
        share_groups = decode_groups(props.get(ASSIGNED_SHARE_GROUPS_KEY, ""))
        self._groups = decode_groups(props[ASSIGNED_GROUPS_KEY]) + share_groups
        self._checkpoints = CheckpointStore(self._groups)
        self._interval_s = max(float(config.int(EMIT_INTERVAL_KEY)), _SHORTEST_INTERVAL_S)
        self._due = time.monotonic()
        self._build(clients, policy, _route(props), share_groups)
        measured = self.context.resources.get(LATENCY_RESOURCE)
        self._measured = measured if isinstance(measured, CheckpointLatencies) else CheckpointLatencies()
        self._latencies = self._measured.begin(
            clients.source_alias, clients.target_alias, self.context.task_id, metric_formats(props)
        )
        context = {"flow": clients.flow, "connector": self.context.connector, "task": self.context.task_id}
        self._scheduler = Scheduler(f"checkpoints-{clients.flow}-{self.context.task_id}", context=context)
        for name, job in self._inputs.jobs():
            self._scheduler.once(name, job)
        for every_s, name, job in self._inputs.recurring_jobs():
            self._scheduler.every(every_s, name, job, delay_s=every_s)
        group_sync_s = config.int(SYNC_GROUPS_INTERVAL_KEY)
        if is_job_on(props, "sync.group.offsets") and group_sync_s > 0:
            self._scheduler.every(group_sync_s, "Syncing group offsets", self._sync_groups, delay_s=group_sync_s)
        self._scheduler.start()

    def _build(
        self, clients: MirrorClients, policy: ReplicationPolicy, route: TopicRoute, share_groups: Sequence[str]
    ) -> None:
        """Create the parts of the task; opens no connection."""
        self._source_admin = self._admin(clients, Side.SOURCE)
        self._target_admin = self._admin(clients, Side.TARGET)
        self._source_groups = GroupOffsets(self._source_admin, share_groups, stable=False)
        self._target_logs = TargetLogs(self._target_admin, clients.target_alias)
        self._reasons = GroupReasons(self._groups, clients, self._recurring, self._stopping)
        self._inputs = CheckpointInputs(
            clients,
            policy,
            route,
            {Side.SOURCE: self._source_admin, Side.TARGET: self._target_admin},
            self._checkpoints,
            self._reasons,
            self._recurring,
            self._stopping,
        )
        self._translator = self._inputs.translator
        can_share = not names_show_origin(policy, route)
        self._others = OtherFlows(clients, self._target_admin, policy, can_share=can_share, groups=self._groups)
        self._group_sync = GroupOffsetSync(
            self._target_admin,
            share_groups,
            clients,
            policy,
            self._translator,
            self._checkpoints,
            self._others,
            self._reasons,
            self._recurring,
        )

    def _admin(self, clients: MirrorClients, side: Side) -> Admin:
        cluster, admin = clients.admin(side, f"checkpoint-{side.value}-admin")
        self._clusters.append(cluster)
        return admin

    # -- the task's thread

    def poll(self) -> list[SourceRecord] | None:
        """Return the checkpoints to emit, once per interval; None at stop and while nothing can be translated yet."""
        if self._stopping.wait(max(0.0, self._due - time.monotonic())):
            return None
        if not self._inputs.are_ready:
            self._due = time.monotonic() + min(self._interval_s, _NOT_READY_S)
            return None
        self._due = max(self._due + self._interval_s, time.monotonic())
        answers = self._source_groups.read(self._groups)
        if self._stopping.is_set():
            return None
        self._report_failures(answers)
        read = {group: answer for group, answer in answers.items() if not isinstance(answer, KafkaFailure)}
        topics = {partition.topic for offsets in read.values() for partition in offsets}
        topics = {topic for topic in topics if is_wanted(topic, self._topic_filter, self._translator)}
        on_source = topic_ids(self._source_admin, topics)
        on_target = topic_ids(self._target_admin, map(self._translator.topic_on_target, topics))
        self._checkpoints.forget_recreated(on_target)
        found = self._without_settled(read, (topics, on_source, on_target, self._translator.version))
        wanted = {
            group: {
                partition: committed
                for partition, committed in sorted(offsets.items())
                if committed.offset >= 0 and partition.topic in topics
            }
            for group, offsets in found.items()
        }
        checkpoints, reasons, unsettled = self._translate(wanted, on_source, on_target)
        self._settled.update((group, offsets) for group, offsets in found.items() if group not in unsettled)
        self._checkpoints.put(*checkpoints)
        self._reasons.untranslated.update(reasons)
        self._reasons.write()
        return [self._record(checkpoint) for checkpoint in checkpoints] or None

    def _without_settled(
        self, found: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]], basis: object
    ) -> Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]]:
        """The groups to translate. ``basis`` is all that a translation depends on, beside the offset.

        Left out are those that have committed nothing since the same basis left nothing to do for them, with thousands of
        groups nearly all.
        """
        if basis != self._basis:
            self._basis, self._settled = basis, {}
        return {group: offsets for group, offsets in found.items() if self._settled.get(group) != offsets}

    def _report_failures(self, answers: Mapping[str, object]) -> None:
        """Report one error if the source does not answer at all, else one per group whose offsets cannot be read."""
        failures = {f"group {group}": failure for group, failure in failures_in(answers).items()}
        first = next(iter(failures.values()), None)
        if isinstance(first, ConnectFailure) and len(failures) == len(answers):
            self._recurring.report("source", f"No group offsets can be read: {first}")
            return
        self._recurring.resolve("source")
        for subject, failure in failures.items():
            self._recurring.report(subject, f"The offsets of {subject} cannot be read: {failure}")
        self._recurring.keep_only("group ", failures)

    def _translate(
        self,
        offsets: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]],
        on_source: TopicIds,
        on_target: TopicIds,
    ) -> tuple[list[Checkpoint], ReasonsByGroup, set[str]]:
        """Translate the offsets.

        Return the checkpoints to emit, by group the reasons why other offsets could not be translated, and the groups for
        which there are checkpoints, or may be some soon: it depends on the logs of the target.
        """
        reasons: ReasonsByGroup = {group: {} for group in offsets}
        changed: list[Checkpoint] = []
        inexact: list[tuple[TopicPartition, Checkpoint]] = []
        moved_back: list[Checkpoint] = []
        for group, commits in offsets.items():
            wanted = {partition: committed.offset for partition, committed in commits.items()}
            for partition, found in self._translator.translate_group(wanted, on_source, on_target).items():
                committed = commits[partition]
                if isinstance(found, Translated) and found.alone is not None:
                    continue  # another source partition has the checkpoint of their target partition
                lowered = self._lowered(group, partition, committed, found)
                changed += [] if lowered is None else [lowered]
                if isinstance(found, Untranslated):
                    reasons[group][partition] = found.reason
                    back = self._moved_back(group, partition, committed, found, on_target)
                    moved_back += [] if back is None else [back]
                    continue
                if found.unread is not None:
                    reasons[group][partition] = found.unread
                if lowered is not None:
                    continue
                checkpoint = Checkpoint(
                    group, found.topic, partition.partition, committed.offset, found.offset, committed.metadata or ""
                )
                if not self._checkpoints.is_news(checkpoint, is_exact=found.is_exact):
                    continue
                if found.is_exact:
                    changed.append(checkpoint)
                else:
                    inexact.append((partition, checkpoint))
        rejections = self._rejections([checkpoint for _, checkpoint in inexact])
        for (partition, checkpoint), rejection in zip(inexact, rejections, strict=True):
            if rejection:
                reasons[checkpoint.group][partition] = rejection
            else:
                changed.append(checkpoint)
        unsettled = {one.group for one in (*changed, *moved_back, *(checkpoint for _, checkpoint in inexact))}
        return changed + self._from_the_beginning(moved_back), reasons, unsettled

    def _lowered(
        self, group: str, partition: TopicPartition, committed: OffsetAndMetadata, found: Translated | Untranslated
    ) -> Checkpoint | None:
        """The stored checkpoint's successor, if the group would skip records with it: the target lost records, and later ones
        of the source took their place.
        """
        remote = TopicPartition(self._translator.topic_on_target(partition.topic), partition.partition)
        if found.at_most is None or not self._checkpoints.skips(group, remote, committed.offset, found.at_most):
            return None
        return Checkpoint(
            group, remote.topic, remote.partition, committed.offset, found.at_most, committed.metadata or ""
        )

    def _moved_back(
        self,
        group: str,
        partition: TopicPartition,
        committed: OffsetAndMetadata,
        found: Untranslated,
        on_target: TopicIds,
    ) -> Checkpoint | None:
        """The stored checkpoint's successor, if the group moved back to an offset that has no translation.

        Forgets the stored checkpoint if its topic was recreated.
        """
        remote = TopicPartition(self._translator.topic_on_target(partition.topic), partition.partition)
        # A topic that is missing, or not yet known to this broker, is checked by its id once it exists.
        if found.was_undone and on_target.get(remote.topic, "") is not None:
            self._checkpoints.forget(group, remote)
        if not found.lies_before or not self._checkpoints.has_gone_back(group, remote, committed.offset):
            return None
        return Checkpoint(group, remote.topic, remote.partition, committed.offset, 0, committed.metadata or "")

    def _from_the_beginning(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Checkpoints at the remote log start offset, for groups that moved back to before all known offsets.

        The stored checkpoints would make them skip records that they want to read again. If a log start offset is not
        known now, its checkpoint follows with a later poll.
        """
        partitions = [TopicPartition(checkpoint.topic, checkpoint.partition) for checkpoint in checkpoints]
        starts = self._target_logs.starts(partitions)
        return [
            replace(checkpoint, downstream_offset=start.offset)
            for partition, checkpoint in zip(partitions, checkpoints, strict=True)
            if not isinstance(start := starts[partition], KafkaFailure)
        ]

    def _rejections(self, checkpoints: Sequence[Checkpoint]) -> list[OffsetReason | None]:
        """For each checkpoint the reason to reject it; None if its offset exists on the target."""
        partitions = [TopicPartition(checkpoint.topic, checkpoint.partition) for checkpoint in checkpoints]
        ends = self._target_logs.ends(partitions)
        return [
            self._target_logs.rejection(partition, checkpoint.downstream_offset, ends[partition])
            for partition, checkpoint in zip(partitions, checkpoints, strict=True)
        ]

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

    # -- the scheduler's thread

    def _sync_groups(self) -> bool:
        if self._paused:
            return True
        if not self._inputs.are_ready:
            return False
        self._group_sync.run()
        return True

    # -- any thread

    @property
    def reasons(self) -> ReasonsByGroup:
        """Why offsets are not on the target, by group and partition.

        The partition is one of the source if its offset cannot be translated, one of the target if its offset is not
        written.
        """
        return self._reasons.current()

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
        for cluster in self._clusters:
            cluster.close()
        self._reasons.close()
        self._others.stop()
        self._inputs.close()
        self._scheduler.stop(_STOP_TIMEOUT_S)
        close_quietly(self._topic_filter)


def _route(props: Mapping[str, str]) -> TopicRoute:
    """The route of the flow, which has the same transformations as this connector. A router that depends on records is one
    of checkpoints only, on a Connect cluster: MirrorSourceConnector refuses it.
    """
    try:
        return topic_route(props)
    except ConfigException:
        return NO_ROUTE


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
