"""What fills the gaps of a partition with preserved offsets, against a model of its target partition."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.gap_queue import GapQueue
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.executor.producing.marker_sender import MarkerRun
from mm2.copy.executor.target.gap_fills import GapFills, _queue
from mm2.copy.markers import marker_at
from mm2.copy.progress.session import Mark
from mm2.copy.spec import Assignment
from mm2.copy.states import PartitionState
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, KafkaFailure
from mm2.kafka.structs import OffsetInfo, ProducerState, TopicPartition
from tests.unit.copy.batches import Bench, batch


class Target:
    """The target partition: the log end, and the offsets with records. It also is what writes to it.

    ``answers`` are those to the next requests; None: it is filled. ``repeated`` markers are written twice.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.records: set[int] = set()
        self.answers: list[KafkaFailure | None] = []
        self.repeated = 0
        self.claims: list[KafkaFailure] = []  # why the next claims fail
        self.runs: list[MarkerRun] = []
        self.calls: list[str] = []
        self.states: dict[int, ProducerState] = {}

    def write(self, count: int) -> None:
        self.records |= set(range(self.end, self.end + count))
        self.end += count

    # as the look-up and the admin client
    def stable_ends(self, epochs: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetInfo]:
        return {tp: OffsetInfo(self.end, -1, 1) for tp in epochs}

    def foreign_offset(self, _partition: TopicPartition, first: int, end: int, _producers: object) -> int:
        return min((offset for offset in self.records if first <= offset < end), default=-1)

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        return dict.fromkeys(partitions, self.states)

    # as the sender of markers
    def send(self, _node: int, run: MarkerRun) -> None:
        self.runs.append(run)
        failure = self.answers.pop(0) if self.answers else None
        if failure is None:
            self._append(run.after - run.first)
        run.answered(failure)

    # as transactions without records
    def is_claimed(self, _partition: TopicPartition) -> bool:
        return "claim" in self.calls

    async def claim(self, _partition: TopicPartition) -> KafkaFailure | None:
        if self.claims:
            return self.claims.pop(0)
        self.calls.append("claim")
        return None

    async def fill(self, _partition: TopicPartition, count: int) -> None:
        self.calls.append("fill")
        self._append(count)

    async def settle(self, _partition: TopicPartition) -> None:
        self.calls.append("settle")

    def _append(self, count: int) -> None:
        self.end += count + self.repeated
        self.repeated = 0


class Scene:
    """A cursor, whose batches and gaps are those of the test, before its target."""

    def __init__(self, at: int = 10, *, is_clean: bool = True, has_right: bool = True) -> None:
        self.bench, self.target = Bench(at, is_preserved=True, target=at), Target(at)
        self.cursor, self.outbox = self.bench.cursor, self.bench.outbox
        self.outbox.address = (1, 0)
        self.link = DriverLink(Assignment("b", "localhost", 1, "00"), 0, 8)
        self.diverged: list[int] = []
        self.truncated: list[int] = []
        self.on_retry: Callable[[], object] = lambda: None
        self._is_clean, self._has_right = is_clean, has_right

    @property
    def queue(self) -> GapQueue:
        return self.bench.queue

    def play(self, *actions: Callable[[], object]) -> None:
        """Do one after another, each when the one before has led to nothing more."""

        async def run() -> None:
            tasks = BackgroundTasks(self.link)
            loop: Any = SimpleNamespace(call_later=self._call_later)
            fills = self._fills(tasks, loop)
            self.bench.owner.gap_due = functools.partial(fills.fill, self.cursor)
            self.queue.begin(is_clean=self._is_clean)
            for action in actions:
                action()
                async with asyncio.timeout(5):
                    while tasks._running or self.later:
                        await asyncio.sleep(0)
                        for call in self._taken():
                            call()

        self.later: list[Callable[[], object]] = []
        asyncio.run(run())
        assert self.link.reason == ""

    def _fills(self, tasks: BackgroundTasks, loop: Any) -> GapFills:
        async def call(function: Callable[..., Any], *args: Any) -> Any:
            await asyncio.sleep(0)
            return function(*args)

        losses: Any = SimpleNamespace(
            target_diverged=self._stop(self.diverged), preserved_truncated=self._stop(self.truncated)
        )
        endpoints: Any = SimpleNamespace(
            target_cluster=None,
            call=call,
            sink=SimpleNamespace(find_leader=lambda _: None),
            marker_sender=lambda _: self.target,
            empty_transactions=lambda _: self.target,
        )
        fills = GapFills(self.link, tasks, endpoints, losses, self._commit)
        self.fills = fills
        parts = cast("Any", fills)
        parts._loop, parts._admin, parts._look_up, parts._has_no_right = (
            loop,
            self.target,
            self.target,
            not self._has_right,
        )
        return fills

    def _commit(self, cursor: Cursor, then: Callable[[], None]) -> None:
        self.target.calls.append(f"commit {_queue(cursor).by_transactions}")
        then()

    def _stop(self, offsets: list[int]) -> Callable[[object, int], None]:
        def stop(_cursor: object, offset: int) -> None:
            offsets.append(offset)
            self.outbox.stopped = True

        return stop

    def _call_later(self, _delay_s: float, call: Callable[..., object], *args: object) -> None:
        self.on_retry()
        self.later.append(lambda: call(*args))

    def _taken(self) -> list[Callable[[], object]]:
        taken, self.later = self.later, []
        return taken

    def gap(self, first: int, after: int) -> None:
        gap = SourceRange(first, after)
        self.cursor.window.append(gap)
        self.queue.fill(gap)


def test_a_marker_that_the_coordinator_has_written_twice_fills_more_of_the_gap() -> None:
    scene = Scene(has_right=False)
    scene.target.repeated = 1
    scene.play(lambda: scene.gap(10, 1_000), lambda: scene.bench.fetch(batch(1_000, 1)))
    assert (scene.diverged, scene.target.end, scene.cursor.window.position) == ([], 1_000, 1_000)


def test_one_more_marker_than_a_gap_has_offsets_stops_the_partition_if_a_batch_follows() -> None:
    scene = Scene(has_right=False)
    scene.target.repeated = 1

    def fetch() -> None:
        scene.cursor.offset = 10
        scene.bench.fetch(batch(12, 3))

    scene.play(fetch)
    assert (scene.diverged, scene.bench.outbox.idle) == ([12], True)


def test_transactions_are_settled_before_the_record_after_a_gap() -> None:
    """A coordinator's second request for the same marker would take the offset of the record."""
    scene = Scene(has_right=False)
    scene.play(lambda: scene.gap(10, 1_000), lambda: scene.gap(1_000, 1_001))
    ledger = "commit True"  # before the first transaction
    assert scene.target.calls == ["claim", ledger, "fill", "fill", "settle", "fill", "settle"]


OPEN = BrokerFailure.of(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("is_known", [False, True])
def test_no_marker_is_written_while_transactions_may_be_open(*, is_known: bool) -> None:
    """CLUSTER_ACTION was granted, and WRITE on transactional ids was taken away, while a gap was filled."""
    scene = Scene()
    scene.target.claims = [OPEN, OPEN]
    reasons: list[str] = []
    scene.on_retry = lambda: reasons.append(f"{scene.cursor.current_state().state}: {scene.outbox.last_error}")

    def gap() -> None:
        scene.queue.by_transactions, scene.queue.is_known = True, is_known
        scene.gap(10, 12)

    scene.play(gap)
    assert (scene.target.calls, scene.target.end, scene.queue.by_transactions) == (["claim"], 12, False)
    assert len(scene.target.runs) == 1
    assert len(reasons) == 2
    assert reasons[0].startswith("UNAUTHORIZED")
    assert "empty transactions that fill gaps may still be open" in reasons[0]


def test_a_predecessor_whose_transactions_the_ledger_has_lost_is_fenced_for_certain() -> None:
    scene = Scene(is_clean=False)
    scene.target.states = {5: ProducerState(5, 3, -1, -1, 1, -1)}
    scene.target.claims = [DisconnectedFailure("disconnected")]
    scene.play(lambda: scene.gap(10, 12))
    assert (scene.target.calls, scene.target.claims, scene.target.end) == (["claim"], [], 12)


def test_transactions_that_a_killed_process_has_left_are_ended_at_the_start() -> None:
    scene = Scene(is_clean=False)
    scene.target.claims = [DisconnectedFailure("disconnected"), OPEN]
    done: list[bool] = []
    waits: list[tuple[float, str]] = []

    async def pause(seconds: float) -> None:
        waits.append((seconds, str(scene.cursor.current_state().state)))

    scene.link.pause = pause  # type: ignore[method-assign]

    async def settle() -> None:
        done.append(await scene.fills.settle(scene.cursor))

    scene.play(lambda: scene.fills._tasks.spawn(settle()))
    assert (done, scene.target.calls, scene.outbox.last_error) == ([True], ["claim"], None)
    assert waits == [(0.25, "UNREACHABLE"), (5.0, "UNAUTHORIZED")]


def test_a_target_that_has_lost_its_end_after_it_was_looked_up_gets_no_marker() -> None:
    """An election has done so between the comparison with the source, after a crash, and the first gap."""
    scene = Scene(is_clean=False)
    scene.target.end = 8
    scene.play(lambda: scene.gap(10, 20))
    assert (scene.truncated, scene.target.runs) == ([8], [])


def test_markers_of_a_predecessor_that_had_read_more_of_the_source_are_taken_over() -> None:
    scene = Scene(is_clean=False)
    scene.target.end = 30
    scene.play(lambda: scene.gap(10, 20), lambda: scene.gap(20, 40))
    assert (scene.diverged, scene.target.end, scene.cursor.window.position) == ([], 40, 40)
    assert [(run.first, run.after) for run in scene.target.runs] == [(30, 40)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_record_of_another_program_inside_a_gap_stops_the_partition(*, is_clean: bool) -> None:
    scene = Scene(is_clean=is_clean)
    scene.target.write(3)
    scene.play(lambda: scene.gap(10, 20))
    assert (scene.diverged, scene.target.runs) == ([10], [])


def test_a_record_of_another_program_behind_markers_stops_the_partition() -> None:
    scene = Scene(is_clean=False)
    scene.target.repeated = 1
    scene.target.records = {12}
    scene.play(lambda: scene.gap(10, 12))
    assert scene.diverged == [12]


@pytest.mark.parametrize(
    ("failure", "generation"),
    [
        (BrokerFailure.of(ErrorCode.NOT_ENOUGH_REPLICAS), 0),
        (BrokerFailure.of(ErrorCode.REQUEST_TIMED_OUT), 0),
        (BrokerFailure.of(ErrorCode.INVALID_PRODUCER_EPOCH), 50),
        (DisconnectedFailure("disconnected"), 50),
    ],
)
def test_only_unanswered_and_fenced_requests_use_up_generations(failure: KafkaFailure, generation: int) -> None:
    """There are 32,768. With four attempts a second, they were used up in 2.3 hours, and the last one fences nothing."""
    scene = Scene()
    scene.target.answers = [failure] * 50
    scene.play(lambda: scene.gap(10, 12))
    assert (scene.diverged, scene.target.end) == ([], 12)
    assert scene.target.runs[-1].generation == generation


def test_after_a_crash_the_generation_grows_once() -> None:
    scene = Scene(is_clean=False)
    late = marker_at(9, 3)
    scene.target.states = {late.producer_id: ProducerState(late.producer_id, late.producer_epoch, -1, -1, 0, -1)}
    scene.target.answers = [BrokerFailure.of(ErrorCode.NOT_ENOUGH_REPLICAS)] * 3
    scene.play(lambda: scene.gap(10, 12))
    assert [run.generation for run in scene.target.runs] == [4, 4, 4, 4]


def test_what_was_read_behind_a_gap_is_copied_after_a_stop_at_the_source() -> None:
    scene = Scene()

    def stop() -> None:
        scene.outbox.address = None  # so the gap is not filled yet
        scene.gap(10, 12)
        scene.cursor.offset = 12
        scene.bench.fetch(batch(12, 3))
        scene.cursor.fail(PartitionState.CORRUPT, "corrupt", at_source=True)
        assert not scene.cursor.has_ended
        scene.outbox.address = (1, 0)

    scene.play(stop)
    scene.bench.ack(12)
    assert (scene.bench.offsets(), scene.cursor.window.mark) == ([12, 13, 14], Mark(15, 15, 3))
    assert scene.cursor.has_ended


def test_a_stop_at_the_source_does_not_wait_for_a_gap_that_is_refused() -> None:
    scene = Scene()
    scene.target.answers = [BrokerFailure.of(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]

    def stop() -> None:
        scene.gap(10, 12)
        scene.cursor.fail(PartitionState.CORRUPT, "corrupt", at_source=True)

    ended: list[bool] = []
    scene.on_retry = lambda: ended.append(scene.cursor.has_ended)
    scene.play(stop)
    assert ended[-1:] == [True]
