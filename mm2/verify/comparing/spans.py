"""The job of an executor: ranges to compare, as serializable data. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mm2.copy.progress.segments import Gap
from mm2.copy.spec import ChangesSpec
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.verify.comparing.passes import Pass


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a partition (see `mm2.verify.comparing.passes.Pass`).

    - ``excluded``: source offsets that are not expected on the target although they are readable.
    - ``source_compacted``, ``target_compacted``: the topic is compacted, so single records may have been removed.
    - ``open_start``, ``open_end``: the start or end of the copy is uncertain, so a record on one side only before the first
      pair, or one of the source after the last pair, is no difference.
    - ``by_content``: the ledger does not contain it, so records are only matched by content.
    - ``in_detail``: report how the sides differ, not only where the first difference is.
    - ``whole``: the partition's source range, in which originals of duplicated records are searched.
    - ``copied``: source offsets of records that the ledger has as copied, to a remote topic that was recreated since. They are expected
      on the target also where its start or end is open.
    - ``cut_off``: target offsets of records that are not compared: of a source log that was cut off, or of the other source partitions of
      a merge.
    - ``named``: as in `mm2.copy.spec.PartitionSpec`.
    - ``twice``: why records are on the target from before the ledger, and from since then; "": another program has copied the former.
    """

    topic: str
    partition: int
    remote_topic: str
    piece: Pass
    excluded: tuple[Gap, ...] = ()
    source_compacted: bool = False
    target_compacted: bool = False
    open_start: bool = False
    open_end: bool = False
    in_detail: bool = False
    by_content: bool = False
    whole: tuple[int, int] = (0, 0)
    named: str = ""
    copied: tuple[int, int] = (0, 0)
    cut_off: tuple[Gap, ...] = ()
    twice: str = ""

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The target partition."""
        return TopicPartition(self.remote_topic, self.partition)

    @property
    def size(self) -> int:
        """The number of source offsets, by which work is assigned."""
        return self.piece.after - self.piece.first


@dataclass(frozen=True, slots=True)
class SpanSet:
    """The job of one Spark task, whose ranges are compared in order.

    ``rate``: bytes per second of both sides together, 0 for no limit. ``patience_s``: how long a side may return no
    data. ``changes``: what changes the records of the flow; None: nothing does. ``source``, ``target`` and ``changes``
    contain secrets.
    """

    source: ClientSettings
    target: ClientSettings
    source_alias: str
    target_alias: str
    spans: tuple[tuple[int, Span], ...]
    read_committed: bool = False
    rate: float = 0
    patience_s: float = 60
    changes: ChangesSpec | None = None
