"""The executor's side of one micro-batch: lease, fetch, produce, commit and report until the stop.

Steps: connect to the driver; open everything that needs no reading or writing; report *ready*; wait for the lease and the start
offsets; copy. At *stop*, or when the driver does not answer for 5 s or its connection is closed: stop reading, wait for
requests in flight, commit, report the final positions. Nothing is written after the final report.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from mm2.copy import channel
from mm2.copy.executor import history
from mm2.copy.executor.cursor import MISSING, QUARANTINED, Cursor, SourceRange
from mm2.copy.executor.dead_letters import DeadLetters
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.losses import Losses
from mm2.copy.executor.opening import Opening
from mm2.copy.executor.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.positions import SEEN_AFTER_S, Commit, PendingRecords, Positions
from mm2.copy.executor.sink import Sink
from mm2.copy.executor.source import FetchLimits, Source
from mm2.copy.executor.syncs import Syncs
from mm2.copy.executor.throttle import Throttle
from mm2.copy.executor.transaction import TaskTransactions
from mm2.copy.segments import SegmentChunk
from mm2.copy.session import Lease, LedgerEntry, Mark, PartitionCondition, PreviousCommit, SourceState, Start
from mm2.copy.spec import Assignment
from mm2.copy.states import PartitionState
from mm2.copy.tally import Tally
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure
from mm2.kafka.records.batch import BatchView, unpatched
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.channel import BufferPool

ROOM_BYTES: Final = 48 << 20
DRAIN_TIMEOUT_S: Final = 8.0
_CLEANUP_POLICY: Final = "cleanup.policy"
_LATENCY_SAMPLES: Final = 4096
_PREPARE_TIMEOUT_S: Final = 5.0
_LEDGER_TIMEOUT_S: Final = 5.0
_EXPIRATIONS: Final = ("producer.id.expiration.ms", "transactional.id.expiration.ms")
_CALL_THREADS: Final = 4
_CLOCK_WARN_MS: Final = 2_000
#: Other producers may write to a remote topic continuously, so not every gap is read.
_SEARCH_INTERVAL_S: Final = 10.0
_POLL_S: Final = 0.001
_FINISH_POLL_S: Final = 0.25
#: Per broker. A broker handles one request of a connection at a time; with two connections it reads one while it appends another.
_LOW_LATENCY_CONNECTIONS: Final = 2
#: From this round trip on the TCP window of a connection limits the throughput.
_HIGH_LATENCY_S: Final = 0.004
_HIGH_LATENCY_CONNECTIONS: Final = 8


class Copier:
    """Copies the partitions of one lane for one micro-batch."""

    def __init__(self, assignment: Assignment, attempt: int) -> None:
        self._assignment = assignment
        self._link = DriverLink(assignment, attempt, DRAIN_TIMEOUT_S)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._written: dict[TopicPartition, tuple[Any, ...]] = {}  # state of the last commit of each
        # Callbacks for a commit with that lease, or a later one.
        self._waiting: dict[TopicPartition, list[tuple[Lease, Callable[[], None]]]] = {}
        self._reported: dict[TopicPartition, tuple[Any, ...]] = {}
        self.tally = Tally()
        self._clocks_apart_s = 0.0  # difference between wall clock and monotonic clock
        self._latencies: list[int] = []
        self._arrived: list[tuple[Cursor, SourceRange, int]] = []  # acked in the open transaction
        self._after_transaction: list[tuple[Cursor, Callable[[], None]]] = []
        self._previous_commits: dict[TopicPartition, PreviousCommit] = {}  # state after the last committed transaction
        self._moved = False
        self._transactions: TaskTransactions | None = None
        self._transaction_failed = False  # a transaction failed: a successor may have continued
        self._syncs: Syncs | None = None
        self._dead_letters: DeadLetters | None = None
        self._ledger: PendingRecords | None = None
        self._ledger_unavailable_s = 0.0
        self._learning: asyncio.Task[None] | None = None
        self._searched: dict[
            TopicPartition, float
        ] = {}  # when the target was last searched for own batches (monotonic)
        self._log = structlog.get_logger(__name__)

    @property
    def healthy(self) -> bool:
        """False after an internal error: other state of this process may be corrupt, too."""
        return self._link.healthy

    async def run(self) -> str:
        """Run the micro-batch and return why it ended. Raises OSError or ValueError when the driver cannot be
        reached.
        """
        try:
            self._spec = await self._link.open()
            try:
                return await self._live()
            except Exception as error:
                # Otherwise the driver would only see a closed connection.
                self._link.send({"type": "failed", "reason": f"{type(error).__name__}: {error}"})
                await self._link.flush(2)
                raise
        finally:
            self._link.close()

    async def _live(self) -> str:
        spec, link = self._spec, self._link
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        link.forward_logs()
        # A bound logger keeps the configuration at the time of `bind`.
        self._log = structlog.get_logger(__name__).bind(batch=self._assignment.batch, flow=spec.flow)
        self._background = ThreadPoolExecutor(_CALL_THREADS, thread_name_prefix="copier")
        self._source_cluster = Cluster(spec.source, name=spec.source_alias)
        self._target_cluster = Cluster(spec.target, name=spec.target_alias)
        clusters = [self._source_cluster, self._target_cluster]
        final: dict[str, Any] = {"type": "final", "reason": "", "partitions": [], "starts": []}
        open_sides: list[Source | Sink] = []
        try:
            source, sinks = await self._connected(loop, clusters)
            link.on_message = self._on_message
            open_sides += [source, *sinks]
            if await self._prepared():
                link.send({"type": "ready"})
                if await link.until_stop(link.lease) and await self._begun():
                    # Objects created so far are permanent; exclude them from garbage collection.
                    gc.freeze()
                    await self._work()
                    source.close()
                    await self._drain()
            final["reason"] = link.reason
            final["partitions"] = [cursor.progress().to_row() for cursor in self._cursors.values()]
            final["starts"] = self._starts()
            final["tally"] = self.tally.to_json()
            link.send(final)
            await link.flush(2)
        finally:
            for side in open_sides:
                side.close()
            self._background.shutdown(wait=False, cancel_futures=True)
            for cluster in clusters:
                cluster.close()
        return link.reason

    # -- starting --------------------------------------------------------------------------------------------------

    async def _connected(
        self, loop: asyncio.AbstractEventLoop, clusters: list[Cluster]
    ) -> tuple[Source, tuple[Sink, ...]]:
        """Source and sinks, with the number of connections per broker that the round-trip time requires."""
        spec = self._spec
        pool = BufferPool()
        source_connections, target_connections = await asyncio.gather(
            *(self._connections_to(cluster) for cluster in clusters)
        )
        limits = FetchLimits(spec.fetch_max_bytes, spec.fetch_partition_bytes, spec.fetch_max_wait_ms)
        self._throttle = Throttle(spec.throttle, spec.throttle_topics)
        self._source = source = Source(
            self._source_cluster,
            loop,
            self._background,
            pool,
            limits,
            read_committed=spec.read_committed,
            room=self._has_room,
            throttle=self._throttle,
            connections=source_connections,
        )
        self._sink = sink = Sink(
            self._target_cluster,
            loop,
            self._background,
            pool,
            connections=target_connections,
            look_up=self._look_up if self._with_sessions else None,
            on_lost=self._producer_lost,
            may_send=self._link.may_write,
        )
        others: list[Sink] = []

        def sink_of(settings: ClientSettings | None, name: str) -> tuple[Cluster, Sink]:
            """The target's sink, unless this is another cluster."""
            if settings is None or settings.bootstrap == spec.target.bootstrap:
                return self._target_cluster, sink
            clusters.append(Cluster(settings, name=name))
            others.append(Sink(clusters[-1], loop, self._background, pool, may_send=self._link.may_write))
            return clusters[-1], others[-1]

        self._offsets_cluster, self._offsets_sink = sink_of(spec.offsets, "worker")
        if spec.syncs is not None:
            _, sync_sink = sink_of(spec.syncs.settings, spec.source_alias)
            self._syncs = Syncs(sync_sink, spec.syncs.topic, spec.syncs.lag_max)
        return source, (sink, *others)

    @property
    def _with_sessions(self) -> bool:
        return self._spec.ledger_topic is not None and self._spec.transactions is None

    async def _connections_to(self, cluster: Cluster) -> int:
        """The number of connections to each broker; one when the round trip cannot be measured now."""

        def round_trip_s() -> float:
            cluster.metadata(())  # opens a connection
            began = time.monotonic()
            cluster.metadata(())
            return time.monotonic() - began

        try:
            latency_s = await asyncio.wait_for(self._call(round_trip_s), _PREPARE_TIMEOUT_S)
        except (TimeoutError, KafkaFailure) as error:
            self._log.info("round trip to cluster could not be measured", cluster=cluster.name, error=str(error))
            return 1
        return _LOW_LATENCY_CONNECTIONS if latency_s < _HIGH_LATENCY_S else _HIGH_LATENCY_CONNECTIONS

    async def _prepared(self) -> bool:
        """Open what does not need the lease: leaders, internal topics. Retries until it succeeds; False at the stop."""
        spec, sink = self._spec, self._sink
        for part in spec.partitions:
            outbox = sink.outbox(part.target, idempotent=True, transactional=spec.transactions is not None)
            cursor = self._cursors[part.source] = Cursor(part, outbox, self, spec.read_committed)
            cursor.suspended = True  # until its start position is known: an early end must not report a position
            outbox.on_refused = cursor.refused
            outbox.on_recreated = functools.partial(self._target_recreated, cursor)
            outbox.on_truncated = functools.partial(self._target_truncated, cursor)
            outbox.on_inconsistent = functools.partial(cursor.fail, PartitionState.INCONSISTENT)
            outbox.on_uncertain = functools.partial(setattr, cursor, "note")
        since = time.monotonic()
        while not self._link.stop.is_set():
            try:
                await sink.find_leaders(part.remote_topic for part in spec.partitions)
                offsets_partitions = await self._partitions_of(spec.offsets_topic)
            except KafkaFailure as error:
                # A broker that has just started loads its transaction state; report only errors that last.
                if not error.retriable or time.monotonic() - since > _PREPARE_TIMEOUT_S:
                    self._link.ask({"type": "waiting", "reason": str(error)})
                await self._link.pause(0.25)
                continue
            self._positions = self._make_positions(offsets_partitions)
            sink.connect()
            await self._source_prepared()
            self._opening = Opening(
                spec,
                self._link,
                self._source,
                sink,
                self._source_cluster,
                self._target_cluster,
                self._cursors,
                self._call,
                self._commit_then,
                self._target_truncated,
            )
            self._opening.check_rights()
            self._learning = asyncio.get_running_loop().create_task(self._learn_expiration())
            source_admin = Admin(self._source_cluster)
            self._losses = Losses(spec, self._source, source_admin, self._opening, self._call, self._commit_then)
            if spec.dead_letter_topic is not None:
                self._dead_letters = DeadLetters(sink, spec.dead_letter_topic, spec.flow)
            return True
        return False

    async def _learn_expiration(self) -> None:
        """Find out how long the target's brokers remember producers (KIP-854; `transactional.id.expiration.ms` before
        it).
        """
        if not self._with_sessions:
            return
        try:
            expiration_ms = await asyncio.wait_for(self._call(self._read_expiration), _PREPARE_TIMEOUT_S)
        except (
            TimeoutError,
            KafkaFailure,
            ValueError,
            RuntimeError,
        ) as error:  # RuntimeError: the executor is shut down
            self._log.info("expiration of producer ids unknown", error=str(error))
            return
        if expiration_ms is not None:
            self._sink.producer_expires_after(expiration_ms)

    def _read_expiration(self) -> int | None:
        """The minimum of all brokers."""
        admin = Admin(self._target_cluster)
        values = []
        for node in self._target_cluster.metadata(()).brokers:
            found = admin.describe_broker(node, _EXPIRATIONS)
            value = next((found[name] for name in _EXPIRATIONS if found.get(name)), None)
            if value is None:
                return None
            values.append(int(value))
        return min(values, default=None)

    async def _source_prepared(self) -> None:
        """Connect to the source, so that the hand-off does not wait for connections. An unreachable source is handled
        when it is read.
        """
        partitions = [part.source for part in self._spec.partitions]
        try:
            await asyncio.wait_for(
                asyncio.gather(self._source.prepare(partitions), self._find_hole_reasons()), _PREPARE_TIMEOUT_S
            )
        except (TimeoutError, KafkaFailure) as error:
            self._log.info("source could not be prepared", error=str(error))

    async def _find_hole_reasons(self) -> None:
        """Only a compacted topic has holes that are expected. If its configuration is not readable, a topic counts as
        compacted.
        """
        topics = {part.topic for part in self._spec.partitions}
        found = await self._call(Admin(self._source_cluster).describe_configs, topics, [_CLEANUP_POLICY])
        for cursor in self._cursors.values():
            configs = found[cursor.spec.topic]
            policy = None if isinstance(configs, KafkaFailure) else configs.get(_CLEANUP_POLICY)
            if policy is not None and policy.value is not None and "compact" not in policy.value:
                cursor.hole_reason = MISSING

    async def _partitions_of(self, topic: str) -> int:
        """Number of partitions of a topic on the cluster of the offsets topic."""
        metadata = await self._call(self._offsets_cluster.metadata, [topic])
        info = metadata.topics.get(topic)
        if info is None:
            subject = f"topic {topic} of cluster {self._offsets_cluster.name}"
            raise metadata.errors.get(topic) or BrokerFailure.of(3, subject=subject)
        return len(info.partitions)

    def _make_positions(self, offsets_partitions: int) -> Positions:
        spec = self._spec

        def stage(sink: Sink, topic: str) -> PendingRecords:
            return PendingRecords(
                lambda partition: sink.outbox(TopicPartition(topic, partition), idempotent=False), sink.put
            )

        self._ledger = None if spec.ledger_topic is None else stage(self._sink, spec.ledger_topic)
        return Positions(
            stage(self._offsets_sink, spec.offsets_topic) if spec.transactions is None else None,
            self._ledger,
            partitions=offsets_partitions,
            connector=spec.connector,
            source_alias=spec.source_alias,
            on_committed=self._committed,
            # Short micro-batches must advance it, too.
            seen_after_s=min(SEEN_AFTER_S, spec.batch_duration_ms / 4000),
        )

    async def _begun(self) -> bool:
        """Take over from the predecessor and start every partition at its position; False at the stop."""
        spec, link = self._spec, self._link
        while spec.transactions is not None and self._transactions is None:
            transactions = TaskTransactions(
                self._target_cluster,
                spec.transactions,
                self._sink,
                spec.offsets_topic,
                self._call,
                lambda error: link.end(f"the transaction failed: {error}"),
            )
            try:
                await transactions.claim()
            except KafkaFailure as error:
                link.ask({"type": "waiting", "reason": str(error)})
                if error.is_final:
                    link.end(f"cannot initialize the transactional id: {error}")
                    return False
                await link.pause(0.5)
                if link.stop.is_set():
                    return False
                continue
            transactions.begin(cursor.outbox for cursor in self._cursors.values())
            self._transactions = transactions
        # From here on the predecessor's transaction has ended, so the positions are final.
        asking = asyncio.get_running_loop().create_task(self._keep_lease())
        try:
            begun = await link.until_stop(link.start)
        finally:
            asking.cancel()
        if begun:
            self._start()
        return begun

    async def _keep_lease(self) -> None:
        """Renew the lease while nothing is being copied."""
        while True:
            self._link.ask({"type": "claimed"})
            await asyncio.sleep(channel.REPORT_INTERVAL_S)

    def _start(self) -> None:
        """Start every partition at the position sent by the driver."""
        spec, link = self._spec, self._link
        rows = link.start.result()["starts"]
        starts = {TopicPartition(topic, partition): Start.from_json(start) for topic, partition, start in rows}
        for tp, start in starts.items():
            before, now_ms = Lease() if start.entry is None else start.entry.lease, time.time_ns() // 1_000_000
            if before.epoch > now_ms + _CLOCK_WARN_MS:
                self._log.warning(
                    "clock is behind that of a previous executor; leases depend on clocks",
                    partition=str(tp),
                    behind_ms=before.epoch - now_ms,
                )
            lease = before.taken_over(now_ms)
            self._positions.start_at(tp, start.committed, lease, seen=start.seen, entered=start.clean)
            if spec.transactions is not None:
                self._previous_commits[tp] = _previous_commit_of(start)
                if (entry := start.entry) is not None:
                    self._written[tp] = _state(entry.mark, len(entry.lost), entry.foreign, entry.condition, entry.note)
        self._opening.begin(starts)

    # -- copying: calls by cursors (`Owner`) --------------------------------------------------------------------------

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        """Send a batch."""
        self._sink.put(outbox, outgoing)

    def acked(self, cursor: Cursor, entry: SourceRange, last: int) -> None:
        """The target has acknowledged records."""
        if self._transactions is not None:
            self._arrived.append((cursor, entry, last))  # not visible before the commit
        else:
            self._arrive(cursor, entry, last)
        self._source.resume()

    def _arrive(self, cursor: Cursor, entry: SourceRange, last: int) -> None:
        """Records are on the target and visible to consumers."""
        if self._syncs is not None:
            self._syncs.acked(cursor.partition, entry.first, last, entry.target_base, entry.count)
        if entry.newest_ms <= 0 or entry.already_copied:
            return
        now_s = time.monotonic()
        newest_s = entry.newest_ms / 1000 - self._clocks_apart_s
        self.tally.acked(newest_s, entry.since, now_s)
        latency_ms = int((now_s - newest_s) * 1000) if now_s > newest_s else 0
        cursor.ages_ms.add(int((entry.since - newest_s) * 1000) if entry.since > newest_s else 0)
        cursor.latencies_ms.add(latency_ms)
        if len(self._latencies) < _LATENCY_SAMPLES:
            self._latencies.append(latency_ms)

    def unreadable(self, cursor: Cursor, failure: BrokerFailure) -> None:
        """The source rejects reads of the partition."""
        self._remember_source(cursor)
        self._losses.unreadable(cursor, failure)

    def stopped(self, cursor: Cursor) -> None:
        """The partition has stopped."""
        if not cursor.stopped_at_source:
            cursor.outbox.stopped = True
        self._source.remove(cursor.partition)
        condition = cursor.stop_condition
        if condition is not None:
            self._log.error(
                "partition stopped",
                partition=str(cursor.partition),
                state=str(condition.state),
                reason=condition.reason,
            )

    def source_recreated(self, cursor: Cursor, topic_id: str) -> None:
        """The source topic was recreated."""
        self._remember_source(cursor)
        self._losses.source_recreated(cursor, topic_id)

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """The source log was truncated."""
        self._remember_source(cursor)
        self._losses.diverged(cursor, epoch, end_offset)

    def unvalidated(self, cursor: Cursor) -> None:
        """The position has to be validated before it is read."""
        self._remember_source(cursor)
        self._losses.validate(cursor)

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """Records that a predecessor copied are no longer on the source."""
        self._losses.replaced(cursor, first, records, exact=exact)

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        """The source deleted records before they were copied."""
        self._losses.deleted(cursor, first, after)

    def finished(self, cursor: Cursor) -> None:
        """The records of a session with other rules have been skipped."""
        self._opening.open_next(cursor)

    def uncertain(self, cursor: Cursor) -> None:
        """The records on the target have to be compared with the source."""
        self._opening.match(cursor)

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target assigned an offset twice."""
        self._losses.target_went_back(cursor, base_offset)

    def target_gap(self, cursor: Cursor, first: int, end: int) -> None:
        """The target has records that were not acknowledged to this producer."""
        now = time.monotonic()
        if self._with_sessions and now - self._searched.get(cursor.partition, 0.0) > _SEARCH_INTERVAL_S:
            self._searched[cursor.partition] = now
            self._opening.search_gap(cursor, first, end)

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch) -> bool:
        """Write a corrupt batch to the dead letter topic."""
        dead_letters, header = self._dead_letters, view.header
        if dead_letters is None or header is None:
            return False
        after = max(header.last_offset + 1, cursor.offset)
        self._log.error(
            "corrupt batch written to the dead letter topic", partition=str(cursor.partition), error=str(error)
        )
        cursor.suspended = True
        cursor.dead_letter_outbox = dead_letters.outbox

        def written() -> None:
            cursor.finish_quarantine()
            # The position may pass it only when all previous records are acknowledged.
            cursor.when_idle(lambda: self._after_quarantine(cursor, release=True))

        dead_letters.batch(cursor.partition, header.base_offset, after - 1, view.data, str(error), written)
        return True

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        """Write a record that the target never accepts to the dead letter topic."""
        dead_letters, header = self._dead_letters, outgoing.header
        if dead_letters is None or outgoing.count != 1:
            return False
        records = decode_batch(BatchView(header, header.base_offset, 2, outgoing.data))
        reason = f"{cursor.spec.target} does not accept a record of {len(outgoing.data)} bytes"
        self._log.error("record written to the dead letter topic", partition=str(cursor.partition), reason=reason)
        offset = next(entry.runs())[0]
        dead_letters.record(cursor.partition, offset, records[0], reason, self._set_aside(cursor, entry, dead_letters))
        return True

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        """Write a batch that the target rejects because of its content to the dead letter topic."""
        dead_letters = self._dead_letters
        if dead_letters is None:
            return False
        self._log.error(
            "malformed batch written to the dead letter topic", partition=str(cursor.partition), error=str(error)
        )
        raw = memoryview(unpatched(outgoing.data, outgoing.header))
        written = self._set_aside(cursor, entry, dead_letters)
        dead_letters.batch(cursor.partition, entry.first, entry.next_offset - 1, raw, str(error), written)
        return True

    def _set_aside(self, cursor: Cursor, entry: SourceRange, dead_letters: DeadLetters) -> Callable[[], None]:
        """Block the partition until its rejected batch is in the dead letter topic. The returned function ends that."""
        cursor.dead_letter_outbox = dead_letters.outbox
        cursor.outbox.refused = False
        cursor.outbox.paused = cursor.outbox.quarantining = True

        def written() -> None:
            cursor.outbox.quarantining = False
            if cursor.outbox.queue:  # otherwise the successor writes it to the dead letter topic again
                cursor.outbox.last_error = None
                cursor.quarantine(entry, QUARANTINED)
                self._after_quarantine(cursor, release=False)

        return written

    def _after_quarantine(self, cursor: Cursor, *, release: bool) -> None:
        """Send nothing after a dead letter before the ledger has it; otherwise a successor would count it.

        ``release``: the cursor was suspended for it. Otherwise it may be suspended because it is about to move.
        """
        cursor.dead_letter_outbox = None

        def known() -> None:
            cursor.suspended = cursor.suspended and not release
            self._sink.end_pause(cursor.outbox)
            self._source.resume()

        self._commit_then(cursor, known)

    def _target_recreated(self, cursor: Cursor) -> None:
        self._losses.target_recreated(cursor)

    def _target_truncated(self, cursor: Cursor, records: int, end: int) -> None:
        self._losses.target_truncated(cursor, records, end)

    async def _look_up(self, questions: Any) -> Any:
        return await self._opening.look_up(questions)

    def _producer_lost(self, outbox: Outbox, failure: KafkaFailure) -> None:
        """The target's state of the producer contradicts ours: another process writes with its id, or the target
        forgot it.
        """
        if self._transactions is not None:
            self._link.end(f"the transaction failed: {failure}")
            return
        cursor = next((cursor for cursor in self._cursors.values() if cursor.outbox is outbox), None)
        if cursor is None:
            return
        if not outbox.looked_up:
            # Without a look-up the progress is unknown; a new producer resends.
            self._log.warning("the target forgot the producer id; using a new one", partition=str(outbox.partition))
            cursor.note = "at least once: the target forgot the producer id"
            cursor.outbox.queue.clear()
            cursor.outbox.failures = 0
            cursor.outbox.paused = False
            self._opening.open_again(cursor, cursor.mark)
            return
        self._link.end(f"{outbox.partition}: {failure}; the next micro-batch looks up the progress on the target")

    # -- copying -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        commit_s = self._spec.commit_interval_ms / 1000
        link = self._link
        self._clocks_apart_s = time.time() - time.monotonic()
        now = time.monotonic()
        next_commit, next_report = now + commit_s, now + 0.2
        committing: asyncio.Task[None] | None = None
        while not link.stop.is_set():
            now = time.monotonic()
            if link.unanswered_s > channel.LEASE_TIMEOUT_S:
                link.end(f"no message from the driver for {channel.LEASE_TIMEOUT_S:.0f} s")
                break
            between = self._transactions is not None and (committing is None or committing.done())
            if self._transactions is not None and between:
                behind = any(cursor.behind for cursor in self._cursors.values())
                if (self._arrived or self._moved) and self._transactions.due(behind=behind):
                    committing = asyncio.get_running_loop().create_task(self._commit_transaction())
                    between = False
            if now >= next_commit:
                self._moved = self._moved or (self._transactions is not None and self._has_moved())
                if between:
                    self._commit_unmoved()
                self._commit()
                next_commit = now + commit_s
            if now >= next_report:
                self._report()
                next_report = now + channel.REPORT_INTERVAL_S
            wait_s = max(0.005, min(next_commit, next_report) - time.monotonic())
            await link.pause(min(wait_s, 0.005) if self._transactions is not None and self._arrived else wait_s)
        if committing is not None:
            await self._finish_commit(committing)

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "throttle":
            self._throttle.set(float(message["rate"]), dict(message["topics"]))
            self._source.resume()
        elif message["type"] == "pause":
            self._pause(message["partitions"])

    def _pause(self, rows: list[Any]) -> None:
        """Replace the set of paused partitions; each row has a reason and a time (ms)."""
        wanted = {TopicPartition(topic, partition): (reason, since_ms) for topic, partition, reason, since_ms in rows}
        for tp, cursor in self._cursors.items():
            if tp in wanted:
                cursor.pause(*wanted[tp])
            else:
                cursor.paused = None
        self._source.reconsider(self._cursors)

    def _has_room(self) -> bool:
        if sum(cursor.waiting_bytes for cursor in self._cursors.values()) < ROOM_BYTES:
            return True
        # Batches that the target rejects wait until the cause is fixed. They must not block other partitions.
        waiting = (cursor.waiting_bytes for cursor in self._cursors.values() if not cursor.stuck)
        return sum(waiting) < ROOM_BYTES

    # -- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, *, ending: bool = False) -> None:
        """Write what has changed: the ledger, then Connect's offsets topic, then offset syncs that are not due.

        Where nothing moves, the ledger is written once more after the position (`Positions.is_settled`).
        """
        self._watch_ledger()
        now = time.monotonic()
        for tp, cursor in self._cursors.items():
            cursor.measure(now)
            is_written = self._written.get(tp) == self._state_of(cursor)
            if self._transactions is None and not (is_written and self._positions.is_settled(tp, ending=ending)):
                self._commit_one(cursor)
        self._positions.flush()
        if self._syncs is not None and self._transactions is None:
            self._syncs.commit()

    def _has_moved(self) -> bool:
        """Positions may advance without a record on the target, when all records that were read were dropped."""
        return any(self._is_ahead(cursor) for cursor in self._cursors.values())

    def _is_ahead(self, cursor: Cursor) -> bool:
        """In exactly-once mode: whether Connect's offsets topic has another position. None is the beginning of a log.

        Skipped records belong to a session, which the ledger names until the first transaction.
        """
        position = cursor.position
        return (
            not cursor.finishing
            and position >= 0
            and position != (self._positions.committed.get(cursor.partition) or 0)
        )

    def _commit_unmoved(self) -> None:
        """In exactly-once mode, between two transactions: write the ledger entries of partitions that have not moved.

        No transaction would include a paused partition, and `mm2 failover` waits for its entry.
        """
        if self._ledger is None:
            return
        for tp, cursor in self._cursors.items():
            stands = cursor.position >= 0 and cursor.position == (self._positions.committed.get(tp) or 0)
            if stands and not self._positions.busy(tp) and self._written.get(tp) != self._state_of(cursor):
                self._previous_commits[tp] = self._current_commit(cursor)
                self._commit_one(cursor)

    def _commit_one(self, cursor: Cursor) -> None:
        tp = cursor.partition
        if cursor.position < 0 or self._positions.busy(tp):
            return
        self._written[tp] = self._state_of(cursor)
        chunks, forgotten = cursor.trail.take_changed()
        self._positions.commit(Commit(self._entry(cursor), tuple(chunks), tuple(forgotten)))

    def _commit_then(self, cursor: Cursor, then: Callable[[], None]) -> None:
        """Write a cursor's entry as it is now or later, and call ``then`` when it is written."""
        if self._transactions is not None:
            self._after_transaction.append((cursor, then))
            self._moved = True
            return
        # A commit in flight was computed before.
        due = self._positions.lease(cursor.partition).following()
        self._waiting.setdefault(cursor.partition, []).append((due, then))
        if not self._positions.busy(cursor.partition):
            self._commit_one(cursor)
            # In the next iteration of the loop, so that partitions that start together share a batch.
            asyncio.get_running_loop().call_soon(self._positions.flush)

    def _committed(self, source: TopicPartition, entry: LedgerEntry) -> None:
        waiting = self._waiting.get(source)
        if not waiting:
            return
        del self._waiting[source]
        later = [(due, then) for due, then in waiting if due > entry.lease]
        if later:
            self._waiting[source] = later
            asyncio.get_running_loop().call_soon(self._commit_again, self._cursors[source])
        for due, then in waiting:
            if due <= entry.lease:
                then()

    def _commit_again(self, cursor: Cursor) -> None:
        self._commit_one(cursor)
        self._positions.flush()

    def _entry(self, cursor: Cursor) -> LedgerEntry:
        part = cursor.spec
        condition = cursor.current_condition()
        lost, lost_before = cursor.kept_losses()
        return LedgerEntry(
            part.topic,
            part.partition,
            part.remote_topic,
            cursor.mark,
            None,
            cursor.topic_id,
            self._sink.topic_ids.get(part.remote_topic, ""),
            cursor.leader_epoch,
            self._opening.sessions.get(part.source),
            dict(cursor.trail.gaps),
            lost,
            cursor.foreign,
            int(cursor.rate),
            cursor.trail.newest.number,
            condition,
            cursor.note,
            end=cursor.known_end,
            lost_before=lost_before,
            target_epoch=cursor.outbox.leader_epoch,
            lease=self._positions.lease(part.source),
            known_epoch=cursor.known_epoch,
            retired=cursor.retired,
            source_epochs=history.before(cursor.epochs, cursor.mark.source),
        )

    def _current_commit(self, cursor: Cursor) -> PreviousCommit:
        """The current state of a partition."""
        newest = cursor.trail.newest
        gaps, state = dict(cursor.trail.gaps), self._source_state(cursor)
        return PreviousCommit(cursor.mark, gaps, newest.number, newest.extent(), len(cursor.lost), state)

    def _source_state(self, cursor: Cursor) -> SourceState:
        session = self._opening.sessions.get(cursor.partition)
        return SourceState(
            cursor.topic_id, cursor.leader_epoch, cursor.known_epoch, cursor.known_end, cursor.retired, session
        )

    def _remember_source(self, cursor: Cursor) -> None:
        """Record the source topic and log of a position that was committed before the ledger had an entry, or set by
        a user. The source may have been recreated by the time the first transaction is written.
        """
        before = self._previous_commits.get(cursor.partition)
        if before is not None and before.state is None and cursor.position >= 0:
            self._previous_commits[cursor.partition] = before._replace(state=self._source_state(cursor))

    @staticmethod
    def _state_of(cursor: Cursor) -> tuple[Any, ...]:
        """The part of the state whose change requires a ledger write. The rate alone does not."""
        return _state(cursor.mark, len(cursor.lost), cursor.foreign, cursor.current_condition(), cursor.note)

    def _watch_ledger(self) -> None:
        """Stop using a ledger that was deleted or permanently rejects writes, and report the reduced guarantee.

        A ledger without a leader or with too few replicas is retried: commits are delayed, and nothing else (rule
        C6).
        """
        unavailable = self._ledger is not None and any(
            outbox.refused or (outbox.last_error is not None and not outbox.idle) for outbox in self._ledger.outboxes
        )
        now = time.monotonic()
        if not unavailable:
            self._ledger_unavailable_s = 0.0
            return
        self._ledger_unavailable_s = self._ledger_unavailable_s or now
        errors = [outbox.last_error for outbox in self._ledger.outboxes] if self._ledger is not None else []
        known = next((last_error for last_error in errors if last_error is not None), None)
        is_gone = isinstance(known, BrokerFailure) and (
            (not known.retriable and known.code != ErrorCode.UNKNOWN_SERVER_ERROR)  # not specific to the ledger
            or known.code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
        )
        if is_gone and self._sink.failure is None and now - self._ledger_unavailable_s > _LEDGER_TIMEOUT_S:
            note = f"at least once: the ledger {self._spec.ledger_topic} cannot be written: {known}"
            self._log.error(note)
            for cursor in self._cursors.values():
                cursor.note = note
            self._ledger = None
            self._positions.without_ledger()

    async def _commit_transaction(self) -> None:
        transactions = self._transactions
        if transactions is None:
            return
        arrived: list[tuple[Cursor, SourceRange, int]] = []
        positions: dict[TopicPartition, int] = {}
        now: dict[TopicPartition, PreviousCommit] = {}
        moved: list[tuple[Cursor, Callable[[], None]]] = []

        def records() -> list[tuple[int, Record]]:
            nonlocal arrived
            nonlocal moved
            arrived, self._arrived = self._arrived, []
            moved, self._after_transaction = self._after_transaction, []
            self._moved = False
            waiting = {cursor.partition for cursor, _ in moved}
            rows = []
            for tp, cursor in self._cursors.items():
                is_ahead = self._is_ahead(cursor)
                if not is_ahead and (tp not in waiting or cursor.position < 0):
                    continue
                entry = self._entry(cursor)
                if is_ahead:
                    # Also 0, where the source was recreated: otherwise a position of the old topic could not be distinguished from
                    # the same position in the new one.
                    positions[tp] = cursor.position
                    rows.append(self._positions.offset_record(tp, cursor.position))
                    # The entry contains exactly this transaction, and the state before it, which is valid if it is not committed. If
                    # it were written afterwards, a crash in between would leave a range of offsets without a reason.
                    before = self._previous_commits[tp]
                    entry = entry.replace(before=before._replace(lost=len(cursor.lost) - before.lost))
                now[tp] = self._current_commit(cursor)
                chunks, forgotten = cursor.trail.take_changed()
                self._written[tp] = self._state_of(cursor)
                self._positions.commit(Commit(entry, tuple(chunks), tuple(forgotten)))
            self._positions.flush()
            return rows

        try:
            done = await transactions.commit(
                records, lambda: self._positions.idle, lambda: self._link.unanswered_s > channel.LEASE_TIMEOUT_S
            )
        except KafkaFailure as error:
            self._transaction_failed = True
            self._link.end(f"the transaction failed: {error}")
            return
        if not done:
            self._transaction_failed = True
            self._link.end("the transaction was abandoned")
            return
        self._positions.committed.update(positions)
        self._previous_commits.update(now)
        for cursor, then in moved:
            # Write the entry again without the previous state: a user may set the position back to exactly that.
            self._written.pop(cursor.partition, None)
            then()
        for cursor in {row[0].partition: row[0] for row in arrived if not row[1].already_copied}.values():
            cursor.markers = (cursor.markers or 0) + 1
        for cursor, entry, last in arrived:
            self._arrive(cursor, entry, last)
        if self._syncs is not None:
            self._syncs.commit()

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self._clocks_apart_s = time.time() - time.monotonic()  # the wall clock may have been set
        rows = []
        for tp, cursor in self._cursors.items():
            seen = cursor.progress_key()
            if self._reported.get(tp) != seen:
                self._reported[tp] = seen
                rows.append(cursor.progress().to_row())
        tally = {"tally": self.tally.to_json()} if rows else {}
        latency_ms, failure = self._latency(), self._failure()
        self._link.ask({"type": "progress", "partitions": rows, "latency_ms": latency_ms, "failure": failure, **tally})

    def _latency(self) -> list[int]:
        """p50, p99 and maximum from produce to acknowledgement since the last report, in ms."""
        samples = sorted(self._latencies)
        self._latencies.clear()
        if not samples:
            return []
        return [samples[len(samples) // 2], samples[min(len(samples) - 1, len(samples) * 99 // 100)], samples[-1]]

    def _failure(self) -> str:
        failures = [self._source.failure, self._sink.failure, self._offsets_sink.failure]
        errors = [outbox.last_error for outbox in self._positions.outboxes]
        if self._transactions is not None:
            errors += self._transactions.errors
        if self._syncs is not None:
            errors.append(self._syncs.outbox.last_error)
        errors.append(self._dead_letter_error())
        return next((str(failure) for failure in (*failures, *errors) if failure is not None), "")

    def _dead_letter_error(self) -> KafkaFailure | None:
        """Why the dead letter topic cannot be written at the moment."""
        return None if self._dead_letters is None else self._dead_letters.outbox.last_error

    def _starts(self) -> list[Any]:
        """The known state of each partition for the successor, clean where nothing is unanswered."""
        if not (self._with_sessions and self._link.healthy):
            return []
        rows = []
        for tp, cursor in self._cursors.items():
            if cursor.position < 0 or cursor.stopped or tp not in self._opening.sessions or cursor.skip:
                continue
            # ``next`` counts a batch with unknown outcome, also when it was removed from the queue at the stop.
            is_in = cursor.outbox.idle and cursor.outbox.acked == cursor.outbox.next == cursor.records
            # Without a producer id it waits for the ledger entry of a new session.
            is_entered = self._ledger is None or self._positions.is_entered(tp)
            # Callbacks that wait for a commit depend on it: nothing may be sent before the ledger has it.
            clean = is_in and is_entered and not cursor.outbox.needs_producer_id and tp not in self._waiting
            # A paused outbox with nothing to send was fenced: the target has more records than it has sent. And a look-up without a
            # later acknowledgement may have been answered by a deposed leader (rule S6).
            clean = clean and not cursor.outbox.paused and cursor.outbox.verified_epoch is None
            committed = self._positions.committed.get(tp)
            # Also after an unclean hand-off: otherwise a late position of this executor would count as a user's (rule C4).
            seen = self._positions.seen(tp)
            entry = self._entry(cursor).replace(previous=committed, seen=seen)
            start = Start(cursor.position, committed, entry, cursor.trail.newest, clean, seen=seen)
            rows.append([tp.topic, tp.partition, start.to_json()])
        return rows

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def _finish_commit(self, committing: asyncio.Task[None]) -> None:
        """Wait for the transaction that was being committed at the stop. If it takes too long, it stays the last one."""
        deadline = time.monotonic() + self._link.drain_s
        while not committing.done() and time.monotonic() < deadline:
            self._renew_lease()
            await asyncio.wait({committing}, timeout=_FINISH_POLL_S)
        if not committing.done():
            self._log.warning("stopped before the last transaction was committed")
            self._transaction_failed = True
            committing.cancel()
            await asyncio.wait({committing})

    async def _drain(self) -> None:
        """Wait for requests in flight, then commit and wait for that, too. Bounded: the target may be unreachable."""
        link = self._link
        if not link.may_write():
            self._log.warning("stopped without a final commit: the lease has expired")
            return
        deadline = time.monotonic() + link.drain_s
        # Unsent batches are dropped: the successor reads them again, and a long queue must not delay the stop.
        outboxes = [cursor.outbox for cursor in self._cursors.values()]
        for outbox in outboxes:
            outbox.queue = deque(outgoing for outgoing in outbox.queue if outgoing.at >= 0)

        def is_drained(outbox: Outbox) -> bool:
            return (
                outbox.idle
                or outbox.refused
                or outbox.stopped
                or (outbox.quarantining and self._dead_letter_error() is not None)
            )

        while not all(is_drained(outbox) for outbox in outboxes):
            self._renew_lease()
            if time.monotonic() > deadline:
                self._log.warning("stopped with unanswered batches")
                break
            await asyncio.sleep(_POLL_S)
        for outbox in outboxes:
            if not outbox.sent:
                outbox.queue.clear()
        if self._transactions is not None:
            await self._last_transaction(deadline)
        self._commit(ending=True)
        while time.monotonic() < deadline:
            self._commit(ending=True)
            # A lost offset sync is replaced by the next one, so it must not delay the stop.
            syncs_idle = self._syncs is None or self._syncs.idle or self._syncs.outbox.last_error is not None
            if self._positions.idle and syncs_idle and (self._transactions is not None or self._all_written()):
                return
            self._renew_lease()
            await asyncio.sleep(_POLL_S)

    def _renew_lease(self) -> None:
        """Ask the driver once a second: nothing is written after it has stopped responding."""
        if self._link.asked_s >= channel.REPORT_INTERVAL_S:
            self._report()

    async def _last_transaction(self, deadline: float) -> None:
        transactions = self._transactions
        if transactions is None or self._transaction_failed:
            return  # a later one must not be committed without this one
        with contextlib.suppress(asyncio.TimeoutError, KafkaFailure):
            left_s = max(0.1, deadline - time.monotonic())
            if self._arrived and self._link.stop_requested:
                await asyncio.wait_for(self._commit_transaction(), left_s)
            elif self._arrived:
                await asyncio.wait_for(transactions.abort(), left_s)
            if self._link.stop_requested and not self._transaction_failed:
                self._commit_unmoved()

    def _all_written(self) -> bool:
        return all(
            cursor.position < 0 or self._written.get(tp, ())[:3] == self._state_of(cursor)[:3]
            for tp, cursor in self._cursors.items()
        )

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error in a callback."""
        self._link.fail(context.get("exception"), context["message"])

    async def _call(self, call: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._background, lambda: call(*args))


def _state(mark: Mark, lost: int, foreign: int, condition: PartitionCondition | None, note: str) -> tuple[Any, ...]:
    what = "" if condition is None else f"{condition.state} {condition.offset} {condition.since_ms}"
    return mark, lost, foreign, what, note


def _previous_commit_of(start: Start) -> PreviousCommit:
    """The ledger's state where a partition's copying begins."""
    entry, chunk = start.entry, start.chunk or SegmentChunk(0)
    if entry is None:
        return PreviousCommit(Mark(start.position or 0, -1, 0), {}, chunk.number, chunk.extent(), 0)
    state = None
    if not start.moved:
        state = SourceState(
            entry.source_id, entry.source_epoch, entry.known_epoch, entry.end, entry.retired, entry.session
        )
    return PreviousCommit(entry.mark, dict(entry.gaps), chunk.number, chunk.extent(), len(entry.lost), state)
