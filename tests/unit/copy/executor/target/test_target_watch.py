"""What is done when the end of a remote partition contradicts its position, and when a leader rejects a producer for good."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.commit.commits import Commits, TransactionCommits
from mm2.copy.executor.partition.outbox import SharedPartition
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.executor.producing.outbox_events import ProducerLost
from mm2.copy.executor.producing.produce_outcomes import MAX_SEQUENCE_ERRORS
from mm2.copy.executor.target.target_watch import TargetWatch
from mm2.copy.progress.target_progress import TargetProgress
from mm2.copy.states import PartitionState
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, KafkaFailure
from mm2.kafka.structs import OffsetInfo, TopicPartition
from tests.unit.copy.batches import SPEC, TP, Bench, batch, partition_events


class Scene:
    """A cursor whose position is at target offset 110, and a target that ends at ``ends``, one answer after another."""

    def __init__(self, *ends: int | KafkaFailure, transactional: bool = False, looked_up: bool = True) -> None:
        self.bench = Bench(10, target=110, records=10)
        self.cursor, self.outbox = self.bench.cursor, self.bench.outbox
        self.outbox.transactional, self.outbox.looked_up = transactional, looked_up
        self.ends = [*ends]
        self.progress: list[TargetProgress | KafkaFailure] = []
        self.own_end = 0, 110  # committed records of the task after the position, and the offset after them
        self.is_own = False
        self.committed_end = 1_000  # records behind it are of an aborted transaction
        self.headers: dict[TopicPartition, Any] = {}
        self.asked_at: list[dict[TopicPartition, int]] = []
        self.epochs: list[int] = []  # of the leader; none: 3
        self.stop, self.released = asyncio.Event(), asyncio.Event()
        self.events: list[tuple[Any, ...]] = []
        link = SimpleNamespace(stop=self.stop, pause=self._pause, fail=self.events.append)
        self.watch = TargetWatch(
            cast(Any, link),
            cast(Any, self),
            cast(Any, None),
            self._call,
            {TP: self.cursor},
            BackgroundTasks(cast(Any, link)),
            cast(Any, self),
        )
        watch: Any = self.watch
        watch._admin = SimpleNamespace(list_offsets=self._list_offsets)
        watch._look_up = SimpleNamespace(
            progress=lambda asked: {SPEC.target: self.progress.pop(0)} if asked else {},
            headers_at=self._headers_at,
            committed_end=lambda _target, end: min(end, self.committed_end),
            own_end=lambda _target, _first, _producer_id: self.own_end,
        )
        self.topic_ids = {SPEC.remote_topic: "id"}

    def _list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        assert wanted == {SPEC.target: -1}
        end = self.ends.pop(0)
        return {
            SPEC.target: end
            if isinstance(end, KafkaFailure)
            else OffsetInfo(end, -1, self.epochs.pop(0) if self.epochs else 3)
        }

    def _headers_at(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        self.asked_at.append(asked)
        return self.headers

    async def _pause(self, _seconds: float) -> None:
        await asyncio.sleep(0)
        if not self.ends:
            self.stop.set()

    @staticmethod
    async def _call(call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    # as sink and losses
    def look_up(self, _outbox: object) -> None:
        self.events.append(("look up",))

    def find_leader(self, _outbox: object) -> None:
        self.events.append(("find leader",))

    def end_pause(self, _outbox: object) -> None:
        self.outbox.paused = False
        self.released.set()

    def transactions_truncated(self, _cursor: object, end: int, *, is_own: bool) -> None:
        self.events.append(("truncated", end))
        self.is_own = is_own

    def run(self, scenario: Callable[[], Awaitable[None]] | None = None) -> list[tuple[Any, ...]]:
        async def play() -> None:
            await asyncio.wait_for((scenario or self.watch.run)(), 10)

        asyncio.run(play())
        return self.events


def test_a_target_at_rest_that_ends_before_the_position_is_looked_up() -> None:
    assert Scene(110, 109).run() == [("look up",)]
    assert Scene(111, 110).run() == [], "records of other programs"


def test_a_remote_topic_that_does_not_exist_is_reported_although_nothing_is_sent() -> None:
    assert Scene(BrokerFailure.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)).run() == [("find leader",)]
    assert Scene(DisconnectedFailure("gone"), 110).run() == []


def test_a_partition_at_rest_is_looked_up_after_its_connection_was_lost() -> None:
    scene = Scene(110)
    scene.outbox.is_cut_off = True
    assert scene.run() == [("look up",)]


@pytest.mark.parametrize("case", ["in flight", "suspended", "blocked", "unknown"])
def test_a_partition_that_is_not_at_rest_is_not_compared(case: str) -> None:
    scene = Scene(5, 5)
    if case == "in flight":
        scene.bench.fetch(batch(10, 2))
    scene.cursor.suspended = case == "suspended"
    scene.outbox.paused = case == "blocked"
    if case == "unknown":
        scene.cursor.window.target = -1
    scene.ends.clear()
    assert scene.run() == []


def proven(scene: Scene) -> list[tuple[Any, ...]]:
    async def scenario() -> None:
        scene.watch.prove(scene.cursor)
        assert scene.outbox.paused, "nothing is sent before"
        await scene.released.wait()

    return scene.run(scenario)


def test_a_transaction_begins_when_the_target_reaches_the_position() -> None:
    assert proven(Scene(DisconnectedFailure("gone"), 110, transactional=True, looked_up=False)) == []


def test_what_the_target_has_lost_is_copied_again_in_transactions() -> None:
    """A high watermark that is behind is no loss, and neither is another topic: that is found by its metadata."""
    scene = Scene(100, 100, 100, transactional=True, looked_up=False)
    scene.progress = [
        DisconnectedFailure("gone"),
        BrokerFailure.of(ErrorCode.INCONSISTENT_TOPIC_ID),
        TargetProgress(0, 104),
    ]
    assert proven(scene) == [("truncated", 104)]
    scene = Scene(100, transactional=True, looked_up=False)
    scene.progress, scene.committed_end = [TargetProgress(0, 104)], 98
    assert proven(scene) == [("truncated", 98)], "offsets 98 to 103 are of an aborted transaction"
    scene = Scene(100, transactional=True, looked_up=False)
    scene.progress = [TargetProgress(1, 110)]
    assert proven(scene) == []


@pytest.mark.parametrize("is_first", [True, False])
def test_no_source_of_a_merge_is_released_before_the_end_reaches_the_positions_of_all(is_first: bool) -> None:
    """What one of them sends would fill what the target has lost of another."""
    scene = Scene(104, 104, transactional=True, looked_up=False)
    scene.progress = [TargetProgress(0, 104)]
    lost, whole = scene.cursor, Bench(10, target=100, records=10).cursor
    whole.partition = TopicPartition("u", 0)
    released = []

    def end_pause(outbox: object) -> None:
        released.append((lost if outbox is lost.outbox else whole, [*scene.events]))
        if len(released) == 2:
            scene.released.set()

    async def scenario() -> None:
        scene.end_pause = end_pause  # type: ignore[method-assign, assignment]
        for cursor in (lost, whole) if is_first else (whole, lost):
            scene.watch.prove(cursor)
        await scene.released.wait()

    assert scene.run(scenario) == [("truncated", 104)]
    assert {cursor.partition for cursor, _ in released} == {TP, whole.partition}
    assert all(events == [("truncated", 104)] for _, events in released)


@pytest.mark.parametrize(
    ("base", "in_transactions", "lost"), [(104, True, True), (110, True, False), (104, False, False)]
)
def test_a_source_of_a_merge_shows_that_the_target_has_lost_what_another_one_wrote(
    base: int, in_transactions: bool, lost: bool
) -> None:
    """In transactions they have one producer and take turns. Without, a response may be that to an earlier request."""
    benches = {TP: Bench(10, target=110, records=10), TopicPartition("u", 0): Bench(10, target=100, records=10)}
    shared = SharedPartition([bench.outbox for bench in benches.values()])
    for source, bench in benches.items():
        bench.outbox.shared, bench.outbox.source, bench.outbox.transactional = shared, source, in_transactions
    cursors = {tp: bench.cursor for tp, bench in benches.items()}
    positions, unused = SimpleNamespace(), cast(Any, None)
    parts: Any = cursors, positions, None, None, unused, {}, None, lambda *_: None, AwakeCursors()
    commits = TransactionCommits(unused, unused, *parts) if in_transactions else Commits(*parts)
    commits.acked(cursors[TopicPartition("u", 0)], SourceRange(10, 15, 5, 100, target_base=base), 14)
    assert benches[TP].owner.calls == ([("went back", base)] if lost else [])


def written(producer_id: int, *, is_control: bool = False) -> Any:
    return SimpleNamespace(producer_id=producer_id, is_control=is_control)


@pytest.mark.parametrize(
    ("end", "header", "stops"),
    [
        (110, written(7), False),
        (130, written(7), False),
        (110, written(8), True),
        (110, written(-1), True),
        (110, None, True),
        (110, written(7, is_control=True), True),
        (105, written(8), True),
        (105, written(7, is_control=True), False),
        (110, BrokerFailure.of(ErrorCode.TOPIC_AUTHORIZATION_FAILED), False),
        (110, "removed", False),
    ],
)
def test_the_record_before_the_position_is_proven_in_transactions(end: int, header: Any, stops: bool) -> None:
    """Other programs may have filled a lost end. What cannot be read proves nothing."""
    scene = Scene(end, transactional=True, looked_up=False)
    scene.cursor.written_by, scene.progress = 7, [TargetProgress(0, end)]
    scene.headers = {} if header == "removed" else {SPEC.target: header}
    assert proven(scene) == ([("truncated", 105)] if end < 110 and not stops else [])
    assert scene.asked_at == [{SPEC.target: min(end, 110) - 1}]
    assert scene.is_own == (end < 110 and header == written(7))
    stop = scene.cursor.conditions.stop
    assert stops == (stop is not None and stop.state is PartitionState.INCONSISTENT)
    if stop is not None:
        assert f"at offset {min(end, 110) - 1}, where a record of producer id 7 was committed" in stop.reason
        assert "copying had reached offset 110" in stop.reason


@pytest.mark.parametrize(("end", "records", "stops"), [(130, 5, True), (130, 0, False), (111, 5, False)])
def test_committed_records_of_the_task_after_the_position_stop_the_partition(
    end: int, records: int, stops: bool
) -> None:
    """Ledger and offsets topic have both lost their ends. Directly after the position there is the marker of the last transaction."""
    scene = Scene(end, transactional=True, looked_up=False)
    scene.cursor.written_by, scene.headers, scene.own_end = 7, {SPEC.target: written(7)}, (records, 116)
    assert proven(scene) == []
    stop = scene.cursor.conditions.stop
    assert (stop is not None and stop.state is PartitionState.INCONSISTENT) == stops
    if stop is not None:
        assert "has 5 records from target offset 110 to 115" in stop.reason
        assert "set the position of this partition to offset 15;" in stop.reason


@pytest.mark.parametrize("case", ["handed off", "unknown"])
def test_after_a_clean_hand_off_the_end_suffices(case: str) -> None:
    scene = Scene(110, transactional=True, looked_up=False)
    scene.cursor.written_by, scene.cursor.is_handed_off = (7, True) if case == "handed off" else (-1, False)
    assert (proven(scene), scene.asked_at) == ([], [])


def test_an_answer_that_fails_is_repeated() -> None:
    scene = Scene(110, 110, transactional=True, looked_up=False)
    scene.cursor.written_by = 7
    answers: list[Any] = [DisconnectedFailure("gone"), written(7)]
    watch: Any = scene.watch
    watch._look_up.headers_at = lambda _asked: {SPEC.target: answers.pop(0)}
    assert (proven(scene), answers) == ([], [])


def test_a_partition_at_rest_is_proven_again_after_an_election() -> None:
    scene = Scene(110, 110, 110, 110, transactional=True, looked_up=False)
    scene.cursor.written_by, scene.epochs = 7, [3, 3, 4, 4]
    scene.headers = {SPEC.target: written(8)}
    scene.run()
    assert len(scene.asked_at) == 1
    assert scene.cursor.conditions.stop is not None
    assert scene.cursor.conditions.stop.state is PartitionState.INCONSISTENT


@pytest.mark.parametrize("case", ["at the position", "behind it"])
def test_a_leader_that_rejects_a_producer_for_good_ends_no_other_partition(case: str) -> None:
    """The look-ups agree with the sequences, so the leader's state of the producer is wrong."""
    bench, ended, replaced = Bench(10, target=110, records=10), list[str](), list[object]()
    outbox = bench.outbox
    outbox.source = TP
    outbox.looked_up, outbox.failures = True, MAX_SEQUENCE_ERRORS + 1
    outbox.acked = 10 if case == "at the position" else 12
    link, source = (
        SimpleNamespace(end=ended.append),
        SimpleNamespace(remove=lambda _tp: None, consider=lambda _tp: None),
    )
    new_sessions = SimpleNamespace(replace=replaced.append)
    events = partition_events({TP: bench.cursor}, link=link, source=source, new_sessions=new_sessions)
    bench.cursor.emit = functools.partial(events.handle, TP)
    failure = BrokerFailure.of(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    events.handle_outbox(ProducerLost(outbox, failure))
    assert ended == []
    if case == "at the position":
        assert replaced == [bench.cursor]
    else:
        stop = bench.cursor.conditions.stop
        assert stop is not None
        assert stop.state is PartitionState.INCONSISTENT
        assert "has 12 records of the copy session, of which 10 are before the position" in stop.reason
    outbox.failures = 1
    events.handle_outbox(ProducerLost(outbox, failure))
    assert len(ended) == 1, "another executor may have taken over"
