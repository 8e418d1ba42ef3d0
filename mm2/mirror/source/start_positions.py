"""Where the lanes of a task begin to copy: by the ledger, Connect's offsets topic, and what users have set."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

import structlog

from mm2.connect.api import ConnectError, SourceTaskContext
from mm2.connect.runtime.exactly_once_settings import task_transactional_id
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.session import CopyId, CopyOrigin, LedgerEntry, Mark, Seen, Start, WrittenPosition
from mm2.copy.progress.target_progress import TargetLookUp
from mm2.copy.progress.written_positions import offset_key, offsets_ends, read_written_positions
from mm2.copy.spec import CopySpec
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, KafkaFailure
from mm2.kafka.producer.transactions import TransactionCoordinatorClient
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.mirror.notes.source_cluster import AcceptedSource, accepted_source
from mm2.mirror.source.start_from import StartFrom
from mm2.reasons import OriginCode

log = structlog.get_logger("mm2.mirror.source_task")

_SETTLE_PATIENCE_S: Final = 10.0
_SETTLE_TIMEOUT_MS: Final = 60_000
_READS: Final = 4
_READ_AGAIN_S: Final = 0.3
_CONTRADICTION_PATIENCE_S: Final = (
    30.0  # a broker that does not know that it is no longer the leader, see `WrittenPosition.explains`
)


class StartPositions:
    """``ledger`` reads the current ledger; ``former`` the one of older versions, None if there is none.

    ``accepted`` is the source that a user has accepted, as of the last call of `starts`.
    """

    def __init__(
        self,
        spec: CopySpec,
        context: SourceTaskContext,
        start_from: StartFrom,
        ledger: Callable[[], Ledger],
        former: Callable[[], Ledger | None] | None,
    ) -> None:
        self.accepted: AcceptedSource | None = None
        self._spec = spec
        self._context = context
        self._start_from = start_from
        self._ledger = ledger
        self._former_ledger = former
        self._copy_id = CopyId(spec.group, spec.connector)
        self._remote_topics = {part.source: part.remote_topic for part in spec.partitions}
        self._unexplained_since: dict[TopicPartition, float] = {}
        self._settled = False  # transactions of an earlier exactly-once mode were aborted, see `_settle_transactions`

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Start]:
        """The start positions of partitions, from the ledger and Connect's offsets topic (`mm2.copy.driver.lanes.lane.Starts`)."""
        wanted = list(partitions)
        self._confirm_ownership()
        starts: dict[TopicPartition, Start] = {}
        for attempt in range(_READS):
            seen = self._offsets_ends(wanted)
            ledger = self._ledger()
            self._settle_transactions(ledger, wanted)
            committed = self._committed(wanted)
            starts = self._starts_by(ledger, committed, seen)
            starts |= self._starts_by_former(starts, seen)
            # A predecessor that does not know that it was replaced may have committed between the two reads.
            if attempt == _READS - 1 or not any(start.moved for start in starts.values()):
                break
            time.sleep(_READ_AGAIN_S)
        self._await_explanations()
        for tp, start in starts.items():
            if start.moved and start.entry is not None:
                log.warning(
                    "The position was changed by a user or by Java and is used."
                    if start.committed is not None
                    else "The offsets topic has no position any more, as after a reset by a user, or if the topic was lost.",
                    partition=str(tp),
                    position=start.position,
                    ledger=start.entry.mark.source,
                )
            if start.position is None and tp in self._start_from.offsets:
                starts[tp] = replace(start, position=self._start_from.offsets[tp])
        starts = self._with_origins(self._accepted(ledger, starts))
        known = sum(start.position is not None for start in starts.values())
        log.info("Copying starts.", partitions=len(wanted), committed=known)
        return starts

    def _with_origins(self, starts: dict[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """The starts, with how copying begins where records may be copied a second time: the remote partition is not empty, and the
        ledger has no entry, or copying goes back and no user has set the position. Raises KafkaFailure.
        """
        back = self._set_back({tp: start for tp, start in starts.items() if start.moved})
        ends = self._ends_of_used(back | {tp for tp, start in starts.items() if start.entry is None})
        committed = {tp: starts[tp].committed for tp in ends if starts[tp].position is not None}
        unknown = {tp: 0 for tp, position in committed.items() if position is not None and tp not in back}
        written = self._written_positions(unknown)
        found: dict[TopicPartition, Start] = {}
        for tp, end in ends.items():
            if tp in written:
                code = _origin_of(written[tp], committed[tp])
            elif committed.get(tp) is not None:
                code = OriginCode.LOST_POSITION
            else:
                code = OriginCode.START_FROM if tp in committed else OriginCode.NO_POSITION
            found[tp] = replace(starts[tp], origin=CopyOrigin(code.value, end))
        if found:
            example = min(found)
            log.warning(
                "Some positions have no ledger entry, or there are none, or only older ones, and the remote partitions are not empty: "
                "records that were copied after them are copied again (mm2 verify).",
                partitions=dict(Counter(start.origin.code for start in found.values())),
                example=str(example),
                target_end=ends[example],
            )
        return {**starts, **found}

    def _set_back(self, starts: Mapping[TopicPartition, Start]) -> set[TopicPartition]:
        """Those that begin before what the ledger shows although nobody has set their position. Raises KafkaFailure."""
        entries = {
            tp: start.entry
            for tp, start in starts.items()
            if start.entry is not None
            and not start.entry.is_unbegun
            and (start.position or 0) < start.entry.mark.source
        }
        found = set()
        for tp, written in self._written_positions(dict.fromkeys(entries, 0)).items():
            is_known = written.foreign_at < entries[tp].seen.at(written.place)
            if written.is_own_last or not written.positions or is_known:
                found.add(tp)
        return found

    def _ends_of_used(self, partitions: AbstractSet[TopicPartition]) -> dict[TopicPartition, int]:
        """The log end offsets of remote partitions that are not empty, without those that are not known.

        Those of merges may have the records of another source partition, and with preserved offsets they show the position.
        """
        copies = Counter(part.target for part in self._spec.partitions)
        targets = {
            part.source: part.target
            for part in self._spec.partitions
            if part.source in partitions and copies[part.target] == 1 and part.topic not in self._spec.preserved
        }
        if not targets:
            return {}
        cluster = Cluster(self._spec.target, name=self._spec.target_alias)
        try:
            admin = Admin(cluster)
            starts, ends = (admin.list_offsets(dict.fromkeys(targets.values(), when)) for when in (EARLIEST, LATEST))
        finally:
            cluster.close()
        logs = {tp: (starts[target], ends[target]) for tp, target in targets.items()}
        return {
            tp: end.offset
            for tp, (start, end) in logs.items()
            if isinstance(start, OffsetInfo) and isinstance(end, OffsetInfo) and start.offset < end.offset
        }

    def _await_explanations(self) -> None:
        """Raise DisconnectedFailure, which is tried again, while a position has just become unexplained.

        Where a deposed leader of the offsets topic has answered, its end is too low. A holder that was told so would apply the same
        position of a user a second time. Where the topic was put back to an older state, no answer explains the position.
        """
        late = time.monotonic() - _CONTRADICTION_PATIENCE_S
        if recent := [tp for tp, since_s in self._unexplained_since.items() if since_s > late]:
            message = f"The offsets topic was read without the position that Connect has read from it for {min(recent)}"
            raise DisconnectedFailure(message)

    def _accepted(self, ledger: Ledger, starts: dict[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """The starts, as a user has decided for a source that was replaced by another cluster."""
        accepted = self.accepted = accepted_source(ledger)
        if accepted is None:
            return starts
        found = {tp: accepted.start(start) for tp, start in starts.items()}
        if changed := sum(found[tp] is not start for tp, start in starts.items()):
            log.warning(
                "The source is another cluster, which a user has accepted.",
                partitions=changed,
                from_start=accepted.from_start,
            )
        return found

    def _starts_by(
        self, ledger: Ledger, committed: Mapping[TopicPartition, int | None], seen: Mapping[TopicPartition, Seen]
    ) -> dict[TopicPartition, Start]:
        """The starts by these positions, and by the entries of a ledger that are this connector's. Raises KafkaFailure."""
        others = {tp for tp in committed if self._is_of_other(ledger.entry(tp), tp)}
        if others:
            log.warning(
                "The ledger has entries of another connector with the same source alias, which are not used.",
                partitions=len(others),
                example=str(min(others)),
            )
        starts = {
            tp: replace(
                Start(position, position) if tp in others else ledger.start(tp, position), seen=seen.get(tp, Seen())
            )
            for tp, position in committed.items()
        }
        starts |= self._without_late_writes(ledger, {tp: starts[tp] for tp in starts.keys() - others})
        return starts | self._without_others(starts)

    def _without_others(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """Partitions without a state whose position was written by another connector for another remote topic: they have no position.

        It has the same name in another Connect group, and uses the same offsets topic. Raises KafkaFailure.
        """
        unknown = {tp: 0 for tp, start in starts.items() if start.entry is None and start.committed is not None}
        if self._context.worker.exactly_once or not unknown:
            return {}
        found = {}
        for tp, written in self._written_positions(unknown).items():
            if written.other_topic not in {"", self._remote_topics[tp]}:
                found[tp] = replace(starts[tp], position=None)
        if found:
            log.warning(
                "Positions of another connector with the same name are not used: it copies to other topics. Both use the same offsets "
                "topic (offset.storage.topic) in different groups (group.id).",
                partitions=len(found),
                example=str(min(found)),
            )
        return found

    def _is_of_other(self, entry: LedgerEntry | None, source: TopicPartition) -> bool:
        """Whether another connector has written this entry. Older versions kept the entries of all with one alias in one ledger."""
        if entry is None:
            return False
        if entry.copy_id.connector:
            return entry.copy_id.is_other(self._copy_id)
        return entry.remote_topic != self._remote_topics[source]

    def _starts_by_former(
        self, starts: Mapping[TopicPartition, Start], seen: Mapping[TopicPartition, Seen]
    ) -> dict[TopicPartition, Start]:
        """The starts of partitions that an older version has copied for this connector and this one has not.

        Its ledger may have an entry of another connector instead: it is used only where it explains the position. Raises KafkaFailure.
        """
        committed = {tp: start.committed for tp, start in starts.items() if start.entry is None}
        if self._former_ledger is None or all(position is None for position in committed.values()):
            return {}
        former = self._former_ledger()
        if former is None:
            return {}
        known = {
            tp: position
            for tp, position in committed.items()
            if position is not None and (entry := former.entry(tp)) is not None and not entry.copy_id.connector
        }
        found = self._starts_by(former, known, seen)
        return {
            tp: replace(start, unwritten=former.unwritten(tp, start))
            for tp, start in found.items()
            if start.entry is not None and not start.moved
        }

    def _without_late_writes(self, ledger: Ledger, starts: dict[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """Replace positions that a predecessor wrote late; those of Java and users stay. Raises KafkaFailure.

        In exactly-once mode only if the predecessor used the default mode: otherwise the ledger entry has no session, and a position is
        late only where the offsets topic has lost its end.
        """
        seen = {tp: offset for tp in starts if (offset := ledger.seen(tp, starts[tp].seen.place)) is not None}
        found = dict(starts)
        entries = {tp: entry for tp in starts if (entry := ledger.entry(tp)) is not None}
        lost = {tp for tp, entry in entries.items() if _is_in_lost_topic(entry, starts[tp])}
        undone = {tp: entry for tp, entry in entries.items() if _is_undone(entry, starts[tp])}
        undone = {tp: undone[tp] for tp in self._committed_on_target(undone)}
        unexplained = {tp for tp, entry in entries.items() if _is_behind_transaction(entry, starts[tp])}
        unexplained |= lost | undone.keys()
        for tp in starts.keys() - seen.keys():
            self._unexplained_since.pop(tp, None)
        for tp, written in self._written_positions({tp: seen[tp] for tp in seen.keys() - lost}).items():
            entry = entries[tp]
            if not written.explains(starts[tp].committed, entry):
                unexplained.add(tp)
                continue
            self._unexplained_since.pop(tp, None)
            # A user's position is used only once, even if a deposed leader reported a lower end before.
            known = starts[tp].seen
            known = known._replace(offset=max(known.offset, written.foreign_at + 1))
            found[tp] = replace(ledger.start(tp, starts[tp].committed, written), seen=known)
            if starts[tp].moved and not found[tp].moved:
                log.info(
                    "Ignored a late position of a predecessor.",
                    partition=str(tp),
                    position=starts[tp].committed,
                    resumed_at=found[tp].position,
                )
        for tp, written in self._written_positions(dict.fromkeys(unexplained, 0)).items():
            start = starts[tp]
            is_lost = tp in lost or tp in undone
            if (written.is_own_last and start.committed in written.positions) or (is_lost and not written.positions):
                found[tp] = self._start_ahead(ledger, start, tp, written)
                self._unexplained_since.pop(tp, None)
            elif tp in undone:  # a user has set the position back to the one before
                found[tp] = Start(
                    start.committed, start.committed, undone[tp], ledger.newest_chunk(tp), moved=True, seen=start.seen
                )
            elif tp in seen and tp not in lost:
                self._unexplained_since.setdefault(tp, time.monotonic())  # if it stays unexplained, it is used as it is
        return found

    def _start_ahead(self, ledger: Ledger, start: Start, source: TopicPartition, written: WrittenPosition) -> Start:
        """The start where the offsets topic has lost its end (an unclean election, a broker that was restored), so that its newest
        position is an older one of this connector. It stays where the ledger's transactions are not on the target either. Raises KafkaFailure.
        """
        entry = ledger.entry(source)
        if entry is None:
            return start
        if entry.session is not None:
            found = ledger.start(source, start.committed, written._replace(foreign_at=-1))
        elif (mark := self._newest_committed(entry)) is None:
            return start
        else:
            found = ledger.start(source, mark.source if mark == entry.mark else entry.previous)
        log.error(
            "The offsets topic has lost its newest positions, copying continues by the ledger.",
            partition=str(source),
            position=start.committed,
            resumed_at=found.position,
        )
        # In transactions the position is taken for written. Until one is, a successor has to see again that the topic is another one.
        is_kept = entry.session is None and start.committed is None
        return replace(found, seen=entry.seen if is_kept else start.seen)

    def _committed_on_target(self, entries: Mapping[TopicPartition, LedgerEntry]) -> set[TopicPartition]:
        """See `TargetLookUp.committed`. Raises KafkaFailure."""
        if not entries:
            return set()
        cluster = Cluster(self._spec.target, name=self._spec.target_alias)
        try:
            return TargetLookUp(cluster).committed(entries)
        finally:
            cluster.close()

    def _newest_committed(self, entry: LedgerEntry) -> Mark | None:
        """See `TargetLookUp.newest_committed`. Raises KafkaFailure."""
        cluster = Cluster(self._spec.target, name=self._spec.target_alias)
        try:
            return TargetLookUp(cluster).newest_committed(entry)
        finally:
            cluster.close()

    def _offsets_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Seen]:
        """The end offsets of the partitions of the offsets topic that contain these positions. Raises KafkaFailure."""
        keys = {tp: self._offset_key(tp) for tp in partitions}
        cluster = self._offsets_cluster()
        try:
            ends = offsets_ends(cluster, self._spec.offsets_topic, keys.values())
        finally:
            cluster.close()
        return {tp: ends[key] for tp, key in keys.items() if key in ends}

    def _offset_key(self, partition: TopicPartition) -> bytes:
        return offset_key(self._spec.connector, self._spec.source_alias, partition)

    def _offsets_cluster(self) -> Cluster:
        spec = self._spec
        return Cluster(spec.offsets or spec.target, name="worker" if spec.offsets else spec.target_alias)

    def _settle_transactions(self, ledger: Ledger, partitions: Iterable[TopicPartition]) -> None:
        """After a switch of exactly-once to "disabled": abort the open transaction of this task's transactional id.

        Positions are read with read_committed, which waits for open transactions. InitProducerId ends that wait, and fences a previous
        task that still runs. Where it is not possible, the coordinator aborts the transaction after `transaction.timeout.ms`.
        Raises KafkaFailure.
        """
        worker = self._context.worker
        if worker.exactly_once or self._settled:
            return
        if not any(entry is not None and entry.before is not None for entry in map(ledger.entry, partitions)):
            return
        transactional_id = task_transactional_id(
            worker.group_id, ConnectorTaskId(self._context.connector, self._context.task_id)
        )
        try:
            self._take_transactional_id(transactional_id)
        except BrokerFailure as failure:
            if not failure.is_final:
                raise
            log.warning(
                "The transactional id of the exactly-once mode cannot be used. Copying starts when its open transaction, if any, has "
                "timed out.",
                transactional_id=transactional_id,
                reason=str(failure),
            )
        self._settled = True

    def _take_transactional_id(self, transactional_id: str) -> None:
        """Abort its open transaction. Raises KafkaFailure."""
        cluster = Cluster(self._spec.target, name=self._spec.target_alias)
        try:
            coordinator = TransactionCoordinatorClient(cluster, transactional_id, patience_s=_SETTLE_PATIENCE_S)
            coordinator.init_producer_id(_SETTLE_TIMEOUT_MS)
        finally:
            cluster.close()

    def _written_positions(self, seen: Mapping[TopicPartition, int]) -> dict[TopicPartition, WrittenPosition]:
        """The writers of the positions of these partitions, from these offsets on. Raises KafkaFailure."""
        if not seen:
            return {}
        keys = {tp: self._offset_key(tp) for tp in seen}
        cluster = self._offsets_cluster()
        try:
            topic = self._spec.offsets_topic
            written = read_written_positions(cluster, topic, {key: seen[tp] for tp, key in keys.items()}, self._copy_id)
        finally:
            cluster.close()
        return {tp: written[key] for tp, key in keys.items()}

    def _confirm_ownership(self) -> None:
        """The executor has called InitProducerId; raise ValueError if this task is no longer the owner (KIP-618)."""
        if self._context.worker.exactly_once:
            try:
                self._context.confirm_ownership()
            except ConnectError as error:
                raise ValueError(str(error)) from error

    def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Raises KafkaFailure when the positions cannot be read, ValueError when one is invalid."""
        keys = [{"cluster": self._spec.source_alias, "partition": tp.partition, "topic": tp.topic} for tp in partitions]
        try:
            offsets = self._context.offset_reader.offsets(keys)
            return {tp: _next_offset(tp, offset) for tp, offset in zip(partitions, offsets, strict=True)}
        except ConnectError as error:
            if isinstance(error.__cause__, KafkaFailure):
                raise error.__cause__ from error
            raise ValueError(str(error)) from error


def _is_behind_transaction(entry: LedgerEntry, start: Start) -> bool:
    """Whether the position is before that of an entry that was written in a transaction."""
    if entry.session is not None or entry.written_by < 0 or start.position is None or not start.moved:
        return False
    return start.position < entry.mark.source


def _is_undone(entry: LedgerEntry, start: Start) -> bool:
    """Whether the entry's transaction has copied records, and by the position it was not committed."""
    before = entry.before
    if before is None or not entry.is_undone(start.committed) or entry.written_by < 0:
        return False
    return not 0 <= before.mark.target == entry.mark.target


def _is_in_lost_topic(entry: LedgerEntry, start: Start) -> bool:
    """Whether there is no position, and Connect's offsets topic is another one than the entry knows, or has lost its end."""
    known, now = entry.seen, start.seen
    if start.committed is not None or not (start.moved or entry.is_undone(None)) or not (known.place and now.place):
        return False
    return known.place != now.place or now.offset < known.offset


def _origin_of(written: WrittenPosition, committed: int | None) -> OriginCode:
    """Who has written a position that has no ledger entry. Java and exactly-once mode write no header; a user may set it back."""
    is_own = (
        written.own is not None
        or committed is None
        or any(position is not None and position > committed for position in written.positions)
    )
    return OriginCode.OWN_POSITION if is_own else OriginCode.OTHER_POSITION


def _next_offset(source: TopicPartition, committed: Mapping[str, Any] | None) -> int | None:
    """MM2 stores the last replicated offset; copying continues at the next one."""
    if committed is None or committed.get("offset") is None:
        return None
    offset = committed["offset"]
    if not isinstance(offset, int) or isinstance(offset, bool) or not -1 <= offset < (1 << 63) - 1:
        message = f"The committed position of {source} is {offset!r:.100}, which is not an offset."
        raise ConnectError(message)
    return offset + 1
