"""MirrorCheckpointConnector: finds the consumer groups of the source and hands them to tasks (spec mirrormaker §5.1)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, TypeVar

import structlog

from mm2.config.mirror_keys import MIRROR_CHECKPOINT_CONFIG
from mm2.connect.api import RetriableError, Task
from mm2.kafka.errors import KafkaFailure
from mm2.mirror import plugins
from mm2.mirror.checkpoint_task import ASSIGNED_GROUPS_KEY, MirrorCheckpointTask, encode_groups
from mm2.mirror.clients import TASK_INDEX_KEY, Side
from mm2.mirror.connector import MirrorConnector
from mm2.mirror.discovery import chunks
from mm2.mirror.internal_topics import create_compacted_topic
from mm2.mirror.offset_checks import Offsets, check_checkpoint_offsets
from mm2.mirror.scheduler import Scheduler
from mm2.mirror.syncs_topic import EMIT_SYNCS_KEY

log = structlog.get_logger(__name__)

EMIT_KEY: Final = "emit.checkpoints.enabled"
TOPIC_FACTOR_KEY: Final = "checkpoints.topic.replication.factor"
# Brokers before 3.8 do not know types, then it is "".
GROUP_TYPES: Final = frozenset({"", "classic", "consumer"})
PROTOCOL_TYPES: Final = frozenset({"", "consumer"})
_GROUPS_PER_CALL: Final = 1000

_T = TypeVar("_T")


class MirrorCheckpointConnector(MirrorConnector):
    """See the module."""

    DEFINITION = MIRROR_CHECKPOINT_CONFIG

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._groups: tuple[str, ...] | None = None  # None until the groups have been listed once

    def task_class(self) -> type[Task]:
        return MirrorCheckpointTask

    def _active(self) -> bool:
        return self._settings.bool("enabled") and self._settings.bool(EMIT_KEY)

    def _schedule(self, scheduler: Scheduler) -> None:
        self._topic_filter = plugins.topic_filter(self._props)
        self._group_filter = plugins.group_filter(self._props)
        self._topic = plugins.replication_policy(self._props).checkpoints_topic(self._clients.source_alias)
        refresh_s = self._interval_s("refresh.groups")
        self._source_admin = self._admin(Side.SOURCE, "checkpoint-source-admin")
        self._target_admin = self._admin(Side.TARGET, "checkpoint-target-admin")
        scheduler.once("Creating the checkpoints topic", self._reaching(self._create_topic, self._target_admin))
        refresh = self._reaching(self._refresh, self._source_admin)
        if refresh_s < 0:
            scheduler.once("Loading groups", refresh)
        scheduler.every(refresh_s, "Refreshing groups", refresh)

    def _create_topic(self) -> bool:
        return create_compacted_topic(
            self._target_admin,
            self._topic,
            cluster=self._clients.target_alias,
            replication_factor=self._settings.int(TOPIC_FACTOR_KEY),
            key=TOPIC_FACTOR_KEY,
            complaints=self._complaints,
            or_broker_default=TOPIC_FACTOR_KEY not in self._props,
        )

    def _refresh(self) -> bool:
        """False when some group could not be looked at."""
        known = frozenset(self._groups or ())
        listed = sorted(
            {
                group.group_id
                for group in self._source_admin.list_groups()
                if group.group_type.lower() in GROUP_TYPES
                and group.protocol_type in PROTOCOL_TYPES
                and self._group_filter.should_replicate_group(group.group_id)
            }
        )
        found, failed = [], {}
        for some in chunks(listed, _GROUPS_PER_CALL):
            answers = self._source_admin.list_group_offsets(some)
            for group in some:
                offsets = answers[group]
                if isinstance(offsets, KafkaFailure):
                    failed[f"group {group}"] = f"The offsets of group {group} cannot be read: {offsets}"
                    relevant = group in known
                else:
                    relevant = any(self._topic_filter.should_replicate_topic(tp.topic) for tp in offsets)
                if relevant:
                    found.append(group)
        for subject, sentence in failed.items():
            self._complaints.say(subject, sentence)
        self._complaints.keep_only("group ", failed)
        groups = tuple(found)
        with self._lock:
            changed = groups != self._groups
            self._groups = groups
        if changed:
            new, gone = sorted(set(groups) - known), sorted(known - set(groups))
            log.info("Consumer groups have changed.", groups=len(groups), new=new[:20], gone=gone[:20])
            self.context.request_task_reconfiguration()
        return not failed

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Groups in contiguous shares. RetriableError while it is not known which there are."""
        if not self._active():
            return []
        with self._lock:
            groups = self._groups
        if groups is None:
            raise RetriableError(f"The consumer groups of the flow {self._clients.flow} have not been loaded yet.")
        return [
            {**self._props, ASSIGNED_GROUPS_KEY: encode_groups(share), TASK_INDEX_KEY: str(index)}
            for index, share in enumerate(shares(groups, max_tasks))
        ]

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        errors = super().validate(props)
        if props.get("enabled") != "false":
            for key, reason in (
                (EMIT_KEY, "without checkpoints to emit this connector has nothing to do"),
                (EMIT_SYNCS_KEY, "checkpoints are made from offset syncs, so none can be made without them"),
            ):
                if props.get(key, "true").strip().lower() == "false":
                    errors.append((key, f"{key} is false: {reason}."))
        return errors

    def alter_offsets(self, props: Mapping[str, str], offsets: Offsets) -> bool:
        check_checkpoint_offsets(offsets)
        return True


def shares(items: tuple[_T, ...], parties: int) -> list[list[_T]]:
    """Contiguous, none empty, sizes differing by at most one, the larger ones first."""
    count = min(parties, len(items))
    size, larger = divmod(len(items), count) if count else (0, 0)
    cut, at = [], 0
    for index in range(count):
        end = at + size + (index < larger)
        cut.append(list(items[at:end]))
        at = end
    return cut
