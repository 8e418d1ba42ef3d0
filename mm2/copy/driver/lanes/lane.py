"""A lane: some of a task's partitions, copied by a sequence of Spark jobs (micro-batches).

The next job is submitted a few seconds early and waits with open connections. At the boundary the running job stops, and the next
one gets the lease together with the final positions. A boundary costs one drain and one round trip, and at no time do two
jobs have the right to write.

At a boundary partitions also move to another lane. First a micro-batch of that lane runs that is prepared for them. Then the lane
that holds them hands off to a micro-batch without them, and the other one gets their final positions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from mm2.codec import decode, encode
from mm2.copy.channel import LEASE_TIMEOUT_S
from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.lanes.slots import Slots
from mm2.copy.driver.status import LaneStatus
from mm2.copy.progress.ledger import Ledger, Pause, Pauses, paused
from mm2.copy.progress.session import Start
from mm2.copy.spec import CopySpec, PartitionProgress, PartitionSpec
from mm2.copy.tally import Tally
from mm2.kafka.backoff import Backoff
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition

STANDBY_S: Final = 5.0
STOP_TIMEOUT_S: Final = 10.0
READY_TIMEOUT_S: Final = 60.0
# A hand-off may wait for an unreachable target, because unanswered batches could be duplicated under the next producer id. A task
# that stops may not: the worker waits five seconds, and then another process copies.
_DRAIN_AT_HANDOVER_S: Final = 8.0
_DRAIN_AT_STOP_S: Final = 3.5
START_GRACE_S: Final = 20.0
#: After so many lost micro-batches in a row a lane is failing, until a micro-batch has copied for some time.
FAILING_AFTER: Final = 3
_RECOVERED_S: Final = 30.0
#: How many losses in a row are logged each; afterwards every 64th, or one with another reason.
_LOGGED_LOSSES: Final = 3
_LOGGED_EVERY: Final = 64
RESPONSE_TIMEOUT_S: Final = 2 * LEASE_TIMEOUT_S
# A batch in which nothing has changed for so long is extended, to at most so many times its duration: a hand-off takes 0.2 ms of CPU
# time for each partition, as much as polling them for minutes.
_QUIET_S: Final = 10.0
_IDLE_LENGTHS: Final = 10

#: Reads the start positions from the ledger and Connect's offsets topic. Called on a lane's thread, may block; KafkaFailure is
#: retried, ValueError ends the job.
Starts = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, Start]]
#: The current pauses. Called at the start of every batch, before the first record is read.
Paused = Callable[[], Pauses]
#: The ledger as far as it was read; None if there is none.
CurrentLedger = Callable[[], Ledger | None]
Submit = Callable[[MicroBatch], None]
Cancel = Callable[[MicroBatch], None]


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition that a lane gives to another one. No micro-batch copies it.

    ``start`` is its `Start` as JSON from a final report; None: it has to be read. ``row`` is its progress so far, with ``attempts`` to
    change its next record.
    """

    part: PartitionSpec
    start: list[Any] | None
    row: PartitionProgress | None
    attempts: tuple[Any, ...]


class Lane:
    """Runs in its own thread from `start` to `stop`, or until it holds no partition. ``submit`` starts a batch's Spark job and returns
    immediately.

    ``holds``: it holds the partitions of ``spec`` from the beginning; otherwise they are given to it. ``lock`` is one for all lanes
    between which partitions move. ``on_moved`` is called with those that are given away, while it is held; ``on_left`` with each
    micro-batch that has ended, and must not raise.
    """

    def __init__(
        self,
        name: str,
        spec: CopySpec,
        starts: Starts,
        *,
        submit: Submit,
        cancel: Cancel,
        on_update: Callable[[], None],
        slots: Slots | None = None,
        pauses: Paused = dict,
        ledger: CurrentLedger = lambda: None,
        holds: bool = True,
        lock: threading.RLock | None = None,
        on_moved: Callable[[list[MovedPartition]], None] = lambda _moved: None,
        on_left: Callable[[MicroBatch], None] = lambda _batch: None,
    ) -> None:
        self.name = name
        self._spec = spec
        self._submit = submit
        self._cancel = cancel
        self._on_news = on_update
        self._slots = slots or Slots(None)
        self._pauses = pauses
        self._ledger = ledger
        self._read_starts = starts
        self._on_moved = on_moved
        self._on_left = on_left
        # Those that no other lane copies. The next batch copies those of the spec.
        self._held = {part.source: part for part in spec.partitions} if holds else {}
        self._has_more = False  # the running batch may start some of them
        self._gives = False  # the next batch does not copy all of them
        self._is_moving = False  # to another executor
        self.is_waiting = False  # for a batch that is being started, while none runs
        # `Start` as JSON, from the final report of the previous batch; nothing was written since.
        self._known: dict[TopicPartition, list[Any]] = {}
        self._attempts: list[Any] = []  # of the newest final report
        self._limits: tuple[float, dict[str, float]] | None = None
        self.failure = ""  # what ended the lane permanently
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._base: dict[TopicPartition, PartitionProgress] = {}
        self._kept = 0
        self._tally = Tally()  # of finished batches
        # A batch is counted as the current one or as a finished one, never as both; a partition in one lane, never in two.
        self._lock = lock or threading.RLock()
        self._lost_batches = 0
        self._begun_ms: int | None = None
        self._updated = threading.Event()
        self._stopping = threading.Event()
        self._current: MicroBatch | None = None
        self._batches = 0
        self._losses = 0
        self._last_loss = ""
        self._copying_since_s = time.monotonic()
        self._backoff = Backoff(200, 10_000)
        self._blocked_reason = ""
        self._idle_since = time.monotonic()
        self._log = structlog.get_logger("mm2.copy.driver.lane").bind(
            flow=spec.flow, task=f"{spec.connector}-{spec.task_id}"
        )
        self._thread = threading.Thread(target=self._run, name=f"lane-{name}", daemon=True)

    def start(self) -> None:
        """Start copying."""
        self._thread.start()

    def signal_stop(self) -> None:
        """Request the stop without waiting for it."""
        self._stopping.set()
        current = self._current
        if current is not None:
            # After `task.shutdown.graceful.timeout.ms` another process may copy: no lease may last longer.
            current.renewing = False
        self._updated.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False on timeout."""
        if self._thread.ident is None:
            return True  # it could not be started
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def batches(self) -> int:
        """Micro-batches started so far."""
        return self._batches

    @property
    def blocked_reason(self) -> str:
        """Why nothing is being copied at the moment; empty when copying."""
        current = self._current
        if failing := self.failing:
            return failing
        if current is None:
            # A start and a hand-off take some time. Report only those that last long.
            late = time.monotonic() - self._idle_since > START_GRACE_S
            return self._blocked_reason or ("the Spark job is still starting" if late else "")
        return current.failure or current.waiting_for or self._blocked_reason

    @property
    def failing(self) -> str:
        """Why this lane cannot copy although it is started again and again; empty otherwise."""
        is_copying = self._current is not None and self._begun_ms is not None
        if self._losses < FAILING_AFTER or (is_copying and time.monotonic() - self._copying_since_s >= _RECOVERED_S):
            return ""
        return f"the last {self._losses} micro-batches of {self.name} were lost, the latest because: {self._last_loss}"

    @property
    def sources(self) -> list[TopicPartition]:
        """The source partitions that it holds."""
        return list(self._held)

    @property
    def prepared(self) -> Collection[TopicPartition]:
        """The source partitions that the running batch can copy; empty while none runs."""
        current = self._current
        if current is None or self._begun_ms is None:
            return ()
        return current.sources

    @property
    def partitions(self) -> tuple[PartitionSpec, ...]:
        """What the next batch copies."""
        return self._spec.partitions

    @property
    def is_reporting(self) -> bool:
        """Whether the running batch has reported recently, so that `progress` is current."""
        current = self._current
        return current is not None and time.monotonic() - current.last_message_at < LEASE_TIMEOUT_S

    @property
    def status(self) -> LaneStatus:
        """The lane's status for status pages."""
        return LaneStatus(
            self.name,
            self._spec.flow,
            self._spec.task_id,
            self._batches,
            self._begun_ms if self._current is not None else None,
            self._lost_batches,
            len(self._held),
            self.blocked_reason,
            self.failing,
        )

    def tally(self) -> Tally:
        """Counts over all batches of this lane."""
        with self._lock:
            total, current = self._tally.copy(), self._current
            if current is not None:
                total.merge(current.counted())
        return total

    @property
    def latency_ms(self) -> list[int]:
        """p50, p99 and maximum of the last report."""
        current = self._current
        return current.latency_ms if current is not None else []

    @property
    def changes(self) -> tuple[object, ...]:
        """A value that changes whenever `progress` changes: iterating over all partitions would take most of the CPU
        time of an idle driver.
        """
        current = self._current
        return (self._kept,) if current is None else (self._kept, current.id, current.changes)

    def progress(self) -> list[PartitionProgress]:
        """Where each partition is, with counts over all batches of this lane."""
        with self._lock:
            current, rows = self._current, dict(self._progress)
            if current is not None:
                # Copied first, since reports arrive meanwhile.
                reported = list(current.progress.items())
                rows.update((tp, self._total(row)) for tp, row in reported if tp in self._held)
        return list(rows.values())

    def copy_next(self, partitions: tuple[PartitionSpec, ...]) -> None:
        """Copy these partitions with the next batch, which begins as soon as there is a slot. Those it holds beside them are
        given away then.
        """
        with self._lock:
            self._spec = self._spec.with_partitions(partitions)
            self._gives = True
        self._updated.set()

    def accept(self, moved: Iterable[MovedPartition]) -> None:
        """Hold these partitions, which another lane has given away."""
        with self._lock:
            added = []
            known = {part.source for part in self._spec.partitions}
            for one in moved:
                tp = one.part.source
                self._held[tp] = one.part
                if one.start is not None:
                    self._known[tp] = one.start
                if one.row is not None:
                    self._progress[tp] = self._base[tp] = one.row
                self._attempts = [*self._attempts, *one.attempts]
                if tp not in known:
                    added.append(one.part)
            if added:
                self._spec = self._spec.with_partitions((*self._spec.partitions, *added))
            self._has_more = True
            self._kept += 1
        self._updated.set()

    def move(self) -> None:
        """Continue with another batch as soon as there is a slot: the executor of the running one is about to end."""
        self._is_moving = True
        self._updated.set()

    def _give_away(self) -> bool:
        """Give away what the next batch does not copy. No batch of this lane may write at this time. Returns whether partitions are
        left for this lane.
        """
        with self._lock:
            if self._gives:
                self._gives = False
                kept = {part.source for part in self._spec.partitions}
                moved = [self._given(part) for tp, part in list(self._held.items()) if tp not in kept]
                if moved:
                    self._kept += 1
                    self._on_moved(moved)
            return bool(self._held or self._spec.partitions)

    def _given(self, part: PartitionSpec) -> MovedPartition:
        tp = part.source
        del self._held[tp]
        self._base.pop(tp, None)
        attempts = tuple(row for row in self._attempts if tuple(row[:2]) == tp)
        return MovedPartition(part, self._known.pop(tp, None), self._progress.pop(tp, None), attempts)

    def _holds_only(self, batch: MicroBatch) -> bool:
        """Whether a batch can copy everything that the lane holds."""
        with self._lock:
            return batch.spec.partitions is self._spec.partitions or self._held.keys() <= batch.sources

    def _run(self) -> None:
        try:
            standby: MicroBatch | None = None
            while not self._stopping.is_set() and self._give_away():
                if standby is not None and not (standby.finished.is_set() or self._holds_only(standby)):
                    self._cancel(standby)
                batch = standby if standby is not None and not standby.finished.is_set() else self._launch()
                standby = None
                if not self._await_ready(batch):
                    if batch.failure or batch.finished.is_set() or self._stopping.is_set():
                        self._lost(batch)
                    else:
                        self._cancel(batch)  # other partitions are to be copied; it has no lease
                    continue
                self._current = batch
                if not self._begin(batch):
                    self._lost(batch)
                    continue
                standby = self._supervise(batch)
                self._finish(batch)
            if standby is not None:
                if standby.ready.is_set():
                    standby.stop(_DRAIN_AT_STOP_S)
                    standby.finished.wait(STOP_TIMEOUT_S)
                # A batch that Spark is still starting has no connection yet; without a lease it can be cancelled.
                self._cancel(standby)
        except Exception as error:  # noqa: BLE001  (a thread has no caller; the error is reported in the status)
            self._blocked_reason = self.failure = f"{type(error).__name__}: {error}"  # the task fails and is restarted
            self._log.exception("lane failed with an internal error")
            if self._current is not None:
                self._cancel(self._current)  # otherwise it would run forever, because its reports are still answered
        finally:
            self._current = None
            self._on_news()

    def _launch(self) -> MicroBatch:
        self._batches += 1
        batch = MicroBatch(f"{self.name} batch {self._batches}", self._spec, self._notify)
        self._submit(batch)
        return batch

    def _notify(self) -> None:
        self._updated.set()
        self._on_news()

    def _await_ready(self, batch: MicroBatch) -> bool:
        try:
            return self._has_become_ready(batch)
        finally:
            self.is_waiting = False

    def _has_become_ready(self, batch: MicroBatch) -> bool:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not batch.ready.is_set():
            self.is_waiting = True
            if self._stopping.is_set() or batch.finished.is_set():
                return False
            if not (self._spec.partitions and self._holds_only(batch)):
                return False
            if batch.waiting_for:
                # It is connected; an unreachable cluster is no reason to restart it.
                self._blocked_reason = batch.waiting_for
                deadline = time.monotonic() + READY_TIMEOUT_S
            if time.monotonic() > deadline:
                batch.failure = f"the Spark task did not start in {READY_TIMEOUT_S:.0f} s"
                return False
            self._sleep(0.5)
        self._blocked_reason = ""
        return True

    def _begin(self, batch: MicroBatch) -> bool:
        """Grant the lease and, when it is claimed, send the start positions; False when the batch is lost before."""
        self._begun_ms = None
        batch.grant()
        while not batch.claimed.is_set():
            if self._stopping.is_set() or batch.finished.is_set():
                return False
            if time.monotonic() - batch.last_message_at > RESPONSE_TIMEOUT_S:
                batch.failure = f"no message from the executor for {RESPONSE_TIMEOUT_S:.0f} s"
                return False
            self._sleep(0.2)
        if self._limits is not None:
            batch.throttle(*self._limits)
        if not self._start(batch):
            return False
        self._copying_since_s = time.monotonic()
        self._begun_ms = time.time_ns() // 1_000_000
        return True

    def _start(self, batch: MicroBatch) -> bool:
        """Send the start positions of what the lane holds and the batch does not copy yet; False when the batch is lost before."""
        with self._lock:
            self._has_more = False
            due = [tp for tp in self._held if tp in batch.sources and tp not in batch.started]
            known = {tp: self._known.pop(tp) for tp in due if tp in self._known}
            attempts = [row for row in self._attempts if not batch.started or tuple(row[:2]) in due]
        missing = [tp for tp in due if tp not in known]
        retries = 0
        while missing:
            try:
                found = self._read_starts(missing)
                known |= {tp: encode(found.get(tp, Start(None))) for tp in missing}
                break
            except ValueError as error:
                self.failure = str(error)
                self._stopping.set()
                return False
            except KafkaFailure as error:
                self._blocked_reason = str(error)
                self._stopping.wait(self._backoff.delay_s(retries))
                retries += 1
            if self._stopping.is_set() or batch.finished.is_set():
                return False
        self._blocked_reason = ""
        if (ledger := self._ledger()) is not None:
            for tp in known.keys() & ledger.late():
                known[tp] = encode(ledger.with_late_chunks(tp, decode(Start, known[tp])))
        if pauses := self._paused(batch):
            batch.pause(pauses)
        batch.start(known, attempts)
        return True

    def _paused(self, batch: MicroBatch) -> dict[TopicPartition, Pause]:
        pauses = self._pauses()
        found = ((part.source, paused(pauses, part.source)) for part in batch.spec.partitions) if pauses else ()
        return {tp: pause for tp, pause in found if pause is not None}

    def follow_pauses(self) -> None:
        """The pauses have changed."""
        current = self._current
        if current is not None:
            current.pause(self._paused(current))

    def throttle(self, rate: float, topics: Mapping[str, float]) -> None:
        """Change the limits of this batch and of later ones."""
        self._limits = (rate, dict(topics))
        current = self._current
        if current is not None:
            current.throttle(*self._limits)

    def _supervise(self, batch: MicroBatch) -> MicroBatch | None:
        """Supervise a running batch until its duration has elapsed, it is lost, or the lane stops; returns the
        standby batch, if any.
        """
        began_at = time.monotonic()
        length_s = self._spec.batch_duration_ms / 1000
        ends_at = began_at + length_s
        standby_at = ends_at - min(STANDBY_S, length_s / 2)
        quiet_s = min(_QUIET_S, length_s / 2)
        standby: MicroBatch | None = None
        self._is_moving = False
        while not self._stopping.is_set() and not batch.finished.is_set():
            if self._has_more and not self._start(batch):
                break
            now, wanted = time.monotonic(), self._spec.partitions
            if now - batch.last_message_at > RESPONSE_TIMEOUT_S:
                # Frozen or disconnected. Its lease has expired, so it writes nothing when it resumes.
                batch.failure = f"no message from the executor for {RESPONSE_TIMEOUT_S:.0f} s"
                break
            if self._slots.must_yield(now - began_at) or not wanted:
                break
            is_moving = self._is_moving or _is_other(batch, wanted)
            if is_moving:
                ends_at, standby_at = min(ends_at, now), min(standby_at, now)
                if standby is not None and _is_other(standby, wanted):
                    self._cancel(standby)
                    standby = None
                if standby is None and self._slots.missing and not self._holds_only(batch):
                    break  # what it was given cannot wait for a slot
            if standby is None and now >= standby_at:
                if (
                    not is_moving
                    and now - batch.changed_at >= quiet_s
                    and ends_at - began_at < _IDLE_LENGTHS * length_s
                ):
                    ends_at, standby_at = ends_at + length_s, standby_at + length_s
                elif self._slots.may_start_standby():
                    standby = self._launch()
            if standby is not None and standby.finished.is_set():
                self._log.warning("the next micro-batch did not start", reason=standby.failure)
                self._cancel(standby)
                standby, standby_at = None, now + 1.0
            if now >= ends_at and standby is not None and standby.ready.is_set():
                break
            if now < standby_at:
                self._sleep(min(standby_at - now, LEASE_TIMEOUT_S))
            elif now < ends_at:
                self._sleep(ends_at - now)
            else:
                self._sleep(0.2)
        return standby

    def _finish(self, batch: MicroBatch) -> None:
        early = (
            batch.finished.is_set() and not self._stopping.is_set()
        )  # it ended by itself: the next one may, too, so wait before the retry
        batch.stop(_DRAIN_AT_STOP_S if self._stopping.is_set() else _DRAIN_AT_HANDOVER_S)
        patience_s = STOP_TIMEOUT_S if time.monotonic() - batch.last_message_at < RESPONSE_TIMEOUT_S else 0.0
        if not batch.finished.wait(patience_s) and patience_s:
            batch.failure = f"the executor did not stop in {STOP_TIMEOUT_S:.0f} s"
        if batch.final:
            waiting = [row for row in self._attempts if tuple(row[:2]) not in batch.started]
            self._attempts = [*waiting, *batch.attempts]
        if batch.final and not early:
            self._losses = 0
            with self._lock:
                self._known.update(batch.starts)
            self._leave(batch)
        else:
            self._lost(batch)

    def _lost(self, batch: MicroBatch) -> None:
        """A batch without a final report: continue from its last report, once it can no longer write."""
        reason = batch.failure or batch.reason  # before the cancellation sets another one
        self._cancel(batch)
        lease_ends_at = batch.lease_ends_at  # after the cancellation: until then its reports were answered
        self._leave(batch)
        # Rule S7: an unreachable executor may still write.
        time.sleep(max(0.0, lease_ends_at - time.monotonic()))
        if self._stopping.is_set():
            return
        self._give_away()  # other lanes need not wait, too
        self._blocked_reason = reason or "the executor was lost"
        if (
            self._losses < _LOGGED_LOSSES
            or self._losses % _LOGGED_EVERY == 0
            or self._blocked_reason != self._last_loss
        ):
            self._log.warning(
                "micro-batch lost, its partitions continue at the target's progress",
                batch=batch.name,
                reason=self._blocked_reason,
                in_a_row=self._losses + 1,
            )
        delay_s = self._backoff.delay_s(self._losses)
        self._last_loss = self._blocked_reason
        self._losses += 1
        self._lost_batches += 1
        self._stopping.wait(delay_s)

    def _leave(self, batch: MicroBatch) -> None:
        """The batch has ended: its counts are final."""
        with self._lock:
            for tp, row in list(batch.progress.items()):
                if tp in self._held:
                    self._progress[tp] = self._total(row)
            self._base = dict(self._progress)
            self._tally.merge(batch.counted())
            self._kept += 1
            self._idle_since = time.monotonic()
            self._current = None
            self._begun_ms = None
        self._on_left(batch)

    def _total(self, row: PartitionProgress) -> PartitionProgress:
        base = self._base.get(row.source)
        if base is None:
            return row
        return row._replace(
            target_offset=max(row.target_offset, base.target_offset),
            since_ms=base.since_ms if base.state == row.state and base.since_ms >= 0 else row.since_ms,
            records=base.records + row.records,
            bytes=base.bytes + row.bytes,
            age_ms=row.age_ms or base.age_ms,
            latency_ms=row.latency_ms or base.latency_ms,
        )

    def _sleep(self, seconds: float) -> None:
        self._updated.wait(max(0.0, seconds))
        self._updated.clear()


def _is_other(batch: MicroBatch, wanted: tuple[PartitionSpec, ...]) -> bool:
    """Whether a batch was made for other partitions than these."""
    return batch.spec.partitions is not wanted and batch.spec.partitions != wanted
