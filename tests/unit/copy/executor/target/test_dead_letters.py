"""Dead letters while something else happens to their partition: rules S9 and S10."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.outbox import OutboxState, OutgoingBatch
from mm2.copy.executor.partition.outgoing_records import CopiedRange
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.executor.target.dead_letters import DeadLetters, Quarantine
from mm2.copy.progress.session import UNBOUNDED, Mark, Start
from mm2.copy.progress.target_progress import TargetProgress
from mm2.copy.states import PartitionState
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.structs import ProducerIdentity
from tests.unit.copy.batches import TP, Bench, batch, checked, of_epoch, spoiled
from tests.unit.copy.executor.sessions.test_opening import ENTRY, Scene, play
from tests.unit.copy.test_shared_sequences import rejected, taken_over
from tests.unit.copy.test_skipping import answered

#: The producer of the session that replaces the one of `ENTRY`: its first batch fences requests of that one.
NEXT = ProducerIdentity(7, 2)


class Letters:
    """A dead letter topic: ``written`` are the acknowledgements of its records that have not arrived yet."""

    def __init__(self, then: Callable[[Cursor, Callable[[], None]], None], replace: Callable[[Cursor], None]) -> None:
        self.written: list[Callable[[], None]] = []
        self.outbox = SimpleNamespace(last_error=None)
        sink = SimpleNamespace(
            outbox=lambda *_, **__: self.outbox,
            put=lambda _outbox, outgoing: self.written.append(lambda: outgoing.acked(0)),
            end_pause=lambda outbox: setattr(outbox, "paused", False),
        )
        letters = DeadLetters(cast(Any, sink), "dlq", "A->B")
        source = cast(Any, SimpleNamespace(resume=lambda: None))
        self.quarantine = Quarantine(letters, source, cast(Any, sink), then, replace)


class Recorded(Letters):
    """Records what follows a dead letter: ``marks`` in the ledger, or ``replaced`` sessions."""

    def __init__(self) -> None:
        super().__init__(self._then, lambda cursor: self.replaced.append(cursor.window.mark))
        self.marks: list[Mark] = []
        self.replaced: list[Mark] = []
        self.known: list[Callable[[], None]] = []

    def _then(self, cursor: Cursor, call: Callable[[], None]) -> None:
        self.marks.append(cursor.window.mark)
        self.known.append(call)


class TakenOver(Scene):
    """A holder that has taken over at offset 50 without a clean hand-off. The predecessor may have read up to offset 59, of leader
    epoch 3. What replaces its session is the code that runs, and so is what moves its position."""

    def __init__(self, shared_until: int = 60) -> None:
        super().__init__()
        self.standings = [TargetProgress(50, 150, 4)]
        play(self, lambda: self.begin(Start(50, 40, ENTRY)))
        self.written()
        self.outbox.paused = False
        self.cursor.known_epoch = self.bench.owner.epoch = 3
        self.cursor.shared_until = shared_until
        self.letters = Letters(self._commit, self.new_sessions.replace)
        self.bench.owner.replace_session = self.new_sessions.replace  # type: ignore[method-assign]
        self.bench.owner.corrupt = self.letters.quarantine.corrupt  # type: ignore[method-assign]
        spec: Any = SimpleNamespace(
            with_sessions=True, source_data_loss="continue", auto_offset_reset="earliest", source_alias="A"
        )
        none: Any = None
        self.losses = Losses(
            spec, self.tasks, cast(Any, self), none, self.sessions, self.new_sessions, none, self._commit
        )

    def rejected(self, *batches: bytearray) -> OutgoingBatch:
        """The target rejects the first of these batches, and it is being written to the dead letter topic."""
        self.bench.fetch_each(*batches, end=60)
        for outgoing in self.outbox.queue:
            self.outbox.stamp(outgoing)
        first = self.outbox.queue[0]
        assert first.entry is not None
        self.letters.quarantine.too_large(self.cursor, first.entry, first)
        assert self.cursor.outbox.state is OutboxState.QUARANTINING
        return first

    def acknowledge(self) -> None:
        """The oldest dead letter is acknowledged."""
        play(self, self.letters.written.pop(0))

    def entered(self) -> None:
        """The ledger has all entries that were committed."""
        while self.committed:
            self.committed.pop(0)()

    def move(self, offset: int) -> None:
        """The source log was truncated at this offset."""
        play(self, lambda: self.losses.diverged(self.cursor, 2, offset))

    @property
    def lost(self) -> list[tuple[int, int, str]]:
        """The ranges that were lost since."""
        return [(one.first, one.after, one.reason) for one in self.cursor.lost[len(ENTRY.lost) :]]

    @property
    def producer(self) -> ProducerIdentity:
        """The producer of the current session."""
        return self.sessions.current[TP].producer


def of_3(first: int, count: int) -> bytearray:
    return of_epoch(batch(first, count), 3)


# -- when a dead letter is written ------------------------------------------------------------------------------------------


def test_a_dead_letter_waits_for_a_search_of_the_target() -> None:
    """Otherwise a successor would count the records after it from a mark before it, and take it for one of them."""
    bench = Bench(100, target=200, records=100)
    bench.owner.searches = True  # another producer writes to the remote topic
    letters = Recorded()
    bench.fetch_each(batch(100, 1), batch(101, 1), batch(102, 1))
    before = bench.outbox.send_next()
    rejected = bench.outbox.send_next()
    bench.outbox.sent.popleft()
    bench.outbox.deliver(before, 205)
    assert bench.cursor.window.is_searching
    bench.outbox.sent.popleft()
    bench.outbox.queue.appendleft(rejected)
    entry = next(entry for entry in bench.cursor.window.entries if not entry.done)
    letters.quarantine.too_large(bench.cursor, entry, rejected)
    assert bench.cursor.outbox.state is OutboxState.QUARANTINING
    letters.written.pop()()
    assert (letters.marks, bench.outbox.paused, bench.outbox.state) == ([], True, OutboxState.OPEN)
    bench.cursor.window.gap_searched(205, is_known=True)
    assert (letters.marks, bench.outbox.paused) == ([Mark(102, 206, 101)], True)
    letters.known.pop()()
    assert (bench.outbox.paused, letters.replaced) == (False, [])


@pytest.mark.parametrize("is_doubtful", [False, True])
def test_a_rejected_record_before_one_in_doubt_ends_the_session(is_doubtful: bool) -> None:
    bench = taken_over()
    letters = Recorded()
    first, _ = rejected(bench, doubtful=is_doubtful)
    bench.cursor.shared_until = -1
    letters.quarantine.too_large(bench.cursor, bench.cursor.window.entries[0], first)
    assert bench.cursor.outbox.state is OutboxState.QUARANTINING
    letters.written.pop()()
    assert (letters.replaced, letters.marks) == (([Mark(1, 0, 0)], []) if is_doubtful else ([], [Mark(1, 0, 0)]))
    assert bench.outbox.paused


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_corrupt_batch_that_a_predecessor_may_have_read_intact_ends_the_session(is_shared: bool) -> None:
    bench = taken_over()
    letters = Recorded()
    bench.owner.corrupt = letters.quarantine.corrupt  # type: ignore[method-assign]
    for _ in range(2):
        bench.fetch(of_epoch(batch(0, 1), 3), spoiled(batch(1, 2)), end=2 if is_shared else 1)
    bench.ack(0)
    letters.written.pop()()
    assert (letters.replaced, letters.marks) == (([Mark(3, 1, 1)], []) if is_shared else ([], [Mark(3, 1, 1)]))


# -- the source changes while a dead letter is written ----------------------------------------------------------------------


def test_a_change_of_the_source_meanwhile_ends_the_session_once() -> None:
    """Otherwise it ends twice: the second of the sessions that follow has another producer, which fences nothing, and its position is
    before records that the first one has sent."""
    scene = TakenOver()
    scene.rejected(of_3(50, 1))
    play(scene, lambda: scene.bench.fetch(of_epoch(batch(51, 2), 4), end=60))
    assert scene.cursor.suspended
    scene.acknowledge()
    assert (scene.producer, scene.cursor.window.mark) == (NEXT, Mark(51, 150, 0))
    assert [one.producer for one in scene.sessions.current[TP].after] == [ProducerIdentity(7, 1)]
    assert (scene.asked, len(scene.committed)) == ([], 1), "no other producer is asked for"


def test_the_same_where_the_position_waits_for_a_search_of_the_target() -> None:
    """Rule L7. Another producer has written to the remote topic."""
    scene = TakenOver()
    scene.bench.owner.searches = True
    scene.bench.fetch(of_3(50, 1), end=60)
    before = scene.outbox.send_next()
    scene.rejected(of_3(51, 1))
    scene.outbox.sent.clear()
    scene.outbox.deliver(before, 155)
    assert scene.cursor.window.is_searching
    play(scene, lambda: scene.bench.fetch(of_epoch(batch(52, 2), 4), end=60))
    scene.acknowledge()
    assert (scene.producer, scene.committed) == (ProducerIdentity(7, 1), [])
    play(scene, lambda: scene.cursor.window.gap_searched(155, is_known=True))
    assert (scene.producer, scene.cursor.window.mark) == (NEXT, Mark(52, 156, 0))


def test_what_is_fetched_before_the_next_session_begins_does_not_end_it() -> None:
    """No leader epoch counts as read by the predecessor then, so any batch would show a change of the source."""
    scene = TakenOver()
    scene.rejected(of_3(50, 1))
    acknowledge = scene.letters.written.pop()

    def fetched_at_once() -> None:
        acknowledge()
        scene.bench.fetch(of_3(51, 1), end=60)

    play(scene, fetched_at_once)
    assert (scene.producer, scene.asked, scene.cursor.offset) == (NEXT, [], 51)


def test_a_position_that_moves_does_not_wait_for_an_offset_of_the_previous_log() -> None:
    scene = TakenOver(shared_until=-1)
    scene.rejected(of_3(50, 1))
    scene.move(40)
    scene.acknowledge()
    window = scene.cursor.window
    assert (window.mark, window.next_when_passed, window.next_when_empty) == (Mark(40, 150, 50), None, None)
    scene.entered()
    assert (scene.cursor.suspended, scene.outbox.paused, scene.producer) == (False, False, ProducerIdentity(7, 1))
    assert scene.lost == [(40, 51, "truncated")]


@pytest.mark.parametrize("shared_until", [50, 51])
def test_a_position_that_moves_takes_no_sequence_of_a_predecessor(shared_until: int) -> None:
    """The position has passed what the predecessor may have sent, but the sequence of the rejected record has not been used."""
    scene = TakenOver(shared_until)
    scene.rejected(of_3(50, 1))
    scene.move(50)
    scene.acknowledge()
    assert scene.producer == (NEXT if shared_until > 50 else ProducerIdentity(7, 1))
    assert scene.cursor.window.mark == Mark(50, 150, 0 if shared_until > 50 else 50)


def test_a_position_that_is_about_to_move_stays_where_a_later_record_may_be_in_flight() -> None:
    """What is behind the dead letter is read again in the next session, and the truncation is found again."""
    scene = TakenOver(shared_until=-1)
    scene.rejected(of_3(50, 1), of_3(51, 1), of_3(52, 1))
    scene.outbox.doubt(scene.outbox.queue[1])
    scene.move(52)
    scene.acknowledge()
    assert (scene.producer, scene.cursor.window.mark, scene.cursor.offset) == (NEXT, Mark(51, 150, 0), 51)
    scene.entered()
    assert not scene.cursor.suspended
    scene.bench.fetch_each(of_3(51, 1), of_3(52, 1), end=60)
    scene.move(52)
    scene.bench.ack(150)
    assert scene.lost == [(52, 53, "truncated")], "counted once"


def test_a_record_that_is_in_doubt_itself_keeps_its_sequence() -> None:
    """Its first request was not answered, and is processed later by a leader that accepts records of this size."""
    scene = TakenOver(shared_until=-1)
    scene.outbox.doubt(scene.rejected(of_3(50, 1)))
    scene.acknowledge()
    assert scene.producer == NEXT


# -- two dead letters -------------------------------------------------------------------------------------------------------


def corrupt(scene: TakenOver, first: int) -> None:
    """A batch of two records is corrupt on the source's disk."""
    for _ in range(2):
        scene.bench.fetch(spoiled(of_3(first, 2)), end=60)


def test_a_corrupt_batch_behind_a_rejected_one_is_read_again_where_the_session_ends() -> None:
    scene = TakenOver(shared_until=51)
    scene.rejected(of_3(50, 1))
    corrupt(scene, 51)
    assert len(scene.letters.written) == 2
    scene.acknowledge()
    assert (scene.producer, scene.cursor.window.mark) == (NEXT, Mark(51, 150, 0))
    corrupt(scene, 51)
    scene.acknowledge()
    assert (scene.cursor.window.position, scene.cursor.suspended) == (51, True), "the next one is not written yet"
    scene.acknowledge()
    assert (scene.cursor.window.mark, scene.producer) == (Mark(53, 150, 0), NEXT)
    scene.entered()
    assert not scene.cursor.suspended


def test_acknowledged_at_once_both_end_the_session_once() -> None:
    scene = TakenOver()
    scene.rejected(of_3(50, 1))
    corrupt(scene, 51)

    def both() -> None:
        while scene.letters.written:
            scene.letters.written.pop(0)()

    play(scene, both)
    assert (scene.producer, scene.cursor.window.mark, scene.asked) == (NEXT, Mark(51, 150, 0), [])


def test_the_state_of_the_second_is_shown_when_the_first_is_written() -> None:
    scene = TakenOver(shared_until=-1)
    scene.rejected(of_3(50, 1))
    corrupt(scene, 51)
    scene.acknowledge()
    scene.letters.outbox.last_error = BrokerFailure.of(ErrorCode.MESSAGE_TOO_LARGE)
    condition = scene.cursor.current_condition()
    assert condition is not None
    assert condition.state == PartitionState.TOO_LARGE
    scene.acknowledge()
    assert scene.cursor.current_condition() is None


def test_a_dead_letter_that_is_written_after_the_partition_has_begun_elsewhere_changes_nothing() -> None:
    """The target was truncated meanwhile. What is about to happen to the position must not be forgotten."""
    scene = TakenOver(shared_until=-1)
    corrupt(scene, 50)
    scene.cursor.begin(Mark(40, 140, 40))
    scene.bench.fetch(of_3(40, 1), end=60)
    scene.move(30)
    waiting = scene.cursor.window.next_when_empty
    assert waiting is not None
    scene.acknowledge()
    assert (scene.cursor.window.next_when_empty, scene.cursor.suspended, scene.committed) == (waiting, True, [])


def test_a_dead_letter_that_is_written_after_the_stop_leaves_its_record_to_the_successor() -> None:
    scene = TakenOver(shared_until=-1)
    scene.rejected(of_3(50, 1))
    scene.outbox.queue.clear()
    scene.acknowledge()
    assert (scene.cursor.window.mark, scene.committed) == (Mark(50, 150, 50), [])
    assert (scene.outbox.state, scene.outbox.paused) == (OutboxState.OPEN, True)


def test_a_partition_that_has_stopped_is_not_read_in_the_next_session() -> None:
    """It would be read from where it has stopped, as often as the source responds."""
    scene = TakenOver()
    scene.rejected(of_3(50, 1))
    scene.reading.clear()
    scene.cursor.fail(PartitionState.RECREATED, "", at_source=True)
    scene.acknowledge()
    assert (scene.producer, scene.reading) == (NEXT, [])


# -- content ----------------------------------------------------------------------------------------------------------------


def test_a_record_that_is_too_large_and_malformed_is_written_as_a_batch() -> None:
    """It cannot be decoded, so its key and value are not known."""
    scene = TakenOver(shared_until=-1)
    data = of_3(50, 1)
    data[61] = 0x7E  # the length of the record
    scene.rejected(checked(data))
    scene.acknowledge()
    assert (scene.cursor.window.mark, scene.bench.gaps["quarantined"]) == (Mark(51, 150, 50), 1)


# -- what a predecessor has read intact -------------------------------------------------------------------------------------


def test_the_position_does_not_pass_a_batch_of_which_a_predecessor_may_have_copied_records() -> None:
    """While records are compared by content, their number is known when the next one is found. A successor that counts would
    take as many new records for those of the batch."""
    bench = Bench(0, target=0, skip=2)
    letters = Recorded()
    bench.owner.corrupt = letters.quarantine.corrupt  # type: ignore[method-assign]
    for _ in range(2):
        bench.fetch(spoiled(batch(0, 2)))
    answered(bench, [0, 1])
    bench.fetch(spoiled(batch(0, 2)))
    letters.written.pop()()
    assert (letters.marks, bench.cursor.window.mark) == ([Mark(0, 0, 0)], Mark(0, 0, 0))
    bench.cursor.suspended = False
    bench.fetch(batch(2, 2))
    assert (bench.cursor.window.mark, bench.offsets()) == (Mark(2, -1, 2), [2, 3])
    assert bench.gaps == {"quarantined": 2}


def test_a_session_does_not_end_before_the_records_that_a_predecessor_has_copied() -> None:
    """The first batch of the next session would find the others on the target, and the session would continue, and so forth."""
    scene = Scene()
    scene.standings = [TargetProgress(54, 154, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    scene.written()
    cursor, bench = scene.cursor, scene.bench
    cursor.shared_until = UNBOUNDED
    letters = Letters(scene._commit, scene.new_sessions.replace)
    bench.owner.corrupt = letters.quarantine.corrupt  # type: ignore[method-assign]
    for _ in range(2):
        bench.fetch(spoiled(batch(50, 2)), end=60)
    answered(bench, [50, 51, 52, 53])
    bench.fetch(spoiled(batch(50, 2)), end=60)
    play(scene, letters.written.pop())
    assert (scene.sessions.current[TP].producer, cursor.predecessor.remaining) == (ProducerIdentity(7, 1), 4)
    scene.written()
    bench.fetch(of_epoch(batch(52, 2), 0), end=60)
    assert (cursor.window.mark, bench.gaps["quarantined"]) == (Mark(54, -1, 54), 2)


def copied_before(bench: Bench, there: CopiedRange) -> None:
    bench.cursor.outgoing.copied = there


def test_a_corrupt_batch_at_the_end_of_what_a_predecessor_has_copied_counts() -> None:
    """Offsets are preserved. Otherwise the entries that follow would name fewer records than the session has on the target."""
    bench = Bench(0, target=0)
    letters = Recorded()
    bench.owner.corrupt = letters.quarantine.corrupt  # type: ignore[method-assign]
    copied_before(bench, CopiedRange(4, 4))
    for _ in range(2):
        bench.fetch(batch(0, 2), spoiled(batch(2, 2)))
    letters.written.pop()()
    assert bench.cursor.outgoing.copied is None
    assert (bench.cursor.window.mark.records, letters.marks[0].source) == (4, 4)
