"""The executor's side of one micro-batch: lease, fetch, produce, commit and report until the stop.

Steps: connect to the driver; open everything that needs no reading or writing; report *ready*; wait for the lease and the start
offsets; copy. At *stop*, or when the driver does not answer for 5 s or its connection is closed: stop reading, wait for
requests in flight, commit, report the final positions. Nothing is written after the final report.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections import deque
from typing import Any, Final

import structlog

from mm2.codec import decode, encode
from mm2.copy import channel
from mm2.copy.changes import REENCODING_SLICE_S, Changer, TimeSlice, record_changes
from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.clusters.discovery import partition_count, producer_expiration_ms, uncompacted
from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.commit.commits import Commits, TransactionCommits
from mm2.copy.executor.commit.positions import SEEN_AFTER_S, PendingRecords, Positions
from mm2.copy.executor.commit.transaction import TaskTransactions
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.events import PartitionEvent
from mm2.copy.executor.partition.fetched_batches import MISSING
from mm2.copy.executor.partition.outbox import OutboxState
from mm2.copy.executor.partition_events import PartitionEvents
from mm2.copy.executor.producing.outbox_events import ReportedEvent
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.executor.reports import Reports, progress_of
from mm2.copy.executor.sessions.continued_sessions import ContinuedSessions
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.executor.sessions.new_sessions import NewSessions
from mm2.copy.executor.sessions.opening import Opening
from mm2.copy.executor.sessions.session_table import SessionTable
from mm2.copy.executor.sessions.target_search import TargetSearch
from mm2.copy.executor.target.dead_letters import DeadLetters, Quarantine
from mm2.copy.executor.target.gap_fills import GapFills
from mm2.copy.executor.target.size_limits import SizeLimits
from mm2.copy.executor.target.target_watch import TargetWatch
from mm2.copy.progress.session import CopyId, Lease, Start
from mm2.copy.spec import Assignment
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition

ROOM_BYTES: Final = 48 << 20
DRAIN_TIMEOUT_S: Final = 8.0
_PREPARE_TIMEOUT_S: Final = 5.0
_CLOCK_WARN_MS: Final = 2_000
_POLL_S: Final = 0.001
_FINISH_POLL_S: Final = 0.25


class Copier:
    """Copies the partitions of one lane for one micro-batch."""

    def __init__(self, assignment: Assignment, attempt: int) -> None:
        self._link = DriverLink(assignment, attempt, DRAIN_TIMEOUT_S)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._awake = AwakeCursors()
        self._reports = Reports(self._link, self._awake)
        self._quarantine: Quarantine | None = None
        self._changer: Changer | None = None
        self._events: PartitionEvents | None = None
        self._learning: asyncio.Task[None] | None = None
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
        self._endpoints = endpoints = Endpoints(spec)
        self._call = endpoints.call
        final: dict[str, Any] = {"type": "final", "reason": "", "partitions": [], "starts": []}
        try:
            if spec.changes is not None:
                changes = await self._call(record_changes, spec.changes)
                self._changer = Changer(changes, loop.call_soon, spec.source.decompression_max_bytes)
            await endpoints.open(
                room=self._has_room,
                look_up=self._look_up if spec.with_sessions else None,
                report=self._handle_outbox,
                may_send=link.may_write,
            )
            self._source, self._sink = endpoints.source, endpoints.sink
            link.on_message = self._on_message
            if await self._prepared():
                link.send({"type": "ready"})
                if await link.until_stop(link.lease) and await self._begun():
                    # Objects created so far are permanent; exclude them from garbage collection.
                    gc.freeze()
                    await self._work()
                    self._source.close()
                    await self._drain()
            final["reason"] = link.reason
            final["partitions"] = [progress_of(cursor) for cursor in self._reported()]
            final["starts"] = self._starts()
            final["attempts"] = [] if self._changer is None else self._changer.attempts()
            final["tally"] = encode(self._reports.tally)
            link.release(final)
            await link.flush(2)
        finally:
            endpoints.close()
            if self._changer is not None:
                self._changer.close()
        return link.reason

    def _reported(self) -> list[Cursor]:
        """Those that this micro-batch copies; all if it ends before it has a start position."""
        expected = self._awake.expected if self._link.start.done() else ()
        return [cursor for cursor in self._cursors.values() if cursor not in expected]

    # -- starting --------------------------------------------------------------------------------------------------

    async def _prepared(self) -> bool:
        """Open what does not need the lease: leaders, internal topics. Retries until it succeeds; False at the stop."""
        spec, sink, endpoints = self._spec, self._sink, self._endpoints
        limit = spec.source.decompression_max_bytes
        reencoding = TimeSlice(REENCODING_SLICE_S, asyncio.get_running_loop().call_soon)
        for part in spec.partitions:
            outbox = sink.outbox(
                part.target, idempotent=True, transactional=spec.transactions is not None, source=part.source
            )
            emit = functools.partial(self._handle, part.source)
            tally = self._reports.tally
            cursor = Cursor(
                part,
                outbox,
                emit,
                tally,
                spec.read_committed,
                self._changer,
                limit,
                reencoding,
                with_preserved_offsets=part.topic in spec.preserved,
            )
            cursor.copy_id = CopyId(spec.group, spec.connector)
            self._cursors[part.source] = cursor
            self._awake.expected.add(cursor)
            if spec.changes is not None and spec.changes.not_repeatable:
                cursor.annotate(f"at least once: {spec.changes.not_repeatable}")
            cursor.suspended = True  # until its start position is known: an early end must not report a position
        for cursor in self._cursors.values():
            if (shared := cursor.outbox.shared) is not None:
                cursor.window.others = shared.acknowledged
        since = time.monotonic()
        while not self._link.stop.is_set():
            try:
                await sink.find_leaders(part.remote_topic for part in spec.partitions)
                offsets_partitions = await self._call(partition_count, endpoints.offsets_cluster, spec.offsets_topic)
            except KafkaFailure as error:
                # A broker that has just started loads its transaction state; report only errors that last.
                if not error.retriable or time.monotonic() - since > _PREPARE_TIMEOUT_S:
                    self._link.ask({"type": "waiting", "reason": str(error)})
                await self._link.pause(0.25)
                continue
            sink.connect()
            await self._source_prepared()
            self._assemble(offsets_partitions)
            self._continued.check_rights()
            self._learning = asyncio.get_running_loop().create_task(self._learn_expiration())
            return True
        return False

    def _assemble(self, offsets_partitions: int) -> None:
        """Create what opens, commits and handles the events of cursors."""
        spec, link, endpoints, cursors = self._spec, self._link, self._endpoints, self._cursors
        source, sink, tasks = self._source, self._sink, BackgroundTasks(link)
        self._sessions = sessions = SessionTable(spec, self._changer)
        self._commits = commits = self._make_commits(offsets_partitions)
        self._new_sessions = new_sessions = NewSessions(spec, link, tasks, endpoints, cursors, sessions, commits.then)
        source_admin = Admin(endpoints.source_cluster)
        losses = Losses(spec, tasks, source, source_admin, sessions, new_sessions, self._call, commits.then)
        self._tasks = tasks
        self._watch = TargetWatch(link, sink, endpoints.target_cluster, self._call, cursors, tasks, losses)
        self._fills = fills = GapFills(link, tasks, endpoints, losses, commits.then)
        self._continued = ContinuedSessions(
            spec, link, tasks, endpoints, cursors, sessions, commits.then, new_sessions, losses
        )
        self._opening = Opening(spec, sink, tasks, cursors, sessions, self._continued, new_sessions, fills.settle)
        search = TargetSearch(spec, link, tasks, endpoints, sessions, new_sessions)
        if spec.dead_letter_topic is not None:
            letters = DeadLetters(sink, spec.dead_letter_topic, spec.flow)
            self._quarantine = Quarantine(letters, source, sink, commits.then, new_sessions.replace)
        self._events = PartitionEvents(
            link,
            source,
            sink,
            cursors,
            self._awake,
            new_sessions,
            search,
            losses,
            commits,
            fills,
            self._quarantine,
            SizeLimits(tasks, endpoints),
            self._watch,
        )

    async def _learn_expiration(self) -> None:
        """Find out how long the target's brokers remember producers."""
        if not self._spec.with_sessions:
            return
        try:
            expiration_ms = await asyncio.wait_for(
                self._call(producer_expiration_ms, self._endpoints.target_cluster), _PREPARE_TIMEOUT_S
            )
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
        found = await self._call(uncompacted, self._endpoints.source_cluster, topics)
        for cursor in self._cursors.values():
            if cursor.spec.topic in found:
                cursor.window.hole_reason = MISSING

    def _make_commits(self, offsets_partitions: int) -> Commits:
        spec = self._spec

        def stage(sink: Sink, topic: str) -> PendingRecords:
            return PendingRecords(
                lambda partition: sink.outbox(TopicPartition(topic, partition), idempotent=False), sink.put
            )

        ledger = None if spec.ledger_topic is None else stage(self._sink, spec.ledger_topic)
        self._positions = Positions(
            stage(self._endpoints.offsets_sink, spec.offsets_topic) if spec.transactions is None else None,
            ledger,
            partitions=offsets_partitions,
            connector=spec.connector,
            source_alias=spec.source_alias,
            # Short micro-batches must advance it, too.
            seen_after_s=min(SEEN_AFTER_S, spec.batch_duration_ms / 4000),
        )
        written = (
            self._cursors,
            self._positions,
            ledger,
            spec.ledger_topic,
            self._sink,
            self._sessions.current,
            self._endpoints.syncs,
            self._reports.arrived,
            self._awake,
        )
        if spec.transactions is None:
            return Commits(*written)
        transactions = TaskTransactions(
            self._endpoints.target_cluster,
            spec.transactions,
            self._sink,
            spec.offsets_topic,
            self._call,
            lambda error: self._link.end(f"the transaction failed: {error}"),
        )
        return TransactionCommits(self._link, transactions, *written)

    async def _begun(self) -> bool:
        """Take over from the predecessor and start every partition at its position; False at the stop."""
        link = self._link
        if not await self._commits.claim():
            return False
        # From here on the predecessor's transaction has ended, so the positions are final.
        began_s = channel.now_s()
        asking = asyncio.get_running_loop().create_task(self._keep_lease(began_s))
        try:
            begun = await link.until_stop(link.start)
        finally:
            asking.cancel()
        # The driver may have read the positions before both processes were frozen, and another worker may copy by now.
        if not begun or self._ended_with_lease(began_s):
            return False
        self._start(link.start.result())
        return True

    def _ended_with_lease(self, began_s: float) -> bool:
        """Whether the driver has not responded for too long since ``began_s``; then the micro-batch ends."""
        unanswered_s = min(self._link.unanswered_s, channel.now_s() - began_s)
        if unanswered_s > channel.LEASE_TIMEOUT_S:
            self._link.end(f"no message from the driver for {channel.LEASE_TIMEOUT_S:.0f} s")
        return unanswered_s > channel.LEASE_TIMEOUT_S

    async def _keep_lease(self, began_s: float) -> None:
        """Renew the lease while nothing is being copied. One that has expired is not renewed."""
        while not self._ended_with_lease(began_s):
            self._link.ask({"type": "claimed"})
            await asyncio.sleep(channel.REPORT_INTERVAL_S)

    def _start(self, message: dict[str, Any]) -> None:
        """Start partitions at the positions sent by the driver. It sends those of others when their holders have ended."""
        rows = message["starts"]
        if self._changer is not None:
            self._changer.continue_attempts(message["attempts"])
        starts = {TopicPartition(topic, partition): decode(Start, start) for topic, partition, start in rows}
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
            self._commits.start(tp, start)
            self._awake.begin(self._cursors[tp])
        self._opening.begin(starts)

    def _handle(self, partition: TopicPartition, event: PartitionEvent) -> None:
        if self._events is not None:
            self._events.handle(partition, event)
        elif (cursor := self._cursors.get(partition)) is not None:
            self._awake.wake(cursor)  # nothing is read or written yet

    def _handle_outbox(self, event: ReportedEvent) -> None:
        if self._events is not None:
            self._events.handle_outbox(event)

    async def _look_up(self, questions: Any) -> Any:
        return await self._continued.look_up(questions)

    # -- copying -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        self._tasks.spawn(self._watch.run())
        commit_s = self._spec.commit_interval_ms / 1000
        link, commits = self._link, self._commits
        self._reports.compare_clocks()
        now = time.monotonic()
        next_commit, next_report = now + commit_s, now + 0.2
        while not link.stop.is_set():
            now = time.monotonic()
            if link.unanswered_s > channel.LEASE_TIMEOUT_S:
                link.end(f"no message from the driver for {channel.LEASE_TIMEOUT_S:.0f} s")
                break
            due_s = commits.commit_due()
            if now >= next_commit:
                commits.commit()
                next_commit = now + commit_s
            if now >= next_report:
                self._report()
                next_report = now + channel.REPORT_INTERVAL_S
            await link.pause(min(due_s, max(0.005, min(next_commit, next_report) - time.monotonic())))
        await commits.finish(self._renew_lease, _FINISH_POLL_S)

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "throttle":
            self._endpoints.throttle.set(float(message["rate"]), dict(message["topics"]))
            self._source.resume()
        elif message["type"] == "pause":
            self._pause(message["partitions"])
        elif message["type"] == "start" and not self._ended_with_lease(0.0) and not self._link.stop.is_set():
            # After the end of the lease other workers may have copied on from there (rule S7).
            self._start(message)

    def _pause(self, rows: list[Any]) -> None:
        """Replace the set of paused partitions; each row has a reason and a time (ms)."""
        wanted = {TopicPartition(topic, partition): (reason, since_ms) for topic, partition, reason, since_ms in rows}
        for tp, cursor in self._cursors.items():
            if tp in wanted:
                cursor.pause(*wanted[tp])
            elif cursor.conditions.paused is not None:
                cursor.resume()
                self._new_sessions.resume(tp)
        self._source.reconsider(self._cursors)

    def _has_room(self) -> bool:
        awake = self._awake.uncommitted  # at rest nothing waits
        if sum(cursor.window.waiting_bytes for cursor in awake) < ROOM_BYTES:
            return True
        # Batches that the target rejects wait until the cause is fixed. They must not block other partitions.
        waiting = (cursor.window.waiting_bytes for cursor in awake if not cursor.stuck)
        return sum(waiting) < ROOM_BYTES

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self._reports.report(self._failure())

    def _failure(self) -> str:
        failures = [self._source.failure, self._sink.failure, self._endpoints.offsets_sink.failure]
        errors = self._commits.errors
        if self._endpoints.syncs is not None:
            errors.append(self._endpoints.syncs.outbox.last_error)
        errors.append(self._dead_letter_error())
        return next((str(failure) for failure in (*failures, *errors) if failure is not None), "")

    def _dead_letter_error(self) -> KafkaFailure | None:
        """Why the dead letter topic cannot be written at the moment."""
        return None if self._quarantine is None else self._quarantine.last_error

    def _starts(self) -> list[Any]:
        """The known state of each partition for the successor, clean where nothing is unanswered."""
        if not (self._spec.with_sessions and self._link.healthy):
            return []
        rows = []
        for tp, cursor in self._cursors.items():
            if (
                cursor.window.position < 0
                or cursor.stopped
                or tp not in self._sessions.current
                or cursor.predecessor.remaining
            ):
                continue
            # ``next`` counts a batch with unknown outcome, also when it was removed from the queue at the stop.
            is_in = cursor.outbox.idle and cursor.outbox.acked == cursor.outbox.next == cursor.window.records
            # Without a producer id it waits for the ledger entry of a new session.
            is_entered = not self._commits.has_ledger or self._positions.is_entered(tp)
            # Callbacks that wait for a commit depend on it: nothing may be sent before the ledger has it.
            clean = is_in and is_entered and not cursor.outbox.needs_producer_id and not self._commits.is_awaited(tp)
            # A paused outbox with nothing to send was fenced: the target has more records than it has sent. And a look-up without a
            # later acknowledgement may have been answered by a deposed leader (rule S6).
            clean = clean and not cursor.outbox.paused and cursor.outbox.verified_epoch is None
            clean = clean and not (cursor.outbox.is_unverified or cursor.outbox.is_cut_off)
            clean = clean and cursor.outgoing.is_settled(cursor.window.position)
            committed = self._positions.committed.get(tp)
            # Also after an unclean hand-off: otherwise a late position of this executor would count as a user's (rule C4).
            seen = self._positions.seen(tp)
            entry = self._commits.entry(cursor).replace(previous=committed, seen=seen)
            trail = cursor.window.trail
            start = Start(
                cursor.window.position, committed, entry, trail.newest, clean, seen=seen, unwritten=trail.unwritten()
            )
            rows.append([tp.topic, tp.partition, encode(start)])
        return rows

    # -- stopping ------------------------------------------------------------------------------------------------------

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
        for cursor in self._cursors.values():
            cursor.outgoing.stop()

        def is_drained(cursor: Cursor) -> bool:
            outbox = cursor.outbox
            is_filling = cursor.is_preserved and self._fills.is_working
            return (
                (outbox.idle and not cursor.window.is_searching and not is_filling)
                or outbox.refused
                or outbox.stopped
                or (outbox.state is OutboxState.QUARANTINING and self._dead_letter_error() is not None)
            )

        while not all(is_drained(cursor) for cursor in self._cursors.values()):
            self._renew_lease()
            if time.monotonic() > deadline:
                self._log.warning("stopped with unanswered batches")
                break
            await asyncio.sleep(_POLL_S)
        for outbox in outboxes:
            if not outbox.sent:
                outbox.queue.clear()
        for cursor in self._cursors.values():
            cursor.pass_others()
        await self._commits.end(deadline)
        self._commits.commit(ending=True)
        while time.monotonic() < deadline:
            self._commits.commit(ending=True)
            if self._commits.is_complete:
                return
            self._renew_lease()
            await asyncio.sleep(_POLL_S)

    def _renew_lease(self) -> None:
        """Ask the driver once a second: nothing is written after it has stopped responding."""
        if self._link.asked_s >= channel.REPORT_INTERVAL_S:
            self._report()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error in a callback."""
        self._link.fail(context.get("exception"), context["message"])
