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
_NEWS_AFTER_S: Final = 5.0
_LEDGER_PATIENCE_S: Final = 5.0
_EXPIRATIONS: Final = ("producer.id.expiration.ms", "transactional.id.expiration.ms")
_CALL_THREADS: Final = 4
_CLOCK_WARN_MS: Final = 2_000
#: Others may write to a remote topic all the time: each gap is no reason to read what is in it.
_SEARCH_AGAIN_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.001
_FINISH_POLL_S: Final = 0.25
#: To each broker. A broker works on one request of a connection at a time: with two, one is read while another is appended.
_NEAR_CONNECTIONS: Final = 2
#: A round trip from which on a window for each connection is the limit.
_LONG_WAY_S: Final = 0.004
_FAR_CONNECTIONS: Final = 8


class Copier:
    """Copies the partitions of one lane for one micro-batch."""

    def __init__(self, assignment: Assignment, attempt: int) -> None:
        self._assignment = assignment
        self._link = DriverLink(assignment, attempt, DRAIN_TIMEOUT_S)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._written: dict[TopicPartition, tuple[Any, ...]] = {}  # what the last commit of each said
        # For a commit with that lease, or a later one.
        self._waiting: dict[TopicPartition, list[tuple[Lease, Callable[[], None]]]] = {}
        self._reported: dict[TopicPartition, tuple[Any, ...]] = {}
        self.tally = Tally()
        self._clocks_apart_s = 0.0  # what makes a time of day of the steady clock's
        self._latencies: list[int] = []
        self._arrived: list[tuple[Cursor, SourceRange, int]] = []  # acked in the open transaction
        self._after_transaction: list[tuple[Cursor, Callable[[], None]]] = []
        self._before: dict[TopicPartition, PreviousCommit] = {}  # what the last committed transaction left
        self._moved = False
        self._transactions: TaskTransactions | None = None
        self._outdone = False  # a transaction could not be committed: others may have gone on
        self._syncs: Syncs | None = None
        self._dead_letters: DeadLetters | None = None
        self._ledger: PendingRecords | None = None
        self._ledger_away_s = 0.0
        self._learning: asyncio.Task[None] | None = None
        self._searched: dict[TopicPartition, float] = {}  # when the target was last searched for batches of our own
        self._log = structlog.get_logger(__name__)

    @property
    def sound(self) -> bool:
        """False after an error of our own: what else this process keeps may be spoiled, too."""
        return self._link.sound

    async def run(self) -> str:
        """The whole life; returns why it ended. Raises OSError or ValueError when the driver cannot be reached."""
        try:
            self._spec = await self._link.open()
            try:
                return await self._live()
            except Exception as error:
                # Else all that the driver would hear is that the connection ended.
                self._link.send({"type": "failed", "reason": f"{type(error).__name__}: {error}"})
                await self._link.flush(2)
                raise
        finally:
            self._link.close()

    async def _live(self) -> str:
        spec, link = self._spec, self._link
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._mishap)
        link.forward_logs()
        # A bound logger keeps the configuration it was bound under.
        self._log = structlog.get_logger(__name__).bind(batch=self._assignment.batch, flow=spec.flow)
        self._background = ThreadPoolExecutor(_CALL_THREADS, thread_name_prefix="copier")
        self._source_cluster = Cluster(spec.source, name=spec.source_alias)
        self._target_cluster = Cluster(spec.target, name=spec.target_alias)
        clusters = [self._source_cluster, self._target_cluster]
        final: dict[str, Any] = {"type": "final", "reason": "", "partitions": [], "starts": []}
        open_sides: list[Source | Sink] = []
        try:
            source, sinks = await self._connected(loop, clusters)
            link.on_word = self._heard
            open_sides += [source, *sinks]
            if await self._prepared():
                link.send({"type": "ready"})
                if await link.until_stop(link.lease) and await self._begun():
                    # What was made up to here stays; the collector need not look through it again and again.
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
        """Both sides, with as many connections per broker as the way to it asks for, and sinks of other clusters."""
        spec = self._spec
        pool = BufferPool()
        source_way, target_way = await asyncio.gather(*(self._connections_to(cluster) for cluster in clusters))
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
            connections=source_way,
        )
        self._sink = sink = Sink(
            self._target_cluster,
            loop,
            self._background,
            pool,
            connections=target_way,
            look_up=self._look_up if self._with_sessions else None,
            on_lost=self._producer_lost,
            may_send=self._link.may_write,
        )
        others: list[Sink] = []

        def sink_of(settings: ClientSettings | None, name: str) -> tuple[Cluster, Sink]:
            """The target's own, unless this is another cluster."""
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
        """How many connections to each broker; one when it cannot be asked now, as later tries find a way of their own."""

        def round_trip_s() -> float:
            cluster.metadata(())  # opens a connection
            began = time.monotonic()
            cluster.metadata(())
            return time.monotonic() - began

        try:
            way_s = await asyncio.wait_for(self._call(round_trip_s), _NEWS_AFTER_S)
        except (TimeoutError, KafkaFailure) as error:
            self._log.info("the way to a cluster could not be measured", cluster=cluster.name, error=str(error))
            return 1
        return _NEAR_CONNECTIONS if way_s < _LONG_WAY_S else _FAR_CONNECTIONS

    async def _prepared(self) -> bool:
        """Open what needs no lease: leaders, internal topics. Retried until it works; False at stop."""
        spec, sink = self._spec, self._sink
        for part in spec.partitions:
            outbox = sink.outbox(part.target, idempotent=True, transactional=spec.transactions is not None)
            cursor = self._cursors[part.source] = Cursor(part, outbox, self, spec.read_committed)
            cursor.held = True  # until its place to start is known: nothing may be concluded from an early end
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
                # A broker that has just started still loads its transaction state; only what lasts is news.
                if not error.retriable or time.monotonic() - since > _NEWS_AFTER_S:
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
        """Ask for how long the target's brokers remember producers (KIP-854; `transactional.id.expiration.ms` before it)."""
        if not self._with_sessions:
            return
        try:
            expiration_ms = await asyncio.wait_for(self._call(self._read_expiration), _NEWS_AFTER_S)
        except (TimeoutError, KafkaFailure, ValueError, RuntimeError) as error:  # RuntimeError: the threads have ended
            self._log.info("the expiration of producer ids is not known", error=str(error))
            return
        if expiration_ms is not None:
            self._sink.producer_expires_after(expiration_ms)

    def _read_expiration(self) -> int | None:
        """The smallest of all brokers."""
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
        """Connected, so that a hand-over waits for no dialling; one that is away is found out about by those who read."""
        partitions = [part.source for part in self._spec.partitions]
        try:
            await asyncio.wait_for(
                asyncio.gather(self._source.prepare(partitions), self._find_hole_reasons()), _NEWS_AFTER_S
            )
        except (TimeoutError, KafkaFailure) as error:
            self._log.info("the source could not be prepared for reading", error=str(error))

    async def _find_hole_reasons(self) -> None:
        """Only the log of a compacted topic has holes for a good reason. Where configs may not be read it is assumed."""
        topics = {part.topic for part in self._spec.partitions}
        found = await self._call(Admin(self._source_cluster).describe_configs, topics, [_CLEANUP_POLICY])
        for cursor in self._cursors.values():
            configs = found[cursor.spec.topic]
            policy = None if isinstance(configs, KafkaFailure) else configs.get(_CLEANUP_POLICY)
            if policy is not None and policy.value is not None and "compact" not in policy.value:
                cursor.hole_reason = MISSING

    async def _partitions_of(self, topic: str) -> int:
        """Of the offsets topic."""
        metadata = await self._call(self._offsets_cluster.metadata, [topic])
        info = metadata.topics.get(topic)
        if info is None:
            subject = f"topic {topic} of cluster {self._offsets_cluster.name}"
            raise metadata.errors.get(topic) or BrokerFailure.of(3, subject=subject)
        return len(info.partitions)

    def _make_positions(self, offsets_partitions: int) -> Positions:
        spec = self._spec

        def stage(sink: Sink, topic: str) -> PendingRecords:
            return PendingRecords(lambda place: sink.outbox(TopicPartition(topic, place), idempotent=False), sink.put)

        self._ledger = None if spec.ledger_topic is None else stage(self._sink, spec.ledger_topic)
        return Positions(
            stage(self._offsets_sink, spec.offsets_topic) if spec.transactions is None else None,
            self._ledger,
            partitions=offsets_partitions,
            connector=spec.connector,
            source_alias=spec.source_alias,
            on_committed=self._committed,
            # Short micro-batches get somewhere, too.
            seen_after_s=min(SEEN_AFTER_S, spec.batch_duration_ms / 4000),
        )

    async def _begun(self) -> bool:
        """Take over what must be taken over, and start every partition at its place; False at stop."""
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
                    link.end(f"no transactions: {error}")
                    return False
                await link.pause(0.5)
                if link.stop.is_set():
                    return False
                continue
            transactions.begin(cursor.outbox for cursor in self._cursors.values())
            self._transactions = transactions
        # Only now: what a predecessor had under way is decided, so the positions are what they will stay.
        asking = asyncio.get_running_loop().create_task(self._keep_lease())
        try:
            begun = await link.until_stop(link.start)
        finally:
            asking.cancel()
        if begun:
            self._start()
        return begun

    async def _keep_lease(self) -> None:
        """Renew the lease while nothing is copied yet."""
        while True:
            self._link.ask({"type": "claimed"})
            await asyncio.sleep(channel.REPORT_INTERVAL_S)

    def _start(self) -> None:
        """Start every partition where the driver says."""
        spec, link = self._spec, self._link
        rows = link.start.result()["starts"]
        starts = {TopicPartition(topic, partition): Start.from_json(start) for topic, partition, start in rows}
        for tp, start in starts.items():
            before, now_ms = Lease() if start.entry is None else start.entry.lease, time.time_ns() // 1_000_000
            if before.epoch > now_ms + _CLOCK_WARN_MS:
                self._log.warning(
                    "the clock of this host is behind that of an executor before it; leases rest on clocks",
                    partition=str(tp),
                    behind_ms=before.epoch - now_ms,
                )
            lease = before.taken_over(now_ms)
            self._positions.start_at(tp, start.committed, lease, seen=start.seen, entered=start.clean)
            if spec.transactions is not None:
                self._before[tp] = _before(start)
                if (entry := start.entry) is not None:
                    self._written[tp] = _state(entry.mark, len(entry.lost), entry.foreign, entry.trouble, entry.note)
        self._opening.begin(starts)

    # -- copying: what cursors ask (`Owner`) -------------------------------------------------------------------------

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        """Send a batch."""
        self._sink.put(outbox, outgoing)

    def acked(self, cursor: Cursor, entry: SourceRange, last: int) -> None:
        """Records are on the target."""
        if self._transactions is not None:
            self._arrived.append((cursor, entry, last))  # nobody can read it yet
        else:
            self._arrive(cursor, entry, last)
        self._source.resume()

    def _arrive(self, cursor: Cursor, entry: SourceRange, last: int) -> None:
        """Records are on the target for everybody to read."""
        if self._syncs is not None:
            self._syncs.acked(cursor.partition, entry.first, last, entry.target_base, entry.count)
        if entry.newest_ms <= 0 or entry.there:
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
        """The source does not let it be read."""
        self._remember_source(cursor)
        self._losses.unreadable(cursor, failure)

    def stopped(self, cursor: Cursor) -> None:
        """It is given up."""
        cursor.outbox.stopped = True
        self._source.remove(cursor.partition)
        trouble = cursor.stop_trouble
        if trouble is not None:
            self._log.error(
                "a partition is stopped",
                partition=str(cursor.partition),
                state=str(trouble.state),
                reason=trouble.reason,
            )

    def renewed(self, cursor: Cursor, topic_id: str) -> None:
        """Its source topic is another one of the same name."""
        self._remember_source(cursor)
        self._losses.renewed(cursor, topic_id)

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """Its source log was truncated."""
        self._remember_source(cursor)
        self._losses.diverged(cursor, epoch, end_offset)

    def unchecked(self, cursor: Cursor) -> None:
        """Its position has to be validated before it is read."""
        self._remember_source(cursor)
        self._losses.validate(cursor)

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """Records of a predecessor are no longer on the source."""
        self._losses.replaced(cursor, first, records, exact=exact)

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        """The source deleted records before they were copied."""
        self._losses.deleted(cursor, first, after)

    def finished(self, cursor: Cursor) -> None:
        """A session under other rules has been read past."""
        self._opening.open_next(cursor)

    def uncertain(self, cursor: Cursor) -> None:
        """What is on the target has to be looked at."""
        self._opening.match(cursor)

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target gave an offset twice."""
        self._losses.target_went_back(cursor, base_offset)

    def target_gap(self, cursor: Cursor, first: int, end: int) -> None:
        """There are records on the target that were not acknowledged."""
        now = time.monotonic()
        if self._with_sessions and now - self._searched.get(cursor.partition, 0.0) > _SEARCH_AGAIN_S:
            self._searched[cursor.partition] = now
            self._opening.search_gap(cursor, first, end)

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch) -> bool:
        """Put a batch away that is not what was written."""
        letters, header = self._dead_letters, view.header
        if letters is None or header is None:
            return False
        after = max(header.last_offset + 1, cursor.offset)
        self._log.error("a corrupt batch goes to the dead letters", partition=str(cursor.partition), error=str(error))
        cursor.held = True
        cursor.letters = letters.outbox

        def written() -> None:
            cursor.put_away()
            # Those before it first: the position is behind it only when they are all there.
            cursor.when_idle(lambda: self._buried(cursor, release=True))

        letters.batch(cursor.partition, header.base_offset, after - 1, view.data, str(error), written)
        return True

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        """Put a record away that the target takes in no way."""
        letters, header = self._dead_letters, outgoing.header
        if letters is None or outgoing.count != 1:
            return False
        records = decode_batch(BatchView(header, header.base_offset, 2, outgoing.data))
        reason = f"{cursor.spec.target} takes no record of {len(outgoing.data)} bytes"
        self._log.error("a record goes to the dead letters", partition=str(cursor.partition), reason=reason)
        offset = next(entry.runs())[0]
        letters.record(cursor.partition, offset, records[0], reason, self._set_aside(cursor, entry, letters))
        return True

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        """Put a batch away that the target refuses because of what is in it."""
        letters = self._dead_letters
        if letters is None:
            return False
        self._log.error("a malformed batch goes to the dead letters", partition=str(cursor.partition), error=str(error))
        raw = memoryview(unpatched(outgoing.data, outgoing.header))
        written = self._set_aside(cursor, entry, letters)
        letters.batch(cursor.partition, entry.first, entry.next_offset - 1, raw, str(error), written)
        return True

    def _set_aside(self, cursor: Cursor, entry: SourceRange, letters: DeadLetters) -> Callable[[], None]:
        """What the target refuses waits, and with it what follows, until what this returns is called: it is put away."""
        cursor.letters = letters.outbox
        cursor.outbox.refused = False
        cursor.outbox.paused = cursor.outbox.aside = True

        def written() -> None:
            cursor.outbox.aside = False
            if cursor.outbox.queue:  # else it was left to whoever comes next, who puts it away once more
                cursor.outbox.complaint = None
                cursor.bury(entry, QUARANTINED)
                self._buried(cursor, release=False)

        return written

    def _buried(self, cursor: Cursor, *, release: bool) -> None:
        """Nothing behind it is sent before the ledger knows, or a successor would count it in.

        ``release``: the cursor was held for it. Otherwise it may be held because it is about to move.
        """
        cursor.letters = None

        def known() -> None:
            cursor.held = cursor.held and not release
            self._sink.go_on(cursor.outbox)
            self._source.resume()

        self._commit_then(cursor, known)

    def _target_recreated(self, cursor: Cursor) -> None:
        self._losses.target_recreated(cursor)

    def _target_truncated(self, cursor: Cursor, records: int, end: int) -> None:
        self._losses.target_truncated(cursor, records, end)

    async def _look_up(self, questions: Any) -> Any:
        return await self._opening.look_up(questions)

    def _producer_lost(self, outbox: Outbox, failure: KafkaFailure) -> None:
        """The target's idea of our producer and ours do not meet: somebody else writes in our name, or it forgot."""
        if self._transactions is not None:
            self._link.end(f"the transaction is lost: {failure}")
            return
        cursor = next((cursor for cursor in self._cursors.values() if cursor.outbox is outbox), None)
        if cursor is None:
            return
        if not outbox.looked_up:
            # Without a look-up nobody knows what is there; a new producer sends it again.
            self._log.warning("the target forgot our producer, a new one is taken", partition=str(outbox.partition))
            cursor.note = "at least once: the target forgot our producer"
            cursor.outbox.queue.clear()
            cursor.outbox.failures = 0
            cursor.outbox.paused = False
            self._opening.open_again(cursor, cursor.mark)
            return
        self._link.end(f"{outbox.partition}: {failure}; the next micro-batch finds out who is right")

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
            if link.silence_s > channel.LEASE_TIMEOUT_S:
                link.end(f"the driver said nothing for {channel.LEASE_TIMEOUT_S:.0f} s")
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
                    self._tell_of_standstills()
                self._commit()
                next_commit = now + commit_s
            if now >= next_report:
                self._report()
                next_report = now + channel.REPORT_INTERVAL_S
            wait_s = max(0.005, min(next_commit, next_report) - time.monotonic())
            await link.pause(min(wait_s, 0.005) if self._transactions is not None and self._arrived else wait_s)
        if committing is not None:
            await self._finish_commit(committing)

    def _heard(self, message: dict[str, Any]) -> None:
        if message["type"] == "throttle":
            self._throttle.set(float(message["rate"]), dict(message["topics"]))
            self._source.resume()
        elif message["type"] == "pause":
            self._pause(message["partitions"])

    def _pause(self, rows: list[Any]) -> None:
        """These and no others are not to be read, each with a reason and since when (ms)."""
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
        # What a target refuses waits for somebody to mend it, and must not hold up the others meanwhile.
        waiting = (cursor.waiting_bytes for cursor in self._cursors.values() if not cursor.stuck)
        return sum(waiting) < ROOM_BYTES

    # -- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, *, ending: bool = False) -> None:
        """Write what has changed: ledger, then Connect's offsets topic; then syncs that are not due.

        Where nothing moves the ledger is told of the position once more after it was written (`Positions.is_settled`).
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
        """Positions may go on without a record on the target: what was read was dropped."""
        return any(self._is_ahead(cursor) for cursor in self._cursors.values())

    def _is_ahead(self, cursor: Cursor) -> bool:
        """In exactly-once mode: whether Connect's offsets topic has another position. None is the beginning of a log.

        What is only read past belongs to a session, which the ledger names until the first transaction.
        """
        position = cursor.position
        return (
            not cursor.finishing
            and position >= 0
            and position != (self._positions.committed.get(cursor.partition) or 0)
        )

    def _tell_of_standstills(self) -> None:
        """In exactly-once mode, between two transactions: what the ledger is to say of partitions that have moved nowhere.

        No transaction would ever come for one that is paused, for instance, and `mm2 failover` waits to be told that it is.
        """
        if self._ledger is None:
            return
        for tp, cursor in self._cursors.items():
            stands = cursor.position >= 0 and cursor.position == (self._positions.committed.get(tp) or 0)
            if stands and not self._positions.busy(tp) and self._written.get(tp) != self._state_of(cursor):
                self._before[tp] = self._stand(cursor)
                self._commit_one(cursor)

    def _commit_one(self, cursor: Cursor) -> None:
        tp = cursor.partition
        if cursor.position < 0 or self._positions.busy(tp):
            return
        self._written[tp] = self._state_of(cursor)
        chunks, forgotten = cursor.trail.take_changed()
        self._positions.commit(Commit(self._entry(cursor), tuple(chunks), tuple(forgotten)))

    def _commit_then(self, cursor: Cursor, then: Callable[[], None]) -> None:
        """Write a cursor's entry as it is now or later, and call ``then`` when it is in."""
        if self._transactions is not None:
            self._after_transaction.append((cursor, then))
            self._moved = True
            return
        # One that is under way was made before.
        due = self._positions.lease(cursor.partition).following()
        self._waiting.setdefault(cursor.partition, []).append((due, then))
        if not self._positions.busy(cursor.partition):
            self._commit_one(cursor)
            # One turn later, so that all partitions that begin together share a batch.
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
        trouble = cursor.current_trouble()
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
            trouble,
            cursor.note,
            end=cursor.known_end,
            lost_before=lost_before,
            target_epoch=cursor.outbox.leader_epoch,
            lease=self._positions.lease(part.source),
            known_epoch=cursor.known_epoch,
            retired=cursor.retired,
            source_epochs=history.before(cursor.epochs, cursor.mark.source),
        )

    def _stand(self, cursor: Cursor) -> PreviousCommit:
        """How a partition stands now."""
        newest = cursor.trail.newest
        gaps, state = dict(cursor.trail.gaps), self._source_state(cursor)
        return PreviousCommit(cursor.mark, gaps, newest.number, newest.extent(), len(cursor.lost), state)

    def _source_state(self, cursor: Cursor) -> SourceState:
        session = self._opening.sessions.get(cursor.partition)
        return SourceState(
            cursor.topic_id, cursor.leader_epoch, cursor.known_epoch, cursor.known_end, cursor.retired, session
        )

    def _remember_source(self, cursor: Cursor) -> None:
        """Which topic and log a position belongs to that was committed before the ledger had an entry, or was set by a user: the
        source may be another one by the time the first transaction is written."""
        before = self._before.get(cursor.partition)
        if before is not None and before.state is None and cursor.position >= 0:
            self._before[cursor.partition] = before._replace(state=self._source_state(cursor))

    @staticmethod
    def _state_of(cursor: Cursor) -> tuple[Any, ...]:
        """What the ledger is to say; bytes per second alone are no reason to write."""
        return _state(cursor.mark, len(cursor.lost), cursor.foreign, cursor.current_trouble(), cursor.note)

    def _watch_ledger(self) -> None:
        """Give up a ledger that is refused for good or deleted, and report what that means.

        One that has no leader or too few replicas is waited for: commits are delayed, and nothing else (rule C6).
        """
        away = self._ledger is not None and any(
            outbox.refused or (outbox.complaint is not None and not outbox.idle) for outbox in self._ledger.outboxes
        )
        now = time.monotonic()
        if not away:
            self._ledger_away_s = 0.0
            return
        self._ledger_away_s = self._ledger_away_s or now
        complaints = [outbox.complaint for outbox in self._ledger.outboxes] if self._ledger is not None else []
        known = next((complaint for complaint in complaints if complaint is not None), None)
        is_gone = isinstance(known, BrokerFailure) and (
            (not known.retriable and known.code != ErrorCode.UNKNOWN_SERVER_ERROR)  # which says nothing of the ledger
            or known.code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
        )
        if is_gone and self._sink.failure is None and now - self._ledger_away_s > _LEDGER_PATIENCE_S:
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
                    # Also 0, where the source was created again: else the old topic's position and the same one in the new
                    # topic could not be told apart.
                    positions[tp] = cursor.position
                    rows.append(self._positions.offset_record(tp, cursor.position))
                    # What the ledger says is what this transaction holds, and no more; and what counts if it is never
                    # committed. Written afterwards, a crash in between would leave a stretch that nobody gives a reason for.
                    before = self._before[tp]
                    entry = entry.replace(before=before._replace(lost=len(cursor.lost) - before.lost))
                now[tp] = self._stand(cursor)
                chunks, forgotten = cursor.trail.take_changed()
                self._written[tp] = self._state_of(cursor)
                self._positions.commit(Commit(entry, tuple(chunks), tuple(forgotten)))
            self._positions.flush()
            return rows

        try:
            done = await transactions.commit(
                records, lambda: self._positions.idle, lambda: self._link.silence_s > channel.LEASE_TIMEOUT_S
            )
        except KafkaFailure as error:
            self._outdone = True
            self._link.end(f"the transaction failed: {error}")
            return
        if not done:
            self._outdone = True
            self._link.end("the transaction was given up")
            return
        self._positions.committed.update(positions)
        self._before.update(now)
        for cursor, then in moved:
            # Once more, without what stood before: a user may set it back to just that.
            self._written.pop(cursor.partition, None)
            then()
        for cursor in {row[0].partition: row[0] for row in arrived if not row[1].there}.values():
            cursor.markers = (cursor.markers or 0) + 1
        for cursor, entry, last in arrived:
            self._arrive(cursor, entry, last)
        if self._syncs is not None:
            self._syncs.commit()

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self._clocks_apart_s = time.time() - time.monotonic()  # somebody may have set the clock
        rows = []
        for tp, cursor in self._cursors.items():
            seen = cursor.glance()
            if self._reported.get(tp) != seen:
                self._reported[tp] = seen
                rows.append(cursor.progress().to_row())
        tally = {"tally": self.tally.to_json()} if rows else {}
        latency_ms, failure = self._latency(), self._failure()
        self._link.ask({"type": "progress", "partitions": rows, "latency_ms": latency_ms, "failure": failure, **tally})

    def _latency(self) -> list[int]:
        """p50, p99 and maximum of produce to acknowledgement on the target since the last report, in ms."""
        samples = sorted(self._latencies)
        self._latencies.clear()
        if not samples:
            return []
        return [samples[len(samples) // 2], samples[min(len(samples) - 1, len(samples) * 99 // 100)], samples[-1]]

    def _failure(self) -> str:
        failures = [self._source.failure, self._sink.failure, self._offsets_sink.failure]
        complaints = [outbox.complaint for outbox in self._positions.outboxes]
        if self._transactions is not None:
            complaints += self._transactions.complaints
        if self._syncs is not None:
            complaints.append(self._syncs.outbox.complaint)
        complaints.append(self._letters_complaint())
        return next((str(failure) for failure in (*failures, *complaints) if failure is not None), "")

    def _letters_complaint(self) -> KafkaFailure | None:
        """Why nothing can be put away at the moment."""
        return None if self._dead_letters is None else self._dead_letters.outbox.complaint

    def _starts(self) -> list[Any]:
        """For whoever goes on: what is known of each partition, clean where nothing of ours is unanswered."""
        if not (self._with_sessions and self._link.sound):
            return []
        rows = []
        for tp, cursor in self._cursors.items():
            if cursor.position < 0 or cursor.stopped or tp not in self._opening.sessions or cursor.skip:
                continue
            # A batch in doubt was counted by ``next``, also where it was dropped from the queue at the stop.
            is_in = cursor.outbox.idle and cursor.outbox.acked == cursor.outbox.next == cursor.records
            # Without a name it waits for the ledger's entry of a session that has just been opened.
            is_entered = self._ledger is None or self._positions.is_entered(tp)
            # What waits for a commit relies on it: nothing may be sent before the ledger has it.
            clean = is_in and is_entered and not cursor.outbox.nameless and tp not in self._waiting
            # One that is paused with nothing to send was found to be in other hands: more is on the target than it has sent. And a
            # look-up of which no acknowledgement has followed may have asked a deposed leader (rule S6).
            clean = clean and not cursor.outbox.paused and cursor.outbox.verified_epoch is None
            committed = self._positions.committed.get(tp)
            # Also after a hand-over that is not clean: or a position of ours that lands later would be taken for a user's (rule C4).
            seen = self._positions.seen(tp)
            entry = self._entry(cursor).replace(previous=committed, seen=seen)
            start = Start(cursor.position, committed, entry, cursor.trail.newest, clean, seen=seen)
            rows.append([tp.topic, tp.partition, start.to_json()])
        return rows

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def _finish_commit(self, committing: asyncio.Task[None]) -> None:
        """Wait for the transaction that was being committed at the stop. One that takes too long stays the last one."""
        deadline = time.monotonic() + self._link.drain_s
        while not committing.done() and time.monotonic() < deadline:
            self._renew_lease()
            await asyncio.wait({committing}, timeout=_FINISH_POLL_S)
        if not committing.done():
            self._log.warning("stopped before the last transaction was committed")
            self._outdone = True
            committing.cancel()
            await asyncio.wait({committing})

    async def _drain(self) -> None:
        """Wait for what is under way, then commit and wait for that too; bounded, the target may be gone."""
        link = self._link
        if not link.may_write():
            self._log.warning("stopped without a last commit: others may have gone on from an older one long ago")
            return
        deadline = time.monotonic() + link.drain_s
        # What was never sent is dropped: the successor reads it again, and a long queue must not hold up the stop.
        outboxes = [cursor.outbox for cursor in self._cursors.values()]
        for outbox in outboxes:
            outbox.queue = deque(outgoing for outgoing in outbox.queue if outgoing.at >= 0)

        def is_drained(outbox: Outbox) -> bool:
            return (
                outbox.idle
                or outbox.refused
                or outbox.stopped
                or (outbox.aside and self._letters_complaint() is not None)
            )

        while not all(is_drained(outbox) for outbox in outboxes):
            self._renew_lease()
            if time.monotonic() > deadline:
                self._log.warning("stopped with batches unanswered by the target")
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        for outbox in outboxes:
            if not outbox.sent:
                outbox.queue.clear()
        if self._transactions is not None:
            await self._last_transaction(deadline)
        self._commit(ending=True)
        while time.monotonic() < deadline:
            self._commit(ending=True)
            # A sync that cannot be written is no loss, the next one says as much; it must not hold up the stop.
            syncs_idle = self._syncs is None or self._syncs.idle or self._syncs.outbox.complaint is not None
            if self._positions.idle and syncs_idle and (self._transactions is not None or self._all_written()):
                return
            self._renew_lease()
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _renew_lease(self) -> None:
        """Ask the driver, once a second: nothing is written any more when it does not answer."""
        if self._link.asked_s >= channel.REPORT_INTERVAL_S:
            self._report()

    async def _last_transaction(self, deadline: float) -> None:
        transactions = self._transactions
        if transactions is None or self._outdone:
            return  # the next one could be committed although this one was not
        with contextlib.suppress(asyncio.TimeoutError, KafkaFailure):
            left_s = max(0.1, deadline - time.monotonic())
            if self._arrived and self._link.stop_requested:
                await asyncio.wait_for(self._commit_transaction(), left_s)
            elif self._arrived:
                await asyncio.wait_for(transactions.abort(), left_s)
            if self._link.stop_requested and not self._outdone:
                self._tell_of_standstills()

    def _all_written(self) -> bool:
        return all(
            cursor.position < 0 or self._written.get(tp, ())[:3] == self._state_of(cursor)[:3]
            for tp, cursor in self._cursors.items()
        )

    def _mishap(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error in a callback."""
        self._link.fail(context.get("exception"), context["message"])

    async def _call(self, call: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._background, lambda: call(*args))


def _state(mark: Mark, lost: int, foreign: int, trouble: PartitionCondition | None, note: str) -> tuple[Any, ...]:
    what = "" if trouble is None else f"{trouble.state} {trouble.offset} {trouble.since_ms}"
    return mark, lost, foreign, what, note


def _before(start: Start) -> PreviousCommit:
    """What the ledger says where a partition's copying begins."""
    entry, chunk = start.entry, start.chunk or SegmentChunk(0)
    if entry is None:
        return PreviousCommit(Mark(start.position or 0, -1, 0), {}, chunk.number, chunk.extent(), 0)
    state = None
    if not start.moved:
        state = SourceState(
            entry.source_id, entry.source_epoch, entry.known_epoch, entry.end, entry.retired, entry.session
        )
    return PreviousCommit(entry.mark, dict(entry.gaps), chunk.number, chunk.extent(), len(entry.lost), state)
