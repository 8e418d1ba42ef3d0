"""MirrorCheckpointConnector: finds the consumer groups of the source and assigns them to tasks.

Additions to Java's connector: groups of the Kafka Streams protocol and share groups are included; groups are listed
every few seconds between two refreshes, so that a new group gets checkpoints soon; the checkpoints of deleted groups
are deleted too, if this is enabled.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final, TypeVar

import structlog

from mm2.config.keys.mirror_keys import MIRROR_CHECKPOINT_CONFIG, is_job_on
from mm2.connect.api import RetriableError, Task
from mm2.copy.progress.ledger import group_record
from mm2.evidence import counted
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.records.record import Record
from mm2.kafka.structs import GroupListing
from mm2.mirror.checkpoint_task import (
    ASSIGNED_GROUPS_KEY,
    MirrorCheckpointTask,
    decode_groups,
    encode_groups,
)
from mm2.mirror.common import plugins
from mm2.mirror.common.clients import SOURCE_ALIAS_KEY, TASK_INDEX_KEY, ClientKind, Side
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.common.discovery import chunks
from mm2.mirror.common.formats import Checkpoint, FormatError
from mm2.mirror.common.internal_topics import KeptTopic, create_compacted_topic
from mm2.mirror.common.offset_checks import Offsets, check_checkpoint_offsets
from mm2.mirror.common.scheduler import Scheduler
from mm2.mirror.common.syncs_topic import EMIT_SYNCS_KEY
from mm2.mirror.groups.checkpoint_inputs import ledgers_of
from mm2.mirror.groups.followed_groups import FollowedGroups
from mm2.mirror.groups.group_offsets import ASSIGNED_SHARE_GROUPS_KEY, GROUPS_PER_CALL, group_state
from mm2.mirror.groups.translator import Translator
from mm2.mirror.topics.topic_limits import left_out_record

log = structlog.get_logger(__name__)

EMIT_KEY: Final = "emit.checkpoints.enabled"
TOPIC_FACTOR_KEY: Final = "checkpoints.topic.replication.factor"
TOMBSTONES_KEY: Final = "tombstone.dead.groups.enabled"
LOOK_S: Final = 3.0
"""How often groups are listed between two refreshes."""
_CALM_S: Final = 6.0
_LONGEST_CALM_S: Final = 60.0
_IN_A_ROW: Final = 20
_READ_TIMEOUT_S: Final = 30.0
_WRITE_TIMEOUT_S: Final = 30.0

#: Of a record, by the default max.message.bytes, without what the broker and the config topic add.
_CONFIG_BYTES: Final = 1_000_000
_TOO_LONG: Final = "ids of groups"
_SHOWN_ID: Final = 60
_WITHOUT_ID: Final = "Offsets of the group with the empty id are not replicated: set group.id in its consumers."

_T = TypeVar("_T")


def kept_checkpoints(props: Mapping[str, str]) -> KeptTopic:
    """The checkpoints topic to create. Raises ConfigException for a bad replication factor."""
    topic = plugins.replication_policy(props).checkpoints_topic(props[SOURCE_ALIAS_KEY])
    return KeptTopic.compacted(Side.TARGET, topic, props, MIRROR_CHECKPOINT_CONFIG, TOPIC_FACTOR_KEY)


class MirrorCheckpointConnector(MirrorConnector):
    """The connector; see the module docstring."""

    DEFINITION = MIRROR_CHECKPOINT_CONFIG

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        # Maps each group to whether it is a share group; None until the groups have been listed once.
        self._groups: dict[str, bool] | None = None
        # Type and protocol type of each listed group, if all groups to follow were found among them. None: some have to be searched again.
        self._kinds: dict[str, tuple[str, str]] | None = None
        self._calm = Calm()
        self._calm_until = 0.0
        self._reader: KafkaBasedLog | None = None
        self._left_out = ""  # which groups do not fit into the task configurations
        self._noted: str | None = None  # what the ledger has of it; None: unknown
        self._has_buried = False  # whether the remains of groups that were deleted before the start have been removed

    def task_class(self) -> type[Task]:
        return MirrorCheckpointTask

    def _active(self) -> bool:
        return self._settings.bool("enabled") and is_job_on(self._props, "emit.checkpoints")

    def _schedule(self, scheduler: Scheduler) -> None:
        topic_filter = self._closing(plugins.topic_filter(self._props))
        self._group_filter = self._closing(plugins.group_filter(self._props))
        policy = plugins.replication_policy(self._props)
        translator = Translator(policy, self._clients.source_alias, self._clients.target_alias)
        self._followed = FollowedGroups(self._group_filter, topic_filter, translator)
        self._topic = policy.checkpoints_topic(self._clients.source_alias)
        refresh_s = self._interval_s("refresh.groups")
        self._source_admin = self._admin(Side.SOURCE, "checkpoint-source-admin")
        self._target_admin = self._admin(Side.TARGET, "checkpoint-target-admin")
        scheduler.once("Creating the checkpoints topic", self._reaching(self._create_topic, self._target_admin))
        refresh = self._reaching(self._refresh, self._source_admin)
        if refresh_s < 0:
            scheduler.once("Loading groups", refresh)
        scheduler.every(refresh_s, "Refreshing groups", refresh)
        note = self._reaching(self._note_left_out, self._target_admin)
        scheduler.every(LOOK_S, "Noting groups that are left out", note, delay_s=LOOK_S)
        if refresh_s > LOOK_S:
            look = self._reaching(self._look, self._source_admin)
            scheduler.every(LOOK_S, "Looking for new groups", look, delay_s=LOOK_S)

    def stop(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.stop()  # it would keep waiting for a cluster that has been closed
        super().stop()

    def _create_topic(self) -> bool:
        topic = kept_checkpoints(self._props)
        return create_compacted_topic(self._target_admin, topic, self._clients.target_alias, self._recurring)

    def _refresh(self) -> bool:
        """Read all groups. False if the offsets of some group could not be read."""
        return self._find(self._source_admin.list_groups(), frozenset())

    def _look(self) -> None:
        """Find groups that are new since the last refresh."""
        if self._groups is None or time.monotonic() < self._calm_until:
            return
        listings = self._source_admin.list_groups()
        if not self._has_buried or _kinds(listings) != self._kinds:
            self._find(listings, frozenset(self._groups))

    def _find(self, listings: Sequence[GroupListing], kept: frozenset[str]) -> bool:
        """Read the offsets of the listed groups that are not in `kept`. False if some could not be read."""
        known = dict(self._groups or {})
        existing = {group.group_id for group in listings}
        dead = self._dead(known.keys() - existing)
        listed = self._followed.selected(listings)
        if listed.pop("", None) is not None:
            self._recurring.report("the group without an id", _WITHOUT_ID)
        # A broker lists only the groups it coordinates: a group that is not listed may have no coordinator at the
        # moment.
        listed |= {group: known[group] for group in known.keys() - existing - dead}
        found, failed = {group for group in listed if group in kept}, {}
        read = {group: is_shared for group, is_shared in listed.items() if group not in kept}
        for group, answer in self._followed.with_offsets(self._source_admin, read).items():
            relevant = answer
            if isinstance(answer, KafkaFailure):
                failed[f"group {group}"] = f"The offsets of group {group} cannot be read: {answer}"
                relevant = group in known
            if relevant:
                found.add(group)
        for subject, sentence in failed.items():
            self._recurring.report(subject, sentence)
        self._recurring.keep_only("group ", failed)
        groups = {group: listed[group] for group in sorted(found)}
        with self._lock:
            changed = groups != self._groups
            self._groups = groups
        if changed:
            new, gone = sorted(groups.keys() - known.keys()), sorted(known.keys() - groups.keys())
            log.info("Consumer groups have changed.", groups=len(groups), new=new[:20], gone=gone[:20])
            self.context.request_task_reconfiguration()
        if changed and kept:
            self._calm_until = time.monotonic() + self._calm.after_a_find(time.monotonic())
        if dead or not self._has_buried:
            self._bury(dead, existing)
        # A group without offsets of replicated topics may commit one, and one that is not listed may have been deleted.
        is_complete = groups.keys() == listed.keys() and groups.keys() <= existing
        self._kinds = _kinds(listings) if is_complete else None
        return not failed

    def _dead(self, groups: Collection[str]) -> frozenset[str]:
        """The groups of which their coordinators report that they do not exist."""
        dead: set[str] = set()
        for some in chunks(sorted(groups), GROUPS_PER_CALL):
            described = self._source_admin.describe_groups(some)
            offsets = self._source_admin.list_group_offsets(some)
            dead.update(group for group in some if group_state(described[group]) == "dead" and offsets[group] == {})
        return frozenset(dead)

    def _bury(self, dead: frozenset[str], existing: Collection[str]) -> None:
        """Remove the ledger's notes on deleted groups, and delete their checkpoints if this is enabled.

        Java keeps such checkpoints, and cannot read the tombstones of deleted ones.
        """
        if self._settings.bool(TOMBSTONES_KEY):
            left = self._left_behind(existing)
            dead = self._dead({group for group, _, _ in left})
            keys = [key for key in sorted(left) if key[0] in dead]
            if keys:
                now_ms = int(time.time() * 1000)
                self._write(self._topic, [Record(Checkpoint.key_of(*key), None, (), now_ms) for key in keys])
                log.info("Checkpoints of deleted groups are deleted.", groups=sorted(dead)[:20], checkpoints=len(keys))
        if dead:
            for ledger in ledgers_of(self._clients, Side.TARGET, self._target_admin):
                self._write(ledger, [group_record(group, {}) for group in sorted(dead)])
        self._has_buried = True

    def _note_left_out(self) -> None:
        """Write to the ledger which groups are left out: mm2 status and mm2 groups report it. The first time also that none is."""
        message = self._left_out
        if message == self._noted:
            return
        ledgers = ledgers_of(self._clients, Side.TARGET, self._target_admin)
        for ledger in ledgers:
            self._write(ledger, [left_out_record(message)])
        if ledgers or not message:
            self._noted = message

    def _left_behind(self, existing: Collection[str]) -> set[tuple[str, str, int]]:
        """Checkpoint keys of groups that are not in `existing` and that this connector's group filter selects."""
        left: set[tuple[str, str, int]] = set()

        def on_checkpoint(record: LogRecord) -> None:
            try:
                key = Checkpoint.decode_key(record.key)
            except FormatError:
                return
            if record.value is None:
                left.discard(key)
            elif key[0] not in existing and self._group_filter.should_replicate_group(key[0]):
                left.add(key)

        cluster = self._clients.cluster(Side.TARGET, ClientKind.CONSUMER, "checkpoints-target-consumer")
        self._clusters.append(cluster)
        reader = self._reader = KafkaBasedLog(cluster, self._topic, on_record=on_checkpoint, partitions=(0,))
        try:
            reader.start(_READ_TIMEOUT_S)
        finally:
            reader.stop()
            cluster.close()
            self._clusters.remove(cluster)
        return left

    def _write(self, topic: str, records: list[Record]) -> None:
        cluster = self._clients.cluster(Side.TARGET, ClientKind.PRODUCER, "checkpoints-target-producer")
        self._clusters.append(cluster)
        try:
            Producer(cluster).send(topic, records, 0, timeout_s=_WRITE_TIMEOUT_S)
        finally:
            cluster.close()
            self._clusters.remove(cluster)

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Assign the groups to tasks in contiguous ranges. RetriableError while the groups are not known."""
        if not self._active():
            return []
        with self._lock:
            groups = self._groups
        if groups is None:
            raise RetriableError(f"The consumer groups of the flow {self._clients.flow} have not been loaded yet.")
        groups = self._fitting(groups, max_tasks)
        stored = self.context.stored_task_configs()
        return [
            {
                **self._props,
                ASSIGNED_GROUPS_KEY: encode_groups(some),
                **({ASSIGNED_SHARE_GROUPS_KEY: encode_groups(others)} if others else {}),
                TASK_INDEX_KEY: str(index),
            }
            for index, (some, others) in enumerate(divided(groups, max_tasks, stored))
        ]

    def _fitting(self, groups: Mapping[str, bool], max_tasks: int) -> dict[str, bool]:
        """Those whose ids fit into the task configurations, each of which is one record. Java publishes none if they do not fit."""
        room = _CONFIG_BYTES - len(json.dumps(dict(self._props)))
        kept = fitting(groups, max_tasks, room)
        left = sorted(groups.keys() - kept.keys(), key=len)
        if not left:
            self._left_out = ""
            self._recurring.resolve(_TOO_LONG)
            return kept
        self._left_out = (
            f"{counted(len(left), 'consumer group')} of {len(groups):,} get no checkpoints, since the configuration of a task holds {room:,} bytes "
            f"of group ids; the longest id is {left[-1][:_SHOWN_ID]}... ({len(left[-1]):,} characters). Exclude these groups with "
            "groups.exclude, or increase tasks.max"
        )
        self._recurring.report(_TOO_LONG, self._left_out)
        return kept

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        errors = super().validate(props)
        if props.get("enabled") != "false":
            for key, reason in (
                (EMIT_KEY, f"MirrorCheckpointConnector can't run with {EMIT_KEY} set to false"),
                (EMIT_SYNCS_KEY, "MirrorCheckpointConnector can't run without offset syncs"),
            ):
                if props.get(key, "true").strip().lower() == "false":
                    errors.append((key, reason))
        return errors

    def alter_offsets(self, props: Mapping[str, str], offsets: Offsets) -> bool:
        check_checkpoint_offsets(offsets)
        return True


def _kinds(listings: Iterable[GroupListing]) -> dict[str, tuple[str, str]]:
    return {group.group_id: (group.group_type, group.protocol_type) for group in listings}


@dataclass(slots=True)
class Calm:
    """How long the search for new groups pauses after new ones were found, since each find restarts all tasks.

    The pause is a few seconds. If applications use random group ids, there are always new groups, and tasks that
    restart every few seconds make no progress; the pause is then a minute.
    """

    left: float = _IN_A_ROW
    as_of_s: float = 0.0

    def after_a_find(self, now_s: float) -> float:
        """Seconds to pause; `now_s` is the time of a monotonic clock."""
        self.left = min(float(_IN_A_ROW), self.left + (now_s - self.as_of_s) / _LONGEST_CALM_S) - 1
        self.as_of_s = now_s
        return _CALM_S if self.left >= 1 else _LONGEST_CALM_S


def assign_groups(groups: Sequence[str], max_tasks: int, stored: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Assign the groups to tasks.

    The ``stored`` task configs are kept while they are correct: Java orders groups by a hash table, and a different
    assignment would restart all tasks for no benefit.
    """
    known = [decode_groups(props[ASSIGNED_GROUPS_KEY]) for props in stored if props.get(ASSIGNED_GROUPS_KEY)]
    is_right = len(known) == min(max_tasks, len(groups)) and sorted(chain(*known)) == sorted(groups)
    return known if is_right else shares(groups, max_tasks)


def divided(
    groups: Mapping[str, bool], max_tasks: int, stored: Sequence[Mapping[str, str]]
) -> list[tuple[list[str], list[str]]]:
    """Of each task the groups, and the share groups. These have a key of their own beside the one that Java uses: a Java worker in the
    same flow does not support them.
    """
    committing = assign_groups([group for group, is_shared in groups.items() if not is_shared], max_tasks, stored)
    shared = shares([group for group, is_shared in groups.items() if is_shared], len(committing) or max_tasks)
    return [*zip_longest(committing, shared, fillvalue=[])]


def fitting(groups: Mapping[str, bool], max_tasks: int, room_bytes: int) -> dict[str, bool]:
    """The groups, by whether they are share groups, whose ids fit into tasks with room for so many bytes each, without the longest ids."""
    kept = dict(groups)
    if len(json.dumps(encode_groups([*kept]))) <= room_bytes:
        return kept
    while True:
        count = len(kept)
        for some, others in divided(kept, max_tasks, ()):
            sizes = sorted((len(json.dumps(encode_groups([group]))), group) for group in [*some, *others])
            total = sum(size for size, _ in sizes)
            while total > room_bytes:
                size, longest = sizes.pop()
                total -= size
                del kept[longest]
        if len(kept) == count:
            return kept


def shares(items: Sequence[_T], parties: int) -> list[list[_T]]:
    """Split into contiguous, non-empty parts whose sizes differ by at most one, the larger ones first."""
    count = min(parties, len(items))
    size, larger = divmod(len(items), count) if count else (0, 0)
    cut, at = [], 0
    for index in range(count):
        end = at + size + (index < larger)
        cut.append(list(items[at:end]))
        at = end
    return cut
