"""Outboxes through refusals, leader moves and lost connections. The test plays the brokers behind the channels."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.executor.clusters.brokers import SLOW_RESPONSE_S, BrokerAddress
from mm2.copy.executor.partition.outbox import Outbox, OutboxState, OutgoingBatch
from mm2.copy.executor.producing.outbox_events import (
    Accepted,
    NotInTransaction,
    ProducerLost,
    Rejected,
    ReportedEvent,
    ResendUncertain,
    TargetInconsistent,
    TargetTruncated,
    Throttled,
)
from mm2.copy.executor.producing.sink import Sink, _TargetBroker, _UnderWay
from mm2.copy.progress.session import EndedSession, Mark
from mm2.copy.progress.target_progress import FoundBatch, ProgressQuestion, ReappearedSession, TargetProgress
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, KafkaFailure
from mm2.kafka.records.batch import read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import Broker, Metadata, PartitionInfo, ProducerIdentity, TopicInfo, TopicPartition
from mm2.kafka.wire import produce
from tests.support.waiting import wait_until_async

TP = TopicPartition("t", 0)
VERSION = 3
TIMED_OUT = 7
TOO_LARGE = 10
TOPIC_AUTHORIZATION_FAILED = 29
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
OUT_OF_ORDER = 45
INVALID_RECORD = 87
GONE = DisconnectedFailure("gone")


class Line:
    """A broker's end of a channel: requests in, responses when the test calls for them."""

    def __init__(self, sink: Sink, node: int) -> None:
        self.lost = False
        self.requests: list[list[tuple[int, int]]] = []  # (sequence, records) of each batch
        self.transactional: list[list[bool]] = []
        self.connection = SimpleNamespace(
            next_correlation_id=lambda: 1, client_id="c", maybe_reauthenticate=lambda **_: None, session_is_over=False
        )
        self._sink = sink
        self.broker = sink._brokers.setdefault(BrokerAddress(node, 0), _TargetBroker(node, 0))
        self.broker.version = VERSION
        self.broker.channel = cast(Any, self)

    def send(self, buffers: Iterable[Any], _correlation_id: int) -> None:
        headers = [read_header(data) for data in buffers if isinstance(data, memoryview)]
        self.requests.append([(header.base_sequence, header.records_count) for header in headers])
        self.transactional.append([header.is_transactional for header in headers])

    def answer(self, *results: tuple[TopicPartition, int, int], throttle_ms: int = 0) -> None:
        """One answer, with (partition, error code, base offset) for each batch."""
        out = struct.pack(">ii", 1, len(results))
        for tp, code, base in results:
            name = tp.topic.encode()
            out += struct.pack(">h", len(name)) + name + struct.pack(">iihqq", 1, tp.partition, code, base, -1)
        self._sink._answered(self.broker, memoryview(out + struct.pack(">i", throttle_ms)))

    def fail(self, error: Any) -> None:
        self.lost = True
        self._sink._lost(self.broker, error)

    def close(self) -> None:
        self.lost = True


class Scene:
    """A sink with outboxes that know producer 7 and leader 1. ``standing`` is what a look-up finds."""

    def __init__(self, settings: ClientSettings) -> None:
        self.cluster = Cluster(settings, name="B")
        self.background = ThreadPoolExecutor(1)
        self.acked: list[tuple[str, int]] = []
        self.words: list[str | None] = []
        self.standing: TargetProgress | KafkaFailure = TargetProgress(0, 0)
        self.questions: list[dict[TopicPartition, tuple[int, int, int]]] = []
        self.ended: list[tuple[EndedSession, ...]] = []  # of the questions
        self.lost: list[int] = []
        self.age_ms = 0
        self.inconsistent: list[str] = []
        self.truncated: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.throttled: list[str] = []
        self.rejected: Callable[[Outbox], None] = lambda _outbox: None  # done about a rejected batch
        self.enroll: Callable[[Outbox], None] = lambda _outbox: None
        self.sink = Sink(
            self.cluster,
            asyncio.get_running_loop(),
            self.background,
            BufferPool(),
            look_up=self._look_up,
            report=self._report,
        )

    def _report(self, event: ReportedEvent) -> None:
        match event:
            case Rejected(outbox, failure):
                self.words.append(str(failure))
                self.rejected(outbox)
            case Accepted():
                self.words.append(None)
            case TargetInconsistent(_, reason):
                self.inconsistent.append(reason)
            case TargetTruncated(_, records, end):
                self.truncated.append((records, end))
            case ResendUncertain(_, note):
                self.notes.append(note)
            case Throttled(_, by, _):
                self.throttled.append(by)
            case ProducerLost(_, failure):
                self.lost.append(cast(BrokerFailure, failure).code)
            case NotInTransaction(outbox):
                self.enroll(outbox)

    async def _look_up(
        self, questions: Mapping[TopicPartition, ProgressQuestion]
    ) -> Mapping[TopicPartition, TargetProgress | KafkaFailure]:
        self.ended += (question.ended for question in questions.values())
        self.questions.append({tp: (q.producer.producer_id, q.records, q.behind) for tp, q in questions.items()})
        return dict.fromkeys(questions, self.standing)

    def outbox(
        self, tp: TopicPartition = TP, *, known: bool = False, looked_up: bool = False, **options: Any
    ) -> Outbox:
        options.setdefault("idempotent", True)
        box = self.sink.outbox(tp, **options)
        if options["idempotent"]:
            box.begin(ProducerIdentity(7, 0), 0, known=known)
            box.acked_ms = int(time.time() * 1000)
        box.address = BrokerAddress(1, 0)
        box.leader_epoch = 1
        box.looked_up = looked_up
        return box

    def outgoing(self, name: str, count: int) -> OutgoingBatch:
        stamp = int(time.time() * 1000) - self.age_ms
        data = encode_batch([Record(b"k", b"v", timestamp=stamp)] * count)
        return OutgoingBatch(
            memoryview(data),
            read_header(data),
            lambda base: self.acked.append((name, base)),
            split=lambda: None if count < 2 else [self.outgoing(f"{name}{i}", count // 2) for i in range(2)],
            without=lambda there, base: self.outgoing(f"{name}-{there}@{base}", count - there),
        )

    def put(self, box: Outbox, name: str, count: int = 1) -> None:
        self.sink.put(box, self.outgoing(name, count))

    def leaders(self, **nodes: int) -> None:
        """Set the metadata of partition 0 of each topic."""
        topics = {name: TopicInfo(name, "", False, {0: PartitionInfo(node, 1, (), ())}) for name, node in nodes.items()}
        found = Metadata("id", 1, {1: Broker(1, "h", 1, None), 2: Broker(2, "h", 2, None)}, topics)
        self.cluster.metadata = lambda *_args, **_kwargs: found  # type: ignore[method-assign]


def play(scenario: Callable[[Scene], Awaitable[None]], **props: str) -> None:
    settings = ClientSettings.from_props({"bootstrap.servers": "localhost:1", **props}, client_id="c")

    async def run() -> None:
        mishaps: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mishaps.append(context))
        scene = Scene(settings)
        try:
            await scenario(scene)
        finally:
            scene.sink.close()
            scene.background.shutdown()
            scene.cluster.close()
        assert not mishaps

    asyncio.run(run())


async def turn(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_partition_with_a_rejected_batch_is_not_sent_during_the_backoff() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        scene.put(box, "a")
        await turn()
        scene.put(box, "b")  # it stands in the broker's line when the answer comes
        line.answer((TP, TIMED_OUT, -1))
        await turn()
        assert line.requests == [[(0, 1)]]
        await wait_until_async(lambda: len(line.requests) > 1)
        assert line.requests[1] == [(0, 1)]

    play(scenario, **{"retry.backoff.ms": "50"})


def test_a_response_never_acknowledges_a_batch_that_was_not_in_the_request() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        line.broker.under_way.extend(
            _UnderWay([], float("inf"), VERSION) for _ in range(4)
        )  # others' requests keep the line waiting
        scene.put(box, "a")
        await turn()
        scene.put(box, "b")
        line.broker.under_way.rotate(1)
        line.answer((TP, TIMED_OUT, -1))
        line.broker.under_way.append(_UnderWay([], float("inf"), VERSION))
        await asyncio.sleep(0.1)
        line.broker.under_way.clear()
        scene.sink._schedule(line.broker)
        await turn()
        line.answer((TP, 0, 100))
        assert scene.acked == [("a", 100)]

    play(scenario, **{"retry.backoff.ms": "20", "retry.backoff.max.ms": "20"})


def test_the_first_batch_of_a_producer_goes_alone() -> None:
    # A broker that does not know the producer would take a second batch though it refused the first.
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        for name in "abc":
            scene.put(box, name)
        await turn()
        assert line.requests == [[(0, 1)]]
        line.answer((TP, 0, 10))
        await turn()
        assert line.requests == [[(0, 1)], [(1, 1)], [(2, 1)]]

    play(scenario)


def test_a_new_leader_gets_nothing_before_the_old_one_has_responded() -> None:
    async def scenario(scene: Scene) -> None:
        old, new, box = Line(scene.sink, 1), Line(scene.sink, 2), scene.outbox()
        box.known = True
        scene.put(box, "a")
        await turn()
        scene.leaders(t=2)
        await scene.sink._find_leaders(["t"], fresh=True)
        scene.put(box, "b")
        await turn()
        assert new.requests == []
        old.fail(DisconnectedFailure("gone"))
        await turn()
        assert new.requests == [[(0, 1)]], "whether the new leader knows the producer is shown by its first answer"
        new.answer((TP, 0, 10))
        await turn()
        assert new.requests == [[(0, 1)], [(1, 1)]]
        new.answer((TP, 0, 11))
        assert scene.acked == [("a", 10), ("b", 11)]

    play(scenario)


def test_a_batch_missing_in_the_response_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.producing.produce_outcomes._REFUSED_RETRY_S", 0.01)

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        scene.put(box, "a")
        await turn()
        line.answer()
        await wait_until_async(lambda: len(line.requests) == 2)
        line.answer((TP, 0, 10))
        assert (scene.acked, scene.words[-1]) == ([("a", 10)], None)

    play(scenario)


def test_nothing_is_sent_while_a_quota_throttles_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker would read it later, perhaps after the connection was closed (KIP-219)."""
    monkeypatch.setattr(produce, "MUTED_FROM", VERSION)

    async def scenario(scene: Scene) -> None:
        line = Line(scene.sink, 1)
        box = scene.outbox(known=True)
        scene.put(box, "first")
        await turn()
        began_s = time.monotonic()
        line.answer((TP, 0, 0), throttle_ms=200)
        scene.put(box, "second")
        await turn()
        assert len(line.requests) == 1
        await wait_until_async(lambda: len(line.requests) == 2, 10)
        assert time.monotonic() - began_s >= 0.2
        assert scene.throttled == ["limited by a quota of cluster B"]

    play(scenario)


def test_an_unresponsive_broker_is_reported_before_the_timeout() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        scene.put(box, "a")
        await turn()
        request = line.broker.under_way[0]
        line.broker.under_way[0] = request._replace(sent_s=request.sent_s - SLOW_RESPONSE_S + 1)
        scene.sink._watch()
        assert box.last_error is None
        line.broker.under_way[0] = request._replace(sent_s=request.sent_s - SLOW_RESPONSE_S - 1)
        scene.sink._watch()
        assert "broker 1 has not responded to a Produce request for 10 s" in str(box.last_error)
        assert not line.lost
        line.answer((TP, 0, 5))
        assert box.last_error is None

    play(scenario)


def test_a_broker_that_does_not_answer_is_left_for_the_new_leader() -> None:
    async def scenario(scene: Scene) -> None:
        old, box = Line(scene.sink, 1), scene.outbox()
        scene.put(box, "a")
        await turn()
        scene.leaders(t=2)
        await scene.sink._find_leaders(["t"], fresh=True)
        old.broker.under_way[0] = old.broker.under_way[0]._replace(sent_s=float("-inf"))
        scene.sink._watch()
        new = Line(scene.sink, 2)
        await turn()
        assert new.requests == [[(0, 1)]]

    play(scenario)


def test_a_produce_request_that_times_out_looks_up_the_leader() -> None:
    """A deposed leader that does not know it appends, and waits for replicas that follow another one."""

    async def scenario(scene: Scene) -> None:
        line = Line(scene.sink, 1)
        box = scene.outbox(known=True)
        scene.put(box, "a")
        await turn()
        scene.leaders(t=2)
        line.answer((TP, 7, -1))
        await wait_until_async(lambda: box.address == BrokerAddress(2, 0))

    play(scenario)


def test_a_lost_connection_is_no_failure_of_the_cluster_while_nothing_is_to_be_written() -> None:
    """Nothing is sent over another one that would show that the cluster responds."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        scene.leaders(t=1)
        line.fail(GONE)
        assert scene.sink.failure is GONE
        await wait_until_async(lambda: scene.sink.failure is None)
        line = Line(scene.sink, 1)
        scene.put(box, "a")
        await turn()
        line.fail(GONE)
        await scene.sink._find_leaders_now()
        assert scene.sink.failure is not None, "a batch waits"

    play(scenario)


def test_the_error_of_a_topic_that_was_not_found_ends_when_it_is_found() -> None:
    """A partition without records has no acknowledgement that would end it."""

    async def scenario(scene: Scene) -> None:
        idle, busy, other = scene.outbox(), scene.outbox(TopicPartition("t", 1)), scene.outbox(TopicPartition("t", 2))
        busy.queue.append(scene.outgoing("a", 1))
        busy.paused = True
        denied = BrokerFailure.of(TOPIC_AUTHORIZATION_FAILED)
        unknown = Metadata("id", 1, {}, {}, {"t": denied})
        scene.cluster.metadata = lambda *_args, **_kwargs: unknown  # type: ignore[method-assign]
        again_s = await scene.sink._find_leaders_now()
        assert (idle.last_error, busy.last_error, idle.address, again_s) == (denied, denied, None, 0.25)
        other.last_error = found_later = BrokerFailure.of(OUT_OF_ORDER)
        leaders = {index: PartitionInfo(1, 1, (), ()) for index in range(3)}
        scene.cluster.metadata = lambda *_args, **_kwargs: Metadata(  # type: ignore[method-assign]
            "id", 1, {}, {"t": TopicInfo("t", "", False, leaders)}
        )
        assert await scene.sink._find_leaders_now() is None
        assert (idle.last_error, busy.last_error, other.last_error) == (None, denied, found_later)
        assert idle.address == BrokerAddress(1, 0)

    play(scenario)


def test_a_partition_without_a_leader_is_reported_until_a_batch_is_acknowledged() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        box.address = None
        scene.leaders(t=-1)
        scene.put(box, "a")
        await wait_until_async(lambda: box.last_error)
        assert str(box.last_error).startswith("writing to t-0 of cluster B: LEADER_NOT_AVAILABLE")
        scene.leaders(t=1)
        await wait_until_async(lambda: line.requests)
        line.answer((TP, 0, 10))
        assert (box.last_error, scene.words) == (None, [None])

    play(scenario)


# -- looking up how far a producer got ------------------------------------------------------------------------------------


def test_batches_that_were_written_before_are_acknowledged_and_not_sent_again() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.end_offset = 100
        for name in "abc":
            scene.put(box, name, 2)
        await turn()
        assert line.requests == [[(0, 2)], [(2, 2)], [(4, 2)]]
        scene.standing = TargetProgress(4, 104, 1, (FoundBatch(0, 100, 4),))
        line.fail(GONE)
        await turn()
        assert scene.questions == [{TP: (7, 0, 100)}]
        assert scene.acked == [("a", 100), ("b", 102)]
        again = Line(scene.sink, 1)
        scene.sink._pump(again.broker)
        assert again.requests == [[(4, 2)]]
        again.answer((TP, 0, 104))
        assert (scene.acked[-1], box.acked, box.end_offset) == (("c", 104), 6, 106)

    play(scenario)


@pytest.mark.parametrize("session_is_over", [True, False])
def test_the_end_of_a_login_session_is_not_an_error_but_unanswered_batches_are_looked_up(session_is_over: bool) -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a", 2)
        await turn()
        line.connection.session_is_over = session_is_over
        line.fail(GONE)
        assert scene.sink.failure is (None if session_is_over else GONE)
        assert line.broker.failures == (0 if session_is_over else 1)
        await turn()
        assert scene.questions == [{TP: (7, 0, -1)}]

    play(scenario)


def test_between_foreign_records_target_offsets_are_unknown() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.end_offset = 100
        scene.put(box, "a", 2)
        await turn()
        scene.standing = TargetProgress(2, 109)
        line.fail(GONE)
        await turn()
        assert (scene.acked, box.idle, box.last_error) == ([("a", -1)], True, None)

    play(scenario)


def test_a_partly_written_batch_is_cut() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a", 5)
        scene.put(box, "b", 1)
        await turn()
        scene.standing = TargetProgress(3, 3, 1, (FoundBatch(0, 0, 3),))
        line.fail(GONE)
        await turn()
        again = Line(scene.sink, 1)
        scene.sink._pump(again.broker)
        assert again.requests == [[(3, 2)]], "alone: the broker may not know us any more"
        again.answer((TP, 0, 3))
        await turn()
        assert again.requests == [[(3, 2)], [(5, 1)]]
        again.answer((TP, 0, 5))
        assert scene.acked == [("a-3@0", 3), ("b", 5)]

    play(scenario)


def test_loss_of_acknowledged_records_on_the_target_is_passed_to_the_owner() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a", 5)
        await turn()
        line.answer((TP, 0, 0))
        scene.put(box, "b", 5)
        await turn()
        scene.standing = TargetProgress(3, 3)
        line.fail(GONE)
        await turn()
        assert (scene.truncated, scene.acked, box.paused) == ([(3, 3)], [("a", 0)], True)

    play(scenario)


def test_a_target_that_ends_before_the_session_is_passed_to_the_owner() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.floor = 8
        scene.put(box, "a", 5)
        await turn()
        scene.standing = TargetProgress(0, 7)
        line.fail(GONE)
        await turn()
        assert (scene.truncated, scene.acked, box.paused) == ([(0, 7)], [], True)

    play(scenario)


@pytest.mark.parametrize("is_preserved", [True, False])
def test_with_preserved_offsets_the_loss_of_markers_is_passed_to_the_owner(*, is_preserved: bool) -> None:
    """Elsewhere what is behind the last record is not of this session."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.is_preserved, box.end_offset = is_preserved, 110
        scene.put(box, "a", 5)
        await turn()
        scene.standing = TargetProgress(0, 105)
        line.fail(GONE)
        await turn()
        assert scene.truncated == ([(0, 105)] if is_preserved else [])

    play(scenario)


@pytest.mark.parametrize("is_preserved", [True, False])
@pytest.mark.parametrize("end", [110, 105])
def test_a_broker_that_was_not_connected_is_looked_up_before_the_next_batch(end: int, *, is_preserved: bool) -> None:
    """It may have lost the end of its log. With preserved offsets a loss of markers alone counts: the batch would be appended at
    another offset than the source's.
    """

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.is_preserved, box.end_offset = is_preserved, 110
        line.fail(GONE)
        again = Line(scene.sink, 1)
        scene.standing = TargetProgress(0, end, 1)
        scene.put(box, "a", 5)
        await turn()
        is_sent = not is_preserved or end == 110
        assert scene.truncated == ([] if is_sent else [(0, 105)])
        assert (again.requests, len(scene.questions)) == ([[(0, 5)]] if is_sent else [], 1)

    play(scenario)


def test_with_preserved_offsets_a_target_that_has_lost_its_end_after_it_was_looked_up_gets_no_batch() -> None:
    """An election has done so between the comparison with the source, after a crash, and the first batch."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.is_preserved, box.end_offset, box.verified_epoch, box.leader_epoch = True, 110, 1, 2
        scene.standing = TargetProgress(0, 105, 2)
        scene.put(box, "a", 5)
        await turn()
        assert (scene.truncated, line.requests) == ([(0, 105)], [])

    play(scenario)


@pytest.mark.parametrize(("end", "is_moved"), [(110, False), (113, True)])
def test_with_preserved_offsets_late_records_of_a_predecessor_are_passed_to_the_owner(
    end: int, *, is_moved: bool
) -> None:
    """The first batch would be appended behind them, at other offsets than the source's."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.is_preserved, box.end_offset, box.is_unverified = True, 110, True
        scene.standing = TargetProgress(0, end)
        scene.put(box, "a", 5)
        await turn()
        assert scene.truncated == ([(0, end)] if is_moved else [])
        assert line.requests == ([] if is_moved else [[(0, 5)]])

    play(scenario)


def test_a_fenced_executor_has_lost_the_partition() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a", 2)
        await turn()
        scene.standing = TargetProgress(9, 9)
        line.fail(GONE)
        await turn()
        assert (scene.acked, scene.lost, box.paused) == ([("a", -1)], [90], True)

    play(scenario)


def test_records_of_the_session_before_end_the_micro_batch() -> None:
    """The next one continues that session (`ContinuedSessions`)."""

    async def scenario(scene: Scene) -> None:
        before = EndedSession(ProducerIdentity(3, 0), Mark(0, 0, 0), "", Mark(5, 5, 5))
        line, box = Line(scene.sink, 1), scene.outbox(looked_up=True)
        box.ended_sessions = (before,)
        scene.put(box, "a", 2)
        await turn()
        scene.standing = TargetProgress(0, 9, reappeared=ReappearedSession(before, TargetProgress(9, 9)))
        line.fail(GONE)
        await turn()
        assert scene.ended == [(before,)]
        assert (scene.acked, scene.lost, box.paused) == ([], [90], True)

    play(scenario)


def test_a_lookup_that_stays_rejected_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.producing.progress_look_ups._RETRY_S", 0.01)
    monkeypatch.setattr("mm2.copy.executor.producing.progress_look_ups.LOOK_UP_REFUSED_S", 0.1)

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a")
        await turn()
        scene.standing = BrokerFailure.of(29)
        line.fail(GONE)
        await wait_until_async(lambda: scene.questions)
        again = Line(scene.sink, 1)
        scene.sink._pump(again.broker)
        assert again.requests == [], "one refusal may be of a broker that has just started"
        await wait_until_async(lambda: again.requests)
        assert again.requests == [[(0, 1)]]
        assert len(scene.questions) > 1
        assert [note.partition(":")[0] for note in scene.notes] == ["at least once"]
        assert box.looked_up, "the next doubt is looked up again"

    play(scenario)


def test_a_session_is_not_looked_up_without_end_where_that_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has changed before the first batch (rule S6), and the READ right is missing now."""
    monkeypatch.setattr("mm2.copy.executor.producing.progress_look_ups._RETRY_S", 0.01)
    monkeypatch.setattr("mm2.copy.executor.producing.progress_look_ups.LOOK_UP_REFUSED_S", 0.05)

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(looked_up=True)
        box.verified_epoch, box.leader_epoch = 3, 4
        scene.standing = BrokerFailure.of(29)
        scene.put(box, "a")
        await wait_until_async(lambda: line.requests)
        assert [note.partition(":")[0] for note in scene.notes] == ["at least once"]

    play(scenario)


# -- rules S1 to S6 of docs/explanation/copy-sessions.md -----------------------------------------------------------------------


def test_old_records_go_one_batch_at_a_time() -> None:
    """A broker forgets the producer of old records, and then it accepts a batch behind one that it has refused."""

    async def scenario(scene: Scene) -> None:
        scene.age_ms = 30 * 86_400_000
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        for name in "abc":
            scene.put(box, name)
        await turn()
        assert line.requests == [[(0, 1)]]
        line.answer((TP, 0, 10))
        await turn()
        assert line.requests == [[(0, 1)], [(1, 1)]]

    play(scenario)


def test_a_fresh_batch_does_not_follow_an_old_one_in_flight() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.age_ms = 30 * 86_400_000
        scene.put(box, "old")
        scene.age_ms = 0
        scene.put(box, "fresh")
        scene.put(box, "fresh")
        await turn()
        assert line.requests == [[(0, 1)]]
        line.answer((TP, 0, 10))
        await turn()
        assert line.requests == [[(0, 1)], [(1, 1)]], "the last acknowledged one is old, the producer may be forgotten"
        line.answer((TP, 0, 11))
        scene.put(box, "fresh")
        await turn()
        assert line.requests == [[(0, 1)], [(1, 1)], [(2, 1)], [(3, 1)]]

    play(scenario)


def test_the_producer_expiry_is_read_from_the_brokers() -> None:
    async def scenario(scene: Scene) -> None:
        scene.age_ms = 3_600_000
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.sink.producer_expires_after(86_400_000)
        for name in "ab":
            scene.put(box, name)
        await turn()
        assert line.requests == [[(0, 1)], [(1, 1)]]

    play(scenario)


@pytest.mark.parametrize("code", [-1, 3, 5, 6, 7, 20, 46, 56])
def test_a_batch_that_may_have_been_appended_is_looked_up(code: int) -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.end_offset = 100
        scene.leaders(t=1)
        scene.put(box, "a", 2)
        await turn()
        scene.standing = TargetProgress(2, 102, 1, (FoundBatch(0, 100, 2),))
        line.answer((TP, code, -1))
        await wait_until_async(lambda: scene.acked)
        assert (scene.acked, len(line.requests), box.idle) == ([("a", 100)], 1, True)

    play(scenario)


def test_an_acknowledged_batch_behind_a_refused_one_stops_the_partition() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a")
        scene.put(box, "b")
        await turn()
        line.answer((TP, 19, -1))
        line.answer((TP, 0, 10))
        await turn()
        assert (scene.acked, box.acked, box.paused) == ([], 0, True)
        assert (
            "appended the records from 1 on at offset 10, although it had rejected those from 0 on"
            in scene.inconsistent[0]
        )

    play(scenario)


def test_batches_that_a_late_request_of_the_predecessor_has_partly_filled_are_looked_up() -> None:
    """Its batches had other boundaries: the first one of ours has a wrong sequence, the second one follows on its last."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        box.end_offset = 100
        scene.leaders(t=1)
        scene.put(box, "a", 4)
        scene.put(box, "b", 2)
        await turn()
        scene.standing = TargetProgress(
            6, 106, 1, (FoundBatch(0, 100, 3), FoundBatch(3, 103, 1), FoundBatch(4, 104, 2))
        )
        line.answer((TP, OUT_OF_ORDER, -1))
        line.answer((TP, 0, 104))
        await wait_until_async(lambda: len(scene.acked) == 2)
        assert (scene.acked[1], box.acked, scene.inconsistent, len(line.requests)) == (("b", 104), 6, [], 2)

    play(scenario)


def test_nothing_is_sent_without_the_lease() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.sink._may_send = lambda: False
        scene.put(box, "a")
        await turn()
        assert line.requests == []

    play(scenario)


def test_what_was_held_back_without_the_lease_is_sent_when_the_lease_is_valid_again() -> None:
    """A process that was frozen runs its callbacks before it reads that its lease was renewed."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.sink._may_send = lambda: False
        scene.put(box, "a")
        await turn()
        scene.sink._may_send = lambda: True
        await wait_until_async(lambda: line.requests)
        assert line.requests == [[(0, 1)]]

    play(scenario)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_target_with_an_old_message_format_ends_the_session_but_no_transaction(transactional: bool) -> None:
    """Formats of before 0.11 have no producer ids, so that such a log accepts only batches without them."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(looked_up=not transactional, transactional=transactional)
        scene.put(box, "a")
        await turn()
        line.answer((TP, UNSUPPORTED_FOR_MESSAGE_FORMAT, -1))
        assert (scene.lost, box.refused) == (([], True) if transactional else ([UNSUPPORTED_FOR_MESSAGE_FORMAT], False))

    play(scenario)


def test_the_first_batch_after_an_ended_session_is_looked_up() -> None:
    """A broker may process requests of a dead executor after the look-up that ended its session."""

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(looked_up=True)
        box.is_unverified, box.verified_epoch = True, box.leader_epoch
        scene.standing = TargetProgress(0, 0, box.leader_epoch)
        scene.put(box, "a")
        await wait_until_async(lambda: line.requests)
        assert len(scene.questions) == 1
        assert not box.is_unverified

    play(scenario)


def test_after_a_lookup_nothing_is_sent_in_another_leader_epoch() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(looked_up=True)
        scene.leaders(t=1)
        box.leader_epoch, box.verified_epoch = 5, 4
        scene.standing = TargetProgress(0, 0, 5)
        scene.put(box, "a")
        await wait_until_async(lambda: line.requests)
        assert len(scene.questions) == 1
        line.answer((TP, 0, 0))
        assert scene.acked == [("a", 0)]
        assert box.verified_epoch is None

    play(scenario)


def test_an_unanswered_lookup_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.producing.progress_look_ups._RETRY_S", 0.01)

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a")
        await turn()
        scene.standing = DisconnectedFailure("disconnected")
        line.fail(GONE)
        await wait_until_async(lambda: len(scene.questions) > 1)
        assert (box.last_error, scene.acked) == (scene.standing, [])
        scene.standing = TargetProgress(1, 1)
        await wait_until_async(lambda: scene.acked)
        assert (box.last_error, box.idle) == (None, True), "nothing is wrong any more"

    play(scenario)


def test_a_broker_that_forgot_the_producer_is_asked_for_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a", 2)
        scene.put(box, "b", 2)
        await turn()
        scene.standing = TargetProgress(2, 2)
        line.answer((TP, OUT_OF_ORDER, -1))
        line.answer((TP, OUT_OF_ORDER, -1))
        await wait_until_async(lambda: len(line.requests) == 3)
        assert (scene.acked, line.requests[2], scene.lost) == ([("a", -1)], [(2, 2)], [])
        for count in range(4, 8):  # but not for ever
            line.answer((TP, OUT_OF_ORDER, -1))
            await wait_until_async(lambda count=count: len(line.requests) == count or scene.lost)  # type: ignore[misc]
            if scene.lost:
                break
        assert scene.lost == [OUT_OF_ORDER]

    play(scenario)


def test_without_a_lookup_an_unknown_producer_is_lost_immediately() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True)
        scene.put(box, "a")
        await turn()
        line.answer((TP, OUT_OF_ORDER, -1))
        await turn()
        assert (scene.lost, scene.questions, box.paused) == ([OUT_OF_ORDER], [], True)

    play(scenario)


# -- refusals -------------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_cut_and_what_follows_keeps_its_numbers() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a", 4)
        scene.put(box, "b", 1)
        await turn()
        line.answer((TP, TOO_LARGE, -1))
        line.answer((TP, OUT_OF_ORDER, -1))
        await turn()
        for address, part in enumerate([(0, 2), (2, 2), (4, 1)]):
            assert line.requests[2 + address] == [part]
            line.answer((TP, 0, part[0]))
            await turn()
        assert (scene.words, scene.questions) == ([None], [])

    play(scenario)


def test_of_a_merged_batch_only_the_record_that_is_rejected_is_refused() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        merged = scene.outgoing("a", 2)
        merged.separate, merged.split = merged.split, None
        scene.sink.put(box, merged)
        scene.put(box, "b", 1)
        await turn()
        line.answer((TP, INVALID_RECORD, -1))
        line.answer((TP, OUT_OF_ORDER, -1))
        await turn()
        assert (line.requests[2:], box.refused, scene.words) == ([[(0, 1)]], False, [])
        line.answer((TP, 0, 10))
        await turn()
        assert line.requests[3:] == [[(1, 1)], [(2, 1)]]
        line.answer((TP, INVALID_RECORD, -1))
        line.answer((TP, OUT_OF_ORDER, -1))
        await turn()
        assert (scene.acked, box.refused, len(line.requests)) == ([("a0", 10)], True, 5)

    play(scenario)


@pytest.mark.parametrize("code", [29, 7, 44], ids=["no right", "timeout", "policy"])
def test_a_merged_batch_stays_whole_when_its_records_are_not_the_cause(code: int) -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True)
        merged = scene.outgoing("a", 2)
        calls: list[int] = []
        merged.separate = lambda: calls.append(1)
        scene.sink.put(box, merged)
        await turn()
        line.answer((TP, code, -1))
        await turn()
        assert (calls, [outgoing.count for outgoing in box.queue]) == ([1] if code == 44 else [], [2])

    play(scenario)


def test_a_record_that_is_too_large_is_resent_in_case_the_limit_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.producing.produce_outcomes._REFUSED_RETRY_S", 0.01)

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True, looked_up=True)
        scene.put(box, "a")
        await turn()
        line.answer((TP, TOO_LARGE, -1))
        assert (box.refused, len(scene.words)) == (True, 1)
        await wait_until_async(lambda: len(line.requests) == 2)
        line.answer((TP, 0, 3))
        assert (scene.acked, scene.words[-1], box.refused) == ([("a", 3)], None, False)

    play(scenario)


def test_a_batch_that_the_owner_has_handled_is_not_resent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.producing.produce_outcomes._REFUSED_RETRY_S", 0.01)

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox(known=True)

        def quarantine(outbox: Outbox) -> None:
            outbox.state, outbox.paused = OutboxState.QUARANTINING, True

        scene.rejected = quarantine
        scene.put(box, "a")
        await turn()
        line.answer((TP, TOO_LARGE, -1))
        await asyncio.sleep(0.05)
        assert len(line.requests) == 1

    play(scenario)


# -- transactions ---------------------------------------------------------------------------------------------------------


def test_unsent_batches_wait_while_a_transaction_ends_and_sent_ones_are_resent() -> None:
    async def scenario(scene: Scene) -> None:
        line = Line(scene.sink, 1)
        data = scene.outbox(known=True, transactional=True)
        offsets = scene.outbox(TopicPartition("o", 0), known=True, transactional=True, waits_for_commit=False)
        scene.put(data, "a")
        await turn()
        scene.sink.hold(new=True)
        scene.put(data, "b")
        scene.put(offsets, "o")
        await turn()
        assert line.requests == [[(0, 1)], [(0, 1)]]
        line.answer((TP, TIMED_OUT, -1))
        await wait_until_async(lambda: len(line.requests) == 3)
        assert line.requests[2] == [(0, 1)], "what was sent goes again"
        scene.sink.hold(new=False)
        line.answer((TopicPartition("o", 0), 0, 5))
        line.answer((TP, 0, 10))
        await turn()
        assert line.requests[3] == [(1, 1)]
        assert line.transactional == [[True]] * 4

    play(scenario, **{"retry.backoff.ms": "20"})


def test_a_request_belongs_to_the_transaction_or_not() -> None:
    async def scenario(scene: Scene) -> None:
        line = Line(scene.sink, 1)
        boxes = [
            scene.outbox(TopicPartition("t", index), known=True, transactional=index % 2 == 0) for index in range(4)
        ]
        plain = scene.outbox(TopicPartition("ledger", 0), idempotent=False)
        for box in (*boxes, plain):
            scene.put(box, "x")
        await turn()
        assert sorted(line.transactional) == [[False] * 3, [True] * 2]

    play(scenario)


def test_one_batch_of_a_partition_is_in_a_request() -> None:
    async def scenario(scene: Scene) -> None:
        line, one, two = Line(scene.sink, 1), scene.outbox(known=True), scene.outbox(TopicPartition("u", 0), known=True)
        for box in (one, one, two):
            scene.put(box, "x")
        await turn()
        assert line.requests == [[(0, 1), (0, 1)], [(1, 1)]]

    play(scenario)


def test_nothing_is_sent_for_a_producer_without_an_id() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.sink.outbox(TP, idempotent=True)
        box.address = BrokerAddress(1, 0)
        scene.put(box, "a")
        await turn()
        assert line.requests == []
        box.begin(ProducerIdentity(9, 0), 41, known=True)
        scene.sink.end_pause(box)
        await turn()
        assert line.requests == [[(41, 1)]]

    play(scenario)
