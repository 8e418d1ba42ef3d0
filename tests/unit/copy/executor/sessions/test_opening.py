"""Where partitions begin, and under which producer. The test plays both clusters."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.fetched_batches import COMPACTED, MISSING
from mm2.copy.executor.partition.outbox import Outbox
from mm2.copy.executor.partition.outgoing_records import CopiedRange
from mm2.copy.executor.reports import progress_of
from mm2.copy.executor.sessions.continued_sessions import ContinuedSessions
from mm2.copy.executor.sessions.new_sessions import NewSessions, duration_ms
from mm2.copy.executor.sessions.opening import Opening
from mm2.copy.executor.sessions.session_table import SessionTable
from mm2.copy.executor.sessions.target_search import TargetSearch
from mm2.copy.progress.segments import Gap, Segment, SegmentChunk, UnwrittenChunks
from mm2.copy.progress.session import (
    UNBOUNDED,
    EndedSession,
    FormerTopic,
    LedgerEntry,
    Lost,
    Mark,
    PartitionCondition,
    Rules,
    Session,
    Start,
)
from mm2.copy.progress.target_progress import (
    FoundBatch,
    InconsistentTarget,
    Prints,
    ProgressQuestion,
    ReappearedSession,
    TargetProgress,
    WrittenRange,
    fingerprint,
    records_at,
)
from mm2.copy.spec import Assignment, ChangesSpec, CopySpec, TransactionsSpec
from mm2.copy.states import PartitionState
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import AuthenticationFailure, BrokerFailure, DisconnectedFailure, KafkaFailure, TlsFailure
from mm2.kafka.records.batch import TRANSACTIONAL
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, ProducerIdentity, TopicPartition
from tests.unit.copy.batches import SPEC, TP, Bench, batch, record

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")
COPY = CopySpec("A->B", "C", 0, "A", "B", SETTINGS, SETTINGS, (SPEC,), "offsets", ledger_topic="ledger")
SESSION = Session(ProducerIdentity(7, 1), Mark(0, 100, 0))
INCONSISTENT_ID = BrokerFailure.of(ErrorCode.INCONSISTENT_TOPIC_ID)
UNCOMMITTED, COMMITTED = (str(Rules(read_committed=committed)) for committed in (False, True))
ENTRY = LedgerEntry(
    "t", 0, "A.t", Mark(50, 150, 50), 40, "src", "dst", 3, SESSION, {"control": 2}, (Lost(1, 2, "retention", 5),), 4, 9
)


class Scene:
    """One cursor and what it is opened with."""

    def __init__(self, **changes: Any) -> None:
        is_preserved = bool(changes.get("preserved"))
        self.bench = Bench(read_committed=changes.get("read_committed", False), is_preserved=is_preserved)
        self.cursor, self.outbox = self.bench.cursor, self.bench.outbox
        self.outbox.identity = ProducerIdentity(-1, -1)
        self.cursor.window.position = self.cursor.offset = -1
        self.cursor.suspended = True
        self.link = DriverLink(Assignment("b", "localhost", 1, "00"), 0, 8)
        self.reading: list[Cursor] = []
        self.woken: list[Outbox] = []
        self.truncated: list[tuple[int, int]] = []
        self.committed: list[Callable[[], None]] = []
        self.standings: list[TargetProgress | KafkaFailure] = []  # answers, the last one stays
        self.questions: list[Mapping[TopicPartition, ProgressQuestion]] = []
        self.offsets: dict[int, list[int | KafkaFailure]] = {EARLIEST: [3], LATEST: [70]}  # answers, the last one stays
        self.asked: list[int] = []
        self.prints: list[int] = []
        self.isolated: list[bool] = []
        self.asked_ids: list[tuple[str, str, list[str]]] = []
        self.reported: list[str] = []  # reasons of the state meanwhile
        self.certain = ""  # the remote topic's id in the end
        self.topic_ids = {"A.t": "dst"}
        self.source_id = "src"
        self.source_answers = True
        source, target = Cluster(SETTINGS, name="A"), Cluster(SETTINGS, name="B")
        new_producer = SimpleNamespace(error_code=0, producer_id=9, producer_epoch=0)
        target.send = lambda *_, **__: new_producer  # type: ignore[method-assign]
        spec = dataclasses.replace(COPY, **changes)
        clusters = {"source_cluster": source, "target_cluster": target}
        endpoints = cast(Any, SimpleNamespace(source=self, sink=self, call=self._call, **clusters))
        link, cursors = self.link, {TP: self.cursor}
        self.sessions, self.tasks = sessions, tasks = SessionTable(spec), BackgroundTasks(link)
        losses: Any = SimpleNamespace(target_truncated=lambda _, records, end: self.truncated.append((records, end)))
        self.new_sessions = new_sessions = NewSessions(spec, link, tasks, endpoints, cursors, sessions, self._commit)
        self.continued = ContinuedSessions(
            spec, link, tasks, endpoints, cursors, sessions, self._commit, new_sessions, losses
        )
        self.search = TargetSearch(spec, link, tasks, endpoints, sessions, new_sessions)
        self.settled: list[bool] = []  # whether the transactions of a predecessor can be ended, answers
        self.opening = Opening(
            spec, cast(Any, self), tasks, cursors, sessions, self.continued, new_sessions, self._settle
        )
        self.look_up: Any = SimpleNamespace(progress=self._standings, fingerprints=lambda *_: Prints(self.prints))
        parts: Any = (self.new_sessions, self.continued, self.search)
        for part in parts:
            part._source_admin = part._target_admin = self
            part._look_up = self.look_up

    def _commit(self, _cursor: Cursor, then: Callable[[], None]) -> None:
        self.committed.append(then)

    # as source and sink
    def add(self, receivers: Iterable[Cursor]) -> None:
        for receiver in receivers:
            self.reading.append(receiver)
            if self.source_answers:
                receiver.identified()

    def resume(self) -> None:
        """Nothing is fetched here."""

    def isolate(self, partition: TopicPartition, *, committed: bool) -> None:
        assert partition in self.new_sessions._cursors
        self.isolated.append(committed)

    async def settle_id(
        self, name: str, known: str, retired: Iterable[str], report: Callable[[KafkaFailure], None]
    ) -> str:
        self.asked_ids.append((name, known, sorted(retired)))
        report(INCONSISTENT_ID)
        self.reported.append(self.cursor.current_state().reason)
        self.topic_ids[name] = self.certain or self.topic_ids[name]
        return self.topic_ids[name]

    def topic_id(self, _topic: str) -> str:
        return self.source_id

    def leader_epoch(self, _partition: TopicPartition) -> int:
        return 6

    def wake(self, outbox: Outbox) -> None:
        self.woken.append(outbox)

    def end_pause(self, outbox: Outbox) -> None:
        outbox.paused = False
        self.woken.append(outbox)

    # as the clusters
    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        found: dict[TopicPartition, Any] = {}
        for tp, when in wanted.items():
            self.asked.append(when)
            answers = self.offsets[when]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            found[tp] = OffsetInfo(answer, -1, -1) if isinstance(answer, int) else answer
        return found

    def _standings(
        self, questions: Mapping[TopicPartition, ProgressQuestion]
    ) -> dict[TopicPartition, TargetProgress | KafkaFailure]:
        self.questions.append(questions)
        answer = self.standings.pop(0) if len(self.standings) > 1 else self.standings[0]
        return dict.fromkeys(questions, answer)

    async def _settle(self, cursor: Cursor) -> bool:
        assert (cursor.window.position, self.questions, self.asked) == (-1, [], []), "before anything is looked up"
        await asyncio.sleep(0)
        return self.settled.pop(0)

    async def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return call(*args)

    def written(self) -> None:
        """The ledger has the entry that was committed last."""
        self.committed.pop()()

    # what happens
    def begin(self, start: Start) -> None:
        self.opening.begin({TP: start})


def play(scene: Scene, action: Callable[[], object]) -> None:
    """Until there is nothing more to do."""

    async def run() -> None:
        action()
        async with asyncio.timeout(5):
            while scene.tasks._running:  # noqa: ASYNC110  (tasks start tasks)
                await asyncio.sleep(0.001)

    asyncio.run(run())
    assert scene.link.reason == ""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sessions.continued_sessions", "sessions.new_sessions", "sessions.target_search"):
        monkeypatch.setattr(f"mm2.copy.executor.{module}._RETRY_S", 0.001)
    monkeypatch.setattr("mm2.copy.executor.sessions.new_sessions._FRESH_RETRY_S", 0.001)
    monkeypatch.setattr("mm2.copy.executor.sessions.continued_sessions._SETTLED_S", 0.01)


# -- a continued session --------------------------------------------------------------------------------------------------


def test_a_clean_hand_off_continues_immediately() -> None:
    scene, chunk = Scene(), SegmentChunk(6, [Segment(40, 140, 10)])
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY.replace(lost_before=7), chunk, clean=True)))
    cursor, outbox = scene.cursor, scene.outbox
    assert (cursor.window.mark, cursor.offset, cursor.suspended, scene.reading) == (
        Mark(50, 150, 50),
        50,
        False,
        [cursor],
    )
    assert (outbox.identity, outbox.next, outbox.acked) == (ProducerIdentity(7, 1), 50, 50)
    assert (outbox.end_offset, outbox.looked_up) == (150, True)
    assert scene.sessions.current == {TP: SESSION}
    assert (cursor.window.trail.newest, cursor.window.trail.gaps, cursor.lost, cursor.window.foreign) == (
        chunk,
        {"control": 2},
        [*ENTRY.lost],
        4,
    )
    assert (cursor.lost_before, progress_of(cursor).lost) == (7, 8)
    assert (cursor.leader_epoch, cursor.topic_id) == (3, "src")
    assert (scene.asked, scene.committed) == ([], [])


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(Start(50, 50, ENTRY.replace(session=dataclasses.replace(SESSION, rules=COMMITTED))), id="rules"),
        pytest.param(Start(50, 50, ENTRY.replace(session=None)), id="position"),
        pytest.param(Start(None), id="new"),
    ],
)
@pytest.mark.parametrize(
    "changes", [{}, {"transactions": TransactionsSpec("t", 60_000)}], ids=["sessions", "transactions"]
)
def test_a_paused_partition_opens_no_session_before_it_is_resumed(start: Start, changes: dict[str, Any]) -> None:
    """It would begin at the end of the remote topic, to which applications write while it is promoted."""
    scene = Scene(**changes)
    scene.standings = [TargetProgress(50, 180, 4)]
    scene.cursor.pause("promoted", 5)
    play(scene, lambda: scene.begin(start))
    assert (scene.cursor.window.position, scene.sessions.current, scene.committed) == (-1, {}, [])
    assert scene.cursor.current_state() == PartitionCondition("PAUSED", "promoted", -1, 5)
    scene.cursor.resume()
    play(scene, lambda: scene.new_sessions.resume(TP))
    assert scene.cursor.window.position == (3 if start.position is None else 50)
    assert scene.reading == [scene.cursor]


def test_a_paused_partition_names_no_end_while_records_of_a_predecessor_are_behind_its_mark() -> None:
    scene = Scene()
    scene.standings = [TargetProgress(57, 157, 4, (FoundBatch(50, 150, 7),))]
    scene.cursor.pause("promoted", 5)
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    assert scene.cursor.current_state().offset == -1
    settled = Scene()
    settled.standings = [TargetProgress(50, 150, 4)]
    settled.cursor.pause("promoted", 5)
    play(settled, lambda: settled.begin(Start(50, 40, ENTRY)))
    assert settled.cursor.current_state().offset == 50


@pytest.mark.parametrize(
    ("end", "found"),
    [(157, [FoundBatch(50, 150, 7)]), (160, [FoundBatch(50, 150, 2), FoundBatch(52, 155, 5)])],
)
def test_after_a_crash_the_progress_is_looked_up_on_the_target(end: int, found: list[FoundBatch]) -> None:
    scene = Scene()
    # A certificate or a password that does not hold for a while is no answer, or there would be records twice.
    kept_out = [TlsFailure("its certificate has expired"), AuthenticationFailure("another password")]
    scene.standings = [DisconnectedFailure("disconnected"), *kept_out, TargetProgress(57, end, 4, tuple(found))]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    assert (scene.cursor.window.mark, scene.cursor.predecessor.remaining, scene.cursor.predecessor.target_base) == (
        Mark(50, 150, 50),
        7,
        150,
    )
    scene.written()
    assert (scene.outbox.next, scene.outbox.acked, scene.outbox.end_offset) == (
        57,
        57,
        found[-1].offset + found[-1].records,
    )
    assert (scene.outbox.verified_epoch, scene.outbox.floor) == (4, 100)
    scene.bench.fetch(batch(50, 10))
    scene.bench.ack(end)
    assert (scene.bench.offsets(), scene.cursor.window.mark) == ([57, 58, 59], Mark(60, end + 3, 60))


def preserving(**changes: Any) -> Scene:
    """A partition with preserved offsets, whose target has no record of another program."""
    scene = Scene(preserved=("t",), **changes)
    scene.look_up.written = lambda *_: WrittenRange(-1)
    return scene


def compared(scene: Scene, source: Iterable[Record], target: Iterable[Record], source_id: str = "src") -> Any:
    """What the clusters have at the offsets that are compared. ``source_id``: of the source topic now."""
    starts: Any = scene.continued._preserved
    metadata = SimpleNamespace(topics={"t": SimpleNamespace(topic_id=source_id)})
    answers = {"metadata": lambda *_: metadata, "metadata_of": lambda *_: metadata, "leader": lambda *_: 0}
    starts._source_cluster = SimpleNamespace(**answers)
    starts._source_admin = starts._target_admin = scene
    on_source, on_target = records_at(source), records_at(target)
    starts._source = SimpleNamespace(records_at=lambda *_, **__: on_source)
    starts._target = SimpleNamespace(records_at=lambda *_, **__: on_target)
    return starts


def ending_at(scene: Scene, end: int, starts: Any = None) -> None:
    """The target of a new session, or of other ``starts``, ends at this offset and differs from the source nowhere."""
    starts = starts or scene.new_sessions._preserved
    starts._source_admin = starts._target_admin = scene
    starts._target = SimpleNamespace(stable_ends=lambda asked: dict.fromkeys(asked, OffsetInfo(end, -1, -1)))
    starts._first_difference = lambda *_: None


PRESERVED = dataclasses.replace(ENTRY, mark=Mark(50, 50, 50), is_preserved=True)


@pytest.mark.parametrize("other", [None, 52])
def test_with_preserved_offsets_what_a_predecessor_copied_is_compared_with_the_source(other: int | None) -> None:
    """An unclean election may have replaced it after the crash: 52..54 are other records then, and have to be copied."""
    scene = preserving()
    scene.standings = [TargetProgress(55, 56, 4, (FoundBatch(50, 50, 5),))]
    there = [record(offset) for offset in range(50, 55)]
    is_other = [other is not None and offset >= other for offset in range(50, 55)]
    replaced = [one._replace(key=b"new") if new else one for one, new in zip(there, is_other, strict=True)]
    compared(scene, replaced, there)
    play(scene, lambda: scene.begin(Start(50, 40, PRESERVED)))
    if other is None:
        assert scene.cursor.outgoing.copied == CopiedRange(56, 55, None, PRESERVED.known_epoch)
        scene.written()
        assert scene.outbox.end_offset == 56, "also the marker behind the last record"
        return
    condition = scene.cursor.conditions.stop
    assert condition is not None
    assert condition.state == PartitionState.DIVERGED
    assert "A.t-0 of B has another record at offset 52 than t-0 of A" in condition.reason


@pytest.mark.parametrize(
    ("source_id", "state", "reason"),
    [
        ("src", PartitionState.DIVERGED, "A.t-0 of B ends at offset 55, after t-0 of A, which ends at 52"),
        ("new", PartitionState.RECREATED, "t-0 of A was deleted and recreated (topic id new)"),
    ],
)
def test_with_preserved_offsets_a_source_that_ends_before_what_was_copied_stops_the_partition(
    monkeypatch: pytest.MonkeyPatch, source_id: str, state: PartitionState, reason: str
) -> None:
    monkeypatch.setattr("mm2.copy.executor.sessions.preserved_starts._AHEAD_S", 0.01)
    monkeypatch.setattr("mm2.copy.executor.sessions.preserved_starts._AHEAD_SINCE", {})
    scene = preserving()
    scene.standings = [TargetProgress(55, 55, 4)]
    scene.offsets[LATEST] = [52]
    compared(scene, [], [], source_id)
    play(scene, lambda: scene.begin(Start(50, 40, PRESERVED)))
    condition = scene.cursor.conditions.stop
    assert condition is not None
    assert condition.state == state
    assert condition.reason.startswith(reason)


def test_with_preserved_offsets_changed_records_are_compared_when_they_are_read_again() -> None:
    spec = ChangesSpec("m:f", {}, "ab12")
    scene = preserving(changes=spec)
    scene.standings = [TargetProgress(55, 55, 4)]
    there = [record(offset) for offset in range(50, 55)]
    compared(scene, [], there)
    session = dataclasses.replace(SESSION, rules=str(scene.sessions.rules))
    play(scene, lambda: scene.begin(Start(50, 40, PRESERVED.replace(session=session))))
    assert scene.cursor.outgoing.copied == CopiedRange(55, 55, records_at(there), PRESERVED.known_epoch)


@pytest.mark.parametrize(
    ("start", "ends", "first"),
    [
        (Start(62, 62, PRESERVED.replace(session=None), moved=True), (3, 55), 62),
        (Start(50, 50, PRESERVED.replace(session=None), moved=True), (3, 55), 55),
        (Start(None), (55, 55), 60),
        (Start(55, 55), (3, 55), 55),
    ],
    ids=["reset", "reset-back", "new", "new-with-a-position"],
)
def test_with_preserved_offsets_a_reset_and_a_trimmed_source_begin_after_the_end_of_the_target(
    start: Start, ends: tuple[int, int], first: int
) -> None:
    scene = preserving()
    scene.offsets[EARLIEST] = [60]
    starts: Any = scene.new_sessions._preserved
    starts._source_admin = scene
    starts._target_admin = SimpleNamespace(list_offsets=lambda asked: dict.fromkeys(asked, OffsetInfo(ends[0], -1, -1)))
    starts._target = SimpleNamespace(stable_ends=lambda asked: dict.fromkeys(asked, OffsetInfo(ends[1], -1, -1)))
    starts._first_difference = lambda *_: None
    play(scene, lambda: scene.begin(start))
    assert (scene.cursor.window.mark, scene.cursor.offset) == (Mark(55, 55, 0), first)
    assert not scene.sessions.new | scene.sessions.set_by_user


@pytest.mark.parametrize(
    ("target_start", "start", "is_noted"), [(3, None, True), (55, None, False), (3, PRESERVED, False)]
)
def test_with_preserved_offsets_records_that_cannot_be_compared_are_reported(
    target_start: int, start: LedgerEntry | None, *, is_noted: bool
) -> None:
    """The flow changes records, and the ledger does not show that it has written what the target has."""
    scene = preserving(changes=ChangesSpec("m:f", {}, "ab12"))
    starts: Any = scene.new_sessions._preserved
    starts._source_admin = scene
    starts._target_admin = SimpleNamespace(
        list_offsets=lambda asked: dict.fromkeys(asked, OffsetInfo(target_start, -1, -1))
    )
    starts._target = SimpleNamespace(stable_ends=lambda asked: dict.fromkeys(asked, OffsetInfo(55, -1, -1)))
    play(scene, lambda: scene.begin(Start(None if start is None else 50, 50, start and start.replace(session=None))))
    assert scene.cursor.window.mark == Mark(55, 55, 0)
    assert ("were not compared" in scene.cursor.conditions.note) is is_noted


@pytest.mark.parametrize(
    ("hole_reason", "changes", "is_known"),
    [
        (MISSING, {}, True),
        (COMPACTED, {}, False),  # each replica compacts its log for itself
        (MISSING, {"dead_letter_topic": "letters"}, False),  # a marker is in the place of a dead letter
        (MISSING, {"changes": ChangesSpec("m:f", {}, "ab12")}, True),
        (MISSING, {"changes": ChangesSpec("m:f", {}, "ab12", "Dice is not declared deterministic")}, False),
    ],
    ids=["uncompacted", "compacted", "dead letters", "changed", "not repeatable"],
)
def test_with_preserved_offsets_a_gap_that_was_filled_is_known_to_have_had_no_record(
    hole_reason: str, changes: dict[str, Any], *, is_known: bool
) -> None:
    scene = preserving(**changes)
    scene.cursor.window.hole_reason = hole_reason
    scene.look_up.written = lambda *_: WrittenRange(-1, ((52, 54),))
    scene.standings = [TargetProgress(53, 55, 4)]
    compared(scene, [], [])
    session = dataclasses.replace(SESSION, rules=str(scene.sessions.rules))
    play(scene, lambda: scene.begin(Start(50, 40, PRESERVED.replace(session=session))))
    there = scene.cursor.outgoing.copied
    assert there is not None
    assert there.markers == (((52, 54),) if is_known else ())


@pytest.mark.parametrize("rules", [UNCOMMITTED, COMMITTED], ids=["same rules", "other rules"])
@pytest.mark.parametrize("is_moved", [False, True])
def test_with_preserved_offsets_transactions_of_a_killed_process_are_ended_before_anything_is_looked_up(
    rules: str, *, is_moved: bool
) -> None:
    """Their markers would shift what is written before them: also a batch, if other rules make records of a gap."""
    scene = preserving()
    scene.settled = [True]
    scene.standings = [TargetProgress(50, 50, 4)]
    ending_at(scene, 50)
    ending_at(scene, 50, scene.continued._preserved)
    entry = PRESERVED.replace(session=dataclasses.replace(SESSION, rules=rules), fills_by_transactions=True)
    start = Start(50, 50, entry.replace(session=None) if is_moved else entry, moved=is_moved)
    play(scene, lambda: scene.begin(start))
    assert (scene.settled, scene.cursor.window.mark.target, scene.reading) == ([], 50, [scene.cursor])


def test_with_preserved_offsets_nothing_begins_while_transactions_of_a_killed_process_may_be_open() -> None:
    scene = preserving()
    scene.settled = [False]
    play(scene, lambda: scene.begin(Start(50, 50, PRESERVED.replace(fills_by_transactions=True))))
    assert (scene.settled, scene.reading, scene.questions) == ([], [], [])


def test_with_preserved_offsets_a_clean_hand_off_leaves_no_transaction_open() -> None:
    scene = preserving()
    play(scene, lambda: scene.begin(Start(50, 50, PRESERVED.replace(fills_by_transactions=True), clean=True)))
    assert scene.reading == [scene.cursor]
    assert not scene.bench.queue.by_transactions


LEADING = PRESERVED.replace(session=Session(ProducerIdentity(7, 1), Mark(500, 0, 0)), mark=Mark(0, 0, 0), lost=())


@pytest.mark.parametrize(
    ("progress", "there", "filled", "position"),
    [
        (TargetProgress(0, 0, 4), None, (0, 500), 0),
        (TargetProgress(0, 200, 4), None, (0, 500), 0),
        (TargetProgress(0, 500, 4), None, (-1, -1), 500),
        (TargetProgress(7, 507, 4), CopiedRange(507, 7), (-1, -1), 500),
    ],
    ids=["nothing is filled", "some offsets are filled", "all are filled", "with records"],
)
def test_with_preserved_offsets_a_crash_before_the_first_record_does_not_turn_the_leading_gap_into_a_loss(
    progress: TargetProgress, there: CopiedRange | None, filled: tuple[int, int], position: int
) -> None:
    """Copying begins at source offset 500, with a new producer; the offsets before it are filled."""
    scene = preserving()
    scene.standings = [progress]
    compared(scene, [], [])
    scene.offsets[LATEST] = [600]
    play(scene, lambda: scene.begin(Start(0, 0, LEADING)))
    cursor = scene.cursor
    assert (cursor.offset, cursor.window.position, cursor.outgoing.copied) == (500, position, there)
    assert (scene.bench.queue.next_gap, cursor.window.trail.gaps) == (filled, LEADING.gaps), (
        "nothing is counted as missing"
    )
    assert scene.reading == [cursor]


def test_with_preserved_offsets_a_new_session_remembers_where_copying_begins() -> None:
    scene = preserving()
    scene.offsets[EARLIEST] = [40]
    starts: Any = scene.new_sessions._preserved
    starts._source_admin = scene
    starts._target_admin = SimpleNamespace(list_offsets=lambda asked: dict.fromkeys(asked, OffsetInfo(0, -1, -1)))
    ends = [0, 30, 45]
    starts._target = SimpleNamespace(stable_ends=lambda asked: dict.fromkeys(asked, OffsetInfo(ends.pop(0), -1, -1)))
    starts._first_difference = lambda *_: None
    play(scene, lambda: scene.begin(Start(None)))
    assert scene.sessions.current[TP].start == Mark(40, 0, 0)
    assert scene.cursor.window.mark == Mark(0, 0, 0)
    # The target has lost markers. It ends within them, and then after them.
    for end, start in ((30, Mark(40, 30, 0)), (45, Mark(45, 45, 0))):
        play(scene, partial(scene.new_sessions.open_again, scene.cursor, Mark(end, end, 0)))
        assert (scene.sessions.current[TP].start, scene.cursor.offset) == (start, start.source)


def test_with_preserved_offsets_other_rules_keep_the_leading_gap() -> None:
    scene = preserving()
    scene.standings = [TargetProgress(0, 200, 4)]
    scene.offsets[EARLIEST], scene.offsets[LATEST] = [500], [600]
    ending_at(scene, 200)
    session = dataclasses.replace(LEADING.session or SESSION, rules=COMMITTED)
    play(scene, lambda: scene.begin(Start(0, 0, LEADING.replace(session=session))))
    assert (scene.sessions.current[TP].start, scene.cursor.offset) == (Mark(500, 200, 0), 500)


@pytest.mark.parametrize(("is_clean", "is_unverified"), [(True, False), (False, True)])
def test_with_preserved_offsets_other_rules_after_a_crash_begin_with_a_look_up(
    *, is_clean: bool, is_unverified: bool
) -> None:
    """A late batch of the predecessor would shift the first one of the new session."""
    scene = preserving()
    scene.standings = [TargetProgress(55, 55, 4)]
    ending_at(scene, 55)
    entry = PRESERVED.replace(session=dataclasses.replace(SESSION, rules=COMMITTED))
    play(scene, lambda: scene.begin(Start(50, 50, entry, clean=is_clean)))
    scene.written()
    assert (scene.cursor.window.mark, scene.outbox.is_unverified) == (Mark(55, 55, 0), is_unverified)
    assert scene.outbox.end_offset == 55


def test_with_preserved_offsets_a_target_that_cannot_be_read_is_not_taken_to_be_equal() -> None:
    """A predecessor's batch in flight may have been appended behind a record of another program."""
    scene = preserving()
    answers: list[int | KafkaFailure] = [DisconnectedFailure("disconnected"), 150]

    def written(*_: object) -> WrittenRange:
        answer = answers.pop(0)
        if isinstance(answer, KafkaFailure):
            raise answer
        return WrittenRange(answer)

    scene.look_up.written = written
    diverged: list[int] = []
    losses: Any = scene.continued._losses
    losses.target_diverged = lambda _, offset: diverged.append(offset)
    scene.standings = [TargetProgress(55, 156, 4, (FoundBatch(50, 151, 5),))]
    entry = dataclasses.replace(ENTRY, mark=Mark(150, 150, 50), is_preserved=True)
    play(scene, lambda: scene.begin(Start(150, 140, entry)))
    assert (diverged, answers, scene.reading) == ([150], [], [])


def test_nothing_was_written_since_the_mark() -> None:
    scene = Scene()
    scene.standings = [TargetProgress(50, 150)]
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY)))
    assert (scene.outbox.needs_producer_id, scene.reading) == (True, [scene.cursor]), (
        "nothing is sent before the entry is written"
    )
    scene.written()
    assert (scene.cursor.predecessor.remaining, scene.outbox.end_offset, scene.outbox.identity) == (
        0,
        150,
        ProducerIdentity(7, 1),
    )


def test_a_target_with_fewer_records_than_acknowledged_is_reported() -> None:
    scene = Scene()
    scene.standings = [TargetProgress(44, 144)]
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY)))
    assert scene.truncated == [(44, 144)]
    assert (scene.cursor.window.mark, scene.cursor.suspended) == (Mark(50, 150, 50), True)


def test_a_target_that_ends_before_the_session_has_lost_acknowledged_records() -> None:
    """They are those before the session, of which nothing had been copied yet."""
    scene = Scene(read_committed=True)
    scene.standings = [TargetProgress(0, 95)]
    old = dataclasses.replace(SESSION, rules=UNCOMMITTED)
    play(scene, lambda: scene.begin(Start(0, 0, ENTRY.replace(session=old, mark=Mark(0, 100, 0)))))
    assert (scene.truncated, scene.cursor.suspended) == ([(0, 95)], True)


def test_a_session_before_the_current_one_begins_at_the_end_that_the_look_up_has_found() -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    cursor, sessions = scene.cursor, scene.sessions

    def open_before() -> None:
        scene.new_sessions.open_before(cursor, Mark(45, 95, 0), 4)
        assert (cursor.window.mark, cursor.suspended, scene.outbox.paused) == (Mark(45, 95, 0), True, True)
        assert sessions.current == {TP: SESSION}, "a successor finds the same"

    play(scene, open_before)
    assert sessions.current == {TP: Session(ProducerIdentity(9, 0), Mark(45, 95, 0), UNCOMMITTED)}
    assert (cursor.suspended, scene.outbox.paused, scene.outbox.floor) == (False, True, 95)
    scene.written()
    assert (scene.outbox.paused, scene.outbox.verified_epoch, scene.outbox.end_offset) == (False, 4, 95)


def test_a_permanently_rejected_lookup_means_at_least_once_from_the_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.sessions.continued_sessions.LOOK_UP_REFUSED_S", 0.02)
    scene = Scene()
    scene.standings = [BrokerFailure.of(29)] * 1000
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    assert (scene.cursor.window.mark, scene.cursor.conditions.note.startswith("at least once")) == (
        Mark(50, 70, 0),
        True,
    )
    assert scene.sessions.current == {TP: Session(ProducerIdentity(9, 0), Mark(50, 70, 0), UNCOMMITTED)}


@pytest.mark.parametrize(
    ("answer", "is_noted"),
    [
        (BrokerFailure.of(29), True),
        (BrokerFailure.of(35), False),  # the log is read
        ({}, False),
        (BrokerFailure.of(3), False),
        (DisconnectedFailure("gone"), False),
    ],
    ids=["no-right", "old-broker", "all-well", "no-topic", "disconnected"],
)
def test_a_missing_right_is_reported_before_a_crash(answer: Any, *, is_noted: bool) -> None:
    scene = Scene()
    continued: Any = scene.continued
    continued._target_admin = SimpleNamespace(describe_producers=lambda asked: dict.fromkeys(asked, answer))
    play(scene, scene.continued.check_rights)
    assert scene.cursor.conditions.note.startswith("at least once: ") is is_noted


def test_the_source_end_offset_is_known_without_new_reads() -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY.replace(end=70), clean=True)))
    assert (scene.cursor.known_end, scene.cursor.high_watermark) == (70, -1)
    scene.bench.fetch(end=90)
    assert scene.cursor.known_end == 90


def test_another_target_topic_of_the_same_name_stops_the_partition() -> None:
    scene = Scene()
    scene.topic_ids = {"A.t": "other"}
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    condition = scene.cursor.conditions.stop
    assert condition is not None
    assert (condition.state, scene.reading) == (PartitionState.RECREATED, [])
    assert "50 records" in condition.reason


def test_one_stale_answer_about_the_remote_topic_stops_nothing() -> None:
    """Metadata name the topic that was there before this one (old, new, old, new)."""
    scene = Scene()
    scene.topic_ids, scene.certain = {"A.t": "before"}, "dst"
    entry = ENTRY.replace(retired=("before",))
    play(scene, lambda: scene.begin(Start(50, 50, entry, clean=True)))
    assert scene.asked_ids == [("A.t", "dst", ["before"])]
    assert (scene.reported, scene.cursor.current_state().reason) == ([str(INCONSISTENT_ID)], "")
    assert (scene.cursor.window.mark, scene.cursor.stopped, scene.cursor.retired) == (
        Mark(50, 150, 50),
        False,
        ("before",),
    )


def test_offsets_on_a_previous_target_are_not_used_for_a_new_target() -> None:
    scene, moved = Scene(), ENTRY.replace(session=None)
    scene.topic_ids, scene.offsets[LATEST] = {"A.t": "other"}, [0]
    play(scene, lambda: scene.begin(Start(30, 30, moved, SegmentChunk(6, [Segment(0, 100, 50)]), moved=True)))
    trail = scene.cursor.window.trail
    assert (trail.newest, trail.gaps, scene.cursor.window.mark) == (SegmentChunk(7), {"control": 2}, Mark(30, 0, 0))
    assert trail.take_changed() == UnwrittenChunks((SegmentChunk(7),), tuple(range(7)))
    same = Scene()
    play(same, lambda: same.begin(Start(30, 30, moved, SegmentChunk(6, [Segment(0, 100, 50)]), moved=True)))
    assert same.cursor.window.trail.newest.segments == [Segment(0, 100, 50)], (
        "sent back on the same one, all of it holds"
    )


def test_one_rejected_lookup_keeps_exactly_once() -> None:
    """Brokers that have just started may refuse before they have loaded their ACLs."""
    scene = Scene()
    scene.standings = [BrokerFailure.of(29), TargetProgress(57, 157, 4, (FoundBatch(50, 150, 7),))]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    assert (scene.cursor.predecessor.remaining, scene.cursor.conditions.note, scene.sessions.current) == (
        7,
        "",
        {TP: SESSION},
    )


def test_a_target_that_contradicts_the_count_stops_the_partition() -> None:
    scene = Scene()
    scene.standings = [InconsistentTarget("A.t-0 has 40 offsets, but 50 records were counted there")]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    condition = scene.cursor.conditions.stop
    assert condition is not None
    assert (condition.state, scene.reading) == (PartitionState.INCONSISTENT, [])
    assert "40 offsets" in condition.reason


def search(scene: Scene) -> None:
    scene.cursor.window._searching_to = 160
    assert scene.search.search_gap(scene.cursor, 150, 160, 4)


@pytest.mark.parametrize("own", [3, 0])
def test_batches_of_the_session_between_two_acknowledgements_stop_the_partition(own: int) -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    scene.look_up.count_own = lambda *_: own + 4
    play(scene, lambda: search(scene))
    condition = scene.cursor.conditions.stop
    assert (condition is not None) is bool(own)
    if condition is not None:
        assert "3 records of the copy session at offsets 150 to 159" in condition.reason
    assert scene.cursor.window.is_searching is bool(own)


def test_a_gap_that_cannot_be_searched_now_is_searched_later() -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    answers: list[Any] = [DisconnectedFailure("a broker is restarted"), 7]

    def count_own(*_: Any) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    scene.look_up.count_own = count_own
    play(scene, lambda: search(scene))
    assert scene.cursor.conditions.stop is not None


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_sent_again_after_a_truncation_of_the_target_is_no_duplicate(fails: bool) -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    answers: list[Any] = [*([DisconnectedFailure("a broker is restarted")] if fails else []), 7]

    def count_own(*_: Any) -> int:
        scene.cursor.begin(Mark(40, 140, 40))  # the target has lost what was acknowledged
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    scene.look_up.count_own = count_own
    play(scene, lambda: search(scene))
    assert (scene.cursor.stopped, scene.outbox.last_error, answers) == (False, None, [7] if fails else [])


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_gap_is_searched_again_unless_the_right_is_missing(code: ErrorCode) -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    answers = [code, 7]

    def count_own(*_: Any) -> int:
        answer = answers.pop(0)
        if isinstance(answer, ErrorCode):
            raise BrokerFailure.of(answer)
        return answer

    scene.look_up.count_own = count_own
    play(scene, lambda: search(scene))
    is_found = code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (scene.cursor.stopped, scene.cursor.window.is_searching, answers) == (
        is_found,
        is_found,
        [] if is_found else [7],
    )


def test_a_gap_that_stays_out_of_range_does_not_hold_the_position_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.sessions.target_search.LOOK_UP_REFUSED_S", 0.02)
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    scene.look_up.count_own = lambda *_: _fail_with(BrokerFailure.of(ErrorCode.OFFSET_OUT_OF_RANGE))
    play(scene, lambda: search(scene))
    assert (scene.cursor.stopped, scene.cursor.window.is_searching, scene.outbox.last_error) == (False, False, None)


# -- a remote topic that has another name now ------------------------------------------------------------------------------

RENAMED = ENTRY.replace(remote_topic="old", target_id="gone", target_epoch=2)
TRAIL = SegmentChunk(6, [Segment(0, 100, 50)])


@pytest.mark.parametrize("clean", [True, False])
def test_copying_continues_at_the_mark_in_the_topic_with_the_new_name(clean: bool) -> None:
    """Nothing is looked up in the topic with the old name: records in flight may be in both topics, as with Java."""
    scene = Scene()
    cursor = scene.cursor
    scene.offsets[LATEST] = [30]
    entry = RENAMED.replace(foreign=4, written_by=7)
    play(scene, lambda: scene.begin(Start(50, 40, entry, TRAIL, clean=clean)))
    assert (scene.questions, cursor.conditions.note) == ([], "")
    assert (cursor.spec, cursor.former, cursor.window.mark) == (SPEC, FormerTopic("old", 50), Mark(50, 30, 0))
    session = Session(ProducerIdentity(9, 0), Mark(50, 30, 0), UNCOMMITTED)
    assert (scene.sessions.current, scene.sessions.marks) == ({TP: session}, {})
    assert (cursor.window.trail.newest, cursor.window.foreign, cursor.written_by) == (SegmentChunk(7), 0, -1)
    assert (cursor.window.trail.gaps, cursor.lost) == ({"control": 2}, [*ENTRY.lost])
    scene.written()
    scene.bench.fetch(batch(50, 3))
    scene.bench.ack(30)
    assert (scene.bench.offsets(), cursor.window.mark) == ([50, 51, 52], Mark(53, 33, 3))


@pytest.mark.parametrize(
    ("start", "until"),
    [(Start(20, 20, moved=True), 20), (Start(70, 70, moved=True), 50), (Start(None, moved=True), 50)],
    ids=["before", "after", "removed"],
)
def test_only_records_before_the_mark_and_a_moved_position_are_in_the_topic_with_the_old_name(
    start: Start, until: int
) -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(dataclasses.replace(start, entry=RENAMED.replace(session=None), chunk=TRAIL)))
    assert scene.cursor.former == FormerTopic("old", until)


def _fail_with(failure: KafkaFailure) -> Any:
    raise failure


def test_a_topic_that_is_missing_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.sessions.continued_sessions.LOOK_UP_REFUSED_S", 0.0)
    scene = Scene()
    scene.standings = [*[BrokerFailure.of(3)] * 20, TargetProgress(50, 150)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    assert (scene.cursor.conditions.note, scene.sessions.current) == ("", {TP: SESSION})


@pytest.mark.parametrize("changes", [{}, {"transactions": TransactionsSpec("id")}], ids=["default", "exactly once"])
@pytest.mark.parametrize("start", [Start(50, 50), Start(20, 20, moved=True)], ids=["committed", "reset"])
def test_without_a_session_copying_continues_at_the_position(changes: dict[str, Any], start: Start) -> None:
    """Given an entry of exactly-once mode, or a position that a user has set."""
    scene = Scene(**changes)
    entry = RENAMED.replace(session=None)
    play(scene, lambda: scene.begin(dataclasses.replace(start, entry=entry, chunk=TRAIL)))
    cursor, position = scene.cursor, start.position or 0
    assert cursor.window.mark == Mark(position, -1 if changes else 70, 0), "not at the mark's target offset"
    assert (cursor.former, cursor.window.trail.newest) == (FormerTopic("old", position), SegmentChunk(7))


def test_a_contradiction_in_the_topic_with_the_old_name_still_lasts_until_the_position_is_reset() -> None:
    condition = PartitionCondition(PartitionState.INCONSISTENT, "appended twice", 50, 5)
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, RENAMED.replace(condition=condition), TRAIL)))
    assert scene.cursor.conditions.stop == condition
    reset = Start(20, 20, RENAMED.replace(condition=condition, session=None), TRAIL, moved=True)
    scene = Scene()
    play(scene, lambda: scene.begin(reset))
    assert (scene.cursor.stopped, scene.cursor.window.mark) == (False, Mark(20, 70, 0))


# -- a session that begins ------------------------------------------------------------------------------------------------


def test_a_new_session_is_in_the_ledger_with_the_ids_of_its_source() -> None:
    """Otherwise a successor of a holder that crashes before its next commit would count the records of a source that was replaced."""
    scene = Scene()
    scene.source_answers = False
    play(scene, lambda: scene.begin(Start(50, 50)))
    assert (scene.reading, scene.committed, scene.outbox.identity) == ([scene.cursor], [], ProducerIdentity(-1, -1))
    scene.cursor.identified()
    scene.cursor.identified()
    assert len(scene.committed) == 1


def test_a_new_session_is_in_the_ledger_before_anything_is_sent() -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(12, 12)))
    mark = Mark(12, 70, 0)
    assert (scene.cursor.window.mark, scene.reading, scene.outbox.needs_producer_id) == (mark, [scene.cursor], True)
    assert scene.sessions.current == {TP: Session(ProducerIdentity(9, 0), mark, UNCOMMITTED)}
    (known,) = scene.committed
    scene.bench.fetch(batch(12, 2))
    known()
    assert (scene.outbox.identity, scene.outbox.end_offset, scene.woken) == (ProducerIdentity(9, 0), 70, [scene.outbox])
    scene.bench.ack(70)
    assert (scene.bench.outgoing_batches[0].at, scene.cursor.window.mark) == (0, Mark(14, 72, 2))


def test_a_foreign_position_begins_a_session_with_the_old_counts() -> None:
    scene = Scene()
    moved = Start(7, 7, ENTRY.replace(session=None), moved=True)
    play(scene, lambda: scene.begin(moved))
    assert (scene.cursor.window.mark, scene.cursor.window.trail.gaps, scene.cursor.window.foreign) == (
        Mark(7, 70, 0),
        {"control": 2},
        4,
    )
    assert (scene.cursor.leader_epoch, scene.cursor.topic_id) == (-1, ""), "the source may be another one"


@pytest.mark.parametrize(
    ("position", "start", "ends", "gaps", "lost"),
    [
        (60, 3, [70], {"reset": 10}, [(50, 60, "reset")]),
        (60, 53, [70], {"retention": 3, "reset": 7}, [(50, 53, "retention"), (53, 60, "reset")]),
        (60, 60, [70], {"retention": 10}, [(50, 60, "retention")]),
        (60, 3, [70, 151], {}, []),
        (50, 3, [70], {}, []),
        (None, 58, [70], {"retention": 8}, [(50, 58, "retention")]),
    ],
    ids=["later", "partly deleted", "deleted", "another program has written", "the same", "removed"],
)
def test_what_a_later_position_leaves_out_has_a_reason(
    position: int | None, start: int, ends: list[int], gaps: dict[str, int], lost: list[tuple[int, int, str]]
) -> None:
    scene, entry = Scene(), ENTRY.replace(session=None)
    scene.offsets = {EARLIEST: [start], LATEST: [*ends]}
    play(scene, lambda: scene.begin(Start(position, position, entry, moved=True)))
    assert scene.cursor.window.trail.gaps == {"control": 2, **gaps}
    assert [one[:3] for one in scene.cursor.lost] == [(1, 2, "retention"), *lost]
    assert scene.cursor.window.trail.newest.gaps == [Gap(*one) for one in lost]
    assert scene.cursor.offset == (start if position is None else position)
    assert ("whether they have copied the records between is not known" in scene.cursor.conditions.note) == (
        len(ends) > 1
    )


def test_at_a_position_behind_the_end_of_the_source_copying_continues_where_it_had_ended() -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(71, 71, ENTRY.replace(session=None), moved=True)))
    cursor = scene.cursor
    assert (cursor.offset, cursor.window.trail.gaps, len(cursor.lost)) == (50, {"control": 2}, 1)
    assert (cursor.leader_epoch, cursor.topic_id) == (3, "src"), "a truncated source is found as always"
    assert cursor.conditions.note.startswith("the position was set to offset 71")


def test_a_later_position_in_a_recreated_topic_leaves_out_its_start() -> None:
    scene = Scene()
    scene.source_id = "another"
    play(scene, lambda: scene.begin(Start(40, 40, ENTRY.replace(session=None), moved=True)))
    assert scene.cursor.window.trail.gaps == {"control": 2, "retention": 3, "reset": 37}


@pytest.mark.parametrize(("position", "left"), [(55, 5), (40, 0)])
def test_what_was_left_out_is_not_lost_when_a_position_before_it_is_set(position: int, left: int) -> None:
    scene, retention = Scene(), Lost(1, 2, "retention", 5)
    lost = (retention, Lost(50, 60, "reset", 6))
    entry = ENTRY.replace(session=None, mark=Mark(65, 155, 5), gaps={"control": 2, "reset": 10}, lost=lost)
    chunk = SegmentChunk(0, [Segment(0, 100, 50), Segment(60, 150, 5)], [Gap(50, 60, "reset")])
    play(scene, lambda: scene.begin(Start(position, position, entry, chunk, moved=True)))
    trail = scene.cursor.window.trail
    assert trail.gaps == {"control": 2, **({"reset": left} if left else {})}
    assert scene.cursor.lost == [retention, *([Lost(50, 55, "reset", 6)] if left else [])]
    assert sum(gap.after - gap.first for gap in trail.newest.gaps) == left


def test_an_unreachable_target_is_retried() -> None:
    scene = Scene()
    scene.offsets[LATEST] = [BrokerFailure.of(5), DisconnectedFailure("gone"), TlsFailure("expired"), 71]
    play(scene, lambda: scene.begin(Start(12, 12)))
    assert (scene.cursor.window.mark, scene.outbox.last_error) == (Mark(12, 71, 0), None)


def test_a_write_only_target_is_written_without_known_offsets() -> None:
    scene = Scene()
    scene.offsets[LATEST] = [BrokerFailure.of(29)]
    play(scene, lambda: scene.begin(Start(12, 12)))
    assert scene.cursor.window.mark == Mark(12, -1, 0)


def test_without_a_ledger_nothing_waits() -> None:
    scene = Scene(ledger_topic=None)
    play(scene, lambda: scene.begin(Start(12, 12)))
    assert (scene.outbox.identity, scene.committed, scene.outbox.looked_up) == (ProducerIdentity(9, 0), [], False)
    assert scene.sessions.current == {}


def test_in_a_transaction_only_the_position_counts() -> None:
    scene = Scene(transactions=TransactionsSpec("id"))
    play(scene, lambda: scene.begin(Start(12, 12, ENTRY.replace(session=None))))
    assert (scene.cursor.window.mark, scene.asked, scene.committed) == (Mark(12, -1, 0), [], [])
    assert scene.reading == [scene.cursor]


def test_a_session_whose_holder_died_is_read_past_in_exactly_once_mode_too() -> None:
    scene = Scene(transactions=TransactionsSpec("id"))
    cursor, outbox = scene.cursor, scene.outbox
    # The broker reads a request that the dead executor has pipelined when it has answered the one before.
    scene.standings = [TargetProgress(57, 157, 0), TargetProgress(60, 160, 0)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    skipped = cursor.predecessor
    assert (cursor.offset, skipped.remaining, skipped.finishing) == (50, 10, True)
    assert scene.sessions.current == {TP: SESSION}, "the ledger names it until the first transaction"
    assert (outbox.looked_up, outbox.identity, scene.committed) == (False, ProducerIdentity(-1, -1), [])
    scene.bench.fetch(batch(50, 15))
    assert (scene.bench.owner.calls, cursor.suspended, scene.bench.outgoing_batches) == ([("finished", 60)], True, [])
    play(scene, lambda: scene.new_sessions.open_next(cursor))
    assert (cursor.offset, cursor.suspended, cursor.predecessor.finishing, scene.sessions.current) == (
        60,
        False,
        False,
        {},
    )
    scene.bench.fetch(batch(60, 5))
    assert scene.bench.offsets() == [60, 61, 62, 63, 64]


def test_transactions_begin_at_the_mark_where_the_session_got_no_further() -> None:
    scene = Scene(transactions=TransactionsSpec("id"))
    scene.standings = [DisconnectedFailure("disconnected"), TargetProgress(50, 150, 0)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    cursor = scene.cursor
    predecessor = cursor.predecessor
    assert (cursor.window.mark, predecessor.remaining, predecessor.finishing) == (ENTRY.mark, 0, False)
    assert len(scene.questions) > 2, "one was not answered, and two found the same"
    assert scene.reading == [cursor]


def test_transactions_begin_where_the_session_ends_now_if_the_target_lost_its_end() -> None:
    scene = Scene(transactions=TransactionsSpec("id"))
    scene.standings = [TargetProgress(45, 145, 0)]
    entry = ENTRY.replace(foreign=0)
    play(scene, lambda: scene.begin(Start(50, 40, entry, SegmentChunk(9, [Segment(0, 100, 50)]))))
    assert (scene.cursor.window.position, scene.cursor.conditions.stop, scene.truncated) == (45, None, [])


def test_transactions_do_not_begin_where_it_is_not_known_what_the_target_lost() -> None:
    scene = Scene(transactions=TransactionsSpec("id"))
    scene.standings = [TargetProgress(45, 145, 0)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    assert scene.cursor.conditions.stop is not None
    assert (scene.cursor.conditions.stop.state, scene.reading) == (PartitionState.LOST_RANGE, [])


def test_a_session_that_cannot_continue_is_followed_by_another() -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY, clean=True)))
    play(scene, lambda: scene.new_sessions.open_again(scene.cursor, scene.cursor.window.mark))
    assert scene.sessions.current == {TP: Session(ProducerIdentity(9, 0), Mark(50, 70, 0), UNCOMMITTED)}
    assert scene.cursor.window.trail.gaps == {"control": 2}


# -- where there is no position -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "asked", "position"),
    [
        ({}, [EARLIEST], 3),
        ({"auto_offset_reset": "latest"}, [LATEST], 70),
        ({"start_timestamp_ms": 5_000}, [5_000], 40),
        ({"start_timestamp_ms": 9_000}, [9_000, LATEST], 70),  # nothing is as young as that
        ({"start_timestamp_ms": 5_000, "auto_offset_reset": "none"}, [5_000], 40),
    ],
)
def test_the_start_offset_without_a_position(changes: dict[str, Any], asked: list[int], position: int) -> None:
    scene = Scene(**changes)
    scene.offsets |= {5_000: [40], 9_000: [-1]}
    play(scene, lambda: scene.begin(Start(None)))
    assert (scene.asked[: len(asked)], scene.cursor.window.position) == (asked, position)


@pytest.mark.parametrize(("named", "position"), [(12, 12), (70, 70), (90, 70)])
def test_a_configured_offset_is_limited_to_the_end_of_the_log(named: int, position: int) -> None:
    scene = Scene(auto_offset_reset="none")
    scene.offsets[LATEST] = [DisconnectedFailure("gone"), 70]
    play(scene, lambda: scene.begin(Start(named)))
    assert (scene.cursor.window.position, scene.cursor.stopped, scene.cursor.lost) == (position, False, [])


def test_no_position_and_no_reset_policy_stops_the_partition() -> None:
    scene = Scene(auto_offset_reset="none")
    play(scene, lambda: scene.begin(Start(None)))
    assert (scene.cursor.stopped, scene.asked) == (True, [])


def test_an_unreachable_source_is_retried_and_reported() -> None:
    scene = Scene()
    scene.offsets[EARLIEST] = [BrokerFailure.of(29), DisconnectedFailure("gone"), 8]
    play(scene, lambda: scene.begin(Start(None)))
    assert (scene.bench.owner.calls, scene.cursor.window.position) == ([("unreadable", 29)], 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("P3DT12H", 302_400_000), ("PT1.5S", 1_500), ("PT2M", 120_000), ("P1D", 86_400_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "3D", "P1W", "P-1D"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not an ISO 8601 duration"):
        duration_ms(text)


# -- sessions under other rules -------------------------------------------------------------------------------------------


def under(rules: str) -> LedgerEntry:
    return ENTRY.replace(session=Session(ProducerIdentity(7, 1), Mark(0, 100, 0), rules), known_epoch=9)


@pytest.mark.parametrize("clean", [True, False])
def test_a_session_without_rules_has_the_current_ones(clean: bool) -> None:
    scene = Scene(read_committed=True)
    scene.standings = [TargetProgress(50, 150)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY, clean=clean)))
    assert scene.sessions.current == {TP: SESSION}
    assert not scene.cursor.predecessor.finishing


def test_a_clean_handover_to_other_rules_begins_a_session_at_the_mark() -> None:
    scene = Scene(read_committed=True)
    play(scene, lambda: scene.begin(Start(50, 50, under(UNCOMMITTED), clean=True)))
    assert scene.sessions.current == {TP: Session(ProducerIdentity(9, 0), Mark(50, 70, 0), COMMITTED)}
    assert (scene.cursor.window.mark, len(scene.committed), scene.isolated) == (Mark(50, 70, 0), 1, [False])


def test_a_crashed_session_without_new_copies_is_followed_by_one_under_the_current_rules() -> None:
    scene = Scene(read_committed=True)
    scene.standings = [TargetProgress(50, 150)]
    play(scene, lambda: scene.begin(Start(50, 40, under(UNCOMMITTED))))
    before = (ended(UNCOMMITTED, Mark(50, 150, 50)),)
    assert scene.sessions.current == {TP: Session(ProducerIdentity(9, 0), Mark(50, 150, 0), COMMITTED, before)}


@pytest.mark.parametrize("changes", [{}, {"transactions": TransactionsSpec("id")}], ids=["default", "exactly once"])
@pytest.mark.parametrize("old", [True, False], ids=["was committed", "was uncommitted"])
def test_a_session_without_records_after_its_mark_is_followed_under_the_current_rules(
    changes: dict[str, Any], old: bool
) -> None:
    scene = Scene(read_committed=not old, **changes)
    scene.cursor.predecessor.finishing, scene.cursor.read_committed = True, old  # as if records had been skipped
    scene.standings = [DisconnectedFailure("disconnected"), TargetProgress(50, 150)]
    play(scene, lambda: scene.begin(Start(50, 40, under(str(Rules(read_committed=old))))))
    cursor = scene.cursor
    assert (cursor.window.position, cursor.predecessor.remaining) == (50, 0)
    assert (cursor.predecessor.finishing, cursor.read_committed, scene.isolated) == (False, not old, [False])
    aborted = batch(50, 3, attributes=TRANSACTIONAL, producer=(5, 0, 0))
    scene.bench.fetch(aborted, aborted=((5, 50),))
    assert scene.bench.offsets() == ([50, 51, 52] if old else [])


@pytest.mark.parametrize("old", [True, False], ids=["was committed", "was uncommitted"])
def test_a_crashed_session_is_read_past_under_its_own_rules(old: bool) -> None:
    scene = Scene(read_committed=not old)
    scene.standings = [TargetProgress(54, 154, 4, (FoundBatch(50, 150, 4),))]
    play(scene, lambda: scene.begin(Start(50, 40, under(str(Rules(read_committed=old))))))
    cursor = scene.cursor
    assert (cursor.predecessor.remaining, cursor.predecessor.finishing, cursor.read_committed, scene.isolated) == (
        4,
        True,
        old,
        [old],
    )
    scene.bench.fetch(batch(50, 2), batch(52, 9))
    assert (scene.bench.owner.calls, cursor.suspended, scene.bench.outgoing_batches) == ([("finished", 54)], True, [])
    assert (cursor.window.mark, scene.sessions.current[TP].producer) == (Mark(54, 154, 54), ProducerIdentity(7, 1))
    play(scene, lambda: scene.new_sessions.open_next(cursor))
    rules, before = str(Rules(read_committed=not old)), (ended(str(Rules(read_committed=old)), Mark(54, 154, 54)),)
    assert scene.sessions.current == {TP: Session(ProducerIdentity(9, 0), Mark(54, 154, 0), rules, before)}
    assert (cursor.predecessor.finishing, cursor.read_committed, scene.isolated) == (False, not old, [old, False])
    assert (len(scene.committed), scene.outbox.needs_producer_id) == (2, True)
    scene.committed.pop(0)()
    assert scene.outbox.needs_producer_id, "the session before has ended"
    scene.bench.fetch(batch(52, 9))
    assert scene.bench.offsets() == list(range(54, 61))


@pytest.mark.parametrize("end", [130, 154], ids=["deposed leader", "former leader"])
def test_a_session_after_another_one_begins_where_that_was_looked_up(end: int) -> None:
    """The end offset is asked later, and another leader may answer."""
    scene = Scene(read_committed=True)
    scene.standings, scene.offsets[LATEST] = [TargetProgress(50, 151, 4)], [end]
    play(scene, lambda: scene.begin(Start(50, 40, under(UNCOMMITTED))))
    assert scene.sessions.current[TP].start == scene.cursor.window.mark == Mark(50, 151, 0)
    scene.written()
    assert (scene.outbox.end_offset, scene.outbox.floor) == (151, 151)


def test_entries_before_the_next_session_end_the_old_one() -> None:
    """Rule S9: a successor that reads such an entry counts no record as one of the old session, of whatever leader epoch it is."""
    scene, entries = Scene(), []
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY.replace(known_epoch=3), clean=True)))

    def replace() -> None:
        scene.new_sessions.replace(scene.cursor)
        entries.append((scene.cursor.known_epoch, scene.cursor.shared_until))

    play(scene, replace)
    assert entries == [(-1, UNBOUNDED)]


def ended(rules: str, mark: Mark, known_epoch: int = 9) -> EndedSession:
    return EndedSession(ProducerIdentity(7, 1), Mark(0, 100, 0), rules, mark, known_epoch)


def test_a_session_after_one_under_other_rules_is_looked_up_with_it_in_another_leader_epoch() -> None:
    """Rule S6: the leader may be another one than the one that was asked about the old session."""
    scene = Scene(read_committed=True)
    scene.standings = [TargetProgress(50, 150, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, under(UNCOMMITTED))))
    scene.written()
    assert (scene.outbox.verified_epoch, scene.outbox.ended_sessions) == (4, (ended(UNCOMMITTED, Mark(50, 150, 50)),))


def follower(known: EndedSession) -> LedgerEntry:
    """A session under the current rules after another one, without records yet; three offsets have been dropped."""
    session = Session(ProducerIdentity(9, 0), Mark(50, 150, 0), COMMITTED, (known,))
    return ENTRY.replace(session=session, mark=Mark(53, 150, 0), known_epoch=11)


def test_a_session_of_which_records_have_come_back_continues() -> None:
    """A former leader of the target had records of it that the look-up before its end did not find."""
    scene = Scene(read_committed=True)
    before = ended(UNCOMMITTED, Mark(50, 150, 50), 3)
    progress = TargetProgress(54, 154, 5, (FoundBatch(50, 150, 4),))
    scene.standings = [TargetProgress(0, 154, 5, reappeared=ReappearedSession(before, progress))]
    play(scene, lambda: scene.begin(Start(53, 53, follower(before), SegmentChunk(6, [Segment(40, 140, 10)]))))
    cursor = scene.cursor
    assert (cursor.window.mark, cursor.predecessor.remaining, cursor.predecessor.finishing) == (
        Mark(50, 150, 50),
        4,
        True,
    )
    assert (cursor.read_committed, cursor.known_epoch, scene.outbox.floor) == (False, 3, 100)
    assert scene.sessions.current == {TP: Session(ProducerIdentity(7, 1), Mark(0, 100, 0), UNCOMMITTED)}
    scene.written()
    scene.bench.fetch(batch(50, 9))
    assert (scene.bench.owner.calls, cursor.window.mark) == ([("finished", 54)], Mark(54, 154, 54))
    play(scene, lambda: scene.new_sessions.open_next(cursor))
    again = before._replace(mark=Mark(54, 154, 54))
    assert scene.sessions.current == {TP: Session(ProducerIdentity(9, 0), Mark(54, 154, 0), COMMITTED, (again,))}
    scene.written()
    assert (scene.outbox.verified_epoch, scene.outbox.ended_sessions) == (5, (again,))


def test_all_sessions_without_records_in_between_are_kept_in_mind() -> None:
    scene = Scene()  # the rules have been changed back
    before = ended(UNCOMMITTED, Mark(50, 150, 50))
    scene.standings = [TargetProgress(0, 150, 5)]
    play(scene, lambda: scene.begin(Start(53, 53, follower(before))))
    empty = EndedSession(ProducerIdentity(9, 0), Mark(50, 150, 0), COMMITTED, Mark(53, 150, 0), 11)
    assert scene.sessions.current[TP].after == (before, empty)


def test_records_of_a_session_under_unknown_rules_stop_the_partition() -> None:
    scene = Scene(read_committed=True)
    before = ended("isolation=snapshot", Mark(50, 150, 50))
    progress = TargetProgress(54, 154, 5, (FoundBatch(50, 150, 4),))
    scene.standings = [TargetProgress(0, 154, 5, reappeared=ReappearedSession(before, progress))]
    play(scene, lambda: scene.begin(Start(53, 53, follower(before))))
    condition = scene.cursor.conditions.stop
    assert condition is not None
    assert condition.state == PartitionState.INCONSISTENT
    assert "4 records of a copy session" in condition.reason
    assert "unknown rules (isolation=snapshot)" in condition.reason


def test_a_moved_position_ends_the_sessions_before() -> None:
    table = SessionTable(dataclasses.replace(COPY))
    table.current[TP] = session = Session(
        ProducerIdentity(9, 0), Mark(50, 150, 0), COMMITTED, (ended(UNCOMMITTED, Mark(1, 2, 1)),)
    )
    table.end(TP, ENTRY, 150, 4)
    table.forget_ended(TP)
    assert (table.current[TP].after, table.ending) == ((), {})
    assert table.is_current(TP, session)


def test_compared_records_also_end_a_session_under_other_rules() -> None:
    scene = Scene(read_committed=True)
    scene.standings = [TargetProgress(54, 154, 4, (FoundBatch(50, 150, 4),))]
    play(scene, lambda: scene.begin(Start(50, 40, under(UNCOMMITTED))))
    scene.bench.fetch(batch(51, 2))
    scene.cursor.fingerprints = deque(fingerprint(record(offset)) for offset in range(50, 54))
    scene.cursor.predecessor.forget_offsets()
    scene.cursor.suspended = False
    scene.bench.fetch(batch(51, 9))
    assert scene.bench.owner.calls == [("uncertain", 50, 4), ("finished", 54)]
    assert (scene.cursor.window.mark, scene.bench.outgoing_batches) == (Mark(54, 154, 54), [])


CHANGED, OTHERWISE = (str(Rules(read_committed=False, changes=digest)) for digest in ("0a", "0b"))


def changing(not_repeatable: str = "") -> dict[str, Any]:
    return {"changes": ChangesSpec("m:f", {}, "0a", not_repeatable)}


@pytest.mark.parametrize(
    ("rules", "changes", "why"),
    [
        ("isolation=snapshot", {}, "a predecessor counted records under unknown rules (isolation=snapshot)"),
        (OTHERWISE, changing(), "a predecessor copied records with transformations that are no longer configured"),
        (CHANGED, {}, "a predecessor copied records with transformations that are no longer configured"),
        (CHANGED, changing("Dice is not declared deterministic"), "Dice is not declared deterministic"),
    ],
)
def test_records_that_cannot_be_counted_are_copied_again(rules: str, changes: dict[str, Any], why: str) -> None:
    scene = Scene(**changes)
    scene.standings = [TargetProgress(54, 154, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, under(rules))))
    assert scene.cursor.conditions.note == f"at least once: {why}"
    assert scene.cursor.window.mark == Mark(50, 70, 0)
    assert scene.sessions.current[TP].rules == str(scene.sessions.rules)


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        ("isolation=snapshot", {}),
        (OTHERWISE, changing()),
        (CHANGED, {}),
        ("", changing()),
        (str(Rules(False)), changing()),
    ],
)
def test_a_session_under_other_rules_ends_at_its_mark_when_nothing_was_copied_after_it(
    rules: str, changes: dict[str, Any]
) -> None:
    scene = Scene(**changes)
    scene.standings = [TargetProgress(50, 150, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, under(rules))))
    assert scene.cursor.conditions.note == ""
    assert scene.cursor.window.mark == Mark(50, 150, 0)
    assert scene.sessions.current[TP].rules == str(scene.sessions.rules)


def test_records_that_were_copied_before_transformations_are_counted_without_them() -> None:
    scene = Scene(**changing())
    scene.sessions.changes = changer = cast(Any, object())
    scene.cursor.changes = changer
    scene.standings = [TargetProgress(54, 154, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, under(str(Rules(False))))))
    assert (scene.cursor.changes, scene.cursor.predecessor.remaining) == (None, 4)
    assert scene.cursor.predecessor.finishing
    play(scene, lambda: scene.new_sessions.open({TP: 54}))
    assert scene.cursor.changes is changer


@pytest.mark.parametrize(("records", "clean"), [(50, True), (50, False), (54, False)])
def test_a_session_with_the_same_transformations_continues_with_them(records: int, clean: bool) -> None:
    scene = Scene(**changing())
    scene.sessions.changes = scene.cursor.changes = changer = cast(Any, object())
    scene.standings = [TargetProgress(records, 100 + records, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, under(CHANGED), clean=clean)))
    assert (scene.cursor.predecessor.remaining, scene.cursor.predecessor.finishing) == (records - 50, False)
    assert scene.cursor.changes is changer


# -- looking for records by content ---------------------------------------------------------------------------------------


def uncertain(scene: Scene, there: Iterable[int], ends: Iterable[int] = (157,)) -> None:
    """``there`` has the source offsets of the records on the target, ``ends`` the end offsets that its leaders answer."""
    scene.standings = [TargetProgress(57, 157)]
    scene.prints = [fingerprint(record(offset)) for offset in there]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    scene.bench.fetch(batch(53, 1))
    assert scene.cursor.suspended
    scene.offsets[LATEST] = [*ends]
    play(scene, lambda: scene.search.match(scene.cursor))


@pytest.mark.parametrize("ends", [(157,), (120, 157)], ids=["leader", "deposed leader first"])
def test_records_on_the_target_are_found_by_their_content(ends: tuple[int, ...]) -> None:
    scene = Scene()
    uncertain(scene, range(50, 57), ends)
    scene.written()
    scene.bench.fetch(batch(53, 1), batch(55, 4))
    assert (scene.bench.offsets(), scene.cursor.window.mark) == ([], Mark(57, -1, 57))
    assert (scene.bench.owner.calls[-1], scene.cursor.conditions.note) == (("finished", 57), "")


def test_only_the_last_records_are_compared() -> None:
    scene = Scene()
    uncertain(scene, range(40, 57))  # read from before the mark
    assert scene.cursor.fingerprints is not None
    assert len(scene.cursor.fingerprints) == 7


def test_records_compacted_on_the_target_count_as_present() -> None:
    scene = Scene()
    uncertain(scene, [55, 56])
    assert (scene.cursor.window.records, scene.cursor.predecessor.remaining, scene.cursor.suspended) == (55, 2, False)
    scene.bench.fetch(batch(55, 3))
    assert (scene.bench.offsets(), scene.cursor.window.records) == ([], 57)
    assert scene.bench.owner.calls[-1] == ("finished", 57)


def test_an_unreadable_target_means_at_least_once() -> None:
    scene = Scene()
    scene.standings = [TargetProgress(57, 157)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    scene.bench.fetch(batch(53, 1))
    scene.offsets[LATEST] = [BrokerFailure.of(29)]
    play(scene, lambda: scene.search.match(scene.cursor))
    assert scene.cursor.conditions.note.startswith("at least once")
    assert (scene.cursor.window.mark, scene.cursor.predecessor.remaining, scene.cursor.suspended) == (
        Mark(50, -1, 0),
        0,
        False,
    )


def test_a_session_under_other_rules_ends_also_where_the_target_was_truncated() -> None:
    scene = Scene(read_committed=True)
    old = Session(ProducerIdentity(7, 1), Mark(0, 100, 0), UNCOMMITTED)
    scene.standings = [TargetProgress(45, 145, 0)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY.replace(session=old))))
    assert scene.truncated == [(45, 145)]
    assert (scene.cursor.read_committed, scene.cursor.predecessor.finishing) == (False, True)


def test_where_the_mark_has_no_target_offset_the_start_of_the_session_does() -> None:
    """A holder died while it compared by content, and others write to the remote topic, too."""
    scene = Scene()
    scene.standings = [TargetProgress(60, 170, 0, (FoundBatch(50, 155, 5), FoundBatch(55, 165, 5)))]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY.replace(mark=Mark(50, -1, 50)))))
    assert (scene.cursor.predecessor.remaining, scene.cursor.predecessor.target_base, scene.outbox.floor) == (
        10,
        155,
        100,
    )
    scene.prints = [fingerprint(record(offset)) for offset in range(50, 60)]
    scene.cursor.suspended = True
    scene.offsets[LATEST] = [170]
    play(scene, lambda: scene.search.match(scene.cursor))
    assert (scene.cursor.conditions.note, scene.cursor.predecessor.remaining) == ("", 10)


@pytest.mark.parametrize("changes", [{}, {"transactions": TransactionsSpec("id")}], ids=["default", "exactly once"])
@pytest.mark.parametrize("readable", [True, False], ids=["retention removed them", "not readable"])
def test_a_session_under_other_rules_ends_where_its_records_cannot_be_compared(
    changes: dict[str, Any], readable: bool
) -> None:
    """The position stays at the mark. What follows is read under the current rules, in the next session or transaction."""
    scene = Scene(read_committed=True, **changes)
    scene.standings = [TargetProgress(54, 154, 4, (FoundBatch(50, 150, 4),))]
    play(scene, lambda: scene.begin(Start(50, 40, under(UNCOMMITTED))))
    cursor = scene.cursor
    scene.bench.fetch(batch(51, 2))
    assert (scene.bench.owner.calls, cursor.suspended) == ([("uncertain", 50, 4)], True)
    scene.offsets[LATEST] = [154 if readable else BrokerFailure.of(29)]
    play(scene, lambda: scene.search.match(cursor))
    assert (cursor.predecessor.finishing, cursor.read_committed, cursor.suspended) == (False, True, False)
    assert (cursor.predecessor.remaining, cursor.window.position, cursor.conditions.note[:13]) == (
        0,
        50,
        "at least once",
    )
    assert (TP in scene.sessions.current) is not bool(changes)
    if not changes:
        session = scene.sessions.current[TP]
        assert (session.producer, session.start, session.rules) == (
            ProducerIdentity(9, 0),
            cursor.window.mark,
            COMMITTED,
        )


def test_transactions_that_begin_where_a_session_was_cut_off_use_the_current_rules() -> None:
    scene = Scene(read_committed=True, transactions=TransactionsSpec("id"))
    scene.standings = [TargetProgress(45, 145, 0)]
    entry = under(UNCOMMITTED).replace(foreign=0)
    play(scene, lambda: scene.begin(Start(50, 40, entry, SegmentChunk(9, [Segment(0, 100, 50)]))))
    assert (scene.cursor.window.position, scene.cursor.read_committed, scene.cursor.predecessor.finishing) == (
        45,
        True,
        False,
    )
