"""MirrorSourceTask: copies the partitions of one task with Spark.

Its ``poll`` never returns records, because the copy engine writes records and positions. Positions are written to the same offsets
topic under the same keys as by Java's MirrorSourceTask, so either can take over from the other.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig
from mm2.config.keys.mirror_keys import MIRROR_SOURCE_CONFIG, THROTTLE_KEY, topic_throttles
from mm2.config.keys.worker_keys import storage_topics
from mm2.connect.api import ConnectError, SourceRecord, SourceTask, SourceTaskContext, WorkerView
from mm2.copy.driver.engine import CopyEngine, CopyFailed, CopyJob
from mm2.copy.progress.ledger import Ledger, Pauses, ledger_topic
from mm2.copy.spec import CopySpec, PartitionSpec, SyncsSpec, TransactionsSpec
from mm2.copy.states import PartitionState
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.plugins import replication_policy
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.common.syncs_topic import EMIT_SYNCS_KEY, syncs_side, syncs_topic
from mm2.mirror.notes.promotions import holds
from mm2.mirror.notes.source_cluster import accepted_source
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets, refuse_transactions
from mm2.mirror.source.assigned_partitions import ASSIGNED_PARTITIONS_KEY, decode_partitions
from mm2.mirror.source.record_changes import changes_spec
from mm2.mirror.source.start_from import START_FROM_KEY, parse_start_from
from mm2.mirror.source.start_positions import StartPositions
from mm2.mirror.source.task_ledger import TaskLedger, create_own_topics, existing_ledger
from mm2.mirror.topics.own_topics import dead_letter_topic, is_reserved, reserved_topics
from mm2.mirror.topics.routing import topic_route

log = structlog.get_logger(__name__)

COPY_RESOURCE: Final = "copy"
_REPORT_INTERVAL_S: Final = 30.0
_ERROR_ENDED_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 12.0
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

    def __init__(self) -> None:
        self._ledger: TaskLedger | None = None
        self._known_throttles: dict[str, int] = {}
        self._known_pauses: Pauses = {}
        self._held: Pauses = {}  # topics that were failed over, when copying last started and since then
        self._job: CopyJob | None = None
        self._own_engine: CopyEngine | None = None
        self._next_report = 0.0
        self._notes: set[str] = set()  # already logged
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
        start_from = parse_start_from(props.get(START_FROM_KEY, ""), source_alias=spec.source_alias)
        clients = task_clients(props, self.context)
        former = ledger_topic(clients.source_alias)
        former_ledger = None if former == clients.ledger_topic else functools.partial(existing_ledger, clients, former)
        create_topics = functools.partial(
            create_own_topics, clients, RecurringErrors(), dead_letters=spec.dead_letter_topic is not None
        )
        self._ledger = TaskLedger(
            functools.partial(clients.ledger_log, Side.TARGET, clients.ledger_topic), create_topics
        )
        self._positions = StartPositions(spec, self.context, start_from, self._ledger.read, former_ledger)
        self._limits = (spec.throttle, spec.throttle_topics)
        self._engine, self._spec = engine, spec
        self._job = self._opened()

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
        self._job = self._opened()

    def stop(self) -> None:
        """Stop reading, wait for batches in flight and their commit."""
        if self._ledger is not None:
            self._ledger.stop_reading()  # lanes that wait for it cannot stop
        job, self._job = self._job, None
        if job is not None and not job.stop(_STOP_TIMEOUT_S):
            log.warning(_NOT_STOPPED)
        if self._own_engine is not None:
            self._own_engine.stop()
        if self._ledger is not None:
            self._ledger.stop()

    def _follow_limits(self, job: CopyJob) -> None:
        """Apply limits that ``mm2 throttle`` has written to the ledger; they replace the configured ones."""
        ledger = self._known_ledger()
        throttles = {} if ledger is None else ledger.throttles()
        if ledger is None or throttles == self._known_throttles:
            return
        self._known_throttles = throttles
        rate, topics = self._limits
        tasks = self.context.task_count
        topics = {**topics, **{topic: limit / tasks for topic, limit in throttles.items() if topic}}
        rate = throttles[""] / tasks if "" in throttles else rate
        log.info("Throttle limits have changed.", bytes_per_sec=rate, topics=topics)
        job.throttle(rate, topics)

    def _known_ledger(self) -> Ledger | None:
        return None if self._ledger is None else self._ledger.known

    def _pauses(self) -> Pauses:
        """Pauses that ``mm2 pause`` has written to the ledger, and topics that were failed over."""
        ledger = self._known_ledger()
        return {} if ledger is None else {**ledger.pauses(), **self._held, **holds(ledger)}

    def _follow_source(self, job: CopyJob) -> CopyJob:
        """Restart copying if a user has accepted another cluster as the source since it began."""
        ledger = self._known_ledger()
        if ledger is None or accepted_source(ledger) == self._positions.accepted:
            return job
        job = self._restarted(job)
        # Known once copying has begun; until then it is not restarted again.
        self._positions.accepted = accepted_source(ledger)
        return job

    def _restarted(self, job: CopyJob) -> CopyJob:
        """Stop copying, and begin again at the positions in the offsets topic."""
        if not job.stop(_STOP_TIMEOUT_S):
            log.warning(_NOT_STOPPED)
        self._held = {}  # not before: a topic stays paused until no task copies it any more
        self._known_throttles = {}
        self._job = self._opened()
        return self._job

    def _opened(self) -> CopyJob:
        return self._engine.open(self._spec, self._positions.starts, self._pauses, self._known_ledger)

    def _follow_pauses(self, job: CopyJob) -> CopyJob:
        """Apply changed pauses.

        A topic that was failed over and back continues at its position in the offsets topic, so copying is restarted: `mm2 failback`
        may have moved the position past the records that came from the target.
        """
        if (ledger := self._known_ledger()) is not None:
            held, self._held = self._held, {**self._held, **holds(ledger)}
            if held.keys() - holds(ledger).keys():
                log.info("Topics were failed back; copying is restarted.")
                job = self._restarted(job)
        pauses = self._pauses()
        if pauses != self._known_pauses:
            self._known_pauses = pauses
            named = [topic if partition is None else f"{topic}-{partition}" for topic, partition in pauses]
            log.info("Pauses have changed.", paused=sorted(named))
            job.follow_pauses()
        return job

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
