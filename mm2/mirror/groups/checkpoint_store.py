"""The newest checkpoint of each group and partition, and the rules that depend on it. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.common.formats import Checkpoint


class CheckpointStore:
    """Checkpoints of the given groups, by group and partition of the target. Thread-safe.

    Also keeps the ids of the topics that the checkpoints refer to.
    """

    def __init__(self, groups: Collection[str]) -> None:
        self._groups = frozenset(groups)
        self._checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}
        self._topic_ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, *checkpoints: Checkpoint) -> None:
        """Replace the stored checkpoints; checkpoints of other groups are ignored."""
        with self._lock:
            for checkpoint in checkpoints:
                if checkpoint.group in self._groups:
                    partition = TopicPartition(checkpoint.topic, checkpoint.partition)
                    self._checkpoints.setdefault(checkpoint.group, {})[partition] = checkpoint

    def clear(self) -> None:
        """Remove all checkpoints."""
        with self._lock:
            self._checkpoints.clear()

    def forget(self, group: str, partition: TopicPartition) -> None:
        """Remove a checkpoint that was deleted."""
        with self._lock:
            self._forget(group, partition)

    def _forget(self, group: str, partition: TopicPartition) -> None:
        known = self._checkpoints.get(group, {})
        known.pop(partition, None)
        if not known:
            self._checkpoints.pop(group, None)

    def forget_topics(self, topics: Collection[str]) -> None:
        """Remove the checkpoints of topics that were deleted and recreated."""
        with self._lock:
            self._forget_topics(topics)

    def _forget_topics(self, topics: Collection[str]) -> None:
        gone = [(group, tp) for group, found in self._checkpoints.items() for tp in found if tp.topic in topics]
        for group, partition in gone:
            self._forget(group, partition)

    def forget_recreated(self, topic_ids: Mapping[str, str | None]) -> None:
        """Remove the checkpoints of topics whose id has changed since the previous call; None: no such topic."""
        known = {topic: now for topic, now in topic_ids.items() if now}
        with self._lock:
            self._forget_topics({topic for topic, now in known.items() if self._topic_ids.get(topic, now) != now})
            self._topic_ids |= known

    def refers_to(self, topic: str, topic_ids: Mapping[str, str | None]) -> bool:
        """Whether a topic exists, as far as is known, and is the one that its checkpoints refer to."""
        now = topic_ids.get(topic, "")
        with self._lock:
            return now is not None and (not now or self._topic_ids.get(topic, now) == now)

    def is_news(self, checkpoint: Checkpoint, *, is_exact: bool = False) -> bool:
        """Whether the checkpoint must be emitted.

        This is the case if none is stored, if the group's offset moved back on the source, or if the offset moved
        forward on the target. Any other checkpoint would repeat the stored one or move the group back without cause. An
        exact checkpoint with a lower offset is emitted: the target has lost records that the stored one counts as
        consumed.
        """
        stored = self._stored(checkpoint.group, TopicPartition(checkpoint.topic, checkpoint.partition))
        return (
            stored is None
            or checkpoint.upstream_offset < stored.upstream_offset
            or checkpoint.downstream_offset > stored.downstream_offset
            or (is_exact and checkpoint.downstream_offset < stored.downstream_offset)
        )

    def has_gone_back(self, group: str, partition: TopicPartition, upstream_offset: int) -> bool:
        """Whether the group would skip records with the stored checkpoint, now that it is at this source offset."""
        stored = self._stored(group, partition)
        return stored is not None and upstream_offset < stored.upstream_offset

    def skips(self, group: str, partition: TopicPartition, upstream_offset: int, at_most: int) -> bool:
        """Whether the stored checkpoint lies behind the last offset with which the group, at this source offset, skips nothing."""
        stored = self._stored(group, partition)
        return stored is not None and stored.upstream_offset <= upstream_offset and stored.downstream_offset > at_most

    def groups(self) -> list[str]:
        """The groups with at least one checkpoint."""
        with self._lock:
            return sorted(self._checkpoints)

    def of(self, group: str) -> Mapping[TopicPartition, Checkpoint]:
        """The checkpoints of a group by partition of the target."""
        with self._lock:
            return dict(self._checkpoints.get(group, {}))

    def _stored(self, group: str, partition: TopicPartition) -> Checkpoint | None:
        with self._lock:
            return self._checkpoints.get(group, {}).get(partition)


def offsets_to_sync(
    checkpoints: Mapping[TopicPartition, Checkpoint], on_target: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets to commit for an idle group on the target.

    `on_target` are its committed offsets, which never decrease.
    """
    return {
        partition: OffsetAndMetadata(checkpoint.downstream_offset, checkpoint.metadata)
        for partition, checkpoint in checkpoints.items()
        if (present := on_target.get(partition)) is None or present.offset < checkpoint.downstream_offset
    }
