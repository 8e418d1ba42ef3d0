"""The newest checkpoint of each group and partition, and the rules that depend on it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.formats import Checkpoint


class CheckpointStore:
    """Checkpoints of the given groups, by group and partition of the target. Not thread-safe."""

    def __init__(self, groups: Collection[str]) -> None:
        self._groups = frozenset(groups)
        self._checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def put(self, checkpoint: Checkpoint) -> None:
        """Replace the stored checkpoint; checkpoints of other groups are ignored."""
        if checkpoint.group in self._groups:
            partition = TopicPartition(checkpoint.topic, checkpoint.partition)
            self._checkpoints.setdefault(checkpoint.group, {})[partition] = checkpoint

    def forget(self, group: str, partition: TopicPartition) -> None:
        """Remove a checkpoint that was deleted."""
        known = self._checkpoints.get(group, {})
        known.pop(partition, None)
        if not known:
            self._checkpoints.pop(group, None)

    def forget_topics(self, topics: Collection[str]) -> None:
        """Remove the checkpoints of topics that were deleted and recreated."""
        gone = [(group, tp) for group, found in self._checkpoints.items() for tp in found if tp.topic in topics]
        for group, partition in gone:
            self.forget(group, partition)

    def is_news(self, checkpoint: Checkpoint, *, is_exact: bool = False) -> bool:
        """Whether the checkpoint must be emitted.

        This is the case if none is stored, if the group's offset moved back on the source, or if the offset moved
        forward on the target. Any other checkpoint would repeat the stored one or move the group back without cause. An
        exact checkpoint with a lower offset is emitted: the target has lost records that the stored one counts as
        consumed.
        """
        stored = self._checkpoints.get(checkpoint.group, {}).get(TopicPartition(checkpoint.topic, checkpoint.partition))
        return (
            stored is None
            or checkpoint.upstream_offset < stored.upstream_offset
            or checkpoint.downstream_offset > stored.downstream_offset
            or (is_exact and checkpoint.downstream_offset < stored.downstream_offset)
        )

    def has_gone_back(self, group: str, partition: TopicPartition, upstream_offset: int) -> bool:
        """Whether the group would skip records with the stored checkpoint, now that it is at this source offset."""
        stored = self._checkpoints.get(group, {}).get(partition)
        return stored is not None and upstream_offset < stored.upstream_offset

    def groups(self) -> list[str]:
        """The groups with at least one checkpoint."""
        return sorted(self._checkpoints)

    def of(self, group: str) -> Mapping[TopicPartition, Checkpoint]:
        return dict(self._checkpoints.get(group, {}))


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
