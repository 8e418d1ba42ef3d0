"""Partitions that cannot continue with preserved offsets after a failover, because both clusters have records at the same offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from mm2.codec import written_as
from mm2.config.keys.mirror_keys import PRESERVE_KEY
from mm2.failover.evidence import PartitionEvidence
from mm2.failover.sides import FlowConfig, Sides
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.discovery import vanished
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets

_SHOWN: Final = 5


@written_as("cluster topic=partition.topic partition=partition.partition first last")
class DivergentRange(NamedTuple):
    """Offsets ``first .. after-1`` of a partition of a cluster (an alias), at which the other cluster has, or will have, other records."""

    cluster: str
    partition: TopicPartition
    first: int
    after: int

    def __str__(self) -> str:
        return f"{self.partition}: offsets {self.first}..{self.last}"

    @property
    def last(self) -> int:
        """The last of the offsets."""
        return self.after - 1


def gone_topics(sides: Sides, topics: Iterable[str]) -> set[str]:
    """Those that the source has not. Raises KafkaFailure."""
    if sides.source is None:
        return set()
    return {topic for topic, found in sides.source.describe_topics(sorted(topics)).items() if vanished(found)}


class Divergence:
    """What prevents the flow that is to copy topics of equal names back (``reverse``), or this one, from preserving offsets.

    ``named`` are the topics of which the names show the origin: this flow copies them again.
    """

    def __init__(
        self,
        sides: Sides,
        reverse: FlowConfig,
        partitions: Sequence[PartitionEvidence],
        named: Collection[str],
        gone: Collection[str],
    ) -> None:
        self._sides = sides
        self._reverse = reverse
        there, back = (PreservedOffsets.of(one.source_connector) for one in (sides.config, reverse))
        self.copied_back = {
            one.topic for one in partitions if one.topic in gone and one.topic not in named and one.topic in back
        }
        """Deleted topics that ``reverse`` creates again with the same offsets, from the beginning."""
        self.on_source = [
            DivergentRange(sides.pair.source, one.source, first, one.end)
            for one in partitions
            if one.topic not in named
            and one.topic not in gone
            and one.topic in back
            and one.end is not None
            # Without preservation on the way there, equal offsets have different records from the beginning.
            and (first := (one.target_offset or 0) if one.topic in there else 0) < one.end
        ]
        self.on_target = [
            DivergentRange(sides.pair.target, one.target, one.target_offset, one.target_end)
            for one in partitions
            if one.topic in named and one.topic in there and one.others
            if one.target_offset is not None and one.target_end is not None
        ]

    @property
    def ranges(self) -> list[DivergentRange]:
        """All of them."""
        return [*self.on_source, *self.on_target]

    def problems(self, *, keep: bool) -> list[str]:
        """What prevents the command from continuing, with what to do. ``keep``: records that are on one cluster only are accepted."""
        source, target = self._sides.pair.source, self._sides.pair.target
        back = self._reverse.pair
        found = []
        if self.on_source:
            topics = ", ".join(sorted({one.partition.topic for one in self.on_source})[:_SHOWN])
            found.append(
                f"{back} cannot give these records of {target} the same offsets on {source}, which has other records there: "
                f"{_shown(self.on_source)}. Nothing was changed. Either delete {topics} on {source} and run the command again: {back} "
                f"creates it again and copies it from the beginning, with the offsets of {target}. Or set {back}.{PRESERVE_KEY}=false and "
                "use --divergent keep"
            )
        if self.on_target and not keep:
            pair = self._sides.pair
            found.append(
                f"{pair} cannot continue with the same offsets, since other producers have written to {target}: "
                f"{_shown(self.on_target)}. Nothing was changed. Either delete the remote topic and reset the position, or set "
                f"{pair}.{PRESERVE_KEY}=false. With --divergent keep these partitions stop as DIVERGED"
            )
        return found


def _shown(ranges: Sequence[DivergentRange]) -> str:
    more = len(ranges) - _SHOWN
    return "; ".join(map(str, ranges[:_SHOWN])) + (f"; and {more} more partitions" if more > 0 else "")
