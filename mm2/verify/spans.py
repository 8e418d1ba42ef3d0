"""The job of an executor: ranges to compare, as serializable data. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Self

from mm2.copy.segments import Gap, Segment
from mm2.copy.spec import ChangesSpec
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.verify.passes import Pass, Route


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a partition (see `mm2.verify.passes.Pass`).

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

    def to_json(self) -> list[Any]:
        """A JSON-serializable row."""
        one = self.piece
        return [
            [self.topic, self.partition, self.remote_topic, self.named],
            [
                one.first,
                one.after,
                one.target_first,
                one.target_after,
                [list(row) for row in one.route.segments],
                one.joint,
            ],
            [list(gap) for gap in self.excluded],
            [
                self.source_compacted,
                self.target_compacted,
                self.open_start,
                self.open_end,
                self.in_detail,
                self.by_content,
            ],
            list(self.whole),
            list(self.copied),
            [list(gap) for gap in self.cut_off],
        ]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Self:
        """The inverse of `to_json`."""
        (
            (topic, partition, remote_topic, named),
            (first, after, low, high, rows, joint),
            excluded,
            flags,
            whole,
            copied,
            cut_off,
        ) = row
        route = Route(tuple(Segment(*segment) for segment in rows))
        gaps = tuple(Gap(*gap) for gap in excluded)
        span = cls(
            topic,
            partition,
            remote_topic,
            Pass(first, after, low, high, route, joint),
            gaps,
            whole=(whole[0], whole[1]),
            named=named,
            copied=(copied[0], copied[1]),
            cut_off=tuple(Gap(*gap) for gap in cut_off),
        )
        names = ("source_compacted", "target_compacted", "open_start", "open_end", "in_detail", "by_content")
        return replace(span, **dict(zip(names, flags, strict=True)))


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

    def to_json(self) -> str:
        """The job as one line, secrets included; for the executor only."""
        return json.dumps(
            {
                "source": self.source.to_json(),
                "target": self.target.to_json(),
                "aliases": [self.source_alias, self.target_alias],
                "spans": [[number, span.to_json()] for number, span in self.spans],
                "limits": [self.read_committed, self.rate, self.patience_s],
                "changes": None if self.changes is None else astuple(self.changes),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        data = json.loads(text)
        source_alias, target_alias = data["aliases"]
        read_committed, rate, patience_s = data["limits"]
        return cls(
            ClientSettings.from_json(data["source"]),
            ClientSettings.from_json(data["target"]),
            source_alias,
            target_alias,
            tuple((number, Span.from_json(row)) for number, row in data["spans"]),
            read_committed,
            rate,
            patience_s,
            None if data["changes"] is None else ChangesSpec(*data["changes"]),
        )
