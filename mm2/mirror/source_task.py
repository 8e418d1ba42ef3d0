"""MirrorSourceTask: copies the partitions of one task with Spark.

Its ``poll`` never returns records, because the copy engine writes records and positions. Positions are written to the same offsets
topic under the same keys as by Java's MirrorSourceTask, so either can take over from the other.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig
from mm2.config.keys.mirror_keys import MIRROR_SOURCE_CONFIG, THROTTLE_KEY, topic_throttles
from mm2.config.keys.worker_keys import storage_topics
from mm2.connect.api import ConnectError, SourceRecord, SourceTask, SourceTaskContext, WorkerView
from mm2.connect.runtime.exactly_once_settings import task_transactional_id
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.copy.driver.engine import CopyEngine, CopyFailed, CopyJob
from mm2.copy.progress.ledger import Ledger, LedgerLog, Pauses, ledger_topic
from mm2.copy.progress.session import CopyId, LedgerEntry, Seen, Start, WrittenPosition
from mm2.copy.progress.written_positions import offset_key, offsets_ends, read_written_positions
from mm2.copy.spec import CopySpec, PartitionSpec, SyncsSpec, TransactionsSpec
from mm2.copy.states import PartitionState
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.transactions import TransactionCoordinatorClient
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.internal_topics import create_kept_topic
from mm2.mirror.common.plugins import replication_policy
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.common.syncs_topic import EMIT_SYNCS_KEY, syncs_side, syncs_topic
from mm2.mirror.notes.promotions import holds
from mm2.mirror.notes.source_cluster import AcceptedSource, accepted_source
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets, refuse_transactions
from mm2.mirror.source.assigned_partitions import ASSIGNED_PARTITIONS_KEY, decode_partitions
from mm2.mirror.source.record_changes import changes_spec
from mm2.mirror.source.start_from import START_FROM_KEY, parse_start_from
from mm2.mirror.topics.own_topics import dead_letter_topic, is_reserved, kept_dead_letters, kept_ledger, reserved_topics
from mm2.mirror.topics.routing import topic_route

log = structlog.get_logger(__name__)

COPY_RESOURCE: Final = "copy"
_REPORT_INTERVAL_S: Final = 30.0
_ERROR_ENDED_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 12.0
_LEDGER_TIMEOUT_S: Final = 30.0
_LEDGER_PATIENCE_S: Final = 15.0
_LOOK_TIMEOUT_S: Final = 5.0
_LEDGER_AGAIN_S: Final = 0.25
_SETTLE_PATIENCE_S: Final = 10.0
_SETTLE_TIMEOUT_MS: Final = 60_000
_READS: Final = 4
_READ_AGAIN_S: Final = 0.3
_NO_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_DEFAULT_FETCH_MAX_BYTES: Final = 8 << 20
_DEFAULT_PARTITION_BYTES: Final = 1 << 20
_DEFAULT_MAX_WAIT_MS: Final = 500

_NOT_STOPPED: Final = (
    "Copying did not stop in time. The next task continues after the records that the target has; if it may not read them, records are "
    "copied again."
)


class MirrorSourceTask(SourceTask):
    """See the module."""

    #: Records and positions are not written by the worker's producer, in exactly-once mode neither.
    produces_by_itself = True

    #: Whether transactions of an earlier exactly-once mode were aborted, see `_settle_transactions`.
    _settled = False

    def __init__(self) -> None:
        self._ledger: LedgerLog | None = None
        self._reading: LedgerLog | None = None  # the same, as soon as reading begins
        self._is_stopped = False
        self._ledger_lock = threading.Lock()
        self._ledger_deadline = 0.0
        self._known_throttles: dict[str, int] = {}
        self._known_pauses: Pauses = {}
        self._held: Pauses = {}  # topics that were failed over, when copying last started and since then
        self._job: CopyJob | None = None
        self._own_engine: CopyEngine | None = None
        self._next_report = 0.0
        self._notes: set[str] = set()  # already logged
        self._known_source: AcceptedSource | None = None
        self._errors: dict[str, float] = {}  # when each was last seen, in monotonic seconds

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        """Read the committed positions and begin copying after each of them."""
        engine = self.context.resources.get(COPY_RESOURCE)
        if not isinstance(engine, CopyEngine):
            # A plain Connect worker has no shared engine: the task starts and stops its own.
            engine = CopyEngine({key: value for key, value in props.items() if key.startswith("spark.")})
            self._own_engine = engine
        spec = copy_spec(props, self.context)
        self._source_alias = spec.source_alias
        self._start_from = parse_start_from(props.get(START_FROM_KEY, ""), source_alias=spec.source_alias)
        clients = task_clients(props, self.context)
        self._copy_id = CopyId(spec.group, spec.connector)
        self._remote_topics = {part.source: part.remote_topic for part in spec.partitions}
        self._new_ledger = functools.partial(_ledger_log, clients, clients.ledger_topic)
        former = ledger_topic(clients.source_alias)
        self._former_ledger = None if former == clients.ledger_topic else functools.partial(_existing, clients, former)
        self._create_topics = functools.partial(
            _create_own_topics, clients, RecurringErrors(), dead_letters=spec.dead_letter_topic is not None
        )
        self._limits = (spec.throttle, spec.throttle_topics)
        self._engine, self._spec = engine, spec
        self._job = engine.open(spec, self._starts, self._pauses, self._known_ledger)

    def poll(self) -> list[SourceRecord] | None:
        """Wait for a status change. Raises ConnectError when no partition can be copied any more."""
        job = self._job
        if job is None:
            return None
        try:
            job.wait(1.0)
        except CopyFailed as failure:
            message = f"No partition can be copied any more: {failure}"
            raise ConnectError(message) from failure
        self._follow_limits(job)
        job = self._follow_pauses(self._follow_source(job))
        status = job.status()
        self.context.report(status)
        self._log_errors(status["troubles"])
        self._note(status["notes"])
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + _REPORT_INTERVAL_S
            shown = {key: status[key] for key in ("records", "bytes", "lag", "batches", "latency_ms", "gaps")}
            log.info("Copied so far.", **shown)
        return None

    def pause(self) -> None:
        """Stop copying, as at a stop; the state is kept."""
        job, self._job = self._job, None
        if job is not None:
            if not job.stop(_STOP_TIMEOUT_S):
                log.warning("Copying did not stop in time for the pause.")
            status = job.status()
            partitions = len(self._spec.partitions)
            self.context.report(
                {**status, "states": {str(PartitionState.PAUSED): partitions}, "not_well": [], "troubles": []}
            )

    def resume(self) -> None:
        """Continue where the pause started."""
        self._known_throttles = {}
        self._job = self._engine.open(self._spec, self._starts, self._pauses, self._known_ledger)

    def stop(self) -> None:
        """Stop reading, wait for batches in flight and their commit."""
        self._is_stopped = True
        if self._ledger is None and self._reading is not None:
            self._reading.stop()  # lanes that wait for it cannot stop
        job, self._job = self._job, None
        if job is not None and not job.stop(_STOP_TIMEOUT_S):
            log.warning(_NOT_STOPPED)
        if self._own_engine is not None:
            self._own_engine.stop()
        if self._ledger is not None:
            self._ledger.stop()

    def _follow_limits(self, job: CopyJob) -> None:
        """Apply limits that ``mm2 throttle`` has written to the ledger; they replace the configured ones."""
        if self._ledger is None:
            return
        throttles = self._ledger.ledger.throttles()
        if throttles == self._known_throttles:
            return
        self._known_throttles = throttles
        rate, topics = self._limits
        tasks = self.context.task_count
        topics = {**topics, **{topic: limit / tasks for topic, limit in throttles.items() if topic}}
        rate = throttles[""] / tasks if "" in throttles else rate
        log.info("Throttle limits have changed.", bytes_per_sec=rate, topics=topics)
        job.throttle(rate, topics)

    def _known_ledger(self) -> Ledger | None:
        return None if self._ledger is None else self._ledger.ledger

    def _pauses(self) -> Pauses:
        """Pauses that ``mm2 pause`` has written to the ledger, and topics that were failed over."""
        if self._ledger is None:
            return {}
        return {**self._ledger.ledger.pauses(), **self._held, **holds(self._ledger.ledger)}

    def _follow_source(self, job: CopyJob) -> CopyJob:
        """Restart copying if a user has accepted another cluster as the source since it began."""
        if self._ledger is None or accepted_source(self._ledger.ledger) == self._known_source:
            return job
        job = self._restarted(job)
        # Known once copying has begun; until then it is not restarted again.
        self._known_source = accepted_source(self._ledger.ledger)
        return job

    def _restarted(self, job: CopyJob) -> CopyJob:
        """Stop copying, and begin again at the positions in the offsets topic."""
        if not job.stop(_STOP_TIMEOUT_S):
            log.warning(_NOT_STOPPED)
        self._held = {}  # not before: a topic stays paused until no task copies it any more
        self._known_throttles = {}
        self._job = self._engine.open(self._spec, self._starts, self._pauses, self._known_ledger)
        return self._job

    def _follow_pauses(self, job: CopyJob) -> CopyJob:
        """Apply changed pauses.

        A topic that was failed over and back continues at its position in the offsets topic, so copying is restarted: `mm2 failback`
        may have moved the position past the records that came from the target.
        """
        if self._ledger is not None:
            held, self._held = self._held, {**self._held, **holds(self._ledger.ledger)}
            if held.keys() - holds(self._ledger.ledger).keys():
                log.info("Topics were failed back; copying is restarted.")
                job = self._restarted(job)
        pauses = self._pauses()
        if pauses != self._known_pauses:
            self._known_pauses = pauses
            named = [topic if partition is None else f"{topic}-{partition}" for topic, partition in pauses]
            log.info("Pauses have changed.", paused=sorted(named))
            job.follow_pauses()
        return job

    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Start]:
        """The start positions of partitions, from the ledger and Connect's offsets topic (`mm2.copy.driver.lane.Starts`)."""
        wanted = list(partitions)
        self._confirm_ownership()
        starts: dict[TopicPartition, Start] = {}
        for attempt in range(_READS):
            seen = self._offsets_ends(wanted)
            ledger = self._read_ledger()
            self._settle_transactions(ledger, wanted)
            committed = self._committed(wanted)
            starts = self._starts_by(ledger, committed, seen)
            starts |= self._starts_by_former(starts, seen)
            # A predecessor that does not know that it was replaced may have committed between the two reads.
            if attempt == _READS - 1 or not any(start.moved for start in starts.values()):
                break
            time.sleep(_READ_AGAIN_S)
        for tp, start in starts.items():
            if start.moved and start.entry is not None:
                log.warning(
                    "The position was changed by a user or by Java and is used.",
                    partition=str(tp),
                    position=start.position,
                    ledger=start.entry.mark.source,
                )
            if start.position is None and tp in self._start_from.offsets:
                starts[tp] = replace(start, position=self._start_from.offsets[tp])
        starts = self._accepted(ledger, starts)
        forgotten = sum(start.entry is None and start.committed is not None for start in starts.values())
        if forgotten and not self.context.worker.exactly_once:
            log.warning(
                "Some positions have no ledger entry, because Java wrote them or the ledger was lost: records that were copied after "
                "them are copied again.",
                partitions=forgotten,
            )
        known = sum(start.position is not None for start in starts.values())
        log.info("Copying starts.", partitions=len(wanted), committed=known)
        return starts

    def _accepted(self, ledger: Ledger, starts: dict[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """The starts, as a user has decided for a source that was replaced by another cluster."""
        accepted = self._known_source = accepted_source(ledger)
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
        if self.context.worker.exactly_once or not unknown:
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

        In exactly-once mode only if the predecessor used the default mode: otherwise the ledger entry has no session.
        """
        seen = {tp: offset for tp in starts if (offset := ledger.seen(tp, starts[tp].seen.place)) is not None}
        found = dict(starts)
        for tp, written in self._written_positions(seen).items():
            entry = ledger.entry(tp)
            if entry is not None and not written.explains(starts[tp].committed, entry):
                continue  # an unexplained position is used as it is
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
        return found

    def _offsets_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Seen]:
        """The end offsets of the partitions of the offsets topic that contain these positions. Raises KafkaFailure."""
        if self.context.worker.exactly_once:
            return {}
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
        worker = self.context.worker
        if worker.exactly_once or self._settled:
            return
        if not any(entry is not None and entry.before is not None for entry in map(ledger.entry, partitions)):
            return
        transactional_id = task_transactional_id(
            worker.group_id, ConnectorTaskId(self.context.connector, self.context.task_id)
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
        if self.context.worker.exactly_once:
            try:
                self.context.confirm_ownership()
            except ConnectError as error:
                raise ValueError(str(error)) from error

    def _read_ledger(self) -> Ledger:
        """The current ledger; an empty one when the topic still does not exist after a while. Raises KafkaFailure."""
        with self._ledger_lock:
            # Waited for once, not by each lane and after each loss.
            self._ledger_deadline = self._ledger_deadline or time.monotonic() + _LEDGER_PATIENCE_S
            deadline = self._ledger_deadline
            if self._ledger is None:
                self._create_topics()
            while self._ledger is None:
                ledger = self._reading = self._new_ledger()
                if self._is_stopped:
                    ledger.stop()
                try:
                    ledger.start(_LEDGER_TIMEOUT_S)
                except KafkaFailure as failure:
                    ledger.stop()
                    missing = isinstance(failure, BrokerFailure) and failure.code == _NO_TOPIC
                    if not failure.is_final and not missing:
                        raise
                    if not missing or time.monotonic() > deadline:
                        log.warning("There is no ledger: delivery is at-least-once.", reason=str(failure))
                        return Ledger()
                    time.sleep(_LEDGER_AGAIN_S)
                else:
                    self._ledger = ledger
                    return ledger.ledger
            try:
                self._ledger.read_to_end(_LEDGER_PATIENCE_S)
            except BrokerFailure as failure:
                if failure.code != _NO_TOPIC:
                    raise
                # Entries that were read stay valid as long as they match the positions, and so do pauses and limits.
                log.warning(
                    "The ledger was deleted and is recreated: records after the last positions are copied again, and gaps of "
                    "partitions that are not being copied are forgotten.",
                    reason=str(failure),
                )
                self._create_topics()
            return self._ledger.ledger

    def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Raises KafkaFailure when the positions cannot be read, ValueError when one is invalid."""
        keys = [{"cluster": self._source_alias, "partition": tp.partition, "topic": tp.topic} for tp in partitions]
        try:
            offsets = self.context.offset_reader.offsets(keys)
            return {tp: _next_offset(tp, offset) for tp, offset in zip(partitions, offsets, strict=True)}
        except ConnectError as error:
            if isinstance(error.__cause__, KafkaFailure):
                raise error.__cause__ from error
            raise ValueError(str(error)) from error

    def _note(self, notes: list[str]) -> None:
        """Log each note once."""
        for note in notes:
            if note not in self._notes:
                log.warning("Copying continues with a note.", reason=note)
                self._notes.add(note)

    def _log_errors(self, errors: list[str]) -> None:
        """Log each error once, and once that all have ended.

        An error has ended when it was not reported for a while, because every micro-batch meets it again.
        """
        now = time.monotonic()
        for error in errors:
            if error not in self._errors:
                log.warning("Copying is blocked.", reason=error)
            self._errors[error] = now
        ended = [error for error, seen in self._errors.items() if now - seen > _ERROR_ENDED_S]
        for error in ended:
            del self._errors[error]
        if ended and not self._errors:
            log.info("Copying continues.")


def task_clients(props: Mapping[str, str], context: SourceTaskContext) -> MirrorClients:
    """The clients of a task of the source connector."""
    return MirrorClients(props, task=True, group=context.worker.group_id)


def _ledger_log(clients: MirrorClients, topic: str) -> LedgerLog:
    settings = clients.settings(Side.TARGET, ClientKind.CONSUMER, "ledger-consumer")
    return LedgerLog(settings, topic, name=clients.target_alias)


def _existing(clients: MirrorClients, topic: str) -> Ledger | None:
    """A ledger as it is now; None if there is none. Raises KafkaFailure."""
    cluster, _ = clients.admin(Side.TARGET, "replication-target-admin")
    try:
        if topic not in cluster.metadata([topic], timeout_s=_LOOK_TIMEOUT_S).topics:
            return None
    finally:
        cluster.close()
    reading = _ledger_log(clients, topic)
    try:
        reading.start(_LEDGER_TIMEOUT_S)
    finally:
        reading.stop()
    return reading.ledger


def _create_own_topics(clients: MirrorClients, recurring: RecurringErrors, *, dead_letters: bool) -> None:
    """Create the topics that this project's connector creates before its tasks start; Java's connector does not.

    Errors are logged only: they show again when the topics are used.
    """
    cluster, admin = clients.admin(Side.TARGET, "replication-target-admin")
    wanted = [kept_ledger(clients), *([kept_dead_letters(clients.props)] if dead_letters else [])]
    try:
        there = cluster.metadata([topic.new.name for topic in wanted], timeout_s=_LOOK_TIMEOUT_S).topics
        for topic in wanted:
            if topic.new.name not in there:
                create_kept_topic(admin, topic, clients.target_alias, recurring)
    except KafkaFailure as failure:
        recurring.report("own topics", f"Topics of the flow {clients.flow} cannot be created: {failure}")
    finally:
        cluster.close()


def copy_spec(props: Mapping[str, str], context: SourceTaskContext) -> CopySpec:
    """The copy job of a task from its properties. Raises ConfigException, ConnectError or ValueError."""
    clients = task_clients(props, context)
    settings = AbstractConfig(MIRROR_SOURCE_CONFIG, dict(props))
    consumer = clients.client_props(Side.SOURCE, ClientKind.CONSUMER, "replication-consumer")
    source = ClientSettings.from_props(consumer)
    # Records of the source are read on the target, too: to find out which of them are there.
    target = replace(
        ClientSettings.from_props(context.worker.producer_props), decompression_max_bytes=source.decompression_max_bytes
    )
    fetch_bytes = int(consumer.get("fetch.max.bytes", _DEFAULT_FETCH_MAX_BYTES))
    partition_bytes = int(consumer.get("max.partition.fetch.bytes", _DEFAULT_PARTITION_BYTES))
    syncs = None
    if settings.bool(EMIT_SYNCS_KEY):
        side = syncs_side(props)
        role = f"offset-syncs-{side.value}-producer"
        lag_max = settings.int("offset.lag.max")
        syncs = SyncsSpec(clients.settings(side, ClientKind.PRODUCER, role), syncs_topic(props), lag_max)
    transactions = _transactions(context.worker)
    partitions = _partitions(props, clients.source_alias, storage_topics(context.worker.worker_props))
    preserved = PreservedOffsets.of(props).among(part.topic for part in partitions)
    if transactions is not None:
        refuse_transactions(preserved)
    return CopySpec(
        flow=clients.flow,
        connector=context.connector,
        task_id=context.task_id,
        source_alias=clients.source_alias,
        target_alias=clients.target_alias,
        source=source,
        target=target,
        partitions=partitions,
        offsets_topic=context.worker.offset_storage_topic,
        group=context.worker.group_id,
        offsets=_offsets_elsewhere(context.worker),
        syncs=syncs,
        auto_offset_reset=consumer["auto.offset.reset"],
        start_timestamp_ms=parse_start_from(
            props.get(START_FROM_KEY, ""), source_alias=clients.source_alias
        ).timestamp_ms,
        source_data_loss=settings.str("source.data.loss"),
        partition_error=settings.str("partition.error"),
        ledger_topic=clients.ledger_topic,
        dead_letter_topic=dead_letter_topic(props) if props.get("errors.tolerance", "").lower() == "all" else None,
        throttle=settings.int(THROTTLE_KEY) / context.task_count,
        throttle_topics={topic: limit / context.task_count for topic, limit in topic_throttles(props).items()},
        transactions=transactions,
        changes=changes_spec(props, context.worker.worker_props, connector=context.connector, task=context.task_id),
        preserved=preserved,
        read_committed=consumer.get("isolation.level", "").strip() == "read_committed",
        batch_duration_ms=settings.int("copy.batch.duration.ms"),
        commit_interval_ms=settings.int("copy.commit.interval.ms"),
        lanes=settings.int("copy.lanes"),
        fetch_max_bytes=fetch_bytes,
        fetch_partition_bytes=partition_bytes,
        fetch_max_wait_ms=int(consumer.get("fetch.max.wait.ms", _DEFAULT_MAX_WAIT_MS)),
        fetch_min_bytes=int(consumer.get("fetch.min.bytes", 1)),
    )


def _partitions(props: Mapping[str, str], source_alias: str, worker: frozenset[str]) -> tuple[PartitionSpec, ...]:
    """The assigned partitions with their remote topics. Raises ConfigException or ConnectError.

    A leader that runs Java assigns partitions of topics that must not be copied, too.
    """
    policy, route = replication_policy(props), topic_route(props)
    reserved = reserved_topics(policy, props, worker)
    partitions, refused = [], set()
    for tp in decode_partitions(props[ASSIGNED_PARTITIONS_KEY]):
        named = policy.format_remote_topic(source_alias, tp.topic)
        remote = route.of(named)
        if is_reserved(tp.topic, remote, policy, reserved):
            refused.add(tp.topic)
        else:
            partitions.append(PartitionSpec(tp.topic, tp.partition, remote, named if route else ""))
    if refused:
        log.warning(
            "Topics are not copied, because their remote topics would be internal topics.", topics=sorted(refused)
        )
    return tuple(partitions)


def _offsets_elsewhere(worker: WorkerView) -> ClientSettings | None:
    """The worker's own cluster, where offsets are, when its producers write to another (`producer.override.bootstrap.servers`)."""
    own = worker.worker_props
    if not own.get("bootstrap.servers") or _servers(own) == _servers(worker.producer_props):
        return None
    return ClientSettings.from_props(own, client_id=worker.producer_props.get("client.id"))


def _servers(props: Mapping[str, str]) -> set[str]:
    return {server.strip() for server in props["bootstrap.servers"].split(",")}


def _transactions(worker: WorkerView) -> TransactionsSpec | None:
    """In exactly-once mode the copy engine uses transactions with the worker's transactional id of this task."""
    if not worker.exactly_once or worker.transactional_id is None:
        return None
    timeout_ms = int(worker.producer_props.get("transaction.timeout.ms", "60000"))
    interval_ms = worker.transaction_interval_ms if worker.transaction_boundary == "interval" else None
    return TransactionsSpec(worker.transactional_id, timeout_ms, interval_ms)


def _next_offset(source: TopicPartition, committed: Mapping[str, Any] | None) -> int | None:
    """MM2 stores the last replicated offset; copying continues at the next one."""
    if committed is None or committed.get("offset") is None:
        return None
    offset = committed["offset"]
    if not isinstance(offset, int) or isinstance(offset, bool):
        message = f"The committed position of {source} is {offset!r}, which is not an offset."
        raise ConnectError(message)
    return offset + 1
