"""One micro-batch after another: leases, hand-overs, losses. The executor's side of the channel is played by the test."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from mm2.codec import decode, encode
from mm2.copy.driver import batch as batches
from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.lanes import lane as lanes
from mm2.copy.driver.lanes.lane import Lane, MovedPartition
from mm2.copy.driver.lanes.slots import Slots
from mm2.copy.progress.ledger import Ledger, Pause, chunk_record, entry_record
from mm2.copy.progress.segments import Segment, SegmentChunk, UnwrittenChunks
from mm2.copy.progress.session import Lease, LedgerEntry, Mark, Session, Start
from mm2.copy.spec import CopySpec, PartitionProgress, PartitionSpec
from mm2.copy.tally import Tally
from mm2.kafka.backoff import Backoff
from mm2.kafka.errors import DisconnectedFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from tests.support.waiting import wait_until

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def spec_of(duration_ms: int) -> CopySpec:
    return CopySpec(
        flow="A->B",
        connector="MirrorSourceConnector",
        task_id=0,
        source_alias="A",
        target_alias="B",
        source=SETTINGS,
        target=SETTINGS,
        partitions=(PartitionSpec("t", 0, "A.t"), PartitionSpec("t", 1, "A.t")),
        offsets_topic="offsets",
        batch_duration_ms=duration_ms,
    )


def row(tp: TopicPartition, position: int, **changes: Any) -> PartitionProgress:
    base = PartitionProgress(
        *tp, position, position, 100, "RUNNING", "", -1, -1, False, max(0, position), 10 * position, {}, 0, 0
    )
    return base._replace(**changes)


class Stage:
    """Batches as the lane submits them, in order, and what it did with them."""

    def __init__(self, duration_ms: int, slots: Slots | None = None) -> None:
        self.positions: dict[TopicPartition, int] = {}  # positions in the ledger and the offsets topic
        self.read: list[list[TopicPartition]] = []
        self.failures: list[Exception] = []  # of the next readings
        self.submitted: queue.Queue[MicroBatch] = queue.Queue()
        self.cancelled: list[MicroBatch] = []
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.pauses: dict[tuple[str, int | None], Pause] = {}
        self.ledger: Ledger | None = None
        self.lane = Lane(
            "A->B MirrorSourceConnector-0 lane 0",
            spec_of(duration_ms),
            self._starts,
            submit=self._submit,
            cancel=self._cancel,
            on_update=lambda: None,
            slots=slots,
            pauses=lambda: self.pauses,
            ledger=lambda: self.ledger,
        )

    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Start]:
        wanted = list(partitions)
        self.read.append(wanted)
        if self.failures:
            raise self.failures.pop(0)
        return {tp: Start(self.positions.get(tp)) for tp in wanted}

    def _submit(self, batch: MicroBatch) -> None:
        messages = self.sent.setdefault(batch.id, [])
        batch._send = messages.append  # type: ignore[assignment, method-assign]
        self.submitted.put(batch)

    def _cancel(self, batch: MicroBatch) -> None:
        self.cancelled.append(batch)
        batch.ended("cancelled")

    def next(self) -> MicroBatch:
        return self.submitted.get(timeout=60)

    def messages(self, batch: MicroBatch, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent[batch.id] if message["type"] == kind]

    def begun(self, batch: MicroBatch) -> dict[TopicPartition, int | None]:
        """Play an executor up to its start; where it is to begin."""
        batch.received({"type": "ready"})
        wait_until(lambda: self.messages(batch, "lease"))
        batch.received({"type": "claimed"})
        wait_until(lambda: self.messages(batch, "start"))
        (message,) = self.messages(batch, "start")
        return {TopicPartition(topic, part): decode(Start, row).position for topic, part, row in message["starts"]}

    def final(
        self, batch: MicroBatch, *rows: PartitionProgress, starts: dict[TopicPartition, Start] | None = None
    ) -> None:
        wait_until(lambda: self.messages(batch, "stop"))
        end(batch, *rows, starts=starts)


def end(
    batch: MicroBatch, *rows: PartitionProgress, starts: dict[TopicPartition, Start] | None = None, **more: str
) -> None:
    batch.received(
        {
            "type": "final",
            "partitions": [list(item) for item in rows],
            "starts": [[*tp, encode(start)] for tp, start in (starts or {}).items()],
            **more,
        }
    )


def report(batch: MicroBatch, *rows: PartitionProgress) -> None:
    batch.received({"type": "progress", "partitions": [list(item) for item in rows]})


@contextmanager
def running(stage: Stage) -> Iterator[Lane]:
    stage.lane.start()
    try:
        yield stage.lane
    finally:
        stage.lane.signal_stop()
        # Dead: otherwise the lane would wait until the lease of an executor that may still write has expired.
        while not stage.submitted.empty():
            stage.submitted.get().ended("the test is over", dead=True)
        current = stage.lane._current
        if current is not None:
            current.ended("the test is over", dead=True)
        assert stage.lane.join(60)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a lost batch: another test asserts that its lease is awaited."""
    monkeypatch.setattr("mm2.copy.channel.LEASE_TIMEOUT_S", 0.1)


def test_nothing_is_leased_before_the_executor_is_ready_and_nothing_begins_before_it_has_claimed() -> None:
    stage = Stage(60_000)
    stage.positions = {T0: 5}
    with running(stage):
        batch = stage.next()
        assert batch.name == "A->B MirrorSourceConnector-0 lane 0 batch 1"
        time.sleep(0.05)
        assert stage.sent[batch.id] == []
        batch.received({"type": "ready"})
        wait_until(lambda: stage.messages(batch, "lease"))
        time.sleep(0.05)
        assert (stage.messages(batch, "start"), stage.read) == ([], []), "a predecessor may still be writing"
        assert stage.begun(batch) == {T0: 5, T1: None}
        assert stage.read == [[T0, T1]]


def test_a_batch_runs_since_it_got_its_start_positions() -> None:
    stage = Stage(60_000)
    with running(stage) as lane:
        batch = stage.next()
        batch.received({"type": "ready"})
        wait_until(lambda: stage.messages(batch, "lease"))
        assert lane.status.since_ms is None
        before_ms = time.time_ns() // 1_000_000
        stage.begun(batch)
        wait_until(lambda: lane.status.since_ms is not None)
        assert before_ms <= (lane.status.since_ms or 0) <= time.time_ns() // 1_000_000


@pytest.mark.usefixtures("short_lease")
def test_attempts_to_change_a_record_are_handed_on_also_past_a_lost_batch() -> None:
    stage = Stage(200)
    attempts = [["t", 0, 9, 3, 180_000]]
    with running(stage):
        first = stage.next()
        stage.begun(first)
        second = stage.next()
        second.received({"type": "ready"})
        wait_until(lambda: stage.messages(first, "stop"))
        first.received({"type": "final", "partitions": [], "attempts": attempts})
        stage.begun(second)
        second.ended("lost", dead=True)
        third = stage.next()
        stage.begun(third)
        sent = [stage.messages(batch, "start")[0]["attempts"] for batch in (first, second, third)]
        assert sent == [[], attempts, attempts]


def test_the_next_batch_begins_where_the_last_one_ended_and_not_before() -> None:
    stage = Stage(200)
    entry = LedgerEntry("t", 0, "A.t", Mark(9, 9, 9), session=Session(ProducerIdentity(7, 0), Mark(0, 0, 0)))
    with running(stage) as lane:
        first = stage.next()
        stage.begun(first)
        second = stage.next()
        second.received({"type": "ready"})
        report(first, row(T0, 7), row(T1, 3))
        wait_until(lambda: stage.messages(first, "stop"))
        time.sleep(0.05)
        assert not stage.messages(second, "lease"), "never two with the right to write"
        stage.positions = {T0: 1, T1: 2}
        handed_over = Start(9, 9, entry, clean=True)
        stage.final(first, row(T0, 9), row(T1, 3, records=1), starts={T0: handed_over})
        assert stage.begun(second) == {T0: 9, T1: 2}
        assert stage.read == [[T0, T1], [T1]], "only what was not handed over is read"
        (message,) = stage.messages(second, "start")
        assert {tuple(tp): decode(Start, start) for *tp, start in message["starts"]}[T0] == handed_over
        report(second, row(T0, 12, records=3))
        rows = {item.source: item for item in lane.progress()}
        assert (rows[T0].records, rows[T0].position, rows[T1].records) == (12, 12, 1)
        assert lane.batches == 2
        end(second)


def test_chunks_replaced_by_a_late_write_are_added_to_a_hand_off() -> None:
    stage = Stage(200)
    full, newest = SegmentChunk(0, [Segment(0, 0, 5), Segment(6, 5, 2)]), SegmentChunk(1, [Segment(9, 7, 1)])
    entry = LedgerEntry("t", 0, "A.t", Mark(10, 8, 8), chunk=1, lease=Lease(5, 2))
    stage.ledger = Ledger()
    for record in (
        chunk_record(T0, full, entry.lease),
        chunk_record(T0, newest, entry.lease),
        entry_record(entry),
        chunk_record(T0, SegmentChunk(0, [Segment(0, 0, 5)]), Lease(5, 1)),
    ):
        stage.ledger.apply(record.key, record.value)
    with running(stage):
        first = stage.next()
        stage.begun(first)
        second = stage.next()
        second.received({"type": "ready"})
        handed_over = {tp: Start(10, 10, entry, newest, clean=True) for tp in (T0, T1)}
        stage.final(first, row(T0, 10), row(T1, 10), starts=handed_over)
        stage.begun(second)
        (message,) = stage.messages(second, "start")
        starts = {TopicPartition(*tp): decode(Start, start) for *tp, start in message["starts"]}
        assert starts[T0].unwritten == UnwrittenChunks((full,))
        assert starts[T1].unwritten == UnwrittenChunks()
        end(second)


@pytest.mark.parametrize(
    ("duration_ms", "moves_until_s", "lasts_s"),
    [
        pytest.param(200, 60.0, 0.2, id="the usual time while something moves"),
        pytest.param(200, -1.0, 2.0, id="longer, and not for ever, if nothing does"),
        pytest.param(60_000, 0.1, 600.0, id="longer if its records have ended"),
    ],
)
def test_a_batch_in_which_nothing_moves_lasts_longer(
    monkeypatch: pytest.MonkeyPatch, duration_ms: int, moves_until_s: float, lasts_s: float
) -> None:
    stage, now_s, offsets = Stage(duration_ms), [0.0], itertools.count()
    monkeypatch.setattr(lanes, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    batch = MicroBatch("b", spec_of(duration_ms), lambda: None)

    def sleep(seconds: float) -> None:
        for passed_s in (0.0, seconds):
            now_s[0] += passed_s
            batch.last_message_at = now_s[0]
            if now_s[0] < moves_until_s:
                report(batch, row(T0, next(offsets)))
        while not stage.submitted.empty():
            stage.next().ready.set()

    batch._send = lambda message: None  # type: ignore[method-assign]
    monkeypatch.setattr(stage.lane, "_sleep", sleep)
    assert stage.lane._supervise(batch) is not None
    assert now_s[0] == pytest.approx(lasts_s, rel=0.11), "at most one length of ten more"


def test_a_running_batch_continues_until_the_next_is_ready() -> None:
    stage = Stage(100)
    with running(stage):
        first = stage.next()
        stage.begun(first)
        second = stage.next()
        time.sleep(0.3)
        assert not stage.messages(first, "stop")
        second.received({"type": "ready"})
        wait_until(lambda: stage.messages(first, "stop"))
        stage.final(first)
        end(second)


@pytest.mark.usefixtures("short_lease")
def test_after_a_loss_all_positions_are_read_again() -> None:
    stage = Stage(60_000)
    with capture_logs() as logs, running(stage) as lane:
        first = stage.next()
        stage.begun(first)
        report(first, row(T0, 40, gaps={"control": 2}), row(T1, 4))
        stage.positions = {T0: 38, T1: 4}
        first.ended("the executor closed the progress channel")
        second = stage.next()
        assert stage.cancelled == [first]
        assert lane.blocked_reason == "the executor closed the progress channel"
        assert stage.begun(second) == {T0: 38, T1: 4}
        wait_until(lambda: not lane.blocked_reason)
        report(second, row(T0, 41, records=1, gaps={"control": 3}))
        found = {item.source: item for item in lane.progress()}[T0]
        assert (found.records, found.gaps) == (41, {"control": 3})
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert warnings[0]["reason"] == "the executor closed the progress channel"
    assert warnings[0]["batch"] == first.name


@pytest.mark.usefixtures("short_lease")
def test_the_error_of_an_executor_is_reported_and_not_its_disconnection() -> None:
    stage = Stage(60_000)
    with running(stage) as lane:
        first = stage.next()
        stage.begun(first)
        first.received({"type": "failed", "reason": "ImportError: no module of that name"})
        first.ended("the executor closed the progress channel")
        stage.next()
        assert lane.blocked_reason == "ImportError: no module of that name"


def test_batches_that_end_by_themselves_are_restarted_with_backoff_and_without_hand_off() -> None:
    stage = Stage(60_000)
    with running(stage) as lane:
        for position in (5, 6, 7):
            batch = stage.next()
            assert stage.begun(batch)[T0] == (position - 1 if position > 5 else None)
            stage.positions = {T0: position}
            end(batch, row(T0, position), starts={T0: Start(99)}, reason="an internal error")
            wait_until(lambda: lane.blocked_reason.endswith("an internal error"))
        assert lane._losses == 3


def test_a_failed_read_of_positions_is_retried_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "delay_s", lambda *_: 0.2)
    stage = Stage(60_000)
    stage.positions = {T0: 5}
    stage.failures = [DisconnectedFailure("B is unreachable"), DisconnectedFailure("B is unreachable")]
    with running(stage) as lane:
        batch = stage.next()
        batch.received({"type": "ready"})
        wait_until(lambda: stage.messages(batch, "lease"))
        batch.received({"type": "claimed"})
        wait_until(lambda: lane.blocked_reason == "B is unreachable")
        assert stage.begun(batch) == {T0: 5, T1: None}
        wait_until(lambda: not lane.blocked_reason)
        assert (len(stage.read), lane.batches) == (3, 1)


@pytest.mark.usefixtures("short_lease")
def test_a_position_that_is_none_ends_the_lane() -> None:
    stage = Stage(60_000)
    stage.failures = [ValueError("The committed position of t-0 is 'x', which is not an offset.")]
    stage.lane.start()
    batch = stage.next()
    batch.received({"type": "ready"})
    wait_until(lambda: stage.messages(batch, "lease"))
    batch.received({"type": "claimed"})
    assert stage.lane.join(60)
    assert stage.lane.failure == "The committed position of t-0 is 'x', which is not an offset."
    assert (stage.messages(batch, "start"), stage.cancelled) == ([], [batch])


def test_a_long_read_of_positions_is_not_a_timeout_of_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(60_000)
    stage.failures = [DisconnectedFailure("B is unreachable")] * 2
    with running(stage) as lane:
        batch = stage.next()

        def wait_long(*_: object) -> float:
            batch.last_message_at -= 3600
            return 0.0

        monkeypatch.setattr(Backoff, "delay_s", wait_long)
        stage.begun(batch)
        time.sleep(0.1)
        assert (lane.batches, stage.cancelled) == (1, [])


def test_other_limits_reach_the_running_batch_and_those_to_come() -> None:
    stage = Stage(200)
    with running(stage) as lane:
        first = stage.next()
        stage.begun(first)
        assert stage.messages(first, "throttle") == []
        lane.throttle(5e6, {"t": 1e6})
        limits = {"type": "throttle", "rate": 5e6, "topics": {"t": 1e6}}
        assert stage.messages(first, "throttle") == [limits]
        second = stage.next()
        second.received({"type": "ready"})
        stage.final(first)
        stage.begun(second)
        assert stage.messages(second, "throttle") == [limits]
        end(second)


def test_pauses_are_sent_before_a_batch_begins_and_when_they_change() -> None:
    stage = Stage(200)
    with running(stage) as lane:
        first = stage.next()
        stage.begun(first)
        assert stage.messages(first, "pause") == []
        pause = Pause("ann@ops", 1_700_000_000_000, "repairs")
        stage.pauses[("t", 1)] = pause
        stage.pauses[("other", None)] = pause
        lane.follow_pauses()
        written = ["t", 1, "paused by ann@ops at 2023-11-14 22:13:20 UTC: repairs", 1_700_000_000_000]
        assert stage.messages(first, "pause") == [{"type": "pause", "partitions": [written]}]
        second = stage.next()
        second.received({"type": "ready"})
        stage.final(first)
        stage.begun(second)
        kinds = [message["type"] for message in stage.sent[second.id]]
        assert kinds.index("pause") < kinds.index("start"), "nothing is read before"
        stage.pauses.clear()
        lane.follow_pauses()
        assert stage.messages(second, "pause")[-1] == {"type": "pause", "partitions": []}
        end(second)


def test_an_unreachable_cluster_is_the_reported_reason() -> None:
    stage = Stage(60_000)
    with running(stage) as lane:
        batch = stage.next()
        batch.received({"type": "waiting", "reason": "B does not answer"})
        wait_until(lambda: lane.blocked_reason == "B does not answer")
        stage.begun(batch)
        wait_until(lambda: lane.blocked_reason == "")


def test_a_stopped_lane_waits_for_the_final_report() -> None:
    stage = Stage(60_000)
    stage.lane.start()
    batch = stage.next()
    stage.begun(batch)
    stage.lane.signal_stop()
    assert not stage.lane.join(0.1)
    stage.final(batch, row(T0, 8))
    assert stage.lane.join(60)
    assert [item.position for item in stage.lane.progress()] == [8]


def test_a_next_batch_that_spark_is_still_starting_does_not_hold_up_the_stop() -> None:
    stage = Stage(200)
    stage.lane.start()
    first = stage.next()
    stage.begun(first)
    second = stage.next()
    stage.lane.signal_stop()
    stage.final(first, row(T0, 5), row(T1, 5))
    assert stage.lane.join(60), "it is not connected yet, so its answer is not awaited"
    assert stage.cancelled == [second]


@pytest.mark.parametrize("kind", ["progress", "waiting"])
def test_every_report_is_answered_so_that_the_lease_lives(kind: str) -> None:
    batch = MicroBatch("b", spec_of(1), lambda: None)
    messages: list[dict[str, Any]] = []
    batch._send = messages.append  # type: ignore[assignment, method-assign]
    batch.received({"type": kind, "partitions": [], "reason": "r"})
    assert messages == [{"type": "go"}]


@pytest.mark.usefixtures("short_lease")
def test_an_executor_that_stops_responding_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.driver.lanes.lane.LEASE_TIMEOUT_S", 0.1)
    stage = Stage(60_000)
    with running(stage):
        frozen = stage.next()
        stage.begun(frozen)
        report(frozen, row(T0, 7))
        stage.positions = {T0: 6}
        frozen.last_message_at -= 3600
        successor = stage.next()
        assert frozen in stage.cancelled
        assert stage.begun(successor)[T0] == 6


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_lane_gives_partitions_away_when_its_batch_can_no_longer_write(is_lost: bool) -> None:
    """Another executor begins with them at once (rule S7)."""
    stage, moved = Stage(60_000), list[tuple[float, MovedPartition]]()
    stage.lane._on_moved = lambda given: moved.extend((time.monotonic(), one) for one in given)
    stage.lane.start()
    batch = stage.next()
    stage.begun(batch)
    report(batch, row(T0, 4))
    stage.lane.copy_next(())
    wait_until(lambda: stage.messages(batch, "stop"))
    assert moved == []
    attempts = [["t", 0, 9, 3, 180_000]]
    if is_lost:
        batch.ended("the network is broken")
    else:
        rows = [list(row(T0, 5)), list(row(T1, 7))]
        starts = [[*T0, encode(Start(5, 5, clean=True))]]
        batch.received({"type": "final", "partitions": rows, "starts": starts, "attempts": attempts})
    assert stage.lane.join(60), "nothing is left for it"
    assert [one.part.source for _, one in moved] == [T0, T1]
    (at_s, first), (_, second) = moved
    if is_lost:
        assert at_s >= batch.lease_ends_at > 0
        assert (first.start, second.start, first.row) == (None, None, row(T0, 4))
    else:
        assert (decode(Start, first.start), second.start) == (Start(5, 5, clean=True), None)
        assert (first.row, second.row, first.attempts) == (row(T0, 5), row(T1, 7), (attempts[0],))
    assert stage.lane.progress() == []


def test_a_lane_without_partitions_prepares_them_and_starts_them_when_it_gets_them() -> None:
    stage = Stage(60_000)
    stage.lane._held.clear()
    with running(stage) as lane:
        batch = stage.next()
        assert stage.begun(batch) == {}
        wait_until(lambda: set(lane.prepared) == {T0, T1})
        assert (lane.status.partitions, lane.progress()) == (0, [])
        stage.positions = {T1: 3}
        parts = lane.partitions
        handed = MovedPartition(parts[0], encode(Start(9, 9, clean=True)), row(T0, 9), (["t", 0, 9, 3, 5],))
        lane.accept([handed, MovedPartition(parts[1], None, None, ())])
        wait_until(lambda: len(stage.messages(batch, "start")) == 2)
        message = stage.messages(batch, "start")[1]
        starts = {TopicPartition(*tp): decode(Start, start) for *tp, start in message["starts"]}
        assert starts == {T0: Start(9, 9, clean=True), T1: Start(3)}
        assert message["attempts"] == [["t", 0, 9, 3, 5]]
        assert stage.read == [[T1]], "the start that was handed off is not read"
        report(batch, row(T0, 12, records=3))
        (shown,) = lane.progress()
        assert (shown.position, shown.records) == (12, 12), "counted on"
        assert not stage.messages(batch, "stop"), "the batch continues"


def test_a_lease_that_was_renewed_during_the_cancellation_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel's thread answers questions until the lane has hung up (rule S7)."""
    slept: list[float] = []
    monkeypatch.setattr("mm2.copy.driver.lanes.lane.time.sleep", slept.append)
    stage = Stage(60_000)
    batch = MicroBatch("b", spec_of(1), lambda: None)
    messages = stage.sent[batch.id] = []
    batch._send = messages.append  # type: ignore[assignment, method-assign]
    batch.grant()
    batch.last_message_at = time.monotonic() - 3
    hang_up = stage.lane._cancel

    def cancel(given_up: MicroBatch) -> None:
        report(given_up, row(T0, 1))
        hang_up(given_up)

    stage.lane._cancel = cancel
    stage.lane._stopping.set()
    stage.lane._lost(batch)
    assert [message["type"] for message in messages] == ["lease", "go"]
    assert slept[0] > 5


class Scarce(Slots):
    """A cluster without room, on which others wait or do not."""

    def __init__(self) -> None:
        super().__init__(1)
        self.others_wait = False

    def may_start_standby(self) -> bool:
        return False

    def must_yield(self, held_s: float) -> bool:
        return self.others_wait


def test_without_a_slot_for_the_next_batch_the_running_one_continues() -> None:
    stage = Stage(100, Scarce())
    with running(stage):
        first = stage.next()
        stage.begun(first)
        time.sleep(0.4)
        assert not stage.messages(first, "stop")
        assert stage.submitted.empty()


def test_a_lane_whose_turn_is_over_stops_and_asks_for_a_slot_again() -> None:
    slots = Scarce()
    stage = Stage(60_000, slots)
    with running(stage):
        first = stage.next()
        stage.begun(first)
        slots.others_wait = True
        report(first, row(T0, 5))
        stage.final(first, row(T0, 9), row(T1, 3), starts={T0: Start(9), T1: Start(3)})
        slots.others_wait = False
        second = stage.next()
        assert stage.begun(second) == {T0: 9, T1: 3}


@pytest.mark.usefixtures("short_lease")
def test_the_shown_state_changes_only_with_a_report() -> None:
    stage = Stage(60_000)
    with running(stage) as lane:
        first = stage.next()
        stage.begun(first)
        report(first, row(T0, 5))
        seen = lane.changes
        report(first)
        assert lane.changes == seen
        report(first, row(T0, 6))
        assert lane.changes != seen
        seen = lane.changes
        first.ended("gone")
        stage.next()
        assert lane.changes != seen


def test_a_lane_whose_executors_die_again_and_again_is_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the kernel kills the Python worker at the same batch each time. Each batch copies for a moment before."""
    stage = Stage(60_000)
    stage.lane._backoff = Backoff(1, 1)
    seen: list[str] = []
    with capture_logs() as logs, running(stage) as lane:
        for number in range(12):
            batch = stage.next()
            stage.begun(batch)
            seen.append(lane.failing)
            if number:
                assert ("were lost" in lane.blocked_reason) == (number >= 3)
            batch.ended("the executor was killed", dead=True)
        batch = stage.next()
        stage.begun(batch)
        wait_until(lambda: lane.status.since_ms is not None)
        assert lane.status.failing == lane.blocked_reason == lane.failing
        monkeypatch.setattr(lanes, "_RECOVERED_S", 0.0)
        assert (lane.failing, lane.blocked_reason) == ("", "")
    assert [bool(text) for text in seen] == [False] * 3 + [True] * 9
    assert seen[5] == (
        "the last 5 micro-batches of A->B MirrorSourceConnector-0 lane 0 were lost, the latest because: "
        "the executor was killed"
    )
    losses = [entry["in_a_row"] for entry in logs if entry["event"].startswith("micro-batch lost")]
    assert losses == [1, 2, 3], "each of the others would be a line every ten seconds for as long as it lasts"


def test_another_reason_of_a_loss_is_logged() -> None:
    """Also when the losses before are no longer logged."""
    stage = Stage(60_000)
    stage.lane._backoff = Backoff(1, 1)
    with capture_logs() as logs, running(stage):
        for number in range(8):
            stage.next().ended("killed" if number < 6 else "Spark is gone", dead=True)
        stage.next()
    reasons = [entry["reason"] for entry in logs if entry["event"].startswith("micro-batch lost")]
    assert reasons == ["killed"] * 3 + ["Spark is gone"]


def test_an_internal_error_fails_the_task_which_is_restarted() -> None:
    """Otherwise the partitions of the lane would not be copied any more, while the task is RUNNING."""
    stage = Stage(60_000)
    stage.failures.append(RuntimeError("can't start new thread"))
    with capture_logs(), running(stage) as lane:
        batch = stage.next()
        batch.received({"type": "ready"})
        wait_until(lambda: stage.messages(batch, "lease"))
        batch.received({"type": "claimed"})
        wait_until(lambda: stage.cancelled == [batch])
        wait_until(lambda: lane.failure == "RuntimeError: can't start new thread")


def test_progress_is_read_while_a_report_arrives() -> None:
    """Another thread adds partitions to it: the task failed when it was at the same time in this loop."""
    stage = Stage(60_000)
    with running(stage) as lane:
        batch = stage.next()
        stage.begun(batch)
        report(batch, row(T0, 5))
        read: Any = lane
        total = lane._total

        def interrupted(found: PartitionProgress) -> PartitionProgress:
            report(batch, row(T1, 7))
            return total(found)

        read._total = interrupted
        assert [found.position for found in lane.progress()] == [5]
        read._total = total
        assert [found.position for found in lane.progress()] == [5, 7]


def test_a_batch_that_ends_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment it was a finished one and the current one. A counter that falls again is a restart for Prometheus."""
    stage, seen, merge = Stage(60_000), list[int](), Tally.merge
    with running(stage) as lane:

        def interrupted(tally: Tally, other: Tally) -> None:
            merge(tally, other)
            if tally is lane._tally:
                reader = threading.Thread(target=lambda: seen.append(sum(found.records for found in lane.progress())))
                reader.start()
                reader.join(0.1)

        batch = stage.next()
        stage.begun(batch)
        report(batch, row(T0, 5))
        monkeypatch.setattr(Tally, "merge", interrupted)
        batch.ended("killed", dead=True)
        wait_until(lambda: seen)
        assert seen == [5]
