"""The executor's side of one micro-batch: lease, fetch, produce, commit, report, until told to stop.

Order of one life: connect to the driver, open everything that can be opened without reading or writing, say *ready*,
wait for the lease with the start offsets, copy, and at *stop* (or when the driver is silent for 5 s, or gone) read no
more, wait for what is under way, commit, report the final positions. After the final report nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from mm2.copy import channel
from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.positions import Positions
from mm2.copy.executor.sink import Sink
from mm2.copy.executor.source import FetchLimits, Source
from mm2.copy.executor.syncs import Syncs
from mm2.copy.executor.window import Window
from mm2.copy.spec import Assignment, CopySpec
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.kafka.wire.channel import BufferPool

ROOM_BYTES: Final = 48 << 20
DRAIN_TIMEOUT_S: Final = 8.0
_LATENCY_SAMPLES: Final = 4096
_NEWS_AFTER_S: Final = 5.0
_HELD_UP_COMMIT_S: Final = 0.01
_EARLY_COMMIT_S: Final = 0.1
_COMMIT_S_PER_PARTITION: Final = 0.0005


class Copier:
    """Copies the partitions of one lane for one micro-batch."""

    def __init__(self, assignment: Assignment, attempt: int) -> None:
        self._assignment = assignment
        self._attempt = attempt
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._looked_up: set[TopicPartition] = set()  # whose range on the source is being asked for
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._drain_s = DRAIN_TIMEOUT_S
        self._commit_due: asyncio.TimerHandle | None = None
        self._commit_due_s = 0.0
        self._committed_at = 0.0
        self._last_word = self._asked_at = time.monotonic()
        self._reported: dict[TopicPartition, list[Any]] = {}
        self._latencies: list[int] = []
        self._log = structlog.get_logger(__name__)

    async def run(self) -> dict[str, Any]:
        """The whole life; returns the final report. Raises OSError or ValueError when the driver cannot be reached."""
        host, port, pin = self._assignment.host, self._assignment.port, self._assignment.fingerprint
        tls = channel.client_tls() if pin else None
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, limit=channel.MAX_LINE_BYTES, ssl=tls), 10
        )
        self._writer = writer
        try:
            if pin:
                channel.verify_pin(writer.get_extra_info("ssl_object"), pin)
            await asyncio.wait_for(self._authenticate(reader), 10)
            return await self._copy(reader)
        finally:
            writer.close()

    async def _authenticate(self, reader: asyncio.StreamReader) -> None:
        secret, batch = self._assignment.secret, self._assignment.batch
        challenge = channel.decode(await reader.readline())["nonce"]
        own = channel.nonce()
        mac = channel.proof(secret, "executor", challenge, batch, self._attempt)
        self._send({"batch": batch, "attempt": self._attempt, "nonce": own, "mac": mac})
        answer = channel.decode(await reader.readline())
        if not channel.proves(answer.get("mac"), secret, "driver", own):
            message = "whoever answered on the progress channel is not our driver"
            raise ValueError(message)
        self._spec = CopySpec.from_json(answer["spec"])

    async def _copy(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        spec = self._spec
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._mishap)
        _forward_logs(loop, self._send)
        # A bound logger keeps the configuration it was bound under.
        self._log = structlog.get_logger(__name__).bind(batch=self._assignment.batch, flow=spec.flow)
        lease: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        listener = loop.create_task(self._listen(reader, lease))
        background = ThreadPoolExecutor(4, thread_name_prefix="copier")
        pool = BufferPool()
        source_cluster = Cluster(spec.source, name=spec.source_alias)
        target_cluster = Cluster(spec.target, name=spec.target_alias)
        clusters = [source_cluster, target_cluster]
        sink = Sink(target_cluster, loop, background, pool)
        sync_sink = sink
        if spec.syncs is not None and spec.syncs.settings.bootstrap != spec.target.bootstrap:
            sync_cluster = Cluster(spec.syncs.settings, name=spec.source_alias)
            clusters.append(sync_cluster)
            sync_sink = Sink(sync_cluster, loop, background, pool)
        limits = FetchLimits(spec.fetch_max_bytes, spec.fetch_partition_bytes, spec.fetch_max_wait_ms)
        source = Source(
            source_cluster, loop, background, pool, limits, read_committed=spec.read_committed, room=self._has_room
        )
        self._source, self._sink, self._admin = source, sink, Admin(source_cluster)
        self._background = background
        final: dict[str, Any] = {"type": "final", "state": "stopped", "reason": "", "partitions": []}
        try:
            if await self._prepared(sink, target_cluster):
                syncs = None if spec.syncs is None else Syncs(sync_sink, spec.syncs.topic, spec.syncs.lag_max)
                self._syncs = syncs
                self._send({"type": "ready"})
                await self._until_stop(lease)
                if lease.done() and not self._stop.is_set():
                    self._start(lease.result())
                    await self._work()
                    source.stop()
                    await self._drain(sync_sink)
            final["reason"] = self._stop_reason
            final["partitions"] = [cursor.progress().to_row() for cursor in self._cursors.values()]
            self._send(final)
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._writer.drain(), 2)
        finally:
            listener.cancel()
            source.stop()
            sink.close()
            sync_sink.close()
            background.shutdown(wait=False, cancel_futures=True)
            for cluster in clusters:
                cluster.close()
        return final

    # -- the driver's word -----------------------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(channel.encode(message))

    async def _listen(self, reader: asyncio.StreamReader, lease: asyncio.Future[Mapping[str, Any]]) -> None:
        try:
            while line := await reader.readline():
                message = channel.decode(line)
                if message["type"] == "go":
                    # It may lie unread while we are frozen, so it counts from our question.
                    self._last_word = max(self._last_word, self._asked_at)
                elif message["type"] == "lease" and not lease.done():
                    self._last_word = time.monotonic()
                    lease.set_result(message)
                elif message["type"] == "stop":
                    self._drain_s = float(message["drain_s"])
                    self._end("the driver said stop")
            self._end("the driver is gone")
        except (OSError, ValueError) as error:
            self._end(f"the progress channel broke: {error}")

    def _end(self, reason: str) -> None:
        if not self._stop.is_set():
            self._stop_reason = reason
            self._stop.set()

    async def _until_stop(self, other: asyncio.Future[Any], timeout_s: float | None = None) -> None:
        """Wait for ``other`` or the stop, whichever comes first; ``other`` is not cancelled."""
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({other, stop}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    # -- starting --------------------------------------------------------------------------------------------------

    async def _prepared(self, sink: Sink, target: Cluster) -> bool:
        """Open what needs no lease: producer id, leaders, the offsets topic. Retried until it works; False at stop."""
        spec = self._spec
        for part in spec.partitions:
            cursor_outbox = sink.outbox(part.target, idempotent=True)
            self._cursors[part.source] = Cursor(
                part,
                cursor_outbox,
                -1,  # no position until the lease says where to start: nothing may be concluded from an early end
                spec.read_committed,
                put=sink.put,
                on_acked=self._acked,
                on_failed=self._source_failed,
                on_over=lambda cursor: self._source.remove(cursor.partition),
                on_renewed=self._created_anew,
            )
            cursor_outbox.on_refused = self._cursors[part.source].refused
        since = time.monotonic()
        while not self._stop.is_set():
            try:
                await sink.identify([cursor.outbox for cursor in self._cursors.values()])
                metadata = await self._call(target.metadata, [spec.offsets_topic])
                info = metadata.topics.get(spec.offsets_topic)
                if info is None:
                    subject = f"topic {spec.offsets_topic} of cluster {spec.target_alias}"
                    raise metadata.errors.get(spec.offsets_topic) or BrokerFailure.of(3, subject=subject)
            except KafkaFailure as error:
                # A broker that has just started still loads its transaction state; only what lasts is news.
                if not error.retriable or time.monotonic() - since > _NEWS_AFTER_S:
                    self._send({"type": "waiting", "reason": str(error)})
                await self._pause(0.25)
                continue
            self._positions = Positions(
                sink, spec.offsets_topic, len(info.partitions), spec.connector, spec.source_alias, self._committed
            )
            return True
        return False

    def _start(self, lease: Mapping[str, Any]) -> None:
        """Put every cursor at its start offset: the given one at once, else where ``auto.offset.reset`` says."""
        offsets = {TopicPartition(topic, partition): offset for topic, partition, offset in lease["offsets"]}
        fresh = []
        for tp, cursor in self._cursors.items():
            start = offsets.get(tp)
            if start is None:
                fresh.append(tp)
                continue
            cursor.offset = cursor.position = start
            self._positions.start_at(tp, start)
        self._source.add(self._cursors[tp] for tp in self._cursors if tp not in set(fresh))
        if fresh:
            self._fresh = asyncio.get_running_loop().create_task(self._start_fresh(fresh))

    async def _start_fresh(self, missing: list[TopicPartition]) -> None:
        """Find where partitions without a committed position begin; one that cannot be told holds up no other."""
        reset = self._spec.auto_offset_reset
        if reset == "none":
            for tp in missing:
                self._cursors[tp].fail(f"{tp} has no committed position and auto.offset.reset is none")
            return
        when = dict.fromkeys(missing, LATEST if reset == "latest" else EARLIEST)
        if reset.startswith("by_duration:"):
            when = dict.fromkeys(missing, int(time.time() * 1000) - _duration_ms(reset.removeprefix("by_duration:")))
        while when and not self._stop.is_set():
            try:
                results = await self._call(self._admin.list_offsets, when)
            except KafkaFailure as error:
                results = dict.fromkeys(when, error)
            found = []
            for tp, result in results.items():
                cursor = self._cursors[tp]
                if isinstance(result, OffsetInfo) and result.offset >= 0:
                    cursor.offset = cursor.position = result.offset
                    found.append(cursor)
                    del when[tp]
                elif isinstance(result, OffsetInfo):
                    when[tp] = LATEST  # nothing is as young as asked: the end
                else:
                    cursor.state, cursor.reason = "waiting", str(result)
            self._source.add(found)
            if when:
                await self._pause(0.5)

    # -- copying ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        commit_s = self._spec.commit_interval_ms / 1000
        now = time.monotonic()
        next_commit, next_report = now + commit_s, now + 0.2
        while not self._stop.is_set():
            now = time.monotonic()
            if now - self._last_word > channel.LEASE_TIMEOUT_S:
                self._end(f"the driver said nothing for {channel.LEASE_TIMEOUT_S:.0f} s")
                return
            if now >= next_commit:
                self._commit()
                next_commit = now + commit_s
            if now >= next_report:
                self._report()
                next_report = now + channel.REPORT_INTERVAL_S
            await self._pause(max(0.005, min(next_commit, next_report) - time.monotonic()))

    def _has_room(self) -> bool:
        # What a target refuses waits for somebody to mend it, and must not hold up the others meanwhile.
        waiting = (cursor.waiting_bytes for cursor in self._cursors.values() if not cursor.stuck)
        return sum(waiting) < ROOM_BYTES

    def _acked(self, cursor: Cursor, first: int, last: int, target_base: int, count: int, newest_ms: int) -> None:
        if self._syncs is not None:
            self._syncs.acked(cursor.partition, first, last, target_base, count)
        if newest_ms > 0 and len(self._latencies) < _LATENCY_SAMPLES:
            self._latencies.append(int(time.time() * 1000) - newest_ms)
        self._commit_when_wanted(cursor.outbox.window)
        self._source.resume()

    def _source_failed(self, cursor: Cursor, failure: BrokerFailure) -> None:
        if failure.code == ErrorCode.OFFSET_OUT_OF_RANGE and cursor.partition not in self._looked_up:
            self._looked_up.add(cursor.partition)
            asyncio.get_running_loop().create_task(self._out_of_range(cursor))

    async def _out_of_range(self, cursor: Cursor) -> None:
        """The source has no such offset: records were deleted under us (counted as lost), or the log begins anew."""
        tp = cursor.partition
        try:
            start = (await self._call(self._admin.list_offsets, {tp: EARLIEST}))[tp]
            end = (await self._call(self._admin.list_offsets, {tp: LATEST}))[tp]
        except KafkaFailure as error:
            self._log.info("could not look up the log's range", partition=str(tp), error=str(error))
            return
        finally:
            self._looked_up.discard(tp)
        if isinstance(start, KafkaFailure) or isinstance(end, KafkaFailure) or cursor.state == "failed":
            return
        if cursor.offset < start.offset:
            lost = f"offsets {cursor.offset}..{start.offset - 1} of {tp} were deleted on {self._spec.source_alias} before they were copied"
            if self._spec.lost_range_policy == "stop":
                cursor.fail(f"{lost}; source.data.loss is stop")
                return
            self._log.error("records lost to retention", partition=str(tp), first=cursor.offset, last=start.offset - 1)
            cursor.jump(start.offset, "retention")
        elif cursor.offset > end.offset:
            message = f"{tp} ends at {end.offset} on {self._spec.source_alias}, but {cursor.offset} offsets were copied: it was truncated or created anew"
            if self._spec.lost_range_policy == "stop" or self._spec.auto_offset_reset == "none":
                cursor.fail(message)
                return
            self._log.error("source log is shorter than what was copied", partition=str(tp), reason=message)
            if cursor.idle:
                cursor.jump(end.offset if self._spec.auto_offset_reset == "latest" else start.offset, "truncated")

    def _created_anew(self, cursor: Cursor) -> None:
        """Another topic of the same name: from its start, or all that it has up to our offset would be missing."""
        if self._spec.lost_range_policy == "stop":
            cursor.fail(f"{cursor.partition} was deleted and created anew; source.data.loss is stop")
        else:
            cursor.jump(0, "truncated")

    def _commit_when_wanted(self, window: Window) -> None:
        """Commit out of turn when a partition gets far ahead: soon, and at once when its window holds it up."""
        if not window.wants_commit:
            return
        pause_s = _HELD_UP_COMMIT_S if window.was_limit else _EARLY_COMMIT_S
        # More partitions mean longer between such commits, so that they stay a small part of the work.
        due_s = self._committed_at + max(pause_s, len(self._cursors) * _COMMIT_S_PER_PARTITION)
        if self._commit_due is not None:
            if due_s >= self._commit_due_s:
                return
            self._commit_due.cancel()
        self._commit_due_s = due_s
        delay_s = max(0.0, due_s - time.monotonic())
        self._commit_due = asyncio.get_running_loop().call_later(delay_s, self._commit_early)

    def _commit_early(self) -> None:
        self._commit_due = None
        # After a freeze others may have gone on; `_work` ends us then.
        if not self._stop.is_set() and time.monotonic() - self._last_word <= channel.LEASE_TIMEOUT_S:
            self._commit_positions()

    def _commit_positions(self) -> None:
        self._committed_at = time.monotonic()
        self._positions.commit((tp, cursor.position, cursor.records) for tp, cursor in self._cursors.items())

    def _committed(self, source: TopicPartition, records: int) -> None:
        """The position behind the first ``records`` records of this micro-batch is in."""
        cursor = self._cursors[source]
        self._sink.confirm(cursor.outbox, records - cursor.committed_records)
        cursor.committed_records = records

    def _commit(self) -> None:
        self._commit_positions()
        if self._syncs is not None:
            self._syncs.commit()

    def _report(self) -> None:
        rows = []
        for tp, cursor in self._cursors.items():
            row = cursor.progress().to_row()
            if self._reported.get(tp) != row:
                self._reported[tp] = row
                rows.append(row)
        self._asked_at = time.monotonic()
        self._send({"type": "progress", "partitions": rows, "latency_ms": self._latency(), "failure": self._failure()})

    def _latency(self) -> list[int]:
        """p50, p99 and maximum of produce to acknowledgement on the target since the last report, in ms."""
        samples = sorted(self._latencies)
        self._latencies.clear()
        if not samples:
            return []
        return [samples[len(samples) // 2], samples[min(len(samples) - 1, len(samples) * 99 // 100)], samples[-1]]

    def _failure(self) -> str:
        failures = [self._source.failure, self._sink.failure]
        complaints = [outbox.complaint for outbox in self._positions.outboxes]
        if self._syncs is not None:
            complaints.append(self._syncs.outbox.complaint)
        return next((str(failure) for failure in (*failures, *complaints) if failure is not None), "")

    # -- stopping --------------------------------------------------------------------------------------------------

    async def _drain(self, sync_sink: Sink) -> None:
        """Wait for what is under way, then commit and wait for that too; bounded, the target may be gone."""
        if time.monotonic() - self._last_word > 2 * channel.LEASE_TIMEOUT_S:
            self._log.warning("stopped without a last commit: others may have gone on from an older one long ago")
            return
        deadline = time.monotonic() + self._drain_s
        # What was never sent is dropped: the successor reads it again, and a long queue must not hold up the stop. What
        # was sent and not acknowledged is sent again until it is: only its own sequence keeps it from being doubled.
        outboxes = [cursor.outbox for cursor in self._cursors.values()]
        for outbox in outboxes:
            outbox.queue = deque(parcel for parcel in outbox.queue if parcel.sequence >= 0)
        while not all(outbox.idle or outbox.refused for outbox in outboxes):
            if time.monotonic() > deadline:
                self._log.warning("stopped with batches unanswered by the target")
                break
            await asyncio.sleep(0.002)
        for outbox in outboxes:
            outbox.queue.clear()
        self._commit()
        while time.monotonic() < deadline:
            self._commit()
            # A sync that cannot be written is no loss, the next one says as much; it must not hold up the stop.
            syncs_idle = self._syncs is None or self._syncs.idle or self._syncs.outbox.complaint is not None
            if self._positions.idle and syncs_idle and self._all_committed():
                return
            await asyncio.sleep(0.005)

    def _all_committed(self) -> bool:
        return all(
            cursor.position <= 0 or self._positions.committed.get(tp) == cursor.position
            for tp, cursor in self._cursors.items()
        )

    def _mishap(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error of ours in a callback: nobody knows what it left undone, so this batch ends and the next starts clean."""
        error = context.get("exception")
        self._log.error("an error of ours ends this micro-batch", error=context.get("message"), exc_info=error)
        self._end(f"an error of ours: {error or context.get('message')}")

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _call(self, call: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._background, lambda: call(*args))


def _duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration such as P3DT12H (KIP-1106); ValueError for anything else."""
    import re  # noqa: PLC0415  (rare: workers start faster without)

    match = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text)
    if match is None or not any(match.groups()):
        message = f"auto.offset.reset: {text!r} is not an ISO 8601 duration"
        raise ValueError(message)
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _forward_logs(loop: asyncio.AbstractEventLoop, send: Callable[[dict[str, Any]], None]) -> None:
    """Have this process's log lines said by the driver, in its format and with its context."""

    def forward(_logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        text = str(event.pop("event", ""))
        fields = {name: value if isinstance(value, int | float) else str(value) for name, value in event.items()}
        line = {"type": "log", "level": method, "event": text, "fields": fields}
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the channel
            loop.call_soon_threadsafe(send, line)
        raise structlog.DropEvent

    structlog.configure(
        processors=[structlog.processors.format_exc_info, forward],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
