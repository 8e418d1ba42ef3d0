"""Where the copying of partitions with offset preservation starts: at the log end offset of the target.

Everything before it is there. Where nothing has been written yet, it is the start of the source log, or the configured
position, and the target offsets before it are filled. A remote partition with other content is not written to.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.target_progress import TargetLookUp
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition

#: Offsets before the end of a remote partition whose records are compared with the source.
_COMPARED: Final = 1_000
#: A deposed leader of the source, which knows an older end, is found out in less.
_AHEAD_S: Final = 10.0
#: When remote partitions, by source and target cluster, were first found to end after the source (monotonic, s). A worker
#: of Spark runs many micro-batches, which may be shorter than `_AHEAD_S`.
_AHEAD_SINCE: Final[dict[tuple[str, str, TopicPartition], float]] = {}


class PartitionEnds(NamedTuple):
    """First and next offset of the log of a partition on both clusters."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


class PreservedStart(NamedTuple):
    """Copying starts at the target's ``end``; offsets before ``first`` are filled. ``refusal`` is why it does not."""

    end: int = -1
    first: int = -1
    refusal: str = ""


def start_at(ends: PartitionEnds, wanted: int | None, remote: str, source: str) -> PreservedStart:
    """The start of a partition. ``wanted`` is a configured position, which counts while the target has nothing.

    ``remote`` and ``source`` name the partitions for the reason of a refusal.
    """
    if ends.target_end > ends.source_end:
        return PreservedStart(
            refusal=f"{remote} ends at offset {ends.target_end}, after {source}, which ends at {ends.source_end}"
        )
    if ends.target_end:
        return PreservedStart(ends.target_end, ends.target_end)
    first = ends.source_start if wanted is None else max(wanted, ends.source_start)
    return PreservedStart(0, min(first, ends.source_end))


class PreservedStarts:
    """Reads both clusters to find the starts of partitions. All calls block and run on background threads."""

    def __init__(self, endpoints: Endpoints, source_alias: str, target_alias: str, *, is_changed: bool) -> None:
        self._source_cluster = endpoints.source_cluster
        self._source_admin = Admin(endpoints.source_cluster)
        self._target_admin = Admin(endpoints.target_cluster)
        self._source = TargetLookUp(endpoints.source_cluster)
        self._target = TargetLookUp(endpoints.target_cluster)
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._is_changed = is_changed  # transformations: the records on the target may differ

    def find(
        self, cursors: Mapping[TopicPartition, Cursor], wanted: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, PreservedStart | KafkaFailure]:
        """The start of each partition, or why it is not known yet. ``wanted``: see `start_at`."""
        targets = {tp: cursor.outbox.partition for tp, cursor in cursors.items()}
        if suspects := {tp.topic for tp in cursors if self._key(targets[tp]) in _AHEAD_SINCE}:
            self._source_cluster.metadata(suspects)  # the leader may have changed
        source_starts = self._source_admin.list_offsets(dict.fromkeys(cursors, EARLIEST))
        target_starts = self._target_admin.list_offsets(dict.fromkeys(targets.values(), EARLIEST))
        target_ends = self._target.stable_ends(
            {targets[tp]: cursor.outbox.leader_epoch for tp, cursor in cursors.items()}
        )
        # After those of the target: a predecessor may still copy what the source gets now.
        source_ends = self._source_admin.list_offsets(dict.fromkeys(cursors, LATEST))
        found: dict[TopicPartition, PreservedStart | KafkaFailure] = {}
        for tp, target in targets.items():
            answers = source_starts[tp], source_ends[tp], target_starts[target], target_ends[target]
            offsets = [answer.offset for answer in answers if isinstance(answer, OffsetInfo)]
            if len(offsets) < len(answers):
                found[tp] = next(answer for answer in answers if isinstance(answer, KafkaFailure))
                continue
            try:
                found[tp] = self._start(tp, target, PartitionEnds(*offsets), wanted[tp])
            except KafkaFailure as error:
                found[tp] = error
        return found

    def _start(
        self, tp: TopicPartition, target: TopicPartition, ends: PartitionEnds, wanted: int | None
    ) -> PreservedStart:
        remote, source = f"{target} of {self._target_alias}", f"{tp} of {self._source_alias}"
        start = start_at(ends, wanted, remote, source)
        if ends.target_end <= ends.source_end:
            _AHEAD_SINCE.pop(self._key(target), None)
        elif time.monotonic() - _AHEAD_SINCE.setdefault(self._key(target), time.monotonic()) < _AHEAD_S:
            raise BrokerFailure.of(ErrorCode.OFFSET_NOT_AVAILABLE, start.refusal)
        if start.refusal or not start.end or self._is_changed:
            return start
        offset = self._first_difference(tp, target, ends)
        if offset is None:
            return start
        return PreservedStart(refusal=f"{remote} has another record at offset {offset} than {source}")

    def _key(self, target: TopicPartition) -> tuple[str, str, TopicPartition]:
        return self._source_alias, self._target_alias, target

    def _first_difference(self, tp: TopicPartition, target: TopicPartition, ends: PartitionEnds) -> int | None:
        """The first offset near the end of the target at which it has another record than the source; None: there is none.

        Compaction and retention may have removed records on either side.
        """
        first = max(ends.source_start, ends.target_start, ends.target_end - _COMPARED)
        if first >= ends.target_end:
            return None
        on_target = self._target.records_at(target, first, ends.target_end)
        on_source = self._source.records_at(tp, first, ends.target_end)
        with_time = on_target.with_time and on_source.with_time
        for offset, (timestamp, content) in sorted(on_target.values.items()):
            other = on_source.values.get(offset)
            if other is None:
                continue
            if other[1] != content or (with_time and other[0] != timestamp):
                return offset
        return None
