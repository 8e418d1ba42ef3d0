"""Fills the target offsets before the first record of a trimmed source log, for partitions with preserved offsets.

==== step =============================================================== after a crash ============================
  1  a note in the ledger: the configuration of the remote topic           the note
  2  the remote topic keeps records for ever: cleanup.policy=delete        the distinctive retention.ms shows it
  3  filler batches up to the source's log start offset                    the log end offset shows how many
  4  DeleteRecords up to that offset                                       the first batch on the target is a filler
  5  the remote topic gets its configuration back                          retention.ms
====================================================================================================================

Until then the partition is not assigned to a task, so nothing else is written to it. Gaps that cannot be filled here are left to
the copier, which fills them with transaction markers: these have the time of copying, so a search by time finds them first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, cast

import structlog

from mm2.copy.progress.ledger import note_record
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, value_of
from mm2.kafka.producer.filler import FILLER_RECORDS, is_filler, produce_filler
from mm2.kafka.readers.reader import BatchReader
from mm2.kafka.structs import (
    EARLIEST,
    LATEST,
    AlterOp,
    AlterOpType,
    ConfigEntry,
    ConfigSource,
    OffsetInfo,
    TopicPartition,
)
from mm2.mirror.common.discovery import vanished
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import FILLING_NOTE, Ledgers
from mm2.mirror.notes.preparation import Preparation, filling, since
from mm2.mirror.topics.config_sync import ConfigSync

log = structlog.get_logger("mm2.mirror.leading_gaps")

_Configs = Mapping[str, str | None]

#: `retention.ms` of a remote topic while it is filled: no record is as old, and no user sets it.
FILLING_RETENTION_MS: Final = str((1 << 63) - 2)
_POLICY_KEY: Final = "cleanup.policy"
_RETENTION_KEY: Final = "retention.ms"
_FILLING_CONFIGS: Final = {_POLICY_KEY: "delete", _RETENTION_KEY: FILLING_RETENTION_MS}
_ON_TOPIC: Final = ConfigSource.DYNAMIC_TOPIC_CONFIG
_DELETED_EVERY: Final = 64
_FILLERS_PER_S: Final = 3_000_000
_FILLER_BYTES: Final = 0.85
_MARKERS_PER_S: Final = 3_000
_MARKER_BYTES: Final = 78
_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 1.0
_READ_MS: Final = 1_000


class GapState(Enum):
    """What has to be done before a partition can be copied."""

    READY = auto()
    FILL = auto()
    """Write fillers up to the source's log start offset, then delete them."""
    OVERFILLED = auto()
    """There are fillers after the source's first record, which would be missing."""
    FOREIGN = auto()
    """Another program has written after the fillers."""
    UNKNOWN = auto()


def gap_state(source_start: int, target_start: int, target_end: int, *, has_fillers: bool) -> GapState:
    """The state of a remote partition. ``has_fillers``: its first batch is a filler."""
    if not target_end:
        return GapState.FILL if source_start else GapState.READY
    if target_start == target_end or not has_fillers:
        return GapState.READY
    return GapState.FILL if target_end <= source_start else GapState.OVERFILLED


#: All partitions of a topic wait until one in such a state has been filled, since the topic keeps records for ever until then.
_FILLED: Final = frozenset({GapState.FILL, GapState.OVERFILLED, GapState.FOREIGN})


class _Logs(NamedTuple):
    """What has to be done for a partition, the log start offset of its source and the end offset of its target (-1: unknown)."""

    state: GapState
    start: int = -1
    end: int = -1


class PlannedGap(NamedTuple):
    """Target offsets ``first .. after-1`` that are filled before copying begins, or by the copier (not ``by_fillers``). ``error``: why it
    does not begin.
    """

    target: TopicPartition
    first: int
    after: int
    by_fillers: bool
    error: str = ""

    @property
    def details(self) -> dict[str, str]:
        """How it is filled, and about how long this takes."""
        offsets = self.after - self.first
        rate, size = (_FILLERS_PER_S, _FILLER_BYTES) if self.by_fillers else (_MARKERS_PER_S, _MARKER_BYTES)
        return {
            "offsets": f"{self.first}..{self.after - 1}",
            "by": "filler records, which are deleted"
            if self.by_fillers
            else "transaction markers with the time of copying",
            "seconds": f"about {max(1, round(offsets / rate))}",
            "bytes": f"about {max(1, round(offsets * size))}",
        }


@dataclass(slots=True)
class LeadingGap:
    """Offsets before ``end`` that are to be filled, since ``since_ms``; ``at`` is the next one. ``is_withdrawn``: they are not any more."""

    target: TopicPartition
    end: int
    since_ms: int
    at: int = 0
    is_withdrawn: bool = False


class LeadingGaps:
    """Fills partitions one after another on a thread of its own."""

    def __init__(
        self,
        source_admin: Admin,
        target_admin: Admin,
        config_sync: ConfigSync,
        recurring: RecurringErrors,
        ledgers: Ledgers,
    ) -> None:
        self._source = source_admin
        self._target = target_admin
        self._config_sync = config_sync
        self._recurring = recurring
        self._ledgers = ledgers
        self._lock = threading.Lock()
        self._ready: set[TopicPartition] = set()
        self._wanted: dict[TopicPartition, LeadingGap] = {}
        self._current: TopicPartition | None = None  # of which a request may be unanswered
        self._waiting: dict[TopicPartition, Preparation] = {}  # those that are not filled themselves
        self._restored: set[str] = set()  # remote topics with their own configuration
        self._before: dict[str, _Configs] = {}  # what is to be restored, as in the notes in the ledger
        self._unfillable: set[TopicPartition] = set()
        self._foreign: set[TopicPartition] = set()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def stop(self, timeout_s: float) -> bool:
        """Write nothing after the current request, and wait for its end. False if it did not end in time."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def unready(self, partitions: Iterable[TopicPartition], remote: Callable[[str], str]) -> set[TopicPartition]:
        """Those of the existing partitions with preserved offsets that must not be copied yet. Raises KafkaFailure."""
        with self._lock:
            unknown = [tp for tp in partitions if tp not in self._ready]
        return self._decide(self._states(unknown, remote), remote) if unknown else set()

    def planned(self, partitions: Iterable[TopicPartition], remote: Callable[[str], str]) -> list[PlannedGap]:
        """What would be filled for existing partitions with preserved offsets; afterwards nothing is filled. Raises KafkaFailure."""
        self.stop(0)
        found = self._states([*partitions], remote)
        self._decide(found, remote)
        source_ends = self._source.list_offsets(dict.fromkeys(found, LATEST))
        gaps = []
        for tp, (state, start, end) in found.items():
            target, source_end = TopicPartition(remote(tp.topic), tp.partition), source_ends[tp]
            if state is GapState.FILL or (state is GapState.READY and end < start):
                gaps.append(PlannedGap(target, end, start, state is GapState.FILL))
            elif state is GapState.READY and isinstance(source_end, OffsetInfo) and end > source_end.offset:
                error = (
                    f"it ends at offset {end}, after {tp}, which ends at {source_end.offset}; delete the remote topic"
                )
                gaps.append(PlannedGap(target, end, end, by_fillers=False, error=error))
        return gaps

    def _decide(self, found: Mapping[TopicPartition, _Logs], remote: Callable[[str], str]) -> set[TopicPartition]:
        """Have partitions filled, and give topics their own configuration; returns the partitions that must not be copied yet."""
        with self._lock:
            for tp, (state, start, end) in found.items():
                if state is GapState.FILL:
                    target = TopicPartition(remote(tp.topic), tp.partition)
                    self._wanted.setdefault(tp, LeadingGap(target, start, _now_ms(), end))
                elif state is not GapState.UNKNOWN and (gap := self._wanted.pop(tp, None)) is not None:
                    gap.is_withdrawn = True  # the topic was recreated, or others have written to the remote topic
            filling = {tp.topic for tp, (state, *_) in found.items() if state in _FILLED}
            if self._current is not None:
                filling.add(self._current.topic)
            # A partition without a leader delays no other one; it may have fillers, which the configuration keeps.
            unsure = {tp.topic for tp, (state, *_) in found.items() if state is GapState.UNKNOWN}
        for topic in {tp.topic for tp in found} - filling - unsure:
            if not self._restore(topic, remote(topic)):
                filling.add(topic)
        with self._lock:
            self._ready |= {
                tp for tp, (state, *_) in found.items() if state is GapState.READY and tp.topic not in filling
            }
            self._waiting = {
                tp: since(self._waiting.get(tp), _waiting(tp, remote(tp.topic), state))
                for tp, (state, *_) in found.items()
                if tp not in self._ready
            }
            is_running = self._thread is not None and self._thread.is_alive()
            if self._wanted and not is_running and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="leading-gaps", daemon=True)
                self._thread.start()
            return {tp for tp in found if tp not in self._ready}

    def is_filling(self, topic: str, remote: str) -> bool:
        """Whether a source topic has partitions that are being filled, or its remote topic has not got its configuration back: it
        must not be changed.
        """
        with self._lock:
            return remote in self._before or any(tp.topic == topic for tp in self._wanted)

    def preparations(self) -> list[Preparation]:
        """The partitions that must not be copied yet, as of the last `unready`, and how far those that are filled are now."""
        with self._lock:
            filled = {
                tp: filling(tp, gap.target.topic, min(gap.at, gap.end), gap.end, gap.since_ms)
                for tp, gap in self._wanted.items()
            }
            return [*({**self._waiting, **filled}.values())]

    # -- what is there -------------------------------------------------------------------------------------------------

    def _states(self, partitions: list[TopicPartition], remote: Callable[[str], str]) -> dict[TopicPartition, _Logs]:
        """The state of each partition. Raises KafkaFailure."""
        targets = {tp: TopicPartition(remote(tp.topic), tp.partition) for tp in partitions}
        starts = self._source.list_offsets(dict.fromkeys(partitions, EARLIEST))
        target_starts = self._target.list_offsets(dict.fromkeys(targets.values(), EARLIEST))
        target_ends = self._target.list_offsets(dict.fromkeys(targets.values(), LATEST))
        found: dict[TopicPartition, _Logs] = {}
        begun: frozenset[TopicPartition] | None = None
        for tp, target in targets.items():
            start, first, end = starts[tp], target_starts[target], target_ends[target]
            subject = f"leading gap of {tp}"
            if not (isinstance(start, OffsetInfo) and isinstance(first, OffsetInfo) and isinstance(end, OffsetInfo)):
                failure = next(one for one in (start, first, end) if isinstance(one, KafkaFailure))
                self._recurring.report(subject, f"The offsets of {tp} cannot be read: {failure}")
                found[tp] = _Logs(GapState.UNKNOWN)
                continue
            has_fillers = first.offset < end.offset and self._is_filler_at(target, first.offset)
            state = gap_state(start.offset, first.offset, end.offset, has_fillers=has_fillers)
            if state is GapState.FILL and not end.offset:
                begun = self._begun(targets) if begun is None else begun
                if tp in self._unfillable or tp in begun:
                    state = GapState.READY
            if not has_fillers:
                self._foreign.discard(tp)
            elif tp in self._foreign:
                state = GapState.FOREIGN
            found[tp] = _Logs(state, start.offset, end.offset)
            if state is GapState.OVERFILLED:
                reason = (
                    f"{target} was filled up to offset {end.offset}, but the first record of {tp} has offset {start.offset}. "
                    "Delete the remote topic; it is then created again"
                )
                self._recurring.report(subject, reason)
            else:
                self._recurring.resolve(subject)
        return found

    def _begun(self, targets: Mapping[TopicPartition, TopicPartition]) -> frozenset[TopicPartition]:
        """The partitions that a task has begun to copy to the same remote topic: it writes there, and counts what was deleted before
        it was copied. Raises KafkaFailure.
        """
        try:
            ledger = self._ledgers.own()
        except BrokerFailure as failure:
            if vanished(failure):
                return frozenset()
            raise
        entries = {tp: ledger.entry(tp) for tp in targets}
        ids = {
            name: topic.topic_id
            for name, topic in self._target.cluster.metadata(
                {target.topic for target in targets.values()}
            ).topics.items()
        }
        return frozenset(
            tp
            for tp, entry in entries.items()
            if entry is not None and entry.target == targets[tp]
            if entry.target_id in {"", ids.get(entry.remote_topic, "")}
        )

    def _is_filler_at(self, target: TopicPartition, offset: int) -> bool:
        cluster = self._target.cluster
        metadata = cluster.metadata([target.topic])
        reader = BatchReader(cluster, cluster.leader(*target), {target.topic: metadata.topics[target.topic]})
        try:
            reader.positions = {target: offset}
            batches = reader.poll(max_wait_ms=_READ_MS)
        finally:
            reader.close()
        return bool(batches) and batches[0].view.header is not None and is_filler(batches[0].view.header)

    # -- filling -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                if not self._wanted:
                    return
                source, gap = next(iter(self._wanted.items()))
                self._current = source
            subject = f"filling {gap.target}"
            try:
                if self._is_still_a_gap(source, gap):
                    self._fill(source, gap)
                self._recurring.resolve(subject)
            except KafkaFailure as failure:
                if self._stopping.is_set():
                    return  # a stop closes the clients
                self._recurring.report(subject, f"{gap.target} cannot be filled up to offset {gap.end}: {failure}")
                if not failure.is_final:
                    self._stopping.wait(_RETRY_S)
                    continue
                # Nothing is written unless records can be deleted: the copier writes markers instead.
                self._unfillable.add(source)
            with self._lock:
                self._current = None
                if self._wanted.get(source) is gap:
                    del self._wanted[source]

    def _is_still_a_gap(self, source: TopicPartition, gap: LeadingGap) -> bool:
        """Whether the partition is still to be filled. It may have waited for hours, while a topic was recreated, or others wrote to the
        remote topic. Raises KafkaFailure.
        """
        state, start, _ = self._states([source], lambda _: gap.target.topic)[source]
        if state is not GapState.FILL or gap.is_withdrawn:
            return False
        gap.end = start
        return True

    def _fill(self, source: TopicPartition, gap: LeadingGap) -> None:
        """Fill a partition and delete the fillers. Raises KafkaFailure. The source may be trimmed meanwhile, which extends the gap."""
        target = gap.target
        self._keep_for_ever(target.topic)
        self._delete(target, 0)  # refused before anything is written
        at = began = gap.at = self._log_end(target)
        since = time.monotonic()
        log.info("Filling offsets before the first record.", partition=str(target), first=at, end=gap.end)
        batches = 0
        while not (self._stopping.is_set() or gap.is_withdrawn) and self._is_unfilled(source, gap):
            try:
                produce_filler(self._target.cluster, target, at, min(FILLER_RECORDS, gap.end - at), _TIMEOUT_S)
            except BrokerFailure as failure:
                if failure.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise
                # A batch without an answer was appended, or another process fills the partition, or has filled it.
                if self._log_end(target) == at:
                    self._foreign.add(source)
                    return
            at = gap.at = self._log_end(target)
            batches += 1
            # The last one stays, and shows what is being done.
            if not batches % _DELETED_EVERY and not self._delete_fillers(source, target, at - 1):
                return
        if self._stopping.is_set() or gap.is_withdrawn or not self._delete_fillers(source, target, gap.end):
            return
        seconds = time.monotonic() - since
        log.info("Filled offsets.", partition=str(target), offsets=at - began, seconds=round(seconds, 1))

    def _is_unfilled(self, source: TopicPartition, gap: LeadingGap) -> bool:
        """Whether offsets are left, also after the start of the source log has moved on."""
        if gap.at == gap.end:  # beyond its end, another process has begun to copy
            start = value_of(self._source.list_offsets({source: EARLIEST})[source]).offset
            gap.end = max(gap.end, start)
        return gap.at < gap.end

    def _log_end(self, target: TopicPartition) -> int:
        return value_of(self._target.list_offsets({target: LATEST}, log_end=True)[target]).offset

    def _delete_fillers(self, source: TopicPartition, target: TopicPartition, before: int) -> bool:
        """Delete what is before an offset, unless others have written it. Raises KafkaFailure."""
        start = value_of(self._target.list_offsets({target: EARLIEST})[target]).offset
        if start >= before:
            return True
        # The sequence numbers exclude other records between two fillers.
        if not (self._is_filler_at(target, start) and self._is_filler_at(target, before - 1)):
            self._foreign.add(source)
            return False
        self._delete(target, before)
        return True

    def _delete(self, target: TopicPartition, before: int) -> None:
        value_of(self._target.delete_records({target: before})[target])

    # -- configuration -------------------------------------------------------------------------------------------------

    def _keep_for_ever(self, remote: str) -> None:
        """Keep all records of a topic while it is filled. Raises KafkaFailure."""
        if remote in self._before:  # for another partition
            return
        self._restored.discard(remote)
        there = value_of(self._target.describe_configs([remote], [*_FILLING_CONFIGS])[remote])
        if all(_value(there, name) == value for name, value in _FILLING_CONFIGS.items()):
            return
        own: _Configs | None = None
        if _value(there, _RETENTION_KEY) != FILLING_RETENTION_MS:  # otherwise the note is there
            before = {name: entry.value for name, entry in there.items() if entry.source is _ON_TOPIC}
            own = {name: before.get(name) for name in _FILLING_CONFIGS}
            self._write_note(remote, own)
        operations = [AlterOp(name, value, AlterOpType.SET) for name, value in _FILLING_CONFIGS.items()]
        self._alter(remote, operations)
        if own is not None:
            self._before[remote] = own

    def _restore(self, topic: str, remote: str) -> bool:
        """Give a remote topic that was filled its own configuration again. False if that failed."""
        if remote in self._restored:
            return True
        subject = f"configuration of {remote}"
        try:
            there = value_of(self._target.describe_configs([remote], [*_FILLING_CONFIGS])[remote])
            if _value(there, _RETENTION_KEY) == FILLING_RETENTION_MS:
                own = self._own_configs(topic, remote)
                # What a user has changed meanwhile stays.
                unchanged = [name for name, value in _FILLING_CONFIGS.items() if _value(there, name) == value]
                self._alter(remote, [_operation(name, own.get(name)) for name in unchanged])
                self._write_note(remote, None)
        except KafkaFailure as failure:
            # Without this right it has not been filled either.
            if not (isinstance(failure, BrokerFailure) and failure.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                self._recurring.report(subject, f"The configuration of {remote} cannot be restored: {failure}")
                return False
        self._recurring.resolve(subject)
        self._before.pop(remote, None)
        self._restored.add(remote)
        return True

    def _own_configs(self, topic: str, remote: str) -> _Configs:
        """The properties that a remote topic had before it was filled. Without a note those with which it would be created."""
        own = self._before.get(remote)
        if own is None:
            try:
                own = cast("_Configs | None", self._ledgers.own().notes(FILLING_NOTE).get((remote,)))
            except BrokerFailure as failure:
                if not vanished(failure):
                    raise
        if own is None:
            own = self._config_sync.for_creation(value_of(self._source.describe_configs([topic])[topic]))
        return own

    def _write_note(self, remote: str, own: _Configs | None) -> None:
        try:
            self._ledgers.write([note_record(FILLING_NOTE, (remote,), own)])
        except BrokerFailure as failure:
            if not vanished(failure):
                raise
            if own is not None:  # another job of the connector creates the ledger
                message = "the ledger does not exist yet"
                raise BrokerFailure.of(ErrorCode.LEADER_NOT_AVAILABLE, message) from failure

    def _alter(self, remote: str, operations: list[AlterOp]) -> None:
        value_of(self._target.incremental_alter_configs({remote: operations})[remote])


def _waiting(source: TopicPartition, remote: str, state: GapState) -> Preparation:
    """A partition that waits for another one of its topic, or that must not be filled any further."""
    target = f"{remote}-{source.partition}"
    reasons = {
        GapState.OVERFILLED: f"{target} was filled up to an offset after the first record: delete the remote topic",
        GapState.FOREIGN: f"another program wrote to {target} while the offsets before its first record were filled: "
        "delete the remote topic",
    }
    found = PartitionState.DIVERGED if state in reasons else PartitionState.PREPARING
    reason = reasons.get(state, "the remote topic is prepared for other partitions, too")
    return Preparation(source.topic, source.partition, remote, found, reason, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _value(configs: Mapping[str, ConfigEntry], name: str) -> str | None:
    return configs[name].value if name in configs else None


def _operation(name: str, value: str | None) -> AlterOp:
    return AlterOp(name, value, AlterOpType.DELETE if value is None else AlterOpType.SET)
