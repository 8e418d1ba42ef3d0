"""Start positions of a task's partitions, by the ledger and Connect's positions, and its error reports."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mm2.codec import decode, encode
from mm2.connect.api import ConnectError, SourceTaskContext, WorkerView
from mm2.copy.progress.ledger import Ledger, LedgerLog, Pause, chunk_record, entry_record, pause_record, paused
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import (
    CopyId,
    CopyOrigin,
    Lease,
    LedgerEntry,
    Mark,
    PositionHeader,
    PreviousCommit,
    Seen,
    Session,
    Start,
    WrittenPosition,
)
from mm2.copy.progress.written_positions import offset_value
from mm2.kafka.errors import (
    AuthenticationFailure,
    BrokerFailure,
    DisconnectedFailure,
    KafkaFailure,
    TimeoutFailure,
    TlsFailure,
)
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.mirror.notes.promotions import Promotion, withdrawn
from mm2.mirror.notes.source_cluster import AcceptedSource
from mm2.mirror.source.start_from import StartFrom
from mm2.mirror.source.start_positions import StartPositions
from mm2.mirror.source.task_ledger import TaskLedger
from mm2.mirror.source_task import MirrorSourceTask, _offsets_elsewhere, copy_spec
from mm2.reasons import OriginCode
from tests.support.waiting import wait_until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION = Session(ProducerIdentity(7, 0), Mark(0, 0, 0))
ENTRY = LedgerEntry("t", 0, "A.t", Mark(50, 60, 50), 40, session=SESSION)


class Positions:
    """Connect's offsets topic."""

    def __init__(self) -> None:
        self.held: dict[TopicPartition, Any] = {}
        self.failure: Exception | None = None
        self.asked: list[Mapping[str, Any]] = []
        self.later: list[dict[TopicPartition, Any]] = []  # records appended between two reads

    def offsets(self, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        if self.failure is not None:
            raise self.failure
        self.asked = list(partitions)
        found = [self.held.get(TopicPartition(row["topic"], row["partition"])) for row in partitions]
        if self.later:
            self.held |= self.later.pop(0)
        return [None if offset is None else {"offset": offset} for offset in found]


class Log:
    """A ledger topic that may not exist."""

    def __init__(self, ledger: Ledger, failures: list[KafkaFailure]) -> None:
        self.ledger = ledger
        self.reads = self.stops = 0
        self._failures = failures

    def start(self, _timeout_s: float) -> None:
        if self._failures:
            raise self._failures.pop(0)

    def read_to_end(self, _timeout_s: float) -> None:
        self.reads += 1

    def stop(self) -> None:
        self.stops += 1


class Environment:
    """A started task, without Spark."""

    def __init__(
        self, *entries: LedgerEntry, failures: list[KafkaFailure] | None = None, exactly_once: bool = False
    ) -> None:
        self.positions = Positions()
        self.ledger = Ledger()
        for entry in entries:
            row = entry_record(entry)
            self.ledger.apply(row.key, row.value)
        self.log = Log(self.ledger, failures or [])
        worker = WorkerView({}, "A-mm2", "mm2-offsets.A.internal", {}, exactly_once=exactly_once)
        self.taken: list[str] = []
        context = SourceTaskContext("C", 0, {}, cast(Any, self.positions), worker)
        self.task = MirrorSourceTask()
        self.task.initialize(context)
        self.ends, self.place = 40, ""
        self.creations = 0
        self.task._ledger = self.ledgers = TaskLedger(cast(Any, lambda: self.log), self._create)
        remote_topics = {TopicPartition(T0.topic, partition): "A.t" for partition in range(4)} | {
            entry.source: entry.remote_topic for entry in entries
        }
        spec = SimpleNamespace(group="A-mm2", connector="C", source_alias="A", partitions=())
        self.start = StartPositions(cast(Any, spec), context, StartFrom(), self.ledgers.read, None)
        self.task._positions = self.start
        self.start._remote_topics = remote_topics
        self.headers: dict[TopicPartition, PositionHeader] = {}
        self.read: dict[TopicPartition, list[int | None]] = {}
        self.others: dict[TopicPartition, str] = {}
        self.whole: WrittenPosition | None = None  # what all of the offsets topic shows
        self.reset: tuple[int | None, int] = (None, -1)  # a position of a user, and its offset in the offsets topic
        task: Any = self.start
        task._written_positions = self._written
        task._offsets_ends = lambda partitions: dict.fromkeys(partitions, Seen(self.ends, self.place))
        task._take_transactional_id = self.taken.append
        self.on_target: set[TopicPartition] = set()  # partitions whose newest transaction is committed
        task._committed_on_target = lambda entries: self.on_target & entries.keys()
        self.remote_ends: dict[TopicPartition, int] = {}  # of remote partitions that are not empty
        task._ends_of_used = lambda partitions: {tp: end for tp, end in self.remote_ends.items() if tp in partitions}

    def _written(self, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, WrittenPosition]:
        if self.whole is not None and partitions and not any(partitions.values()):
            return dict.fromkeys(partitions, self.whole)
        return {
            tp: WrittenPosition(
                self.headers.get(tp),
                *self.reset,
                positions=frozenset(self.read.get(tp, [])),
                other_topic=self.others.get(tp, ""),
            )
            for tp in partitions
        }

    def _create(self) -> None:
        self.creations += 1

    def starts(self, *partitions: TopicPartition) -> dict[TopicPartition, Start]:
        return self.start.starts(partitions or (T0,))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.mirror.source.start_positions._READ_AGAIN_S", 0.0)
    monkeypatch.setattr("mm2.mirror.source.task_ledger._LEDGER_AGAIN_S", 0.0)
    monkeypatch.setattr("mm2.mirror.source.task_ledger._LEDGER_PATIENCE_S", 0.1)


def test_pauses_in_the_ledger_are_applied_once_per_change() -> None:
    class Job:
        followed = 0

        def follow_pauses(self) -> None:
            self.followed += 1

    env, job = Environment(), Job()
    follow = partial(env.task._follow_pauses, cast(Any, job))
    follow()
    assert (env.task._pauses(), job.followed) == ({}, 0), "the ledger has not been read"
    env.starts()
    for pause, times in ((None, 0), (Pause("ann", 5), 1), (Pause("ann", 5), 1), (None, 2)):
        row = pause_record("t", 0, pause)
        env.ledger.apply(row.key, row.value)
        follow()
        follow()
        assert job.followed == times
    assert env.task._pauses() == {}


def test_a_promoted_topic_is_not_copied_and_its_positions_are_read_again_when_withdrawn() -> None:
    class Job:
        stopped = followed = 0

        def stop(self, _timeout_s: float) -> bool:
            self.stopped += 1
            assert paused(env.task._pauses(), T0), "paused until no task copies it any more"
            return True

        def follow_pauses(self) -> None:
            self.followed += 1

    class Engine:
        opened = 0

        def open(self, *_: Any) -> Job:
            self.opened += 1
            return second

    env, first, second, engine = Environment(ENTRY), Job(), Job(), Engine()
    env.task._engine, env.task._spec = cast(Any, engine), cast(Any, None)
    follow = cast(Any, env.task._follow_pauses)
    env.starts()
    promotion = Promotion("t", "A.t", "failover", 1_700_000_000_000)
    row = promotion.record()
    env.ledger.apply(row.key, row.value)
    assert str(paused(env.task._pauses(), T0)) == (
        "paused by mm2 failover at 2023-11-14 22:13:20 UTC: promoted, until mm2 failback"
    )
    assert (follow(first), first.stopped, first.followed) == (first, 0, 1)
    row = dataclasses.replace(promotion, turned=True).record()
    env.ledger.apply(row.key, row.value)
    assert (follow(first), first.stopped, engine.opened) == (first, 0, 0), "still handed over"
    row = withdrawn("t")
    env.ledger.apply(row.key, row.value)
    assert paused(env.task._pauses(), T0) is not None
    assert (follow(first), first.stopped, engine.opened) == (second, 1, 1)
    assert env.task._pauses() == {}


@pytest.mark.parametrize("committed", [40, 50])
def test_a_session_continues_at_its_mark(committed: int) -> None:
    env = Environment(ENTRY)
    env.positions.held = {T0: committed - 1}
    start = env.starts()[T0]
    assert (start.position, start.committed, start.entry, start.moved) == (50, committed, ENTRY, False)
    assert env.positions.asked == [{"cluster": "A", "partition": 0, "topic": "t"}]


def test_positions_of_java_are_used_and_reported() -> None:
    env = Environment(ENTRY)
    env.positions.held = {T0: 99}
    with capture_logs() as logs:
        start = env.starts()[T0]
    assert (start.position, start.moved) == (100, True)
    assert start.entry == ENTRY.replace(session=None)
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert (warning["position"], warning["ledger"]) == (100, 50)


def test_a_late_position_of_a_predecessor_is_not_used() -> None:
    env = Environment(ENTRY.replace(lease=Lease(2_000, 1), seen=Seen(5)))
    env.positions.held = {T0: 19}
    env.headers = {T0: PositionHeader(Lease(1_000, 7), Mark(20, 30, 20), ENTRY.session, Seen(3))}
    env.read = {T0: [20]}
    with capture_logs() as logs:
        start = env.starts()[T0]
    assert (start.position, start.committed, start.moved) == (50, 20, False)
    assert [line for line in logs if line["log_level"] == "warning"] == []


def test_a_late_position_is_not_used_after_switching_to_exactly_once() -> None:
    env = Environment(ENTRY.replace(lease=Lease(2_000, 1), seen=Seen(5)), exactly_once=True)
    env.positions.held = {T0: 19}
    env.headers = {T0: PositionHeader(Lease(1_000, 7), Mark(20, 30, 20), ENTRY.session, Seen(3))}
    env.read = {T0: [20]}
    start = env.starts()[T0]
    assert (start.position, start.moved, start.entry and start.entry.session) == (50, False, ENTRY.session)


def test_positions_that_the_offsets_topic_has_lost_are_those_of_the_ledger() -> None:
    """Its newest position is an older one of this connector, before `seen`."""
    env = Environment(ENTRY.replace(lease=Lease(2_000, 1), seen=Seen(5)))
    env.positions.held = {T0: 19}
    header = PositionHeader(Lease(1_000, 7), Mark(20, 30, 20), ENTRY.session, Seen(3))
    env.whole = WrittenPosition(header, 7, 2, frozenset({7, 20}), is_own_last=True)
    with capture_logs() as logs:
        start = env.starts()[T0]
    assert (start.position, start.committed, start.moved, start.seen) == (50, 20, False, Seen(40))
    assert [line["resumed_at"] for line in logs if line["log_level"] == "error"] == [50]
    env.whole = env.whole._replace(is_own_last=False)
    with pytest.raises(DisconnectedFailure, match="without the position that Connect has read from it"):
        env.starts()


@pytest.mark.parametrize(
    ("is_own_last", "committed", "position"), [(True, 50, 50), (True, 40, 40), (True, None, 20), (False, 50, 20)]
)
def test_in_transactions_an_older_position_of_this_connector_is_not_one_of_a_user(
    is_own_last: bool, committed: int | None, position: int
) -> None:
    """The transaction of the ledger's entry may not be committed; nor may the one before it, where the coordinator has lost its end, too."""
    before = PreviousCommit(Mark(40, 50, 40), {}, 0, (0, 0, 0), 0)
    env = Environment(ENTRY.replace(session=None, written_by=7, before=before), exactly_once=True)
    env.positions.held = {T0: 19}
    env.whole = WrittenPosition(None, 20, 2, frozenset({20}), is_own_last=is_own_last)
    task: Any = env.start
    marks = {50: ENTRY.mark, 40: before.mark}
    task._newest_committed = lambda _entry: None if committed is None else marks[committed]
    start = env.starts()[T0]
    assert (start.position, start.moved) == (position, position == 20)


@pytest.mark.parametrize(
    ("is_committed", "writer", "position", "moved"),
    [(True, "task", 50, False), (True, "none", 50, False), (True, "user", 20, True), (False, "task", 20, False)],
)
def test_a_newest_transaction_that_only_the_offsets_topic_has_lost_is_not_copied_again(
    is_committed: bool, writer: str, position: int, moved: bool
) -> None:
    """A user may have set the position back to the one before it."""
    before = PreviousCommit(Mark(20, 30, 20), {}, 0, (0, 0, 0), 0)
    previous = None if writer == "none" else 20
    env = Environment(ENTRY.replace(session=None, written_by=7, previous=previous, before=before), exactly_once=True)
    env.positions.held = {} if previous is None else {T0: 19}
    env.on_target = {T0} if is_committed else set()
    env.whole = WrittenPosition(positions=frozenset({20} if previous else ()), is_own_last=writer == "task")
    task: Any = env.start
    task._newest_committed = lambda entry: entry.mark
    start = env.starts()[T0]
    assert (start.position, start.moved) == (position, moved)


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize(
    ("place", "ends", "tombstones", "position", "code"),
    [
        ("other/0", 40, [], 50, ""),
        ("id/0", 4, [], 50, ""),
        ("id/0", 40, [], None, OriginCode.NO_POSITION),
        ("other/0", 40, [None], None, ""),
    ],
)
def test_positions_of_an_offsets_topic_that_was_lost_are_those_of_the_ledger(
    place: str, ends: int, tombstones: list[int | None], position: int | None, code: str, exactly_once: bool
) -> None:
    """It was created again, or its log ends before what is known of it. A user who resets the positions leaves tombstones, which
    compaction may have removed.
    """
    known = ENTRY.replace(seen=Seen(5, "id/0"), previous=40)
    env = Environment(known.replace(session=None, written_by=7) if exactly_once else known, exactly_once=exactly_once)
    env.place, env.ends, env.remote_ends = place, ends, {T0: 60}
    env.whole = WrittenPosition(foreign_at=3 if tombstones else -1, positions=frozenset(tombstones), place=place)
    env.reset, env.read = (None, 3 if tombstones else -1), {T0: tombstones}
    task: Any = env.start
    task._newest_committed = lambda entry: entry.mark
    task._unexplained_since = dict.fromkeys([T0], -1e9)
    start = env.starts()[T0]
    assert (start.position, start.moved, start.origin.code) == (position, position is None, code)
    assert start.committed in {None, 50}
    if position is not None:
        assert start.seen == (Seen(5, "id/0") if exactly_once else Seen(ends, place)), (
            "a successor has to find the same"
        )


def test_a_reset_is_used_also_by_the_successor_of_a_holder_that_has_written_no_position() -> None:
    """A late position is after the user's, and before `seen` of the entry of the holder that used the reset."""
    own = PositionHeader(Lease(2_000, 2), Mark(50, 60, 50), ENTRY.session, Seen(5))
    env = Environment(ENTRY.replace(lease=Lease(2_000, 2), seen=Seen(5)))
    env.positions.held = {T0: 49}
    env.headers, env.read, env.reset = {T0: own}, {T0: [10, 50]}, (10, 38)
    first = env.starts()[T0]
    assert (first.position, first.moved) == (10, True)

    session = Session(ProducerIdentity(8, 0), Mark(10, 60, 0))
    env = Environment(
        ENTRY.replace(
            session=session, mark=session.start, previous=first.committed, lease=Lease(3_000, 1), seen=first.seen
        )
    )
    env.positions.held = {T0: 49}
    second = env.starts()[T0]
    assert (second.position, second.moved) == (10, False)


AFTER_TRANSACTIONS = ENTRY.replace(session=None, before=PreviousCommit(Mark(20, 30, 20), {}, 0, (0, 0, 0), 0))


def test_an_open_transaction_is_aborted_once_before_positions_are_read_without_exactly_once() -> None:
    env = Environment(AFTER_TRANSACTIONS)
    env.positions.held = {T0: 49}
    read: list[int] = []

    def take(name: str) -> None:
        read.append(len(env.positions.asked))
        env.taken.append(name)

    task: Any = env.start
    task._take_transactional_id = take
    assert env.starts()[T0].position == 50
    assert (env.taken, read) == (["A-mm2-C-0"], [0])
    env.starts()
    assert len(env.taken) == 1


@pytest.mark.parametrize(("entry", "exactly_once"), [(ENTRY, False), (AFTER_TRANSACTIONS, True)])
def test_without_earlier_transactions_no_transactional_id_is_fenced(entry: LedgerEntry, exactly_once: bool) -> None:
    env = Environment(entry, exactly_once=exactly_once)
    env.starts()
    assert env.taken == []


def test_without_permission_to_fence_open_transactions_are_awaited() -> None:
    env = Environment(AFTER_TRANSACTIONS)
    env.positions.held = {T0: 49}
    failures = [DisconnectedFailure("unreachable"), BrokerFailure.of(53)]

    def take(_name: str) -> None:
        raise failures.pop(0)

    task: Any = env.start
    task._take_transactional_id = take
    with pytest.raises(DisconnectedFailure):
        env.starts()
    with capture_logs() as logs:
        env.starts()
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert warning["transactional_id"] == "A-mm2-C-0"


def test_a_position_missing_in_the_second_read_is_read_again_and_then_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deposed leader may return older contents of the offsets topic, for some seconds; a topic that was put back does for ever."""
    clock = SimpleNamespace(monotonic=lambda: 1_000.0, sleep=lambda _: None)
    monkeypatch.setattr("mm2.mirror.source.start_positions.time", clock)
    env = Environment(ENTRY.replace(lease=Lease(2_000, 1), seen=Seen(5)))
    env.positions.held = {T0: 19}
    for _ in range(2):
        with pytest.raises(DisconnectedFailure, match="without the position that Connect has read from it for t-0"):
            env.starts()
    clock.monotonic = lambda: 1_031.0
    assert env.starts()[T0].position == 20


def test_positions_without_a_ledger_entry_are_used_and_the_consequence_is_logged_once() -> None:
    env = Environment(ENTRY)
    others = [TopicPartition("t", 1), TopicPartition("t", 2)]
    env.positions.held = {T0: 49, **dict.fromkeys(others, 7)}
    env.remote_ends = {T0: 50, **dict.fromkeys(others, 8)}
    with capture_logs() as logs:
        starts = env.starts(T0, *others)
    assert [starts[tp].position for tp in (T0, *others)] == [50, 8, 8]
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert "have no ledger entry" in warning["event"]
    assert warning["partitions"] == {OriginCode.OTHER_POSITION: 2}


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize(
    ("held", "header", "read", "code"),
    [
        ({}, None, [], OriginCode.NO_POSITION),
        ({T0: 7}, None, [5, 8], OriginCode.OTHER_POSITION),
        ({T0: 7}, None, [8, 20, 8], OriginCode.OWN_POSITION),  # set back by a user
        ({T0: 7}, PositionHeader(Lease(1_000, 7), Mark(8, 8, 8)), [8], OriginCode.OWN_POSITION),
    ],
)
def test_how_copying_begins_into_a_partition_that_is_not_empty_is_kept(
    held: dict[TopicPartition, Any],
    header: PositionHeader | None,
    read: list[int | None],
    code: OriginCode,
    exactly_once: bool,
) -> None:
    env = Environment(exactly_once=exactly_once)
    env.positions.held, env.read = held, {T0: read}
    env.headers = {} if header is None else {T0: header}
    assert env.starts()[T0].origin == CopyOrigin()
    env.remote_ends = {T0: 10}
    assert env.starts()[T0].origin == CopyOrigin(code, 10)


def test_a_predecessor_that_commits_between_the_two_readings_is_read_again() -> None:
    env = Environment(ENTRY)
    env.positions.held = {T0: 59}
    row = entry_record(ENTRY.replace(previous=50, mark=Mark(60, 70, 60)))
    reads = env.log.read_to_end

    def read_to_end(_timeout_s: float) -> None:
        reads(_timeout_s)
        env.ledger.apply(row.key, row.value)

    env.log.read_to_end = read_to_end  # type: ignore[method-assign]
    with capture_logs() as logs:
        start = env.starts()[T0]
    assert (start.position, start.moved) == (60, False)
    assert [line for line in logs if line["log_level"] == "warning"] == []


def test_partitions_without_a_position_start_where_configured() -> None:
    env = Environment()
    env.start._start_from = StartFrom(offsets=MappingProxyType({T0: 17, T1: 18}))
    env.positions.held = {T1: 4}
    assert {tp: start.position for tp, start in env.starts(T0, T1).items()} == {T0: 17, T1: 5}


def test_unreadable_positions_are_retriable_and_invalid_ones_are_an_error() -> None:
    env = Environment()
    cause = DisconnectedFailure("gone")
    env.positions.failure = ConnectError("no offsets")
    env.positions.failure.__cause__ = cause
    with pytest.raises(DisconnectedFailure):
        env.starts()
    env.positions.failure = ConnectError("no offsets")
    with pytest.raises(ValueError, match="no offsets"):
        env.starts()
    env.positions.failure = None
    for nonsense in ("5", True, 1.5, 2**63 - 1, 10**30, -2):
        env.positions.held = {T0: nonsense}
        with pytest.raises(ValueError, match="which is not an offset"):
            env.starts()


def test_a_missing_ledger_is_created_once_and_then_followed() -> None:
    missing = BrokerFailure.of(3)
    env = Environment(ENTRY, failures=[missing, missing])
    env.positions.held = {T0: 49}
    assert env.starts()[T0].entry == ENTRY
    assert (env.log.stops, env.log.reads, env.creations) == (0, 0, 1), "a reader that fails stops itself"
    env.starts()
    assert (env.log.reads, env.creations) == (1, 1)


def test_a_deleted_ledger_is_recreated_and_entries_that_match_the_positions_stay_valid() -> None:
    env = Environment(ENTRY)
    env.positions.held = {T0: 49}
    env.starts()

    def read_to_end(_timeout_s: float) -> None:
        raise BrokerFailure.of(3)

    env.log.read_to_end = read_to_end  # type: ignore[method-assign]
    with capture_logs() as logs:
        assert env.starts()[T0].entry == ENTRY
    assert env.creations == 2
    assert [line["event"][:29] for line in logs if line["log_level"] == "warning"] == ["The ledger was deleted and is"]
    env.positions.held = {T0: 79}
    start = env.starts()[T0]
    assert (start.position, start.entry) == (80, ENTRY.replace(session=None))


@pytest.mark.parametrize("code", [3, 29])
def test_without_a_ledger_delivery_is_at_least_once(code: int) -> None:
    env = Environment(ENTRY, failures=[BrokerFailure.of(code)] * 100_000)
    env.positions.held = {T0: 49}
    with capture_logs() as logs:
        assert env.starts()[T0] == Start(50, 50, seen=Seen(env.ends))
    assert logs[0]["event"] == "There is no ledger: delivery is at-least-once."


@pytest.mark.parametrize("failure", [DisconnectedFailure("gone"), TlsFailure("expired"), AuthenticationFailure("no")])
def test_an_unreadable_ledger_is_a_retriable_failure(failure: KafkaFailure) -> None:
    with pytest.raises(type(failure)):
        Environment(failures=[failure]).starts()


def test_positions_are_stored_in_the_worker_s_cluster() -> None:
    own = {"bootstrap.servers": "a:1, b:2"}
    for written, elsewhere in (("b:2,a:1", None), ("c:3", (("a", 1), ("b", 2)))):
        producer = {"bootstrap.servers": written, "client.id": "p"}
        found = _offsets_elsewhere(WorkerView(own, "g", "offsets", producer, exactly_once=False))
        assert (found.bootstrap if found else None) == elsewhere


def test_limits_are_divided_by_the_number_of_tasks_also_with_java_s_configs() -> None:
    own = {"bootstrap.servers": "127.0.0.1:1"}
    worker = WorkerView(own, "A-mm2", "mm2-offsets.A.internal", own, exactly_once=False)
    java_s = {
        "name": "MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
        "copy.throttle.bytes.per.sec": "1000",
        "copy.throttle.bytes.per.sec.t": "400",
        "task.assigned.partitions": "t-0,t-4",
        "task.index": "0",
    }
    spec = copy_spec(java_s, SourceTaskContext("C", 0, java_s, cast(Any, Positions()), worker, task_count=4))
    assert (spec.throttle, spec.throttle_topics) == (250, {"t": 100})


def test_the_fetch_limits_are_those_of_the_source_s_consumer() -> None:
    own = {"bootstrap.servers": "127.0.0.1:1"}
    worker = WorkerView(own, "A-mm2", "mm2-offsets.A.internal", own, exactly_once=False)
    props = {
        "name": "MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "A",
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
        "task.assigned.partitions": "t-0",
        "consumer.fetch.min.bytes": "7",
        "source.consumer.fetch.min.bytes": "8",
        "source.consumer.fetch.max.wait.ms": "9",
        "source.consumer.fetch.max.bytes": "10",
        "source.consumer.max.partition.fetch.bytes": "11",
    }
    spec = copy_spec(props, SourceTaskContext("C", 0, props, cast(Any, Positions()), worker))
    assert (spec.fetch_min_bytes, spec.fetch_max_wait_ms) == (8, 9)
    assert (spec.fetch_max_bytes, spec.fetch_partition_bytes) == (10, 11)


def test_written_configs_are_read_back_unchanged() -> None:
    env = Environment()
    env.positions.held = {T0: json.loads(offset_value(42))["offset"]}
    assert env.starts()[T0].position == 42


def test_an_error_and_its_resolution_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    env, now = Environment(), [100.0]
    monkeypatch.setattr("mm2.mirror.source_task.time.monotonic", lambda: now[0])
    with capture_logs() as logs:
        for step, errors in enumerate((["a"], ["a", "b"], ["b"], [], [], [])):
            now[0] = 100.0 + 2 * step
            env.task._log_errors(errors)
        now[0] += 10
        env.task._log_errors([])
    logged = [(line["event"], line.get("reason")) for line in logs]
    assert logged == [("Copying is blocked.", "a"), ("Copying is blocked.", "b"), ("Copying continues.", None)]


def test_a_task_that_was_never_started_can_be_stopped() -> None:
    MirrorSourceTask().stop()


def test_stopping_releases_the_ledger() -> None:
    env = Environment()
    env.starts()
    env.task.stop()
    assert cast(LedgerLog, env.log) is env.ledgers._log
    assert env.log.stops == 1


def test_a_stop_ends_reading_the_ledger() -> None:
    """A ledger may take minutes to read. Until then its lanes would not stop, and afterwards no task would stop it."""

    class LongLedger(Log):
        def __init__(self) -> None:
            super().__init__(Ledger(), [])
            self.is_stopped = threading.Event()

        def start(self, _timeout_s: float) -> None:
            if self.is_stopped.wait(30):
                raise TimeoutFailure("not read to its end")

        def stop(self) -> None:
            self.is_stopped.set()

    env, failures = Environment(), list[KafkaFailure]()
    env.log = LongLedger()

    def start() -> None:
        try:
            env.starts()
        except KafkaFailure as failure:
            failures.append(failure)

    lanes = [threading.Thread(target=start) for _ in range(2)]
    for lane in lanes:
        lane.start()
    wait_until(lambda: env.ledgers._reading is not None)
    env.task.stop()
    for lane in lanes:
        lane.join(60)
    assert len(failures) == 2


# -- whose state it is


OWN = CopyId("A-mm2", "C")


def ledger_of(*entries: LedgerEntry) -> Ledger:
    ledger = Ledger()
    for entry in entries:
        row = entry_record(entry)
        ledger.apply(row.key, row.value)
    return ledger


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY.replace(copy_id=CopyId("A-mm2", "D")),
        ENTRY.replace(copy_id=CopyId("other", "C")),
        ENTRY.replace(remote_topic="t"),
    ],
    ids=["another connector", "another group", "an older version, another remote topic"],
)
def test_an_entry_of_another_connector_is_not_used(entry: LedgerEntry) -> None:
    env = Environment(entry)
    env.start._remote_topics = {T0: ENTRY.remote_topic}
    env.positions.held = {T0: 29}
    with capture_logs() as logs:
        start = env.starts()[T0]
    assert (start.position, start.committed, start.entry, start.moved) == (30, 30, None, False)
    (warning,) = [line for line in logs if line["event"].startswith("The ledger has entries of another connector")]
    assert warning["example"] == str(T0)


def test_an_entry_of_the_connector_is_used_after_a_change_of_the_policy() -> None:
    env = Environment(ENTRY.replace(copy_id=OWN))
    env.start._remote_topics = {T0: "t"}
    env.positions.held = {T0: ENTRY.mark.source - 1}
    assert env.starts()[T0].entry == ENTRY.replace(copy_id=OWN)


def with_former(*entries: LedgerEntry, position: int = ENTRY.mark.source) -> Environment:
    """A task with an empty ledger, whose connector had a ledger together with others in an older version."""
    env = Environment()
    env.start._remote_topics = {T0: ENTRY.remote_topic}
    env.positions.held = {T0: position - 1}
    former = ledger_of(*entries)
    chunk = chunk_record(T0, SegmentChunk(ENTRY.chunk, [Segment(0, 10, 50)]))
    former.apply(chunk.key, chunk.value)
    env.start._former_ledger = cast(Any, lambda: former)
    return env


def test_the_entry_of_an_older_version_is_taken_over_with_its_segments() -> None:
    start = with_former(ENTRY).starts()[T0]
    assert (start.position, start.entry, start.moved) == (ENTRY.mark.source, ENTRY, False)
    assert [chunk.number for chunk in start.unwritten.changed] == [ENTRY.chunk]


@pytest.mark.parametrize(
    ("entry", "position"),
    [
        (ENTRY.replace(remote_topic="t"), ENTRY.mark.source),
        (ENTRY.replace(copy_id=CopyId("A-mm2", "MirrorSourceConnector")), ENTRY.mark.source),
        (ENTRY, 7),
    ],
    ids=["another remote topic", "of the flow of a file", "it does not explain the position"],
)
def test_the_entry_of_an_older_version_is_not_taken_over_if_it_may_be_another_s(
    entry: LedgerEntry, position: int
) -> None:
    start = with_former(entry, position=position).starts()[T0]
    assert (start.position, start.entry) == (position, None)


# -- a source that was replaced by another cluster


def replaced(*, from_start: bool | None) -> Environment:
    env = Environment(ENTRY.replace(copy_id=OWN._replace(cluster="old")))
    env.start._remote_topics = {T0: ENTRY.remote_topic}
    env.positions.held = {T0: ENTRY.mark.source - 1}
    if from_start is not None:
        row = AcceptedSource("new", from_start).record()
        env.ledger.apply(row.key, row.value)
    return env


def test_positions_in_another_source_cluster_are_kept_only_if_a_user_has_decided_so() -> None:
    assert not replaced(from_start=None).starts()[T0].moved
    start = replaced(from_start=False).starts()[T0]
    assert start.entry is not None
    assert (start.position, start.moved, start.entry.session) == (ENTRY.mark.source, True, None)
    assert start.entry.copy_id == OWN._replace(cluster="new")


def test_copying_begins_again_with_another_source_cluster_if_a_user_has_decided_so() -> None:
    start = replaced(from_start=True).starts()[T0]
    assert start.entry is not None
    assert start.chunk is not None
    assert (start.position, start.moved, start.entry.session, start.chunk.segments) == (None, True, None, [])
    assert start.unwritten.forgotten, "segments with offsets of the other cluster translate nothing any more"
    assert decode(Start, json.loads(json.dumps(encode(start)))) == start


@pytest.mark.parametrize(
    ("written_for", "position"),
    [("", 30), (ENTRY.remote_topic, 30), ("t", None)],
    ids=["Java", "same topic", "other topic"],
)
def test_without_a_state_a_position_for_another_remote_topic_is_not_used(
    written_for: str, position: int | None
) -> None:
    env = Environment()
    env.start._remote_topics = {T0: ENTRY.remote_topic}
    env.positions.held, env.others = {T0: 29}, {T0: written_for}
    start = env.starts()[T0]
    assert (start.position, start.committed) == (position, 30)
