"""Builds the views of a flow's consumer groups from their offsets on both clusters. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.translation import Translation
from mm2.evidence import counted
from mm2.kafka.structs import TopicPartition
from mm2.mirror.groups.group_offsets import outside_of_log
from mm2.mirror.groups.translator import read_again
from mm2.observer.polling.polls import PolledGroups
from mm2.observer.views import GroupView, PartitionView
from mm2.reasons import MoveCode, OffsetReason


class GroupViews:
    """The consumer groups of one flow. Used by one thread."""

    def __init__(self) -> None:
        self._made_of: object = None
        self._views: tuple[GroupView, ...] = ()

    def read(
        self, seen: PolledGroups, ledger: Ledger | None, partitions: Sequence[PartitionView]
    ) -> tuple[GroupView, ...]:
        """The current views. Of thousands of groups few change, so they are made only when their inputs have changed."""
        made_of = seen, {} if ledger is None else ledger.group_reasons(), partitions
        if made_of != self._made_of:
            self._views, self._made_of = group_views(seen, ledger, partitions), made_of
        return self._views


def group_views(
    seen: PolledGroups, ledger: Ledger | None, partitions: Sequence[PartitionView]
) -> tuple[GroupView, ...]:
    """One row per group and source partition that has a checkpoint or a reason."""
    upstream: dict[tuple[str, int], list[str]] = {}
    for one in partitions:
        if one.remote_topic:
            upstream.setdefault((one.remote_topic, one.partition), []).append(one.topic)
    known = {(one.topic, one.partition): one for one in partitions}
    reasons = {} if ledger is None else ledger.group_reasons()
    rows: list[GroupView] = []
    for group in sorted({*seen.checkpoints, *reasons}):
        checkpoints, why = seen.checkpoints.get(group, {}), reasons.get(group, {})
        of_source, of_target = seen.source.get(group, {}), seen.target.get(group, {})
        places: set[tuple[str, int]] = set()
        for tp in (*checkpoints, *why):
            topics = upstream.get((tp.topic, tp.partition), [tp.topic])
            read = [topic for topic in topics if TopicPartition(topic, tp.partition) in of_source]
            places.update((topic, tp.partition) for topic in read or topics)
        for topic, partition in sorted(places):
            view = known.get((topic, partition))
            there = "" if view is None else view.remote_topic
            here, beyond = TopicPartition(topic, partition), TopicPartition(there, partition)
            checkpoint, committed, written = checkpoints.get(beyond), of_source.get(here), of_target.get(beyond)
            missing = why.get(here) or why.get(beyond)
            source_offset = None if committed is None else committed.offset
            translated = None if checkpoint is None else checkpoint.downstream_offset
            target_offset = None if written is None else written.offset
            message = "" if missing is None else missing.message
            if missing is None and len(upstream.get((there, partition), ())) > 1:
                message = _read_again(ledger, here, beyond, source_offset, translated)
            log = seen.target_logs.get(beyond)
            outside = None if target_offset is None else outside_of_log(beyond, target_offset, log)
            moved, records = _if_moved(translated, target_offset, outside, is_read=group in seen.target)
            if translated is not None and not message:
                unusable = outside_of_log(beyond, translated, log)
                message = "" if unusable is None else f"mm2 failover does not commit the translated offset: {unusable}"
            rows.append(
                GroupView(
                    group,
                    topic,
                    partition,
                    there,
                    source_offset,
                    translated,
                    target_offset,
                    message,
                    None if missing is None else missing.code,
                    None if view is None else _source_lag(view, source_offset),
                    None if view is None else _lag(view.target_offset, target_offset),
                    moved,
                    records,
                )
            )
    return tuple(rows)


def _read_again(
    ledger: Ledger | None,
    here: TopicPartition,
    beyond: TopicPartition,
    source_offset: int | None,
    translated: int | None,
) -> str:
    """What a group reads again of a target partition with the records of several topics, where it continues at the smallest of its
    positions; "": nothing, or it is not known.
    """
    entry = None if ledger is None else ledger.entry(here)
    if ledger is None or entry is None or source_offset is None or translated is None:
        return ""
    alone = Translation(ledger.chunks(here), entry.mark, entry.end).to_target(source_offset)
    return "" if alone is None or alone.offset <= translated else read_again(beyond, alone.offset - translated)


def _source_lag(view: PartitionView, offset: int | None) -> int | None:
    """None also for an offset beyond the end of a log that is not known to be the one in which it was committed."""
    is_beyond = view.source_end is not None and offset is not None and offset > view.source_end
    return None if is_beyond and not view.is_lag_exact else _lag(view.source_end, offset)


def _lag(end: int | None, offset: int | None) -> int | None:
    return None if end is None or offset is None else max(0, end - offset)


def _if_moved(
    translated: int | None, target_offset: int | None, outside: OffsetReason | None, *, is_read: bool
) -> tuple[MoveCode | None, int | None]:
    """What the group would do on the target now, and with how many records; None: its offsets there are not known.

    ``outside``: why consumers do not continue at the offset on the target; None: they do, or this is not known.
    """
    if not is_read:
        return None, None
    if target_offset is None:
        return MoveCode.NO_OFFSET, None
    if outside is not None:
        return MoveCode.OUT_OF_RANGE, None
    if translated is None:
        return MoveCode.UNTRANSLATED, None
    if target_offset < translated:
        return MoveCode.READS_AGAIN, translated - target_offset
    return (MoveCode.CONTINUES, 0) if target_offset == translated else (MoveCode.AHEAD, target_offset - translated)


def if_moved(view: GroupView) -> str:
    """What the group would do, in words; "" if not known."""
    records = counted(view.if_moved_records or 0, "record")
    return {
        None: "",
        MoveCode.CONTINUES: "continues at the translated offset",
        MoveCode.READS_AGAIN: f"reads {records} again that are before its translated offset",
        MoveCode.AHEAD: f"starts {records} after its translated offset",
        MoveCode.UNTRANSLATED: "starts at the committed offset, which cannot be compared",
        MoveCode.NO_OFFSET: "starts as its auto.offset.reset specifies",
        MoveCode.OUT_OF_RANGE: "starts as its auto.offset.reset specifies: the partition does not have its committed offset",
    }[view.if_moved]
