"""Where the copying of partitions with offset preservation starts: at the log end offset of the target.

Everything before it is there. Where nothing has been written yet, it is the start of the source log, or the configured
position, and the target offsets before it are filled. A remote partition with other content is not written to: unless the
ledger shows that this flow has written it in this mode, all its records are compared with those of the source, and records that cannot
be compared are not the flow's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.progress.target_progress import RecordsAt, TargetLookUp
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, value_of
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition

#: Offsets before the end of a remote partition whose records are compared with the source, if the ledger shows that this flow wrote it.
_COMPARED: Final = 1_000
#: Offsets whose records are compared at a time, which limits the memory.
_AT_ONCE: Final = 20_000
#: A deposed leader of the source, which knows an older end, is found out in less.
_AHEAD_S: Final = 10.0
_FORGOTTEN_S: Final = 300.0
#: Time for which records are compared before other partitions continue.
_COMPARING_S: Final = 2.0
#: When remote partitions, by source and target cluster, were first and last found to end after the source (monotonic, s). A
#: worker of Spark runs many micro-batches, which may be shorter than `_AHEAD_S`.
_AHEAD_SINCE: Final[dict[tuple[str, str, TopicPartition], tuple[float, float]]] = {}
#: The offsets up to which remote partitions, by source and target topic id, have the records of the source.
_EQUAL_UNTIL: Final[dict[tuple[str, str, TopicPartition], int]] = {}


class PartitionEnds(NamedTuple):
    """First and next offset of the log of a partition on both clusters."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


class PreservedStart(NamedTuple):
    """Copying starts at the target's ``end``; offsets before ``first`` are filled. ``refusal`` is why it does not, and ``state`` that
    of the partition then. ``is_uncompared``: the target has records that may not be those of the source.
    """

    end: int = -1
    first: int = -1
    refusal: str = ""
    state: PartitionState = PartitionState.DIVERGED
    is_uncompared: bool = False


class Comparing(NamedTuple):
    """The records before offset ``at`` of the target are equal to those of the source, those up to ``end`` are still compared."""

    at: int
    end: int


_Start = TypeVar("_Start", PreservedStart, "PreservedStart | Comparing")


class Wanted(NamedTuple):
    """A position, which counts while the target has nothing; None: the start of the source log.

    ``is_set``: a user has set it. It also counts if it is after the end of the target: records before it, which the source
    may have lost, are not to be copied. ``is_new``: nothing has been copied, so the target may have markers and deleted
    fillers only. ``is_own``: the ledger shows that this flow has written what the target has, in this mode. ``committed``: all before this
    position was copied, by Connect's offsets topic or `mm2 failback` (0: nothing is known).
    """

    position: int | None = None
    is_set: bool = False
    is_new: bool = False
    is_own: bool = False
    committed: int = 0


def start_at(ends: PartitionEnds, wanted: Wanted, remote: str, source: str) -> PreservedStart:
    """The start of a partition. ``remote`` and ``source`` name the partitions for the reason of a refusal."""
    if ends.target_end > ends.source_end:
        return PreservedStart(
            refusal=f"{remote} ends at offset {ends.target_end}, after {source}, which ends at {ends.source_end}"
        )
    first = ends.source_start if wanted.position is None else wanted.position
    has_nothing = wanted.is_new and ends.target_start == ends.target_end
    if not ends.target_end or has_nothing:
        first = max(first, ends.source_start)
    elif not wanted.is_set:
        first = 0
    return PreservedStart(ends.target_end, max(ends.target_end, min(first, ends.source_end)))


class PreservedStarts:
    """Reads both clusters to find the starts of partitions. All calls block and run on background threads."""

    def __init__(self, endpoints: Endpoints, source_alias: str, target_alias: str, *, is_changed: bool) -> None:
        self._source_cluster, self._target_cluster = endpoints.source_cluster, endpoints.target_cluster
        self._source_admin = Admin(endpoints.source_cluster)
        self._target_admin = Admin(endpoints.target_cluster)
        self._source = TargetLookUp(endpoints.source_cluster)
        self._target = TargetLookUp(endpoints.target_cluster)
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._is_changed = is_changed  # transformations: the records on the target may differ
        self._until_s = 0.0

    def find(
        self, cursors: Mapping[TopicPartition, Cursor], wanted: Mapping[TopicPartition, Wanted]
    ) -> dict[TopicPartition, PreservedStart | Comparing | KafkaFailure]:
        """The start of each partition, or why it is not known yet."""
        self._until_s = time.monotonic() + _COMPARING_S
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
        found: dict[TopicPartition, PreservedStart | Comparing | KafkaFailure] = {}
        for tp, target in targets.items():
            answers = source_starts[tp], source_ends[tp], target_starts[target], target_ends[target]
            offsets = [answer.offset for answer in answers if isinstance(answer, OffsetInfo)]
            if len(offsets) < len(answers):
                found[tp] = next(answer for answer in answers if isinstance(answer, KafkaFailure))
                continue
            try:
                found[tp] = self._explained(cursors[tp], self._start(tp, target, PartitionEnds(*offsets), wanted[tp]))
            except KafkaFailure as error:
                found[tp] = error
        return found

    def refusal(self, cursor: Cursor, first: int, end: int) -> PreservedStart:
        """Why a session cannot continue at the target's ``end``, although a predecessor has put what is there from ``first``
        on (``refusal`` is "": it can). An election on the source may have lost what the predecessor read. Raises KafkaFailure.

        The end of the source is read after that of the target, for the reason in `find`.
        """
        tp, target = cursor.partition, cursor.outbox.partition
        if self._key(target) in _AHEAD_SINCE:
            self._source_cluster.metadata([tp.topic])
        source_start, target_start = (
            _offset(self._source_admin, tp, EARLIEST),
            _offset(self._target_admin, target, EARLIEST),
        )
        ends = PartitionEnds(source_start, _offset(self._source_admin, tp, LATEST), target_start, end)
        start = start_at(ends, Wanted(), *self._names(tp, target))
        return self._explained(cursor, self._compared(tp, target, ends, start, first))

    def _explained(self, cursor: Cursor, start: _Start) -> _Start:
        """The same start; one that is refused gets the whole reason, which may be that the source topic was recreated."""
        if isinstance(start, Comparing) or not start.refusal:
            return start
        tp = cursor.partition
        # Another broker may have older metadata than the leader, which has answered.
        leader = self._source_cluster.leader(*tp)
        topic = self._source_cluster.metadata_of(leader, [tp.topic]).topics.get(tp.topic)
        if topic is None or not cursor.topic_id or topic.topic_id in {"", cursor.topic_id}:
            return start._replace(refusal=not_written(start.refusal))
        what = source_recreated(tp, self._source_alias, topic.topic_id)
        return start._replace(refusal=what, state=PartitionState.RECREATED)

    def copied(self, cursor: Cursor, first: int, end: int) -> RecordsAt:
        """What a predecessor has put at these offsets of the target. Raises KafkaFailure."""
        target = cursor.outbox.partition
        return self._target.records_at(target, max(first, _offset(self._target_admin, target, EARLIEST)), end)

    def _start(
        self, tp: TopicPartition, target: TopicPartition, ends: PartitionEnds, wanted: Wanted
    ) -> PreservedStart | Comparing:
        start = start_at(ends, wanted, *self._names(tp, target))
        first = ends.target_end - _COMPARED
        at = max(ends.source_start, ends.target_start)
        if self._is_changed and not wanted.is_own:
            start = start._replace(is_uncompared=ends.target_start < ends.target_end)
        elif not (wanted.is_own or start.refusal) and self._is_of_others(target, ends, wanted.committed):
            remote, source = self._names(tp, target)
            why = f"{remote} has records before offset {ends.source_start}, where {source} starts, and none that both have"
            return PreservedStart(refusal=f"{why}: nothing shows that they were copied from there")
        if wanted.is_own or self._is_changed or start.refusal or at >= first:
            return self._compared(tp, target, ends, start, first)
        ids = self._topic_id(self._source_cluster, tp), self._topic_id(self._target_cluster, target)
        key = *ids, target
        at = max(at, _EQUAL_UNTIL.get(key, 0))
        while at < first:
            if time.monotonic() >= self._until_s:
                return Comparing(at, ends.target_end)
            after = min(at + _AT_ONCE, first)
            found = self._compared(tp, target, ends._replace(target_end=after), start, at)
            if found.refusal:
                return found
            at = after
            if all(ids):
                _EQUAL_UNTIL[key] = at
        return self._compared(tp, target, ends, start, at)

    def _compared(
        self, tp: TopicPartition, target: TopicPartition, ends: PartitionEnds, start: PreservedStart, first: int
    ) -> PreservedStart:
        """The start, or why there is none: the target ends after the source, or has other records from ``first`` on."""
        remote, source = self._names(tp, target)
        if ends.target_end <= ends.source_end:
            _AHEAD_SINCE.pop(self._key(target), None)
        elif _ahead_s(self._key(target), time.monotonic()) < _AHEAD_S:
            raise BrokerFailure.of(ErrorCode.OFFSET_NOT_AVAILABLE, start.refusal)
        if start.refusal or not start.end or self._is_changed:
            return start
        offset = self._first_difference(tp, target, ends, first)
        if offset is None:
            return start
        return PreservedStart(refusal=f"{remote} has another record at offset {offset} than {source}")

    def _is_of_others(self, target: TopicPartition, ends: PartitionEnds, committed: int) -> bool:
        """Whether the target has records, and nothing shows that they are the flow's: they lie before the start of the source log, so that
        there is nothing to compare them with. ``committed`` as in `Wanted`.
        """
        until = min(ends.source_start, ends.target_end)
        if ends.target_start >= until or committed >= ends.target_end:
            return False
        return not self._has_record(target, until, ends.target_end) and self._has_record(
            target, ends.target_start, until
        )

    def _has_record(self, target: TopicPartition, first: int, end: int) -> bool:
        """Whether the target has a record at these offsets. Raises KafkaFailure."""
        steps = range(first, end, _AT_ONCE)
        return any(self._target.records_at(target, at, min(end, at + _AT_ONCE)).values for at in steps)

    @staticmethod
    def _topic_id(cluster: Cluster, partition: TopicPartition) -> str:
        topic = cluster.metadata([partition.topic]).topics.get(partition.topic)
        return "" if topic is None else topic.topic_id

    def _key(self, target: TopicPartition) -> tuple[str, str, TopicPartition]:
        return self._source_alias, self._target_alias, target

    def _names(self, tp: TopicPartition, target: TopicPartition) -> tuple[str, str]:
        return f"{target} of {self._target_alias}", f"{tp} of {self._source_alias}"

    def _first_difference(
        self, tp: TopicPartition, target: TopicPartition, ends: PartitionEnds, first: int
    ) -> int | None:
        """The first offset from ``first`` on at which the target has another record than the source, or one where the source has a
        transaction marker; None: there is none.

        Compaction and retention may have removed records on either side.
        """
        for start in range(max(ends.source_start, ends.target_start, first), ends.target_end, _AT_ONCE):
            after = min(ends.target_end, start + _AT_ONCE)
            on_source = self._source.records_at(tp, start, after, with_markers=True)
            offset = self._target.records_at(target, start, after).differs(on_source)
            if offset is not None:
                return offset
        return None


def source_recreated(source: TopicPartition, alias: str, topic_id: str) -> str:
    """The reason for a source topic that was recreated, with the offsets of the deleted one on the target."""
    return (
        f"{source} of {alias} was deleted and recreated (topic id {topic_id or 'unknown'}); its remote topic has the offsets of the "
        "deleted topic; delete it and reset the position"
    )


def not_written(why: str) -> str:
    """The reason for a remote partition that is not written to, because its offsets are not the source's."""
    return (
        f"{why}: preserve.offsets writes only to a remote topic that is empty or has the source's offsets; delete it, or "
        "exclude the topic with preserve.offsets.topics"
    )


def _ahead_s(key: tuple[str, str, TopicPartition], now_s: float) -> float:
    """For how long a remote partition has been found to end after the source. After a time in which no look-up was made, it
    may have been right meanwhile.
    """
    first_s, last_s = _AHEAD_SINCE.get(key, (now_s, now_s))
    if now_s - last_s > _FORGOTTEN_S:
        first_s = now_s
    _AHEAD_SINCE[key] = first_s, now_s
    return now_s - first_s


def _offset(admin: Admin, partition: TopicPartition, when: int) -> int:
    return value_of(admin.list_offsets({partition: when})[partition]).offset
