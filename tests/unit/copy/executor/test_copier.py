"""The executor's lease: its renewal, and the actions after it has expired."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mm2.codec import decode
from mm2.copy import channel
from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.commit.commits import Commits, TransactionCommits
from mm2.copy.executor.commit.positions import Commit
from mm2.copy.executor.copier import ROOM_BYTES, Copier
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.conditions import Conditions
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.events import STATE_CHANGED
from mm2.copy.executor.reports import progress_of
from mm2.copy.progress.session import Lease, LedgerEntry, Mark, PartitionCondition, Seen, Session, Start
from mm2.copy.spec import Assignment
from mm2.copy.states import PartitionState
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from tests.unit.copy.batches import TP, Bench, batch, partition_events

ASSIGNMENT = Assignment("b", "localhost", 1, "00")


def hear(link: DriverLink, *messages: dict[str, Any]) -> None:
    async def listen() -> None:
        loop = asyncio.get_running_loop()
        link.lease, link.start = loop.create_future(), loop.create_future()
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(map(channel.encode, messages)))
        reader.feed_eof()
        await link._listen(reader)

    asyncio.run(listen())


def test_a_response_renews_the_lease_from_the_send_time_of_the_message() -> None:
    # A process that was frozen finds the answers of long ago.
    link = DriverLink(ASSIGNMENT, 0, 8)
    link._renewed_at = 100.0
    link._asked.extend([130.0, 140.0])
    hear(link, {"type": "go"}, {"type": "stop", "drain_s": 3})
    assert (link._renewed_at, link.drain_s, link.stop_requested) == (130.0, 3.0, True)
    hear(link, {"type": "lease"}, {"type": "start", "starts": []})
    assert link._renewed_at == 130.0, "an answer to a later question, which the driver may never have received"
    hear(link, {"type": "go"}, {"type": "go"})
    assert link._renewed_at == 140.0


def test_a_lease_runs_out_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine is suspended: the monotonic clock stands still meanwhile."""
    awake = [time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)]
    clock = SimpleNamespace(
        CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, monotonic=lambda: awake[0], clock_gettime=lambda _: awake[1]
    )
    monkeypatch.setattr("mm2.copy.channel.time", clock)
    link = DriverLink(ASSIGNMENT, 0, 8)
    assert link.may_write()
    awake[1] += 60
    assert not link.may_write()


def test_the_final_report_ends_the_lease() -> None:
    """The driver grants the next one when it receives the report; the report may wait for the socket meanwhile."""

    async def run() -> None:
        link = DriverLink(ASSIGNMENT, 0, 8)
        sent: list[bytes] = []
        link._writer = cast(Any, SimpleNamespace(is_closing=lambda: False, write=sent.append))
        link.ask({"type": "progress"})
        link.release({"type": "final"})
        assert [channel.decode(line)["type"] for line in sent] == ["progress", "final"]
        assert not link.may_write()
        link._hear({"type": "go"})
        assert not link.may_write()

    asyncio.run(run())


def test_the_lease_and_the_first_start_are_awaited_and_everything_else_is_passed_on() -> None:
    link = DriverLink(ASSIGNMENT, 0, 8)
    words: list[dict[str, Any]] = []
    link.on_message = words.append
    throttle = {"type": "throttle", "rate": 1, "topics": {}}
    later = {"type": "start", "starts": [1]}
    hear(link, {"type": "lease"}, {"type": "lease"}, {"type": "start", "starts": []}, later, throttle)
    assert (link.start.result()["starts"], words) == ([], [later, throttle])
    assert link.lease.done()


def test_a_closed_channel_ends_it_and_the_first_reason_is_kept() -> None:
    link = DriverLink(ASSIGNMENT, 0, 8)
    hear(link)
    link.end("later")
    assert (link.stop.is_set(), link.reason) == (True, "the driver closed the progress channel")


def test_invalid_data_on_the_channel_ends_it() -> None:
    link = DriverLink(ASSIGNMENT, 0, 8)
    hear(link, {"no": "type"})
    assert link.reason.startswith("the progress channel failed")


def test_a_stop_ends_a_wait() -> None:
    async def run() -> None:
        link = DriverLink(ASSIGNMENT, 0, 8)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(link.end, "over")
        assert not await link.until_stop(never)
        await asyncio.wait_for(link.pause(60), 5)

    asyncio.run(run())


def test_an_internal_error_is_logged_with_its_traceback_and_ends_the_micro_batch() -> None:
    own = Copier(ASSIGNMENT, 0)
    broken = RuntimeError("a defect")
    with capture_logs() as lines:
        own._on_loop_error(cast(Any, None), {"message": "Exception in callback", "exception": broken})
        own._on_loop_error(cast(Any, None), {"message": "Task was destroyed"})
    assert [(line["batch"], line["error"], line["exc_info"]) for line in lines] == [
        ("b", "Exception in callback", broken),
        ("b", "Task was destroyed", None),
    ]
    assert (own.healthy, own._link.stop.is_set(), own._link.reason) == (False, True, "internal error: a defect")


@pytest.mark.parametrize(("unanswered_s", "commits"), [(1.0, True), (60.0, False)])
def test_positions_are_not_committed_after_the_lease_has_expired(unanswered_s: float, commits: bool) -> None:
    committed: list[int] = []

    async def end(_deadline: float) -> None:
        """There is no transaction."""

    async def run() -> None:
        own = Copier(ASSIGNMENT, 0)
        own._link._renewed_at, own._link.drain_s = channel.now_s() - unanswered_s, 0.01
        commits = SimpleNamespace(end=end, commit=lambda *, ending: committed.append(ending), is_complete=True)
        own._commits = cast(Any, commits)
        await own._drain()

    asyncio.run(run())
    assert bool(committed) is commits


@pytest.mark.parametrize("waits_s", [4.0, 6.0])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_start_positions_from_before_the_lease_expired_are_not_used(
    waits_s: float, is_frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has read them, and then was frozen. Meanwhile another worker may have got the partitions."""
    now = [1000.0]
    monkeypatch.setattr(channel, "now_s", lambda: now[0])
    monkeypatch.setattr(channel, "REPORT_INTERVAL_S", 0.01)
    asked: list[Any] = []

    async def claim() -> bool:
        return True

    async def run() -> tuple[bool, str]:
        copier = Copier(ASSIGNMENT, 0)
        copier._commits = cast(Any, SimpleNamespace(claim=claim))
        monkeypatch.setattr(copier, "_start", lambda _: asked.append("start"))
        link = copier._link
        link._renewed_at = 900.0  # before it had to wait for its predecessor
        monkeypatch.setattr(link, "send", asked.append)
        link.start = asyncio.get_running_loop().create_future()
        begun = asyncio.create_task(copier._begun())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now[0] += waits_s
        if not is_frozen:  # only the driver was
            await asyncio.sleep(0.05)
        link.start.set_result({})
        return await begun, link.reason

    is_late = waits_s > channel.LEASE_TIMEOUT_S
    expected = (False, "no message from the driver for 5 s") if is_late else (True, "")
    assert asyncio.run(run()) == expected
    assert (asked[0], "start" in asked) == ({"type": "claimed"}, not is_late)


@pytest.mark.parametrize(
    ("unanswered_s", "is_stopping", "begins"), [(1, False, True), (6, False, False), (1, True, False)]
)
def test_partitions_of_another_lane_begin_later_unless_the_lease_has_expired(
    unanswered_s: float, is_stopping: bool, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may have read the positions before this process was frozen (rule S7)."""
    copier, message = Copier(ASSIGNMENT, 0), {"type": "start", "starts": [], "attempts": []}
    begun: list[object] = []
    monkeypatch.setattr(copier, "_start", begun.append)
    copier._link._renewed_at = channel.now_s() - unanswered_s
    if is_stopping:
        copier._link.end("the driver requested the stop")
    copier._on_message(message)
    assert begun == ([message] if begins else [])
    assert copier._link.stop.is_set() != begins, "it is not continued without these partitions"


def test_a_partition_without_a_start_position_is_neither_committed_nor_reported() -> None:
    """Another micro-batch is copying it."""
    bench, awake = Bench(), AwakeCursors()
    awake.expected.add(bench.cursor)
    awake.wake(bench.cursor)
    assert (awake.uncommitted, awake.unreported) == ({}, {})
    awake.begin(bench.cursor)
    assert [*awake.uncommitted] == [*awake.unreported] == [bench.cursor]


def test_a_pause_message_replaces_all_pauses_and_the_source_reconsiders() -> None:
    class Paused:
        def __init__(self) -> None:
            self.conditions: Any = Conditions()

        def pause(self, *why: object) -> None:
            self.conditions.paused = why

        def resume(self) -> None:
            self.conditions.paused = None

    class Source:
        def __init__(self) -> None:
            self.asked: list[TopicPartition] = []

        def reconsider(self, partitions: Iterable[TopicPartition]) -> None:
            self.asked += partitions

    one, two, source = Paused(), Paused(), Source()
    copier = Copier(ASSIGNMENT, 0)
    copier._source = cast(Any, source)
    resumed: list[TopicPartition] = []
    copier._new_sessions = cast(Any, SimpleNamespace(resume=resumed.append))
    copier._cursors.update(cast(Any, {TopicPartition("t", 0): one, TopicPartition("t", 1): two}))
    two.conditions.paused = "by an earlier message"
    copier._on_message({"type": "pause", "partitions": [["t", 0, "paused by ann", 5], ["another lane's", 0, "", 0]]})
    assert (one.conditions.paused, two.conditions.paused) == (("paused by ann", 5), None)
    copier._on_message({"type": "pause", "partitions": []})
    assert (one.conditions.paused, source.asked) == (None, [*copier._cursors] * 2)
    assert resumed == [TopicPartition("t", 1), TopicPartition("t", 0)]


class Entries:
    """The entries that are committed to the ledger; ``committed`` is the position of each in Connect's offsets topic."""

    idle = True

    def __init__(self, committed: dict[TopicPartition, int | None]) -> None:
        self.committed = committed
        self.entries: list[LedgerEntry] = []

    def busy(self, _source: TopicPartition) -> bool:
        return False

    def lease(self, _source: TopicPartition) -> Lease:
        return Lease(5, 1)

    def commit(self, commit: Commit, _committed: object) -> None:
        self.entries.append(commit.entry)


def test_between_transactions_the_ledger_gets_unmoved_partitions_once_and_no_moving_ones() -> None:
    bench = Bench(10, target=100, records=5)
    bench.cursor.known_end = 10  # a predecessor has heard of it, nothing was fetched since
    written = Entries({bench.cursor.partition: 10})
    commits = TransactionCommits(
        DriverLink(ASSIGNMENT, 0, 8),
        cast(Any, None),
        {bench.cursor.partition: bench.cursor},
        cast(Any, written),
        None,
        None,
        cast(Any, SimpleNamespace(topic_ids={})),
        {},
        None,
        lambda _cursor, _copied: None,
        AwakeCursors(),
    )
    bench.cursor.pause("paused by ann", 5)
    commits.commit_unmoved()
    assert not written.entries, "there is no ledger"
    commits._ledger = cast(Any, object())
    commits.commit_unmoved()
    commits.commit_unmoved()
    (shown,) = written.entries
    assert (shown.mark, shown.condition, shown.before) == (
        Mark(10, 100, 5),
        PartitionCondition("PAUSED", "paused by ann", 10, 5),
        None,
    )
    assert shown.end == 10
    bench.cursor.conditions.paused = None
    bench.fetch(batch(10, 3))
    bench.ack(101)  # in a transaction that is still open
    commits.commit_unmoved()
    assert len(written.entries) == 1, "its own transaction will write it"


def test_a_hand_off_after_a_lookup_is_clean_only_after_an_acknowledgement() -> None:
    """Nor when another executor has copied further, as found by a look-up at the stop (`ProgressLookUps._align`)."""
    bench = Bench(10, target=100, records=5)
    tp, outbox = bench.cursor.partition, bench.outbox
    copier = Copier(ASSIGNMENT, 0)
    copier._spec = cast(Any, SimpleNamespace(with_sessions=True))
    copier._cursors[tp] = bench.cursor
    positions = {
        "is_entered": lambda _: True,
        "committed": {tp: 10},
        "seen": lambda _: Seen(3),
        "lease": lambda _: Lease(5, 1),
    }
    copier._positions = cast(Any, SimpleNamespace(**positions))
    session = Session(ProducerIdentity(9, 0), Mark(5, 95, 0))
    copier._sessions = cast(Any, SimpleNamespace(current={tp: session}))
    copier._commits = Commits(
        copier._cursors,
        copier._positions,
        cast(Any, object()),
        "ledger",
        cast(Any, SimpleNamespace(topic_ids={})),
        {tp: session},
        None,
        lambda _cursor, _copied: None,
        AwakeCursors(),
    )

    def starts() -> list[tuple[bool, int]]:
        return [(start.clean, start.seen.offset) for _, _, row in copier._starts() for start in [decode(Start, row)]]

    assert starts() == [(True, 3)]
    position = bench.cursor.window.position
    for until, passed_on in ((position, -1), (position + 1, position + 1)):
        bench.cursor.shared_until = until
        entry = decode(Start, copier._starts()[0][2]).entry
        assert entry is not None
        assert entry.shared_until == passed_on, "how far earlier holders may have read (rule S9)"
    assert starts() == [(True, 3)]
    outbox.verified_epoch = 4
    assert starts() == [(False, 3)], "nothing was sent since the look-up, which may have asked a deposed leader"
    outbox.verified_epoch, outbox.paused = None, True
    assert starts() == [(False, 3)]
    copier._link.healthy = False
    assert starts() == [], "the consequences of an internal error are unknown"


@pytest.mark.parametrize(("code", "waits"), [(-1, True), (5, True), (19, True), (29, False), (3, False)])
def test_only_a_deleted_or_permanently_rejecting_ledger_is_abandoned(code: int, waits: bool) -> None:
    outbox = SimpleNamespace(refused=True, last_error=BrokerFailure.of(code), idle=False)
    commits = Commits(
        {},
        cast(Any, SimpleNamespace(without_ledger=lambda: None, flush=lambda: None)),
        cast(Any, SimpleNamespace(outboxes=[outbox])),
        "ledger",
        cast(Any, SimpleNamespace(failure=None)),
        {},
        None,
        lambda _cursor, _copied: None,
        AwakeCursors(),
    )
    commits._ledger_unavailable_s = time.monotonic() - 60
    commits.commit()
    assert commits.has_ledger is waits


def handle_events(cursor: Cursor, removed: list[TopicPartition]) -> None:
    """``removed``: partitions that are no longer read."""
    source = SimpleNamespace(remove=removed.append, consider=lambda _: None)
    events = partition_events({cursor.partition: cursor}, source=source)
    cursor.emit = functools.partial(events.handle, cursor.partition)


@pytest.mark.parametrize(("at_source", "stopped"), [(True, False), (False, True)])
def test_read_batches_are_still_sent_after_an_error_of_the_source_only(at_source: bool, stopped: bool) -> None:
    removed: list[TopicPartition] = []
    bench = Bench()
    handle_events(bench.cursor, removed)
    bench.cursor.fail(PartitionState.LOST_RANGE, "deleted", at_source=at_source)
    assert (bench.outbox.stopped, removed) == (stopped, [bench.cursor.partition])
    bench.cursor.fail(PartitionState.INCONSISTENT, "contradiction")
    assert bench.outbox.stopped


def test_a_micro_batch_that_ends_before_it_is_ready_reports_its_partitions() -> None:
    own = Copier(ASSIGNMENT, 0)
    bench = Bench()
    own._cursors[TP] = bench.cursor
    own._handle(TP, STATE_CHANGED)
    assert [*own._awake.unreported] == [bench.cursor]
    assert progress_of(bench.cursor).state == PartitionState.RUNNING


def test_unsent_batches_of_a_stopped_partition_do_not_keep_others_from_being_read() -> None:
    own = Copier(ASSIGNMENT, 0)
    bench = Bench()
    handle_events(bench.cursor, [])
    own._awake.wake(bench.cursor)
    bench.cursor.window.waiting_bytes = ROOM_BYTES
    assert not own._has_room()
    bench.cursor.fail(PartitionState.INCONSISTENT, "contradiction")
    assert own._has_room()
