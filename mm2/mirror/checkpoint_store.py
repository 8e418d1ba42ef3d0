"""Newest checkpoint of every group and partition, and the rules that look at it (spec mirrormaker §5.4, §5.5). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.formats import Checkpoint


class CheckpointStore:
    """Checkpoints of the given groups, keyed by group and partition of the target. Not thread-safe."""

    def __init__(self, groups: Collection[str]) -> None:
        self._groups = frozenset(groups)
        self._checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def put(self, checkpoint: Checkpoint) -> None:
        """Replace the stored checkpoint; those of other groups are not kept."""
        if checkpoint.group in self._groups:
            partition = TopicPartition(checkpoint.topic, checkpoint.partition)
            self._checkpoints.setdefault(checkpoint.group, {})[partition] = checkpoint

    def forget(self, group: str, partition: TopicPartition) -> None:
        """Its checkpoint was deleted."""
        known = self._checkpoints.get(group, {})
        known.pop(partition, None)
        if not known:
            self._checkpoints.pop(group, None)

    def forget_topics(self, topics: Collection[str]) -> None:
        """They were deleted, and created anew."""
        gone = [(group, tp) for group, found in self._checkpoints.items() for tp in found if tp.topic in topics]
        for group, partition in gone:
            self.forget(group, partition)

    def is_news(self, checkpoint: Checkpoint, *, is_exact: bool = False) -> bool:
        """It must be emitted: nothing is stored, or the group went back on the source, or it went on on the target.

        Anything else would repeat the stored one or move the group backwards for no reason of its own. An exact one that is
        lower is a reason: records that the stored one counts as consumed have been lost on the target since.
        """
        stored = self._checkpoints.get(checkpoint.group, {}).get(TopicPartition(checkpoint.topic, checkpoint.partition))
        return (
            stored is None
            or checkpoint.upstream_offset < stored.upstream_offset
            or checkpoint.downstream_offset > stored.downstream_offset
            or (is_exact and checkpoint.downstream_offset < stored.downstream_offset)
        )

    def has_gone_back(self, group: str, partition: TopicPartition, upstream_offset: int) -> bool:
        """A checkpoint is stored that the group, at this offset of the source now, would skip records by."""
        stored = self._checkpoints.get(group, {}).get(partition)
        return stored is not None and upstream_offset < stored.upstream_offset

    def groups(self) -> list[str]:
        """Groups with at least one checkpoint."""
        return sorted(self._checkpoints)

    def of(self, group: str) -> Mapping[TopicPartition, Checkpoint]:
        return dict(self._checkpoints.get(group, {}))


def offsets_to_sync(
    checkpoints: Mapping[TopicPartition, Checkpoint], on_target: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What to commit for an idle group on the target, which has `on_target` so far: never a step backwards."""
    return {
        partition: OffsetAndMetadata(checkpoint.downstream_offset, checkpoint.metadata)
        for partition, checkpoint in checkpoints.items()
        if (present := on_target.get(partition)) is None or present.offset < checkpoint.downstream_offset
    }
